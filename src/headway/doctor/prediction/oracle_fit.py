"""Bringing an oracle's prices in line with what was observed, and checking that the simulation then reproduces it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from headway.accuracy.step_recording import Recording
from headway.doctor.diagnosis import ModelCheck
from headway.doctor.prediction.deployment_fit import FittedDeployment
from headway.doctor.prediction.grain import steps_of
from headway.doctor.prediction.model_check import Checked, Observed, Prices, check_model
from headway.doctor.prediction.running import record_fitted, simulate_fitted, within_bounds
from headway.doctor.prediction.workload_fit import FittedWorkload
from headway.report.summary import Summary

_FITTED: Mapping[str, float] = {
    "mean_tpot_ms": 0.03,
    "median_tpot_ms": 0.06,
    "mean_itl_ms": 0.05,
    "output_throughput": 0.05,
}
"""Figures that are fitted, with the relative error at which each costs as much as a prior at its own spread."""
_SCALE_SPREAD = 0.15
_HOST_SPREAD_S, _NEGATIVE_HOST_SPREAD_S = 3e-3, 0.5e-3
"""Priors: kernels are off by 15 % (the roofline's own error), and a step takes some ms more on a slow host, sometimes
many: beyond the spread the cost of host time grows with its logarithm only."""
_SCALE_RANGE, _HOST_RANGE_S = (math.log(0.2), math.log(5.0)), (-2e-3, 0.5)
_NUM_TURNS = 12
_QUEUE_KEYS: Mapping[str, float] = {"mean_ttft_ms": 100.0, "median_ttft_ms": 100.0, "mean_num_waiting": 1.0}
"""Figures of the queue, with what is added to both sides so that a queue of next to nothing matches another one."""
_QUEUE_MATCHED, _RATE_RANGE, _NUM_RATES = math.log(1.25), 0.1, 3


@dataclass(frozen=True, slots=True)
class FittedModel:
    """A deployment, its prices, the main workload, and the simulation of the two together, checked.

    `work` is that of one simulation, see `Meter`. `other` is the model under another reading of the load, where the
    evidence does not tell which is true.
    """

    deployment: FittedDeployment
    workload: FittedWorkload
    prices: Prices
    summary: Summary
    checked: Checked
    work: float
    other: FittedModel | None = None

    @property
    def check(self) -> ModelCheck:
        """How well it reproduces what was observed."""
        return self.checked.check

    def simulate(self, deployment: FittedDeployment | None = None, workload: FittedWorkload | None = None) -> Summary:
        """The summary of this model with another deployment or workload."""
        return self.run(deployment, workload, math.inf)[0]

    def run(
        self,
        deployment: FittedDeployment | None,
        workload: FittedWorkload | None,
        most_work: float,
        *,
        slower: float = 1.0,
    ) -> tuple[Summary, float]:
        """The same, and the work that it was; with steps that take `slower` times as long.

        Raises:
            TooMuchWorkError: it would be more than that.
        """
        prices = self.prices
        priced = (deployment or self.deployment).priced_by(slower * prices.scale, slower * prices.step_s)
        return simulate_fitted(priced, workload or self.workload, most_work)


def fit_model(deployment: FittedDeployment, observed: Sequence[Observed]) -> FittedModel:
    """Fit two numbers to all loads and check them on the first, which is the main one.

    A factor on device time and a time added to each step are the most likely ones, given their priors: with one load
    only, which cannot tell the two apart, an error of less than some ten percent is mostly put down to kernels and a
    larger one to the host. In an open loop the schedule follows the prices, so that it is recorded twice.

    Raises:
        NotSimulatedError: the load is too much work to simulate.
    """
    prices, main = _fitted_prices(deployment, observed)
    main, summary, work = _simulated(deployment, prices, main)
    if main.workload.is_estimated:
        main, summary = _matched_queue(deployment, main, prices, summary)
    checked = check_model(main, prices, summary, deployment.oracle_error)
    return FittedModel(deployment, main.workload, prices, summary, checked, work)


def _fitted_prices(deployment: FittedDeployment, observed: Sequence[Observed]) -> tuple[Prices, Observed]:
    """The prices, and the first load with its workload made as cheap as it must be."""
    items = list(observed)
    fitted = [index for index, item in enumerate(items) if any(key in _FITTED for key in item.figures)]
    prices = Prices()
    rounds = 2 if any(item.workload.follows_the_clock for item in observed) else 1
    for _ in range(rounds if fitted else 0):
        priced = deployment.priced_by(prices.scale, prices.step_s)
        runs = []
        for index in fitted:
            recording, workload = within_bounds(partial(record_fitted, priced), items[index].workload)
            items[index] = replace(items[index], workload=workload)
            runs.append(_Priced(deployment, recording, workload.grain))
        prices = _most_likely(deployment, runs, [items[index] for index in fitted])
    return prices, items[0]


def _simulated(deployment: FittedDeployment, prices: Prices, main: Observed) -> tuple[Observed, Summary, float]:
    """The simulation of a load at these prices, the load with its workload as cheap as it must be, and the work."""
    priced = deployment.priced_by(prices.scale, prices.step_s)
    (summary, work), workload = within_bounds(partial(simulate_fitted, priced), main.workload)
    return replace(main, workload=workload), summary, work


def _matched_queue(
    deployment: FittedDeployment, main: Observed, prices: Prices, summary: Summary
) -> tuple[Observed, Summary]:
    """The workload at the rate, within 10 % of the one derived, at which the queue is as long as observed.

    Near saturation the queue follows the rate so closely that no counter tells the rate well enough.
    """
    key = next((key for key in _QUEUE_KEYS if main.figures.get(key)), None)
    if key is None:
        return main, summary

    def miss(found: Summary) -> float:
        return math.log((float(found.get(key) or 0.0) + _QUEUE_KEYS[key]) / (main.figures[key] + _QUEUE_KEYS[key]))

    best = miss(summary)
    if abs(best) < _QUEUE_MATCHED:
        return main, summary
    low, high = (1.0 - _RATE_RANGE, 1.0) if best > 0 else (1.0, 1.0 + _RATE_RANGE)
    matched = main
    for _ in range(_NUM_RATES):
        middle = (low + high) / 2
        tried, found, _ = _simulated(deployment, prices, replace(main, workload=main.workload.at_rate(middle)))
        now = miss(found)
        low, high = (low, middle) if now > 0 else (middle, high)
        if abs(now) < abs(best):
            best, summary, matched = now, found, tried
        if abs(best) < _QUEUE_MATCHED:
            break
    return matched, summary


@dataclass(frozen=True, slots=True)
class _Step:
    """A kind of step: its price before the fit, and its weights in each mean (see `RecordedStep`).

    `drafts` is what a drafter's passes make of the device's time: a factor. `drafts_s` is the fixed time that they take
    besides, whatever the prices.
    """

    drafts: float
    drafts_s: float
    device_s: float
    host_s: float
    count: float
    tpot_weight: float


class _Priced:
    """A recording whose prices are looked up once: another scale and host time then cost microseconds."""

    def __init__(self, deployment: FittedDeployment, recording: Recording, grain: int) -> None:
        oracle, speculation = deployment.deployment.oracle, deployment.deployment.speculation
        budget = deployment.deployment.config.scheduler.max_num_batched_tokens
        self._steps = []
        for step in recording.steps:
            for count, shape in steps_of(step.shape, grain, budget):
                time = oracle.step_time(shape)
                drafts, drafts_s = 1.0, 0.0
                if speculation is not None and time.device_s:
                    share_s = replace(speculation, draft_s=0.0).drafting_s(oracle, shape, time.device_s)
                    drafts += share_s / time.device_s
                    drafts_s = speculation.drafting_s(oracle, shape, time.device_s) - share_s
                weight = count * step.tpot_weight / grain
                self._steps.append(_Step(drafts, drafts_s, time.device_s, time.host_s, count * step.num_steps, weight))
        self._recording = recording
        self._num_output_tokens = grain * recording.num_output_tokens

    def means(self, scale: float, step_s: float) -> dict[str, float]:
        """Mean TPOT, by each of its names, and throughput at these prices."""
        recording = self._recording
        tpot_s = 0.0
        duration_s = recording.idle_s
        for step in self._steps:
            device_s = max(0.0, step.device_s * scale + step_s) * step.drafts + step.drafts_s
            seconds = max(device_s, step.host_s) if recording.is_async else device_s + step.host_s
            tpot_s += seconds * step.tpot_weight
            duration_s += seconds * step.count
        tpot_ms = tpot_s / max(1, recording.num_decoding) * 1e3
        return {
            "mean_tpot_ms": tpot_ms,
            "median_tpot_ms": tpot_ms,
            "mean_itl_ms": tpot_ms,
            "output_throughput": self._num_output_tokens / duration_s,
        }


def _most_likely(deployment: FittedDeployment, runs: Sequence[_Priced], observed: Sequence[Observed]) -> Prices:
    """Scale and host time by damped Gauss-Newton steps on logarithms of ratios, with both priors as residuals."""
    speculates = deployment.deployment.speculation is not None
    keys = [_fitted_keys(item, speculates) for item in observed]

    def residuals(log_scale: float, step_s: float) -> list[float]:
        spread_s = _HOST_SPREAD_S if step_s >= 0 else _NEGATIVE_HOST_SPREAD_S
        found = [log_scale / _SCALE_SPREAD, math.asinh(step_s / spread_s)]
        for run, item, names in zip(runs, observed, keys, strict=True):
            means = run.means(math.exp(log_scale), step_s)
            found += [math.log(means[name] / item.figures[name]) / _FITTED[name] for name in names if means[name] > 0]
        return found

    at = (0.0, 0.0)
    now = residuals(*at)
    for _ in range(_NUM_TURNS):
        columns = [
            [(b - a) / size for a, b in zip(now, residuals(at[0] + move[0], at[1] + move[1]), strict=True)]
            for size, move in ((1e-3, (1e-3, 0.0)), (1e-5, (0.0, 1e-5)))
        ]
        step = _solve(columns[0], columns[1], now)
        for share in (1.0, 0.5, 0.25, 0.1):
            trial = _bounded(at[0] + share * step[0], at[1] + share * step[1])
            there = residuals(*trial)
            if _square(there) < _square(now):
                at, now = trial, there
                break
        else:
            break
    return Prices(math.exp(at[0]), at[1])


def _fitted_keys(item: Observed, speculates: bool) -> list[str]:
    """The figures of a load that are fitted: one of TPOT and ITL, and throughput unless arrivals alone decide it."""
    names = [name for name in ("mean_tpot_ms", "median_tpot_ms", "mean_itl_ms") if item.figures.get(name)][:1]
    if speculates and names == ["mean_itl_ms"]:
        names = []
    if item.figures.get("output_throughput") and (not names or not item.workload.is_estimated):
        names.append("output_throughput")
    return names


def _solve(first: Sequence[float], second: Sequence[float], residuals: Sequence[float]) -> tuple[float, float]:
    """The least-squares step of two unknowns."""
    a, b = sum(x * x for x in first), sum(x * y for x, y in zip(first, second, strict=True))
    d = sum(y * y for y in second)
    p = -sum(x * r for x, r in zip(first, residuals, strict=True))
    q = -sum(y * r for y, r in zip(second, residuals, strict=True))
    size = a * d - b * b
    return ((p * d - q * b) / size, (a * q - b * p) / size) if size else (0.0, 0.0)


def _bounded(log_scale: float, step_s: float) -> tuple[float, float]:
    return (
        min(_SCALE_RANGE[1], max(_SCALE_RANGE[0], log_scale)),
        min(_HOST_RANGE_S[1], max(_HOST_RANGE_S[0], step_s)),
    )


def _square(values: Sequence[float]) -> float:
    return sum(value * value for value in values)
