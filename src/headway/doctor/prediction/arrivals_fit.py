"""How requests come, from a benchmark's settings or from an engine's own counters and gauges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from statistics import fmean

from headway.doctor.figures import Figures, num_finished
from headway.doctor.prediction.deployment_fit import NotSimulatedError
from headway.doctor.prediction.gauges import Gauges, Moment
from headway.doctor.prediction.lengths_fit import Lengths
from headway.doctor.prediction.population import Population, population_of
from headway.evidence.load import LoadResult

_ALL_AT_ONCE = 0.4
"""Mean requests in flight over requests in all: half where all are sent at once and drain evenly."""
_QUEUED = 0.1
_SAME_TIME = 0.1
_LEAST_MOMENTS = 4
_STRETCHED = 3
_STANDING_COSTS = 0.5
_LONG_WAIT = 0.25
_WHOLE_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How requests come: by so many clients (closed loop), at a rate, all at once (rate inf), or at instants.

    `backlog` are requests waiting when the time starts, `half_done` those running then; `instants` come after them,
    until `until_s`. `hides_waits`: those of the backlog have waited for longer than can be told. `seen` are means of
    gauges over that time, by summary key; `is_part`: it is only a part of the time that was watched. `is_ambiguous`: a
    queue was seen, but not whether clients keep it or requests come by themselves.
    """

    concurrency: int | None = None
    requests_per_s: float = math.inf
    is_paced: bool = False
    instants: tuple[float, ...] = ()
    backlog: int = 0
    half_done: int = 0
    until_s: float | None = None
    is_estimated: bool = False
    hides_waits: bool = False
    seen: Mapping[str, float] = field(default_factory=dict)
    is_part: bool = False
    is_ambiguous: bool = False
    assumptions: tuple[str, ...] = ()


def fit_arrivals(
    figures: Figures,
    load: LoadResult | None,
    gauges: Gauges,
    lengths: Lengths,
    most_requests: int,
    *,
    holds_population: bool | None = None,
) -> Arrivals:
    """The arrivals of a load, or of the engine's own figures where there is none.

    Args:
        holds_population: whether an engine's load is a closed loop; None: as its gauges say.

    Raises:
        NotSimulatedError: nothing tells them.
    """
    if load is None:
        held = (held_population(figures) or _kept(gauges)) if holds_population else None
        return held or _from_engine(figures, gauges, lengths, most_requests, is_free=holds_population is False)
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


def held_population(figures: Figures) -> Arrivals | None:
    """A closed loop of as many clients as Little's law finds in the system: finished requests/s × their mean latency.

    For an engine whose queue no mean rate brings about. None where rate or latency is not told.
    """
    totals = figures.evidence.totals
    finished = num_finished(totals)
    latency_ms = figures.value("mean_e2el_ms")
    if totals is None or not totals.duration_s or not finished or not latency_ms:
        return None
    clients = max(1, round(finished / totals.duration_s * latency_ms / 1e3))
    text = (
        f"A queue as observed needs more than a mean rate: {clients} requests are kept in the system, as many as "
        "Little's law finds there."
    )
    return Arrivals(clients, assumptions=(text,))


def _kept(gauges: Gauges) -> Arrivals | None:
    """As many clients as are in the system, each sending when it is answered."""
    in_system = gauges.middle_in_system
    return Arrivals(max(1, round(in_system))) if in_system else None


def _from_few_samples(gauges: Gauges, finished: float | None, population: Population) -> Arrivals | None:
    """A closed loop where a queue stood and the number in the system hardly moved; None if not, or not likely."""
    kept = _kept(gauges)
    if kept is None or population not in ("held", "likely held"):
        return None
    moved, clients = max(gauges.in_system) - min(gauges.in_system), kept.concurrency
    text = f"A queue stands and the number in the system ({clients}) moved by {moved:.0f}"
    if finished is not None:
        text += f" while {finished:,.0f} requests finished"
    text += ": as many clients, each sending when it is answered."
    if population == "held":
        return replace(kept, assumptions=(text,))
    text += " Independent arrivals may move it as little in that time; samples over a longer time would tell."
    return replace(kept, is_ambiguous=True, assumptions=(text,))


def _from_engine(
    figures: Figures, gauges: Gauges, lengths: Lengths, most_requests: int, *, is_free: bool = False
) -> Arrivals:
    """A closed loop if the number in the system does not move; else instants from the gauges, or a mean rate.

    Args:
        is_free: no closed loop, whatever two or three samples say.
    """
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
    population = population_of(gauges, finished if totals is not None and totals.duration_s else None)
    kept = None if is_free else _from_few_samples(gauges, finished, population)
    if kept is not None:
        return kept
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
    is_ambiguous = population != "free"
    if is_ambiguous:
        text += " Clients that each send when they are answered would keep such a queue too."
    return Arrivals(None, rate, is_estimated=True, is_ambiguous=is_ambiguous, assumptions=(text,))


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
        first, last = _representative(moments, arrived, _STRETCHED * most_requests)
    if last - first + 1 < _LEAST_MOMENTS:
        return None
    part = moments[first : last + 1]
    instants = _instants(part, arrived[first : last + 1])
    start = part[0]
    span_s = part[-1].at_s - start.at_s
    rate = len(instants) / span_s
    text = (
        f"Arrivals follow tokens generated and requests held, sample by sample: {rate:.3g}/s over {span_s:,.0f} s, "
        f"after {start.num_running:.0f} running and {start.num_waiting:.0f} waiting."
    )
    return Arrivals(
        instants=instants,
        backlog=round(start.num_waiting),
        half_done=round(start.num_running),
        until_s=span_s,
        is_estimated=True,
        hides_waits=start.num_waiting > _LONG_WAIT * rate * span_s,
        seen=_seen(part, rate),
        is_part=len(part) < _WHOLE_SHARE * len(moments),
        assumptions=(text,),
    )


def _seen(moments: Sequence[Moment], rate: float) -> dict[str, float]:
    """Means of the gauges while anything runs; the mean TTFT by Little's law on those waiting, if any do."""
    busy = [item for item in moments if item.num_running > 0 or item.num_waiting > 0] or list(moments)
    waiting = fmean(item.num_waiting for item in busy)
    found = {
        "mean_num_running": fmean(item.num_running for item in busy),
        "mean_num_waiting": waiting,
        "output_throughput": fmean(item.tokens_per_s for item in busy[1:] or busy),
    }
    if waiting >= 1.0 and rate > 0:
        found["mean_ttft_ms"] = 1e3 * waiting / rate
    return found


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
    """First and last sample of a stretch with at most so many requests.

    The mean number in the system should be near to that of all, and little should stand there at the start: of what
    does, nobody knows how long it has waited.
    """
    held = [item.num_running + item.num_waiting for item in moments]
    mean = fmean(held)
    best, found = math.inf, (0, 0)
    for first in range(len(moments) - _LEAST_MOMENTS + 1):
        last = first
        while last + 1 < len(moments) and held[first] + arrived[last + 1] - arrived[first] <= most_requests:
            last += 1
        if last - first + 1 < _LEAST_MOMENTS:
            continue
        distance = abs(fmean(held[first : last + 1]) - mean) + _STANDING_COSTS * held[first]
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
