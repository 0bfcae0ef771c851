"""From the evidence to a workload that a simulation can run: how requests come, how long they are, how many."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from random import Random

from headway.doctor.figures import Figures
from headway.doctor.prediction.arrivals_fit import Arrivals, fit_arrivals
from headway.doctor.prediction.deployment_fit import FittedDeployment, NotSimulatedError
from headway.doctor.prediction.gauges import Gauges
from headway.doctor.prediction.grain import coarse_request
from headway.doctor.prediction.lengths_fit import Lengths, fit_lengths
from headway.doctor.prediction.windowed import Window
from headway.errors import HeadwayError
from headway.evidence.load import LoadResult
from headway.simulation.run import SimulatedWorkload
from headway.workload.formats import has_arrivals, read_requests
from headway.workload.generators import arrival_times
from headway.workload.trace import TraceRequest

_PREFIX_KEY_TOKENS = 16
_MOST_REQUESTS, _LEAST_REQUESTS = 1500, 60
_WAVES, _LEAST_WAVES = 8, 1.3
_MOST_CLIENTS, _CLIENTS_PER_SEAT = 1200, 1.1
"""Clients beyond that are left out, unless that many run."""
_WARM_UP, _MOST_WARM_UP = 0.2, 0.8
_SECONDS = 0.3
_LONG_OUTPUT = 500
_LEAST_COARSE_OUTPUT = 100
"""Coarse steps that an output has at least, on average."""


@dataclass(frozen=True, slots=True)
class FittedWorkload:
    """Requests and how they are offered, as the evidence tells it or under the assumptions stated.

    `window` is what is measured of a run: None for a benchmark, all of which its client measured. `is_estimated`: the
    rate is not given but derived. `hides_waits`, `seen`, `is_part` and `is_ambiguous` are as in `Arrivals`. A simulated
    step stands for `grain` steps; lengths and window are those of the fine ones. `backlog_share`: requests waiting at
    the start over those that come later.
    """

    requests: tuple[TraceRequest, ...]
    concurrency: int | None
    is_paced: bool
    source: str
    window: Window | None = None
    is_estimated: bool = False
    hides_waits: bool = False
    assumptions: tuple[str, ...] = ()
    seen: Mapping[str, float] = field(default_factory=dict)
    is_part: bool = False
    grain: int = 1
    backlog_share: float = 0.0
    is_ambiguous: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether requests come when others end."""
        return self.concurrency is not None

    @property
    def follows_the_clock(self) -> bool:
        """Whether anything comes at an instant of its own, so that how long steps take decides what they hold."""
        return (not self.is_closed or self.is_paced) and any(item.arrival_s > 0.0 for item in self.requests)

    def workload(self) -> SimulatedWorkload:
        """As a simulation takes it. Requests that a deployment could never hold are left out and counted."""
        requests = [coarse_request(item, self.grain) for item in self.requests]
        return SimulatedWorkload(requests, self.concurrency, skip_too_long=True, is_paced=self.is_paced)

    def cheaper(self, share: float) -> FittedWorkload | None:
        """This workload with about that share of the work; None if nothing more can be left out.

        Long outputs are taken in coarser steps first: that keeps how many run and wait. Else fewer requests come, as
        long as they are more than once as many as clients.
        """
        factor = 2 ** math.ceil(math.log2(1.0 / share))
        mean_output = sum(item.num_output_tokens for item in self.requests) / len(self.requests)
        while factor > 1 and mean_output < _LEAST_COARSE_OUTPUT * self.grain * factor:
            factor //= 2
        if factor > 1:
            grain = self.grain * factor
            return replace(self, grain=grain)
        least = max(_LEAST_REQUESTS, math.ceil(_LEAST_WAVES * (self.concurrency or 0)))
        count = max(least, int(share * len(self.requests)))
        if count >= len(self.requests):
            return None
        window = self.window
        if window is not None:
            until_s = None if window.until_s is None else self.requests[count - 1].arrival_s
            if until_s == 0.0:
                return None
            window = Window(min(window.num_before, int(_MOST_WARM_UP * count)), count, until_s)
        text = f"{count:,} of these requests are simulated."
        return replace(self, requests=self.requests[:count], window=window, assumptions=(*self.assumptions, text))

    def explained(self) -> tuple[str, ...]:
        """The assumptions that it is made under."""
        if self.grain == 1:
            return self.assumptions
        text = (
            f"Steps are simulated {self.grain} at a time, with requests and KV pool {self.grain} times smaller: gaps "
            "between single tokens are means of as many."
        )
        return (*self.assumptions, text)

    def at_rate(self, factor: float) -> FittedWorkload:
        """Arrivals that come `factor` times as often; as long in time if the window ends at an instant.

        Raises:
            NotSimulatedError: requests come when others end, so that there is no rate.
        """
        if self.is_closed and not self.is_paced:
            raise NotSimulatedError("A closed loop has no request rate; its number of clients is what can be lowered.")
        window = self.window
        if window is not None and window.until_s is not None:
            window = replace(window, until_s=window.until_s / factor)
        requests = tuple(item.arriving_at(item.arrival_s / factor) for item in self.requests)
        return replace(self, requests=requests, window=window)

    def drawn_anew(self) -> FittedWorkload:
        """The same instants, with the lengths in another order; requests that stand there at the start keep theirs."""
        first = next((index for index, item in enumerate(self.requests) if item.arrival_s > 0.0), 0)
        later = self.requests[first:]
        others = [*later[len(later) // 2 :], *later[: len(later) // 2]]
        requests = [other.arriving_at(item.arrival_s) for item, other in zip(later, others, strict=True)]
        return replace(self, requests=(*self.requests[:first], *requests))

    def shared_by(self, replicas: int) -> FittedWorkload:
        """What the busiest of several replicas gets: every so-manieth request, or its share of the clients.

        Of the ways to count off, that with most tokens: one long prompt in hundreds holds up some replica.

        Raises:
            NotSimulatedError: there are fewer clients than replicas.
        """
        if self.concurrency is not None and self.concurrency < replicas:
            raise NotSimulatedError(f"{self.concurrency} clients do not load {replicas} replicas.")
        clients = None if self.concurrency is None else max(1, round(self.concurrency / replicas))
        parts = (self.requests[first::replicas] for first in range(replicas))
        requests, window = max(parts, key=_num_tokens), self.window
        if window is not None:
            window = Window(window.num_before // replicas, len(requests), window.until_s)
        return replace(self, requests=requests, concurrency=clients, window=window)

    def capped(self, max_tokens: int) -> FittedWorkload:
        """With outputs of at most so many tokens."""
        return replace(
            self,
            requests=tuple(
                replace(item, num_output_tokens=min(item.num_output_tokens, max_tokens)) for item in self.requests
            ),
        )


def _num_tokens(requests: Sequence[TraceRequest]) -> int:
    return sum(request.num_prompt_tokens + request.num_output_tokens for request in requests)


def fit_workload(
    figures: Figures,
    load: LoadResult | None,
    gauges: Gauges,
    deployment: FittedDeployment,
    *,
    holds_population: bool | None = None,
) -> FittedWorkload:
    """The workload of one load, or of the engine's own figures where there is none.

    Args:
        holds_population: whether to take the engine's load for a closed loop; None: as its gauges say.

    Raises:
        NotSimulatedError: rates or lengths are not told and cannot be estimated.
    """
    is_stepped = deployment.speculation is not None
    trace = figures.evidence.trace
    if trace is not None:
        return _from_trace(trace, figures, load, gauges, is_stepped)
    config = deployment.deployment.config
    pool_tokens = config.cache.num_blocks * config.cache.block_size * deployment.deployment.num_ranks
    lengths = fit_lengths(figures, load, gauges, pool_tokens)
    most = _affordable(lengths, is_stepped)
    arrivals = fit_arrivals(figures, load, gauges, lengths, most, holds_population=holds_population)
    arrivals = _with_fewer_clients(arrivals, config.scheduler.max_num_seqs * deployment.deployment.num_ranks)
    count = _num_requests(arrivals, load, most)
    hit_rate = figures.load.prefix_hit_rate or 0.0
    pairs = lengths.draw(count, config.scheduler.max_model_len)
    at = _instants(arrivals, count)
    requests = [_with_prefix(TraceRequest(at[index], *pair), hit_rate) for index, pair in enumerate(pairs)]
    for index in range(min(arrivals.half_done, count)):
        requests[index] = replace(requests[index], num_output_tokens=max(1, requests[index].num_output_tokens // 2))
    assumptions = [*lengths.assumptions, *arrivals.assumptions]
    if deployment.speculation is not None:
        assumptions.append(f"Speculation: {deployment.speculation.source}.")
    if hit_rate >= 0.01:
        assumptions.append(f"All prompts share their first {hit_rate:.0%}, as the prefix cache's hit rate.")
    total = (load.num_requests or len(load.lengths)) if load is not None else 0
    if count < total:
        assumptions.append(f"{count:,} of the {total:,} requests are simulated.")
    return FittedWorkload(
        tuple(requests),
        arrivals.concurrency,
        arrivals.is_paced,
        lengths.source if load is None else load.source,
        _window(arrivals, count, load),
        arrivals.is_estimated,
        arrivals.hides_waits,
        tuple(assumptions),
        arrivals.seen,
        arrivals.is_part,
        backlog_share=arrivals.backlog / max(1, len(arrivals.instants)),
        is_ambiguous=arrivals.is_ambiguous,
    )


def _with_fewer_clients(arrivals: Arrivals, seats: int) -> Arrivals:
    """A closed loop without the clients that would only make its queue longer, where they are thousands."""
    most = max(_MOST_CLIENTS, math.ceil(_CLIENTS_PER_SEAT * seats))
    if arrivals.concurrency is None or arrivals.concurrency <= most:
        return arrivals
    text = f"{most:,} of the {arrivals.concurrency:,} clients are simulated; the others would only wait longer."
    assumptions = (*arrivals.assumptions, text)
    return replace(arrivals, concurrency=most, hides_waits=True, assumptions=assumptions)


def _window(arrivals: Arrivals, count: int, load: LoadResult | None) -> Window | None:
    """A benchmark is measured whole. An engine is watched amid its work: neither its first requests nor its drain."""
    if load is not None:
        return None
    if arrivals.until_s is not None:
        held = arrivals.backlog + arrivals.half_done
        return Window(0 if count < 2 * held else held, count, arrivals.until_s)
    warm = max(arrivals.concurrency or 0, int(_WARM_UP * count))
    return Window(min(warm, int(_MOST_WARM_UP * count)), count)


def _with_prefix(request: TraceRequest, hit_rate: float) -> TraceRequest:
    count = int(request.num_prompt_tokens * hit_rate / _PREFIX_KEY_TOKENS)
    if not count:
        return request
    keys = tuple(("shared", index) for index in range(count))
    return replace(request, block_keys=keys, block_key_tokens=_PREFIX_KEY_TOKENS)


def _instants(arrivals: Arrivals, count: int) -> list[float]:
    if arrivals.until_s is not None:
        return [0.0] * (count - len(arrivals.instants)) + list(arrivals.instants)
    if math.isinf(arrivals.requests_per_s):
        return [0.0] * count
    return list(arrival_times(count, arrivals.requests_per_s, burstiness=1.0, rng=Random("arrivals")))


def _affordable(lengths: Lengths, is_stepped: bool) -> int:
    """Requests that take about `_SECONDS` to simulate on one core: a fixed part each, chunks, decode steps.

    Fast-forward takes the steps between two arrivals or ends together, so that long outputs cost little more. Fitted by
    eye to runs of 100 to 2,000 requests.
    """
    decoding_s = lengths.mean_output * (8e-6 if is_stepped else 1.3e-6)
    if not is_stepped and lengths.mean_output > _LONG_OUTPUT:
        decoding_s = _LONG_OUTPUT * 1.3e-6 * (lengths.mean_output / _LONG_OUTPUT) ** 0.3
    cost_s = 1.5e-4 + lengths.mean_prompt * 1e-7 + decoding_s
    return max(_LEAST_REQUESTS, min(_MOST_REQUESTS, int(_SECONDS / cost_s)))


def _num_requests(arrivals: Arrivals, load: LoadResult | None, affordable: int) -> int:
    """As many as the load had where that is affordable; else enough for several waves of clients."""
    total = (load.num_requests or len(load.lengths)) if load is not None else 0
    if arrivals.until_s is not None:
        return arrivals.backlog + arrivals.half_done + len(arrivals.instants)
    if arrivals.concurrency is not None:
        wanted = total or max(_LEAST_REQUESTS, _WAVES * arrivals.concurrency)
        return min(wanted, max(affordable, math.ceil(_LEAST_WAVES * arrivals.concurrency)))
    if math.isinf(arrivals.requests_per_s):
        return min(total or affordable, _MOST_REQUESTS)
    return min(total or _MOST_REQUESTS, affordable)


def _from_trace(
    path: Path, figures: Figures, load: LoadResult | None, gauges: Gauges, is_stepped: bool
) -> FittedWorkload:
    """The first requests of a trace, at their own instants, or as the load or the engine says they were offered."""
    try:
        found = tuple(islice(read_requests(path, skip_empty=True), _MOST_REQUESTS))
        is_timed = has_arrivals(path)
    except HeadwayError as error:
        raise NotSimulatedError(f"The trace cannot be used: {error}") from None
    if not found:
        raise NotSimulatedError(f"The trace {path.name} holds no requests.")
    prompt = sum(item.num_prompt_tokens for item in found) / len(found)
    output = sum(item.num_output_tokens for item in found) / len(found)
    lengths = Lengths(prompt, output, path.name)
    most = min(len(found), _affordable(lengths, is_stepped))
    asked = load is not None and (load.concurrency is not None or load.requests_per_s is not None)
    arrivals = Arrivals()
    if asked or not is_timed:
        arrivals = fit_arrivals(figures, load, gauges, lengths, most)
    count = min(len(found), _num_requests(arrivals, None, most))
    requests = found[:count]
    if asked or not is_timed:
        at = _instants(arrivals, count)
        requests = tuple(item.arriving_at(at[index]) for index, item in enumerate(requests))
    text = f"The first {count:,} requests of {path.name}."
    return FittedWorkload(
        requests,
        arrivals.concurrency,
        arrivals.is_paced,
        path.name,
        _window(arrivals, count, load),
        assumptions=(text, *arrivals.assumptions),
    )
