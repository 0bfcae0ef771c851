"""The order of simulated fixes: what is for the most limiting bottleneck, and what each kind is to improve."""

from __future__ import annotations

from headway.doctor.diagnosis import BottleneckKind, Fix
from headway.doctor.evidence import Objective
from headway.doctor.prediction.ranking import Simulated, rank
from headway.report.summary import Summary

BEFORE: Summary = {"median_ttft_ms": 5000.0, "p99_ttft_ms": 9000.0, "mean_tpot_ms": 8.0, "p99_itl_ms": 9.0}
SHOWN = tuple(BEFORE)


def simulated(setting: str, old: object, new: object, kind: BottleneckKind, **after: float) -> Simulated:
    """A fix for one bottleneck, and what it changes."""
    return Simulated(Fix(setting, old, new, "", (kind,)), {**BEFORE, **after})


def order(*items: Simulated) -> list[str]:
    """Settings in the order in which to try them."""
    return [fix.setting for fix in rank(items, BEFORE, Objective(), SHOWN)]


def test_a_larger_budget_is_judged_by_the_first_token() -> None:
    """Decodes are slower beside fuller steps: that is its price, not its effect."""
    larger = simulated(
        "max_num_batched_tokens", 128, 2048, "chunk_missized", median_ttft_ms=100.0, p99_ttft_ms=300.0, p99_itl_ms=60.0
    )
    (fix,) = rank([larger], BEFORE, Objective(), SHOWN)
    assert fix.helps and any("P99 ITL" in text for text in fix.side_effects)


def test_a_smaller_budget_is_judged_by_the_gaps() -> None:
    smaller = simulated(
        "max_num_batched_tokens", 8192, 2048, "chunk_missized", median_ttft_ms=6000.0, mean_tpot_ms=8.0, p99_itl_ms=4.0
    )
    (fix,) = rank([smaller], BEFORE, Objective(), SHOWN)
    assert fix.helps
    useless = simulated("max_num_batched_tokens", 8192, 2048, "chunk_missized", median_ttft_ms=2000.0)
    assert not rank([useless], BEFORE, Objective(), SHOWN)[0].helps


def test_what_is_for_the_first_bottleneck_comes_first_if_it_helps() -> None:
    cap = simulated("max_tokens", None, 4096, "runaway_generation", median_ttft_ms=4000.0, p99_ttft_ms=8000.0)
    cache = simulated("kv_cache_dtype", "auto", "fp8", "kv_starvation", median_ttft_ms=100.0, p99_ttft_ms=200.0)
    assert order(cap, cache) == ["max_tokens", "kv_cache_dtype"]
    useless = simulated("max_tokens", None, 4096, "runaway_generation")
    assert order(useless, cache) == ["kv_cache_dtype", "max_tokens"]


def test_blocks_that_come_free_show_in_throughput_where_waiting_requests_have_no_first_token_yet() -> None:
    """What waits forever is in no latency: more tokens for the same requests are the sign."""
    before: Summary = {**BEFORE, "output_throughput": 700.0}
    cap = Fix("max_tokens", None, 4096, "", ("runaway_generation",))
    (fix,) = rank([Simulated(cap, {**before, "output_throughput": 900.0})], before, Objective(), tuple(before))
    assert fix.helps


def test_what_ends_the_queue_comes_before_what_only_shortens_it() -> None:
    """Even if it needs a further GPU; where nothing ends it, flags come first as ever."""
    half = simulated(
        "kv_cache_dtype", "auto", "fp8", "kv_starvation", p99_ttft_ms=900.0, num_preemptions=30, completed=90
    )
    whole = simulated("replicas", 1, 2, "kv_starvation", p99_ttft_ms=300.0, num_preemptions=0, completed=90)
    assert order(half, whole) == ["replicas", "kv_cache_dtype"]
    still = simulated("replicas", 1, 2, "kv_starvation", p99_ttft_ms=300.0, mean_num_waiting=9.0, mean_num_running=20.0)
    assert order(half, still) == ["kv_cache_dtype", "replicas"]
