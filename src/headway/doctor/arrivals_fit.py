"""How requests come, from a benchmark's settings or from an engine's own counters and gauges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import fmean

from headway.doctor.deployment_fit import NotSimulatedError
from headway.doctor.figures import Figures, num_finished
from headway.doctor.gauges import Gauges, Moment
from headway.doctor.lengths_fit import Lengths
from headway.evidence.load import LoadResult

_ALL_AT_ONCE = 0.4
"""Mean requests in flight over requests in all: half where all are sent at once and drain evenly."""
_QUEUED = 0.1
_SAME_TIME = 0.1
_LEAST_MOMENTS = 4


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come: by so many clients (closed loop), at a rate, all at once (rate inf), or at instants.

    `backlog` are requests waiting when the time starts, `half_done` those running then; `instants` come after them,
    until `until_s`. `seen` are means of gauges over that time, by summary key.
    """

    concurrency: int | None = None
    requests_per_s: float = math.inf
    is_paced: bool = False
    instants: tuple[float, ...] = ()
    backlog: int = 0
    half_done: int = 0
    until_s: float | None = None
    is_estimated: bool = False
    seen: Mapping[str, float] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


def fit_arrivals(
    figures: Figures, load: LoadResult | None, gauges: Gauges, lengths: Lengths, most_requests: int
) -> Arrivals:
    """The arrivals of a load, or of the engine's own figures where there is none.

    Raises:
        NotSimulatedError: nothing tells them.
    """
    if load is None:
        return _from_engine(figures, gauges, lengths, most_requests)
    if load.concurrency is not None:
        return Arrivals(load.concurrency, load.requests_per_s or math.inf, load.requests_per_s is not None)
    if load.requests_per_s is not None and math.isfinite(load.requests_per_s):
        return Arrivals(None, load.requests_per_s)
    return _unpaced(load, lengths)


def _unpaced(load: LoadResult, lengths: Lengths) -> Arrivals:
    """Neither rate nor clients are told. Little's law says how many were in flight."""
    measured, total = load.measured, load.num_requests or len(load.lengths)
    completed = measured.get("request_throughput")
    if completed is None and (tokens := measured.get("output_throughput")) is not None:
        completed = tokens / lengths.mean_output
    latency_ms = measured.get("mean_e2el_ms")
    in_flight = completed * latency_ms / 1e3 if completed and latency_ms else None
    if in_flight is not None and (not total or in_flight < _ALL_AT_ONCE * total):
        clients = max(1, round(in_flight))
        return Arrivals(
            clients, assumptions=(f"By Little's law {clients} requests are in flight; that many clients send them.",)
        )
    if total:
        return Arrivals(None, math.inf)
    raise NotSimulatedError("The load cannot be told: neither a rate, nor clients, nor a number of requests.")


def _from_engine(figures: Figures, gauges: Gauges, lengths: Lengths, most_requests: int) -> Arrivals:
    """A closed loop if the number in the system does not move; else instants from the gauges, or a mean rate."""
    in_system = gauges.middle_in_system
    if gauges.is_steady and in_system is not None:
        clients = max(1, round(in_system))
        text = f"The number in the system does not move ({clients}): as many clients, each sending when it is answered."
        return Arrivals(clients, assumptions=(text,))
    found = _from_moments(figures, gauges.moments, lengths, most_requests)
    if found is not None:
        return found
    totals = figures.evidence.totals
    finished = num_finished(totals)
    rate = finished / totals.duration_s if totals is not None and totals.duration_s and finished else None
    how = "finished requests over time"
    if rate is None and gauges.generation_tokens_per_s:
        rate = gauges.generation_tokens_per_s / lengths.mean_output
        how = "tokens/s over tokens of a request"
    is_queued = len(gauges.in_system) < 2 and (gauges.num_waiting or 0.0) > _QUEUED * (in_system or 0.0)
    if rate is None or is_queued:
        if not in_system:
            raise NotSimulatedError(
                "The load cannot be told: no rate, and nothing was running or waiting when watched."
            )
        clients = max(1, round(in_system))
        text = f"{clients} requests were in the system; that many clients are taken to keep it so."
        return Arrivals(clients, assumptions=(text,))
    text = f"Requests come independently (Poisson) at {rate:.3g}/s: {how}."
    return Arrivals(None, rate, is_estimated=True, assumptions=(text,))


