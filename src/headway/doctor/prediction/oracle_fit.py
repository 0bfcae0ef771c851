"""Bringing an oracle's prices in line with what was observed, and checking that the simulation then reproduces it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.accuracy.step_recording import Recording, record
from headway.doctor.diagnosis import ModelCheck
from headway.doctor.prediction.deployment_fit import FittedDeployment
from headway.doctor.prediction.model_check import Checked, Observed, Prices, check_model
from headway.doctor.prediction.windowed import simulate_window
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
    """A deployment, its prices, the main workload, and the simulation of the two together, checked."""

    deployment: FittedDeployment
    workload: FittedWorkload
    prices: Prices
    summary: Summary
    checked: Checked

    @property
    def check(self) -> ModelCheck:
        """How well it reproduces what was observed."""
        return self.checked.check

    def simulate(self, deployment: FittedDeployment | None = None, workload: FittedWorkload | None = None) -> Summary:
        """The summary of this model with another deployment or workload."""
        priced = (deployment or self.deployment).priced_by(self.prices.scale, self.prices.step_s)
        chosen = workload or self.workload
        return simulate_window(priced, chosen.workload(), chosen.window)


def fit_model(deployment: FittedDeployment, observed: Sequence[Observed]) -> FittedModel:
    """Fit two numbers to all loads and check them on the first, which is the main one.

    A factor on device time and a time added to each step are the most likely ones, given their priors: with one load
    only, which cannot tell the two apart, an error of less than some ten percent is mostly put down to kernels and a
    larger one to the host. In an open loop the schedule follows the prices, so that it is recorded twice.
    """
    prices, summary = _fitted_prices(deployment, observed)
    main = observed[0]
    if main.workload.is_estimated:
        main, summary = _matched_queue(deployment, main, prices, summary)
    checked = check_model(main, prices, summary, deployment.oracle_error)
    return FittedModel(deployment, main.workload, prices, summary, checked)


def _fitted_prices(deployment: FittedDeployment, observed: Sequence[Observed]) -> tuple[Prices, Summary]:
    """The prices, and the simulation of the first load at them."""
    main = observed[0]
    prices = Prices()
    rounds = 1 if all(item.workload.is_closed for item in observed) else 2
    fitted = [item for item in observed if any(key in _FITTED for key in item.figures)]
    for _ in range(rounds if fitted else 0):
        priced = deployment.priced_by(prices.scale, prices.step_s)
        recordings = [record(priced, item.workload.workload())[0] for item in fitted]
        prices = _most_likely(deployment, recordings, fitted)
    priced = deployment.priced_by(prices.scale, prices.step_s)
    return prices, simulate_window(priced, main.workload.workload(), main.workload.window)


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
    priced = deployment.priced_by(prices.scale, prices.step_s)
    low, high = (1.0 - _RATE_RANGE, 1.0) if best > 0 else (1.0, 1.0 + _RATE_RANGE)
    matched = main
    for _ in range(_NUM_RATES):
        middle = (low + high) / 2
        workload = main.workload.at_rate(middle)
        found = simulate_window(priced, workload.workload(), workload.window)
        now = miss(found)
        low, high = (low, middle) if now > 0 else (middle, high)
        if abs(now) < abs(best):
            best, summary, matched = now, found, replace(main, workload=workload)
        if abs(best) < _QUEUE_MATCHED:
            break
    return matched, summary


@dataclass(frozen=True, slots=True)
class _Step:
    """A kind of step: its price before the fit, and its weights in each mean (see `RecordedStep`)."""

    device_s: float
    host_s: float
    count: float
    tpot_weight: float


class _Priced:
    """A recording whose prices are looked up once: another scale and host time then cost microseconds."""

    def __init__(self, deployment: FittedDeployment, recording: Recording) -> None:
        oracle, speculation = deployment.deployment.oracle, deployment.deployment.speculation
        self._drafts = 1.0
        if speculation is not None:
            self._drafts += speculation.num_speculative_tokens * speculation.draft_cost
        self._steps = []
        for step in recording.steps:
            time = oracle.step_time(step.shape)
            self._steps.append(_Step(time.device_s, time.host_s, step.num_steps, step.tpot_weight))
        self._recording = recording

    def means(self, scale: float, step_s: float) -> dict[str, float]:
        """Mean TPOT, by each of its names, and throughput at these prices."""
        recording, factor = self._recording, self._drafts
        tpot_s = 0.0
        duration_s = recording.idle_s
        for step in self._steps:
            device_s = max(0.0, step.device_s * scale + step_s) * factor
            seconds = max(device_s, step.host_s) if recording.is_async else device_s + step.host_s
            tpot_s += seconds * step.tpot_weight
            duration_s += seconds * step.count
        tpot_ms = tpot_s / max(1, recording.num_decoding) * 1e3
        return {
            "mean_tpot_ms": tpot_ms,
            "median_tpot_ms": tpot_ms,
            "mean_itl_ms": tpot_ms,
            "output_throughput": recording.num_output_tokens / duration_s,
        }


def _most_likely(deployment: FittedDeployment, recordings: Sequence[Recording], observed: Sequence[Observed]) -> Prices:
    """Scale and host time by damped Gauss-Newton steps on logarithms of ratios, with both priors as residuals."""
    runs = [_Priced(deployment, recording) for recording in recordings]
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
