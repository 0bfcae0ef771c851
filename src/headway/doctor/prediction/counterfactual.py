"""Each candidate fix, simulated before it is advised: what it would change, how sure that is, and what gets worse."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.doctor.diagnosis import Fix, ModelCheck, Predicted
from headway.doctor.evidence import Evidence, Objective
from headway.doctor.figures import Figures, figures_of, main_load
from headway.doctor.observed import load_figures, observed_figures
from headway.doctor.prediction.arrivals_fit import held_population
from headway.doctor.prediction.deployment_fit import FittedDeployment, NotSimulatedError, fit_deployment
from headway.doctor.prediction.gauges import gauges_of
from headway.doctor.prediction.model_check import Observed
from headway.doctor.prediction.oracle_fit import FittedModel, fit_model
from headway.doctor.prediction.ranking import Simulated, rank
from headway.doctor.prediction.running import MOST_WORK_OF_A_FIX, TooMuchWorkError
from headway.doctor.prediction.uncertainty import errors, replicate
from headway.doctor.prediction.workload_fit import FittedWorkload, fit_workload
from headway.errors import HeadwayError
from headway.evidence.load import LoadResult
from headway.report.summary import Summary

MOST_SIMULATED = 12
_MOST_WORK = 3.8e6
"""Work (see `Meter`) of all fixes' simulations together: some seconds. Two are simulated even where each takes more."""
_LEAST_SIMULATED, _MOST_WORK_FOR_TWO = 2, 2 * _MOST_WORK
_MOST_LOADS = 3
METRICS = (
    "output_throughput", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "median_itl_ms", "p99_itl_ms",
    "mean_kv_usage", "num_preemptions", "mean_num_running", "mean_num_waiting",
)  # fmt: skip
"""What is predicted, by summary key."""
_ADDITIVE = ("output_throughput", "request_throughput", "num_preemptions", "mean_num_running", "mean_num_waiting")
_NOT_SIMULATED: Mapping[str, str] = {
    "client": "The client is not part of the simulation.",
    "max_loras": "LoRA adapters are not part of the simulation.",
    "scheduling_policy": "Priorities of requests are not in the evidence.",
}


