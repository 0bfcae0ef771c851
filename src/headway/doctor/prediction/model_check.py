"""Whether a fitted simulation reproduces what was observed, and what it may then predict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from headway.doctor.diagnosis import ModelCheck
from headway.doctor.prediction.workload_fit import FittedWorkload
from headway.report.summary import Summary

RESIDUAL_LIMIT = 0.35
"""Beyond this mean error the fitted model is not trusted with predictions."""
METRIC_LIMIT = 0.5
"""A group of metrics (TTFT, …) whose own figures are missed by more than this is not predicted."""
_JUDGED: Mapping[str, float] = {
    "mean_tpot_ms": 1.0,
    "median_tpot_ms": 1.0,
    "mean_itl_ms": 1.0,
    "output_throughput": 1.0,
    "mean_ttft_ms": 100.0,
    "median_ttft_ms": 100.0,
    "mean_e2el_ms": 100.0,
    "mean_num_running": 1.0,
    "mean_kv_usage": 0.05,
}
"""Figures that the check judges, with the least value that an error is relative to. A TTFT under 100 ms is mostly the
client's and the HTTP server's, which no step holds. Tails and queue lengths are shown beside them, not judged.
Errors are relative to the larger of the two numbers, so that each is at most 1 and none outweighs all others."""
_SHOWN = (
    "median_itl_ms", "p99_itl_ms", "p99_tpot_ms", "p99_ttft_ms", "p99_e2el_ms", "mean_num_waiting",
    "request_throughput",
)  # fmt: skip
_GROUPS: Mapping[str, str] = {"ttft_ms": "TTFT", "kv_usage": "KV usage", "e2el_ms": "latency"}
_STEPS = ("tpot_ms", "itl_ms", "throughput")


@dataclass(frozen=True, slots=True)
class Observed:
    """A workload and what was observed under it, by summary key."""

    workload: FittedWorkload
    figures: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Prices:
    """What the oracle's prices were multiplied by, and the seconds added to each step."""

    scale: float = 1.0
    step_s: float = 0.0

    def explain(self) -> str:
        """In words."""
        return f"device time × {self.scale:.2f}, {1e3 * self.step_s:+.1f} ms a step"


@dataclass(frozen=True, slots=True)
class Checked:
    """The check, and what predictions carry of it.

    `step_error` is the largest error of step times and rates; `misses` the mean error by group of metrics (the ending
    of their keys); `withheld` the groups that are not predicted, with the reason.
    """

    check: ModelCheck
    step_error: float
    misses: Mapping[str, float] = field(default_factory=dict)
    withheld: Mapping[str, str] = field(default_factory=dict)


def check_model(main: Observed, prices: Prices, summary: Summary, oracle_error: float) -> Checked:
    """Compare the simulation of the main load with what was observed under it.

    Args:
        oracle_error: stands in for the error of step times where none were observed.
    """
    simulated: dict[str, float] = {}
    observed: dict[str, float] = {}
    errors: dict[str, float] = {}
    for key in (*_JUDGED, *_SHOWN):
        seen, ours = main.figures.get(key), summary.get(key)
        if seen is None or ours is None or not math.isfinite(seen):
            continue
        observed[key], simulated[key] = seen, float(ours)
        if key in _JUDGED and not (main.workload.hides_waits and key.endswith(("ttft_ms", "e2el_ms"))):
            errors[key] = abs(float(ours) - seen) / max(abs(seen), float(ours), _JUDGED[key])
    steps = [errors[key] for key in errors if key.endswith(_STEPS)]
    residual = fmean(errors.values()) if errors else None
    misses = {
        ending: fmean(found) for ending in _GROUPS if (found := [v for k, v in errors.items() if k.endswith(ending)])
    }
    withheld = {
        ending: f"{_GROUPS[ending]} is not predicted: the fitted model misses what was observed by {miss:.0%}"
        for ending, miss in misses.items()
        if miss > METRIC_LIMIT
    }
    if main.workload.grain > 1:
        withheld["p99_itl_ms"] = "P99 ITL is not predicted: single steps are not simulated"
    if main.workload.hides_waits:
        withheld["ttft_ms"] = "TTFT is not predicted: how long those in the queue wait is not told"
        if main.workload.is_closed:
            withheld["num_waiting"] = "Requests waiting are not predicted: not all clients are simulated"
    note, is_accepted = _verdict(errors, residual, bool(steps), prices, main.workload, withheld)
    check = ModelCheck(observed, simulated, residual, is_accepted, note)
    return Checked(check, max(steps) if steps else oracle_error, misses, withheld)


def _verdict(
    errors: Mapping[str, float],
    residual: float | None,
    has_steps: bool,
    prices: Prices,
    workload: FittedWorkload,
    withheld: Mapping[str, str],
) -> tuple[str, bool]:
    if residual is None or not has_steps:
        return (
            "No step time or throughput was observed, so that the model cannot be checked: nothing is predicted.",
            False,
        )
    stated = f"Fitted: {prices.explain()}; mean error {residual:.0%} over {', '.join(errors)}."
    if residual > RESIDUAL_LIMIT:
        worst = max(errors, key=lambda key: errors[key])
        return f"{stated} That is more than {RESIDUAL_LIMIT:.0%} ({worst} most): nothing is predicted.", False
    return " ".join([stated, *(f"{reason}." for reason in withheld.values()), *workload.explained()]), True
