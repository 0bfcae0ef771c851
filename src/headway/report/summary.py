"""Latency and throughput of a run, under the names and definitions of `vllm bench serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from headway.report.latency import LatencyAccumulator
from headway.report.slo import RequestRecord, Slo

Summary = dict[str, float | int | None]

DEFAULT_PERCENTILES = (50.0, 90.0, 95.0, 99.0)


class ServingStats:
    """Collects a run request by request; memory does not grow with tokens, and by a few numbers a request.

    Call `add_outputs` for every step's outputs and `add_request` once for each request that ran to its end.
    All instants are on one clock.

    Args:
        started_at: when the first request was sent; seconds are counted from here.
        slo: objectives that `request_goodput` counts.
    """

    def __init__(self, started_at: float, slo: Slo | None = None) -> None:
        self._started_at = started_at
        self._slo = slo or Slo()
        self._ttft = LatencyAccumulator()
        self._tpot = LatencyAccumulator()
        self._itl = LatencyAccumulator()
        self._e2el = LatencyAccumulator()
        self._last_token_at = started_at
        self._num_completed = 0
        self._num_failed = 0
        self._num_good = 0
        self._num_input_tokens = 0
        self._num_output_tokens = 0
        self._tokens_in_second: Counter[int] = Counter()
        self._active_change: Counter[int] = Counter()

    @property
    def num_completed(self) -> int:
        """Requests that ran to their end so far."""
        return self._num_completed

    def add_gap(self, gap_s: float, count: int = 1) -> None:
        """Record a gap between two consecutive outputs of a request, for `count` requests at once.

        Several tokens that come together are one output, as one chunk of a stream is.
        """
        self._itl.add(gap_s, count)

    def add_tokens(self, at: float, num_tokens: int) -> None:
        """Record output tokens that came at an instant."""
        self._tokens_in_second[int(at - self._started_at)] += num_tokens

    def add_request(self, record: RequestRecord) -> None:
        """Record a request that ran to its end."""
        self._num_completed += 1
        self._num_input_tokens += record.num_prompt_tokens
        self._num_output_tokens += record.num_output_tokens
        self._last_token_at = max(self._last_token_at, record.last_token_at)
        self._ttft.add(record.ttft_s)
        self._e2el.add(record.e2el_s)
        if record.tpot_s is not None:
            self._tpot.add(record.tpot_s)
        self._num_good += self._slo.met_by(record)
        self._active_change[int(record.sent_at - self._started_at)] += 1
        self._active_change[int(record.last_token_at - self._started_at) + 1] -= 1

    def add_failure(self) -> None:
        """Record a request that was sent and ended without its outputs; it counts in `failed` alone."""
        self._num_failed += 1

    def summary(self, percentiles: Sequence[float] = DEFAULT_PERCENTILES) -> Summary:
        """The result keys of `vllm bench serve` that a run determines.

        `duration` is from the first request sent to the last one completed. Statistics without samples are
        None, and so is `request_goodput` without objectives. Rates of a run without duration are None.
        """
        duration_s = self._last_token_at - self._started_at

        def per_second(count: int) -> float | None:
            return count / duration_s if duration_s > 0 else None

        summary: Summary = {
            "duration": duration_s,
            "completed": self._num_completed,
            "failed": self._num_failed,
            "total_input_tokens": self._num_input_tokens,
            "total_output_tokens": self._num_output_tokens,
            "request_throughput": per_second(self._num_completed),
            "request_goodput": per_second(self._num_good) if self._slo else None,
            "output_throughput": per_second(self._num_output_tokens),
            "total_token_throughput": per_second(self._num_input_tokens + self._num_output_tokens),
            "max_output_tokens_per_s": max(self._tokens_in_second.values(), default=0),
            "max_concurrent_requests": self._max_concurrent_requests(),
        }
        for name, samples in self._metrics():
            summary |= latency_keys(name, samples, percentiles)
        return summary

    def _metrics(self) -> Iterator[tuple[str, LatencyAccumulator]]:
        yield from (("ttft", self._ttft), ("tpot", self._tpot), ("itl", self._itl), ("e2el", self._e2el))

    def _max_concurrent_requests(self) -> int:
        """Most requests active within one whole second, as counted in seconds since the start."""
        changes = (self._active_change[second] for second in sorted(self._active_change))
        return max(accumulate(changes), default=0)


def latency_keys(name: str, samples: LatencyAccumulator, percentiles: Sequence[float]) -> Summary:
    """`mean_<name>_ms`, `median_…`, `std_…` (population) and `p<percentile>_…`, in milliseconds."""

    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else seconds * 1e3

    keys: Summary = {
        f"mean_{name}_ms": ms(samples.mean_s),
        f"median_{name}_ms": ms(samples.percentile(50)),
        f"std_{name}_ms": ms(samples.std_s),
    }
    for percent in percentiles:
        keys[f"p{percent:g}_{name}_ms"] = ms(samples.percentile(percent))
    return keys