@dataclass(frozen=True, slots=True)
class _Changed:
    """A deployment or a workload after a fix; `replicas` share the workload, and one of them is simulated."""

    deployment: FittedDeployment
    workload: FittedWorkload
    replicas: int = 1


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A fix with the deployment after it, simulated."""

    fix: Fix
    changed: _Changed
    summary: Summary


def predict(evidence: Evidence, fixes: Sequence[Fix]) -> tuple[ModelCheck | None, list[Fix]]:
    """Simulate the deployment as it is and with each fix, and rank the fixes.

    The first `MOST_SIMULATED` fixes that can be simulated are. Both sides of a prediction are simulated, so that they
    share the model's error. The order is: what reaches the objective, smallest change first; what helps, most first;
    what could not be simulated, where it stood; what does not help.

    Returns:
        How well the fitted model reproduces the evidence, and the fixes. If the model is not accepted no fix is
        predicted, and each says why.
    """
    figures = figures_of(evidence)
    try:
        model = fit(evidence, figures)
    except NotSimulatedError as reason:
        check = ModelCheck({}, {}, None, False, f"Nothing is predicted. {reason}")
        return check, [_noted(fix, str(reason)) for fix in fixes]
    if not model.check.accepted:
        return model.check, [_noted(fix, "Not predicted: the model does not reproduce the evidence.") for fix in fixes]
    return model.check, predict_with(model, fixes, evidence.objective)


def predict_with(model: FittedModel, fixes: Sequence[Fix], objective: Objective) -> list[Fix]:
    """Simulate and rank fixes with a model that is fitted already; see `predict`."""
    tried: list[_Outcome | Fix] = []
    work = 0.0
    for fix in fixes:
        count = sum(isinstance(item, _Outcome) for item in tried)
        most_work = _MOST_WORK if count >= _LEAST_SIMULATED else _MOST_WORK_FOR_TWO
        if count >= MOST_SIMULATED or work >= most_work:
            tried.append(_noted(fix, "Not simulated: those before it took the time that there is."))
            continue
        item, more = _simulated(model, fix)
        tried.append(item)
        work += more
    done: list[Simulated | Fix] = []
    for outcome in tried:
        if isinstance(outcome, Fix):
            done.append(outcome)
            continue
        simulated, more = _with_bounds(model, outcome, _MOST_WORK - work)
        done.append(simulated)
        work += more
    return rank(done, model.summary, objective, _shown(model))


def fit(evidence: Evidence, figures: Figures) -> FittedModel:
    """The deployment, workload and prices that the evidence shows.

    Raises:
        NotSimulatedError: something that a simulation needs is not told; the message says what.
    """
    try:
        deployment = fit_deployment(evidence, figures)
        model = _fit_loads(evidence, figures, deployment, holds_population=None)
        if model.workload.is_ambiguous:
            return _with_other(model, evidence, figures, deployment)
        is_missed = not model.check.accepted or "ttft_ms" in model.checked.withheld
        if is_missed and model.workload.is_estimated and held_population(figures) is not None:
            other = _fit_loads(evidence, figures, deployment, holds_population=True)
            if (other.check.residual or 1.0) < (model.check.residual or 1.0):
                return other
        return model
    except HeadwayError as error:
        raise NotSimulatedError(f"The deployment cannot be simulated: {error.message}") from None


def _with_other(model: FittedModel, evidence: Evidence, figures: Figures, deployment: FittedDeployment) -> FittedModel:
    """The model together with the one that reads the load the other way; that one first if only it fits.

    Which of them fits does not settle it: a queue may be left from before it was watched. Where there is no other, the
    first one's TTFT is not predicted.
    """
    try:
        other = _fit_loads(evidence, figures, deployment, holds_population=not model.workload.is_closed)
    except HeadwayError:
        return _withholding_ttft(model)
    ours, theirs = (item.check.accepted and "ttft_ms" not in item.checked.withheld for item in (model, other))
    if theirs and not ours:
        model, other = other, model
    return replace(_noted_model(model, "Error bars reach to what the other reading gives."), other=other)


def _withholding_ttft(model: FittedModel) -> FittedModel:
    reason = "TTFT is not predicted: it is not told whether clients keep the queue"
    withheld = {**model.checked.withheld, "ttft_ms": reason}
    return _noted_model(replace(model, checked=replace(model.checked, withheld=withheld)), f"{reason}.")


def _noted_model(model: FittedModel, text: str) -> FittedModel:
    check = replace(model.check, note=f"{model.check.note} {text}")
    return replace(model, checked=replace(model.checked, check=check))


def _fit_loads(
    evidence: Evidence, figures: Figures, deployment: FittedDeployment, *, holds_population: bool | None
) -> FittedModel:
    gauges, loads = gauges_of(figures), _loads(evidence)
    main = fit_workload(figures, loads[0] if loads else None, gauges, deployment, holds_population=holds_population)
    observed = [Observed(main, observed_figures(figures, gauges, main))]
    for load in loads[1:]:
        observed.append(Observed(fit_workload(figures, load, gauges, deployment), load_figures(load)))
    return fit_model(deployment, observed)


def _loads(evidence: Evidence) -> list[LoadResult]:
    """The main load first, then some others under the same settings: they tell kernels from host."""
    main = main_load(evidence)
    if main is None:
        return []
    others = [load for load in evidence.loads if load is not main and load.settings == main.settings]
    others = [load for load in others if load.measured and evidence.trace is None]
    others.sort(key=lambda load: load.concurrency or load.requests_per_s or 0.0)
    return [main, *others[: _MOST_LOADS - 1]]


def _noted(fix: Fix, reason: str) -> Fix:
    return replace(fix, note=f"{fix.note} {reason}".strip())


# ------------------------------------------------------------------ one fix


def _simulated(model: FittedModel, fix: Fix) -> tuple[_Outcome | Fix, float]:
    """What a fix does, or the fix with why that is not known; and the work of finding out."""
    most_work = max(MOST_WORK_OF_A_FIX, 2 * model.work)
    try:
        changed = _change(model, fix)
        summary, work = model.run(changed.deployment, changed.workload, most_work)
    except TooMuchWorkError:
        return _noted(fix, "Not simulated: that takes several times as long as all else."), most_work
    except NotSimulatedError as reason:
        return _noted(fix, f"Not simulated: {reason}"), 0.0
    except HeadwayError as error:
        return _noted(fix, f"Not simulated: {error.message}"), 0.0
    return _Outcome(fix, changed, summary), work


def _with_bounds(model: FittedModel, outcome: _Outcome, most_work: float) -> tuple[Simulated, float]:
    """The fix with what is predicted of it, and the work of a second simulation, if it is within that bound."""
    fix, changed = outcome.fix, outcome.changed
    replica = replicate(model, fix.setting, changed.deployment, changed.workload, most_work)
    error = errors(model, fix.setting, outcome.summary, replica.summary, changed.workload)
    summary = _times(outcome.summary, changed.replicas)
    other, more = _under_other(model, fix)
    predicted = tuple(
        Predicted(key, before, after, *_bounds(after, error.get(key), _number(other, key)))
        for key in _shown(model)
        if (before := _number(model.summary, key)) is not None and (after := _number(summary, key)) is not None
    )
    note = fix.note
    skipped = int(summary.get("num_skipped") or 0) - int(model.summary.get("num_skipped") or 0)
    if skipped > 0:
        note = f"{note} {skipped} of {len(changed.workload.requests)} requests would be refused as too long.".strip()
    return Simulated(replace(fix, predicted=predicted, note=note), summary), replica.work + more


def _under_other(model: FittedModel, fix: Fix) -> tuple[Summary, float]:
    """What the fix does under the model's other reading of the load, where it has one; and the work of that."""
    if model.other is None:
        return {}, 0.0
    outcome, work = _simulated(model.other, fix)
    if isinstance(outcome, Fix):
        return {}, work
    return _times(outcome.summary, outcome.changed.replicas), work


