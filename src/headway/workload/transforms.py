"""Changes to a workload: shorter requests, other arrivals. Each takes requests and gives new ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from headway.errors import WorkloadError
from headway.workload.trace import TraceRequest


def scale_lengths(requests: Iterable[TraceRequest], divisor: float) -> Iterator[TraceRequest]:
    """Divide prompt and output lengths, rounding down, at least 1 token each; block keys shrink with the
    prompt.

    Raises:
        WorkloadError: a divisor that is not positive, or larger than the tokens that one block key covers.
    """
    if not divisor > 0:
        raise WorkloadError(f"Lengths cannot be divided by {divisor:g}.", hint="Use a positive number.")
    for request in requests:
        key_tokens = int(request.block_key_tokens / divisor)
        if request.block_keys and key_tokens < 1:
            raise WorkloadError(
                f"Lengths divided by {divisor:g} leave nothing of a {request.block_key_tokens}-token key.",
                hint=f"Divide by at most {request.block_key_tokens}.",
            )
        yield replace(
            request,
            num_prompt_tokens=max(1, int(request.num_prompt_tokens / divisor)),
            num_output_tokens=max(1, int(request.num_output_tokens / divisor)),
            block_key_tokens=key_tokens,
        )


def scale_arrivals(requests: Iterable[TraceRequest], factor: float) -> Iterator[TraceRequest]:
    """Multiply arrivals: 2 halves the rate.

    Raises:
        WorkloadError: a negative factor.
    """
    if not factor >= 0:
        raise WorkloadError(f"Arrivals cannot be multiplied by {factor:g}.")
    for request in requests:
        yield replace(request, arrival_s=request.arrival_s * factor)


def from_zero(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Shift arrivals so that the earliest is 0, in order of arrival."""
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    start = ordered[0].arrival_s if ordered else 0.0
    return [replace(request, arrival_s=request.arrival_s - start) for request in ordered]


def request_rate(requests: Sequence[TraceRequest]) -> float:
    """Mean rate of arrivals in requests a second: gaps between arrivals over their sum.

    Infinite if all come at once; 0 for fewer than two requests, which have no gap.
    """
    if len(requests) < 2:
        return 0.0
    arrivals = [request.arrival_s for request in requests]
    span = max(arrivals) - min(arrivals)
    return (len(requests) - 1) / span if span > 0 else float("inf")


def at_rate(requests: Sequence[TraceRequest], requests_per_s: float) -> list[TraceRequest]:
    """Stretch arrivals to another mean rate, bursts kept, the first at 0; infinity sends all at once.

    Raises:
        WorkloadError: a rate that is not positive, or requests that all come at once and so cannot be
            stretched.
    """
    if not requests_per_s > 0:
        raise WorkloadError(f"A request rate must be positive, not {requests_per_s:g}.")
    ordered = from_zero(requests)
    if requests_per_s == float("inf"):
        return list(scale_arrivals(ordered, 0.0))
    rate = request_rate(ordered)
    if rate == float("inf"):
        raise WorkloadError(
            "All requests of the workload come at the same instant, so no rate can be given to them.",
            hint="Use a trace with arrivals, or generated ones.",
        )
    return list(scale_arrivals(ordered, rate / requests_per_s))
