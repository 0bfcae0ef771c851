"""Fitting host time, kernel scale and block count of one deployment to what was measured on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from headway.accuracy.minimum import lowest, lowest_of_two
from headway.accuracy.observations import for_calibration, workload_of
from headway.accuracy.step_recording import Recording, record
from headway.evidence.load import LoadResult
from headway.executors.simulated.calibrated import CalibratedOracle
from headway.executors.simulated.oracle import LatencyOracle
from headway.simulation.profile_file import Profile
from headway.simulation.run import SimulatedDeployment

_WEIGHTS: Mapping[str, float] = {"mean_tpot_ms": 1.0, "output_throughput": 0.5, "mean_ttft_ms": 0.1}
"""TTFT near saturation amplifies any error of a step: it has little to say about the step itself."""
_JUDGED = ("mean_tpot_ms", "output_throughput")
_SCALE_RANGE = (math.log(0.2), math.log(5.0))
_STEP_RANGE_S = (-5e-3, 3e-2)
_COLLINEAR = 0.1
"""Sine of the angle between what scale and host time do to the measurements, below which they are not told apart."""
_NUM_TURNS = 40


@dataclass(frozen=True, slots=True)
class Fit:
    """One observation before and after the fit, by summary key."""

    source: str
    measured: Mapping[str, float]
    before: Mapping[str, float]
    after: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Calibration:
    """A profile and what it does to each observation."""

    profile: Profile
    fits: tuple[Fit, ...]


def calibrate(
    deployment: SimulatedDeployment,
    observations: Sequence[LoadResult],
    *,
    latency: str,
    num_gpu_blocks: int | None = None,
    facts: Mapping[str, object] | None = None,
) -> Calibration:
    """Fit a profile.

    Two numbers are fitted to the observations, and only one where they cannot be told apart: a host time of each step,
    and a factor on the device's time. Schedules are recorded twice, since in open loops they follow the prices.

    Raises:
        WorkloadError: an observed request could never run on the deployment as described.
        InputError: an observation without lengths, or without a figure that can be compared.
    """
    observations = [for_calibration(load) for load in observations]
    not_identified: dict[str, str] = {}
    if num_gpu_blocks is None:
        not_identified["num_gpu_blocks"] = "no start-up log and no cache_config_info: the planner's figure stays"
    base, scale, step_s = deployment.oracle, 1.0, 0.0
    runs: list[Recording] = []
    for _ in range(2 if observations else 0):
        oracle = CalibratedOracle(base, scale, step_s)
        runs = [record(_priced_by(deployment, oracle), workload_of(item))[0] for item in observations]
        scale, step_s, reasons = _fit(base, runs, observations)
        not_identified |= reasons
    if not observations:
        not_identified["kernel_scale"] = not_identified["host_ms_per_step"] = "no latencies were given"
    calibrated = CalibratedOracle(base, scale, step_s)
    fits = tuple(
        Fit(item.source, item.measured, run.price(base), run.price(calibrated))
        for item, run in zip(observations, runs, strict=True)
    )
    errors = [abs(fit.after[key] / fit.measured[key] - 1.0) for fit in fits for key in _JUDGED if key in fit.measured]
    profile = Profile(
        latency=latency,
        kernel_scale=round(scale, 4),
        host_ms_per_step=round(step_s * 1e3, 4),
        num_gpu_blocks=num_gpu_blocks,
        relative_error=round(mean(errors), 4) if errors else None,
        num_measurements=len(observations),
        not_identified=not_identified,
        deployment=dict(facts or {}),
    )
    return Calibration(profile, fits)


def _priced_by(deployment: SimulatedDeployment, oracle: LatencyOracle) -> SimulatedDeployment:
    return replace(deployment, oracle=oracle)


def _fit(
    base: LatencyOracle, runs: Sequence[Recording], observations: Sequence[LoadResult]
) -> tuple[float, float, dict[str, str]]:
    """Scale, host time, and what could not be told."""

    def loss(log_scale: float, step_s: float) -> float:
        oracle = CalibratedOracle(base, math.exp(log_scale), step_s)
        return sum(
            _WEIGHTS[key] * math.log(run.price(oracle)[key] / value) ** 2
            for run, item in zip(runs, observations, strict=True)
            for key, value in item.measured.items()
        )

    if _angle(base, runs) < _COLLINEAR:
        step_s = lowest(lambda value: loss(0.0, value), *_STEP_RANGE_S, within=1e-6)
        why = "the loads are too alike to tell kernels from host: all of the difference is called host time"
        return 1.0, step_s, {"kernel_scale": f"{why}; add a load with a much larger or smaller batch"}
    log_scale, step_s = lowest_of_two(
        loss, (*_SCALE_RANGE, 1e-5), (*_STEP_RANGE_S, 1e-6), start=0.0, num_turns=_NUM_TURNS
    )
    return math.exp(log_scale), step_s, {}


def _angle(base: LatencyOracle, runs: Sequence[Recording]) -> float:
    """Sine of the angle between the effects of scale and of host time on the logarithm of TPOT."""
    plain = [run.price(base)["mean_tpot_ms"] for run in runs]
    by_scale = [run.price(CalibratedOracle(base, 1.05))["mean_tpot_ms"] for run in runs]
    by_step = [run.price(CalibratedOracle(base, 1.0, 1e-3))["mean_tpot_ms"] for run in runs]
    one = [math.log(value / at) for value, at in zip(by_scale, plain, strict=True)]
    other = [math.log(value / at) for value, at in zip(by_step, plain, strict=True)]
    size = math.hypot(*one) * math.hypot(*other)
    cosine = sum(a * b for a, b in zip(one, other, strict=True)) / size if size else 1.0
    return math.sqrt(max(0.0, 1.0 - min(1.0, cosine) ** 2))