def _from_moments(figures: Figures, moments: Sequence[Moment], lengths: Lengths, most_requests: int) -> Arrivals | None:
    """Arrivals from what was generated and what was held.

    Until an instant A = G / output + waiting + running / 2 requests have come: those whose tokens were generated, those
    waiting, and those running, half of whose tokens are still to come on average. Where counters tell how many finished
    in the same time, A is scaled to them.
    """
    if len(moments) < _LEAST_MOMENTS:
        return None
    arrived = _cumulated(moments, lengths.mean_output)
    factor = _counted_factor(figures, moments, arrived)
    arrived = [arrived[0] + (value - arrived[0]) * factor for value in arrived]
    first, last = _representative(moments, arrived, most_requests)
    if last - first + 1 < _LEAST_MOMENTS:
        return None
    part = moments[first : last + 1]
    instants = _instants(part, arrived[first : last + 1])
    start = part[0]
    span_s = part[-1].at_s - start.at_s
    rate = len(instants) / span_s
    text = (
        f"Arrivals follow tokens generated and requests held, sample by sample: {rate:.3g}/s over {span_s:,.0f} s, after "
        f"{start.num_running:.0f} running and {start.num_waiting:.0f} waiting."
    )
    busy = [item for item in part if item.num_running > 0 or item.num_waiting > 0] or list(part)
    return Arrivals(
        instants=instants,
        backlog=round(start.num_waiting),
        half_done=round(start.num_running),
        until_s=span_s,
        is_estimated=True,
        seen={
            "mean_num_running": fmean(item.num_running for item in busy),
            "mean_num_waiting": fmean(item.num_waiting for item in busy),
            "output_throughput": fmean(item.tokens_per_s for item in busy[1:] or busy),
        },
        assumptions=(text,),
    )


def _cumulated(moments: Sequence[Moment], mean_output: float) -> list[float]:
    """Requests that have come until each sample, those of the first one included; never falling."""
    found: list[float] = []
    tokens = 0.0
    before = moments[0]
    for moment in moments:
        tokens += moment.tokens_per_s * (moment.at_s - before.at_s)
        value = tokens / mean_output + moment.num_waiting + moment.num_running / 2
        found.append(max(value, found[-1]) if found else value)
        before = moment
    return found


def _counted_factor(figures: Figures, moments: Sequence[Moment], arrived: Sequence[float]) -> float:
    totals, finished = figures.evidence.totals, num_finished(figures.evidence.totals)
    span_s = moments[-1].at_s - moments[0].at_s
    grown = arrived[-1] - arrived[0]
    if totals is None or not totals.duration_s or not finished or grown <= 0:
        return 1.0
    if abs(totals.duration_s - span_s) > _SAME_TIME * span_s:
        return 1.0
    held = [item.num_running + item.num_waiting for item in (moments[0], moments[-1])]
    return max(0.0, finished + held[1] - held[0]) / grown


def _representative(moments: Sequence[Moment], arrived: Sequence[float], most_requests: int) -> tuple[int, int]:
    """First and last sample of a stretch with at most so many requests, whose mean number in the system is nearest to
    that of all."""
    held = [item.num_running + item.num_waiting for item in moments]
    mean = fmean(held)
    best, found = math.inf, (0, 0)
    for first in range(len(moments) - _LEAST_MOMENTS + 1):
        last = first
        while last + 1 < len(moments) and held[first] + arrived[last + 1] - arrived[first] <= most_requests:
            last += 1
        if last - first + 1 < _LEAST_MOMENTS:
            continue
        distance = abs(fmean(held[first : last + 1]) - mean)
        if distance < best:
            best, found = distance, (first, last)
        if last == len(moments) - 1:
            break
    return found


def _instants(moments: Sequence[Moment], arrived: Sequence[float]) -> tuple[float, ...]:
    """Instants since the first sample: within an interval they fall anywhere."""
    rng = Random("arrivals")
    start_s, carried = moments[0].at_s, 0.5
    found: list[float] = []
    for (before, after), (low, high) in zip(pairwise(moments), pairwise(arrived), strict=True):
        carried += high - low
        count = int(carried)
        carried -= count
        found += sorted(rng.uniform(before.at_s, after.at_s) - start_s for _ in range(count))
    return tuple(found)
