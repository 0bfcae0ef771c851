"""Definitions of `vllm bench serve`: what each key counts, and what it leaves out."""

from __future__ import annotations

import pytest

from headway.errors import ConfigError
from headway.report import RequestRecord, ServingStats, Slo, parse_slo


def record(
    name: str, sent: float, first: float, last: float, n_in: int, n_out: int, max_itl: float = 0.0
) -> RequestRecord:
    return RequestRecord(name, sent, first, last, n_in, n_out, max_itl)


def three_requests(slo: Slo | None = None) -> ServingStats:
    """Sent at 10, 10.5 and 12.2; the last has a single token; the second stalls for 1.5 s."""
    stats = ServingStats(started_at=10.0, slo=slo)
    tokens = {"a": [10.5, 11.0, 11.5], "b": [11.0, 11.25, 12.75, 13.0], "c": [12.7]}
    for instants in tokens.values():
        for instant in instants:
            stats.add_tokens(instant, 1)
        for before, after in zip(instants, instants[1:], strict=False):  # noqa: RUF007
            stats.add_gap(after - before)
    stats.add_request(record("a", 10.0, 10.5, 11.5, 100, 3, 0.5))
    stats.add_request(record("b", 10.5, 11.0, 13.0, 200, 4, 1.5))
    stats.add_request(record("c", 12.2, 12.7, 12.7, 300, 1))
    return stats


def test_throughputs_are_over_first_send_to_last_completion() -> None:
    summary = three_requests().summary()
    assert summary["duration"] == pytest.approx(3.0)
    assert summary["completed"] == 3 and summary["failed"] == 0
    assert summary["total_input_tokens"] == 600 and summary["total_output_tokens"] == 8
    assert summary["request_throughput"] == pytest.approx(1.0)
    assert summary["output_throughput"] == pytest.approx(8 / 3)
    assert summary["total_token_throughput"] == pytest.approx(608 / 3)


def test_tpot_leaves_single_token_requests_out_and_is_per_request() -> None:
    summary = three_requests().summary()
    assert summary["mean_tpot_ms"] == pytest.approx((500 + 2000 / 3) / 2)
    assert summary["median_ttft_ms"] == pytest.approx(500)
    assert summary["mean_e2el_ms"] == pytest.approx((1500 + 2500 + 500) / 3)


def test_itl_pools_the_gaps_of_all_requests() -> None:
    """Five gaps: 500, 500, 250, 1500, 250 ms. A mean of means would be 583."""
    summary = three_requests().summary(percentiles=(50, 99, 99.9))
    assert summary["mean_itl_ms"] == pytest.approx(600)
    assert summary["p50_itl_ms"] == pytest.approx(500)
    assert summary["p99_itl_ms"] == pytest.approx(1500 - 0.04 * 1000)
    assert summary["std_itl_ms"] == pytest.approx((1_075_000 / 5) ** 0.5)
    assert "p99.9_itl_ms" in summary


def test_peaks_are_counted_in_whole_seconds_from_the_start() -> None:
    """Tokens: second 0 has 1, second 1 has 4, second 2 has 2, second 3 has 1.

    Active: second 0 has a and b, second 1 the same two, second 2 has b and c, second 3 has b.
    """
    summary = three_requests().summary()
    assert summary["max_output_tokens_per_s"] == 4
    assert summary["max_concurrent_requests"] == 2


def test_requests_that_touch_the_same_second_count_as_concurrent() -> None:
    """One ends at 1.2 and the other begins at 1.5: never active together, but both within second 1."""
    stats = ServingStats(started_at=0.0)
    stats.add_request(record("x", 0.0, 0.5, 1.2, 1, 2))
    stats.add_request(record("y", 1.5, 1.6, 1.9, 1, 2))
    assert stats.summary()["max_concurrent_requests"] == 2


def test_goodput_needs_every_objective_of_a_request() -> None:
    assert three_requests().summary()["request_goodput"] is None
    assert three_requests(Slo(ttft_ms=500)).summary()["request_goodput"] == pytest.approx(1.0)
    assert three_requests(Slo(ttft_ms=500, e2el_ms=1500)).summary()["request_goodput"] == pytest.approx(2 / 3)
    assert three_requests(Slo(itl_ms=1000)).summary()["request_goodput"] == pytest.approx(2 / 3)
    assert three_requests(Slo(ttft_ms=499)).summary()["request_goodput"] == 0.0


def test_goodput_takes_the_tpot_of_a_single_token_as_zero() -> None:
    assert three_requests(Slo(tpot_ms=1)).summary()["request_goodput"] == pytest.approx(1 / 3)


def test_failures_count_alone() -> None:
    stats = three_requests()
    stats.add_failure()
    summary = stats.summary()
    assert (summary["failed"], summary["completed"], summary["total_input_tokens"]) == (1, 3, 600)


def test_a_run_without_requests_has_no_statistics() -> None:
    summary = ServingStats(started_at=5.0).summary()
    assert summary["completed"] == 0 and summary["duration"] == 0.0
    assert summary["output_throughput"] is None and summary["p99_itl_ms"] is None
    assert summary["max_concurrent_requests"] == 0 and summary["max_output_tokens_per_s"] == 0


def test_the_keys_are_those_of_vllm_bench_serve() -> None:
    statistics = [
        f"{statistic}_{metric}_ms"
        for metric in ("ttft", "tpot", "itl", "e2el")
        for statistic in ("mean", "median", "std", "p99")
    ]
    rates = ["request_throughput", "request_goodput", "output_throughput", "total_token_throughput"]
    counts = ["duration", "completed", "failed", "total_input_tokens", "total_output_tokens"]
    peaks = ["max_output_tokens_per_s", "max_concurrent_requests"]
    assert list(three_requests().summary(percentiles=(99,))) == counts + rates + peaks + statistics


def test_objectives_as_text() -> None:
    assert parse_slo("ttft_ms=500,itl_ms=99.5") == Slo(ttft_ms=500, itl_ms=99.5)
    assert parse_slo("ttft:500 e2el:9000") == Slo(ttft_ms=500, e2el_ms=9000)
    assert str(parse_slo("itl_ms=100,ttft_ms=2000")) == "TTFT ≤ 2000 ms, ITL ≤ 100 ms"
    assert not parse_slo("")


@pytest.mark.parametrize("text", ["ttft_ms", "ttft_ms=", "ttft_ms=fast", "ttft_ms=0", "ttft_ms=-1", "speed=3"])
def test_bad_objectives_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an objective"):
        parse_slo(text)
