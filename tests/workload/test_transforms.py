"""Shorter requests and other arrivals."""

from __future__ import annotations

import pytest

from headway.errors import WorkloadError
from headway.workload import TraceRequest, at_rate, from_zero, read_trace, request_rate, scale_arrivals, scale_lengths
from tests.shared_data import shared_path

REQUESTS = [TraceRequest(5.0, 100, 3), TraceRequest(6.0, 1, 1), TraceRequest(9.0, 7, 40)]


def test_lengths_are_divided_rounding_down_to_at_least_one() -> None:
    scaled = list(scale_lengths(REQUESTS, 4))
    assert [(r.num_prompt_tokens, r.num_output_tokens) for r in scaled] == [(25, 1), (1, 1), (1, 10)]
    assert [r.arrival_s for r in scaled] == [5.0, 6.0, 9.0]


def test_block_keys_shrink_with_the_prompt() -> None:
    """A prefix of two keys out of four stays half of the prompt."""
    (scaled,) = scale_lengths([TraceRequest(0.0, 2048, 8, None, (0, 1, 2, 3), 512)], 4)
    assert len(scaled.keys_at(16)) == 512 // 16
    assert scaled.keys_at(16)[15] == (1, 7)
    with pytest.raises(WorkloadError, match="leave nothing of a 16-token key"):
        list(scale_lengths([TraceRequest(0.0, 2048, 8, None, (0,), 16)], 32))


@pytest.mark.parametrize("divisor", [0.0, -1.0, float("nan")])
def test_a_divisor_must_be_positive(divisor: float) -> None:
    with pytest.raises(WorkloadError, match="cannot be divided"):
        list(scale_lengths(REQUESTS, divisor))


def test_rate_counts_gaps_not_requests() -> None:
    assert request_rate(REQUESTS) == pytest.approx(0.5)
    assert request_rate(REQUESTS[:1]) == 0.0
    assert request_rate([REQUESTS[0], REQUESTS[0]]) == float("inf")


def test_stretching_keeps_the_bursts_and_starts_at_zero() -> None:
    stretched = at_rate(REQUESTS, 2.0)
    assert [r.arrival_s for r in stretched] == pytest.approx([0.0, 0.25, 1.0])
    assert request_rate(stretched) == pytest.approx(2.0)


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert {r.arrival_s for r in at_rate(REQUESTS, float("inf"))} == {0.0}


def test_what_comes_at_once_cannot_be_given_a_rate() -> None:
    with pytest.raises(WorkloadError, match="same instant"):
        at_rate([REQUESTS[0], REQUESTS[0]], 1.0)
    with pytest.raises(WorkloadError, match="must be positive"):
        at_rate(REQUESTS, 0.0)
    with pytest.raises(WorkloadError, match="multiplied"):
        list(scale_arrivals(REQUESTS, -1.0))


def test_from_zero_sorts_by_arrival() -> None:
    assert [r.arrival_s for r in from_zero(REQUESTS[::-1])] == [0.0, 1.0, 4.0]
    assert from_zero([]) == []


def test_a_recorded_trace_takes_the_rate_it_is_given() -> None:
    requests = list(read_trace(shared_path("traces/azure2023_conv.csv.gz"), limit=200))
    assert request_rate(at_rate(requests, 1.5)) == pytest.approx(1.5)