def _change(model: FittedModel, fix: Fix) -> _Changed:
    """What a fix makes of the deployment or the workload."""
    setting, value = fix.setting, fix.to_value
    workload, deployment = model.workload, model.deployment
    if setting in _NOT_SIMULATED:
        raise NotSimulatedError(_NOT_SIMULATED[setting])
    if setting == "replicas":
        count = round(_positive(value) / _positive(fix.from_value or 1))
        if count < 2:
            raise NotSimulatedError(f"{value} replicas instead of {fix.from_value} are no addition.")
        return _Changed(deployment, workload.shared_by(count), count)
    if setting == "tensor_parallel_size" and (count := _freed_replicas(fix)) > 1:
        return _Changed(deployment.changed({setting: value}), workload.shared_by(count), count)
    if setting == "request_rate":
        return _Changed(deployment, workload.at_rate(_positive(value) / _positive(fix.from_value)))
    if setting in ("max_concurrency", "concurrency"):
        if not workload.is_closed:
            raise NotSimulatedError("An open loop has no number of clients.")
        return _Changed(deployment, replace(workload, concurrency=max(1, round(_positive(value)))))
    if setting in ("max_tokens", "max_completion_tokens"):
        return _Changed(deployment, workload.capped(max(1, round(_positive(value)))))
    if setting == "enable_prefix_caching" and value and not any(item.block_keys for item in workload.requests):
        raise NotSimulatedError("How much of the prompts is shared is not in the evidence.")
    return _Changed(deployment.changed({setting: value}), workload)


def _freed_replicas(fix: Fix) -> int:
    """Replicas that the same GPUs carry if fewer of them split a layer; 1 where they do not divide, or are more."""
    old, new = fix.from_value, fix.to_value
    if not isinstance(old, int) or not isinstance(new, int) or new < 1 or old % new:
        return 1
    return old // new


def _positive(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise NotSimulatedError(f"{json.dumps(value, default=str)} is not a number.") from None
    if not number > 0:
        raise NotSimulatedError(f"{value} is not above 0.")
    return number


def _times(summary: Summary, replicas: int) -> Summary:
    """Counts and rates of all replicas, from those of one."""
    if replicas == 1:
        return summary
    return summary | {key: value * replicas for key in _ADDITIVE if (value := summary.get(key)) is not None}


def _shown(model: FittedModel) -> tuple[str, ...]:
    return tuple(key for key in METRICS if not any(key.endswith(ending) for ending in model.checked.withheld))


def _number(summary: Summary, key: str) -> float | None:
    value = summary.get(key)
    return None if value is None else float(value)


def _bounds(value: float, error: float | None, other: float | None) -> tuple[float | None, float | None]:
    """The error is a logarithm of a ratio; it holds about the value and about what else it may be."""
    if error is None:
        return None, None
    values = (value,) if other is None else (value, other)
    return min(values) * math.exp(-error), max(values) * math.exp(error)
