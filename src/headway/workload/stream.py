"""Workloads that are read as they are needed: ten million rows in the memory of a few thousand."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from headway.errors import WorkloadError
from headway.workload.trace import TraceRequest

REORDER_WINDOW = 10_000
"""Rows that may be out of order: how far a request may stand behind later ones in its file."""


@dataclass(frozen=True, slots=True)
class RequestStream:
    """Requests in order of arrival, the first at 0, that can be read any number of times.

    Args:
        read: starts reading anew. Rows may be out of order by up to `REORDER_WINDOW`.
        stretch: arrivals are multiplied by this; 0 sends all at once.
    """

    read: Callable[[], Iterable[TraceRequest]]
    stretch: float = 1.0

    def __iter__(self) -> Iterator[TraceRequest]:
        """The requests.

        Raises:
            WorkloadError: a row that cannot be used, or one too far from its place.
        """
        first: float | None = None
        for request in _in_order(self.read()):
            if first is None:
                first = request.arrival_s
            arrival_s = (request.arrival_s - first) * self.stretch
            yield request if arrival_s == request.arrival_s else request.arriving_at(arrival_s)

    def survey(self) -> StreamFacts:
        """Read everything once and say what there is.

        Raises:
            WorkloadError: no requests, or as for reading.
        """
        count = prompts = outputs = longest = 0
        last = 0.0
        for request in self:
            count += 1
            prompts += request.num_prompt_tokens
            outputs += request.num_output_tokens
            longest = max(longest, request.num_prompt_tokens + request.num_output_tokens)
            last = request.arrival_s
        if not count:
            raise WorkloadError("The workload has no requests.")
        return StreamFacts(count, prompts, outputs, longest, last)

    def at_rate(self, requests_per_s: float, facts: StreamFacts) -> RequestStream:
        """The same at another mean rate, bursts kept; infinity sends all at once.

        Raises:
            WorkloadError: a rate that is not positive, or requests that all come at once.
        """
        if not requests_per_s > 0:
            raise WorkloadError(f"A request rate must be positive, not {requests_per_s:g}.")
        if math.isinf(requests_per_s):
            return replace(self, stretch=0.0)
        if facts.num_requests < 2:
            return self
        if math.isinf(facts.requests_per_s):
            raise WorkloadError(
                "All requests of the workload come at the same instant, so no rate can be given to them.",
                hint="Use a trace with arrivals, or generated ones.",
            )
        return replace(self, stretch=self.stretch * facts.requests_per_s / requests_per_s)


@dataclass(frozen=True, slots=True)
class StreamFacts:
    """What a stream holds. `span_s` is from the first arrival to the last."""

    num_requests: int
    num_prompt_tokens: int
    num_output_tokens: int
    max_request_tokens: int
    span_s: float

    @property
    def requests_per_s(self) -> float:
        """Mean rate: gaps over their sum; infinite if all come at once, 0 for a single request."""
        if self.num_requests < 2:
            return 0.0
        return (self.num_requests - 1) / self.span_s if self.span_s > 0 else math.inf


def merge(streams: Iterable[Iterable[TraceRequest]]) -> Iterator[TraceRequest]:
    """Several workloads as one, by arrival, each beginning at its own 0."""
    return heapq.merge(*streams, key=lambda request: request.arrival_s)


def _in_order(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """By arrival, requests that arrive together in the order given; holds at most `REORDER_WINDOW` of them."""
    held: list[tuple[float, int, TraceRequest]] = []
    last = -math.inf
    for index, request in enumerate(requests):
        if request.arrival_s < last:
            raise WorkloadError(
                f"Row {request.row or index + 1}: the arrival {request.arrival_s:g} comes more than {REORDER_WINDOW:,} "
                f"rows after later ones (up to {last:g}).",
                hint="Sort the trace by arrival.",
            )
        if len(held) < REORDER_WINDOW:
            heapq.heappush(held, (request.arrival_s, index, request))
            continue
        last, _, earliest = heapq.heappushpop(held, (request.arrival_s, index, request))
        yield earliest
    while held:
        yield heapq.heappop(held)[2]
