"""How far off a predicted metric may be. All errors are logarithms of ratios: 0.2 is 22 % up or 18 % down.

Five sources add up in squares where they concern a metric:

- Step times: what the fit misses of them, and the roofline's own error where a setting changes what a step costs.
- Distance: one load does not tell kernels from host, which weigh differently at another batch size.
- Luck: who comes when, and how long outputs are, within a stretch as short as the one watched.
- Edges: requests that lie only partly in that stretch, on average by half; and a queue that stood there when it began,
  which is worked off once there is no more of it.
- What the fitted model misses of a metric itself.

How step times and luck carry to waiting is simulated where requests come by themselves: once more, with other draws, at
a rate that is higher by its luck and steps that are slower by their error. Below saturation little comes of it; near to
it, much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, pstdev

from headway.doctor.prediction.deployment_fit import FittedDeployment, changes_prices
from headway.doctor.prediction.oracle_fit import FittedModel
from headway.doctor.prediction.running import TooMuchWorkError
from headway.doctor.prediction.workload_fit import FittedWorkload
from headway.errors import HeadwayError
from headway.report.error_bars import error_bars
from headway.report.summary import Summary

SMALLEST_ERROR = 0.03
"""No prediction is surer than what counts as no change."""
_DISTANCE = 0.05
"""Error of step times at e times the batch size: what is host time at one batch is not at another."""
_STANDARD_ERRORS, _QUANTILE_ERRORS = 1.5, 2.0
_INSIDE = 0.5
_GROWTH = math.log(2.0)
"""Waiting in a queue that stands all the time grows with the time watched: it is told within a factor of two."""
_MOST_ERROR = 3.0


@dataclass(frozen=True, slots=True)
class Replica:
    """A second simulation of a change, under less favourable luck; and its work."""

    summary: Summary | None
    work: float = 0.0


def step_error(model: FittedModel, setting: str) -> float:
    """Relative error of step times after a change of a setting.

    That of the fit where prices stay what they were; with the roofline's own error added (in squares) where the setting
    changes what a step costs, which the evidence does not show.
    """
    error = max(SMALLEST_ERROR, model.checked.step_error)
    if not changes_prices(setting):
        return error
    return math.hypot(error, model.deployment.oracle_error)


def luck(workload: FittedWorkload) -> float:
    """Standard error of the tokens that a stretch of arrivals asks for: sqrt((1 + cv²) / n) for n independent requests
    whose outputs spread by cv. Of a closed loop only the outputs are chance."""
    window, requests = workload.window, workload.requests
    first = window.num_before if window is not None else 0
    outputs = [item.num_output_tokens for item in requests[first:]] or [1]
    spread = pstdev(outputs) / fmean(outputs)
    arrivals = 0.0 if workload.is_closed or not workload.follows_the_clock else 1.0
    return math.sqrt((arrivals + spread**2) / len(outputs))


def replicate(
    model: FittedModel, setting: str, deployment: FittedDeployment, workload: FittedWorkload, most_work: float
) -> Replica:
    """The change again with other draws, slower steps and more requests; nothing where no arrivals follow the clock, or
    it would be more work than that."""
    if not workload.follows_the_clock or most_work <= 0:
        return Replica(None)
    slower = 1.0 + step_error(model, setting)
    try:
        other = workload.drawn_anew().at_rate(1.0 + luck(workload))
        return Replica(*model.run(deployment, other, most_work, slower=slower))
    except TooMuchWorkError:
        return Replica(None, most_work)
    except HeadwayError:
        return Replica(None)


def errors(
    model: FittedModel, setting: str, after: Summary, replica: Summary | None, workload: FittedWorkload
) -> dict[str, float]:
    """The error of each metric of `after`, by its key; metrics without one are left out."""
    step = math.hypot(step_error(model, setting), _distance(model.summary, after))
    chance = _STANDARD_ERRORS * luck(workload)
    found = {}
    for key, carried in error_bars(after, step, is_closed=workload.is_closed).items():
        if carried is None:
            continue
        if key.endswith("throughput"):
            parts = [carried, *_of_rate(model, after, workload, chance)]
        else:
            parts = [
                _simulated(key, after, replica, carried),
                *_of_latency(key, model, after, is_closed=workload.is_closed),
            ]
        found[key] = min(_MOST_ERROR, max(SMALLEST_ERROR, math.hypot(*parts)))
    return found


def _distance(before: Summary, after: Summary) -> float:
    old, new = before.get("mean_num_running"), after.get("mean_num_running")
    return _DISTANCE * abs(math.log(new / old)) if old and new else 0.0


def _of_rate(model: FittedModel, after: Summary, workload: FittedWorkload, chance: float) -> list[float]:
    """Below saturation an open loop completes what comes, known as well as that is; a closed loop what steps allow."""
    edge = _edge(after, workload)
    if workload.is_closed:
        return [chance, edge]
    idle = 1.0 - float(after.get("saturation") or 0.0)
    return [idle * chance, edge, idle * workload.backlog_share, _miss(model, "output_throughput")]


def _edge(after: Summary, workload: FittedWorkload) -> float:
    """Half the part of the stretch watched that a request's life is. A benchmark is measured whole."""
    window, life_ms = workload.window, after.get("mean_e2el_ms")
    if window is None or not life_ms:
        return 0.0
    span_s = window.until_s if window.until_s is not None else float(after.get("duration") or 0.0)
    return _INSIDE * min(1.0, life_ms / 1e3 / span_s) if span_s > 0 else 0.0


def _miss(model: FittedModel, key: str) -> float:
    seen, ours = model.check.observed.get(key), model.check.simulated.get(key)
    return abs(math.log(ours / seen)) if seen and ours else 0.0


def _simulated(key: str, after: Summary, replica: Summary | None, carried: float) -> float:
    """The error as carried by formula, or as the replica differs, whichever is larger."""
    here, there = after.get(key), (replica or {}).get(key)
    if not here or not there:
        return carried
    return max(carried, abs(math.log(there / here)))


def _of_latency(key: str, model: FittedModel, after: Summary, *, is_closed: bool) -> list[float]:
    """Of TTFT what the fitted model misses, and how much longer a standing queue gets while it is watched; of quantiles
    the luck of a tail."""
    count = max(1.0, float(after.get("completed") or 1.0))
    if not key.endswith("ttft_ms"):
        return [_tail(key, after, count)]
    share = 0.99 if key.startswith("p99") else 0.5
    missed = -math.log(1.0 - min(0.9, model.checked.misses.get("ttft_ms", 0.0)))
    growth = 0.0 if is_closed else _GROWTH * float(after.get("saturation") or 0.0)
    return [missed, growth, _QUANTILE_ERRORS * _quantile_error(share, count) / -math.log(1.0 - share)]


def _quantile_error(share: float, count: float) -> float:
    """Standard error of a quantile of an exponential tail, over the tail's mean."""
    return math.sqrt(share / (1.0 - share) / count)


def _tail(key: str, after: Summary, count: float) -> float:
    """Twice the standard error of a P99, over it, for a tail that is exponential from the median on."""
    high, middle = after.get(key), after.get(key.replace("p99", "median"))
    if not key.startswith("p99") or not high or not middle:
        return 0.0
    mean = max(0.0, 1.0 - middle / high) / math.log(0.5 / 0.01)
    return _QUANTILE_ERRORS * mean * _quantile_error(0.99, count)
