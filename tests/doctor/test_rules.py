"""Healthy servers that must be left in peace; KV blocks and seats, from the evidence that proves it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headway.doctor.evidence import Evidence, Objective
from headway.doctor.fixes.candidates import must_not
from headway.evidence.engine import EngineEvent, EngineTotals, Histogram
from headway.evidence.load import LoadResult
from tests.doctor.building import bottleneck, first, flags, judged, samples, sweep

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

# ---------------------------------------------------------------- nothing wrong


@pytest.mark.parametrize("seed", range(20))
def test_a_busy_server_with_a_full_pool_is_healthy(seed: int) -> None:
    """KV usage between 85 and 95 %, requests waiting for moments, no preemptions: that is what a pool is for."""
    rng = random.Random(seed)
    count = 30
    found, fixes = judged(
        effective=flags(f"{LLAMA} --max-num-seqs 256"),
        samples=samples(
            [rng.randint(150, 210) for _ in range(count)],
            [rng.choice([0, 0, 0, 0, 1, 3]) for _ in range(count)],
            [rng.uniform(0.85, 0.95) for _ in range(count)],
            [rng.uniform(4000, 6000) for _ in range(count)],
            [rng.uniform(3000, 9000) for _ in range(count)],
            preemptions=0,
        ),
    )
    assert found.first == "none", found.bottlenecks
    assert not fixes


def test_an_idle_server_is_idle() -> None:
    found, fixes = judged(samples=samples([0] * 10, 0, 0.0, 0.0, 0.0))
    assert found.first == "none_idle" and not fixes


def test_a_server_at_light_load_is_healthy_not_idle() -> None:
    assert first(samples=samples([1, 2, 1, 3, 2, 1], 0, 0.01, 80.0, 300.0)) == "none"


def test_a_burst_that_drains_is_no_bottleneck() -> None:
    """A deep queue in one of ten samples passes by itself."""
    waiting = [0, 0, 40, 5, 0, 0, 0, 0, 0, 0]
    assert first(samples=samples([60] * 10, waiting, 0.4, 2000.0, 4000.0)) == "none"


def test_a_warming_server_is_no_starvation() -> None:
    """KV usage rises with the number of running requests."""
    running = [10, 20, 30, 40, 50]
    kv = [0.1 + 0.015 * count for count in running]
    assert first(samples=samples(running, 0, kv, 1000.0, 3000.0)) == "none"


def test_a_healthy_closed_loop_that_drifts_upwards_is_no_starvation_when_requests_finish() -> None:
    totals = EngineTotals(duration_s=40.0, counters={"requests": 200.0})
    kv = [0.84, 0.86, 0.88, 0.90, 0.92]
    assert first(samples=samples([64] * 5, 0, kv, 3000.0, 3000.0), totals=totals) == "none"


def test_a_few_preemptions_in_a_thousand_requests_are_noise() -> None:
    totals = EngineTotals(duration_s=600.0, counters={"preemptions": 3.0}, finished={"stop": 5000.0})
    assert first(samples=samples([100] * 5, 0, 0.9, 3000.0, 3000.0), totals=totals) == "none"


def test_met_objectives_are_said() -> None:
    load = LoadResult("bench", requests_per_s=2.0, measured={"p99_ttft_ms": 300.0, "p99_itl_ms": 40.0})
    objective = Objective({"p99_ttft_ms": 500.0, "p99_itl_ms": 50.0})
    found = bottleneck("none", loads=(load,), objective=objective)
    assert found.confidence == "strong" and "Objectives are met" in found.evidence[0]


def test_nothing_seen_is_no_verdict_but_a_list_of_questions() -> None:
    found, _ = judged(effective=flags(LLAMA))
    assert not found.bottlenecks
    assert [item.figure for item in found.missing] == [
        "ttft",
        "itl",
        "throughput",
        "concurrency",
        "num_requests_running",
    ]


# ---------------------------------------------------------------- KV blocks


def test_preemption_without_a_warning_is_inferred_from_conserved_requests() -> None:
    running = [247, 241, 233, 226, 219]
    found = bottleneck(
        "kv_starvation",
        samples=samples(running, [987 - count for count in running], [0.997, 0.996, 0.997, 0.999, 1.0], 2100.0, 0.0),
    )
    assert found.confidence == "strong"
    assert (found.figures["infer_preemptions"], found.figures["conserved_total"]) == (28, 987)


def test_arrivals_that_hide_the_sum_are_not_called_silent_preemption() -> None:
    running, waiting = [247, 241, 233, 226, 219], [740, 760, 790, 800, 830]
    found = bottleneck("kv_starvation", samples=samples(running, waiting, 0.998, 2100.0, 0.0))
    assert "infer_preemptions" not in found.figures


def test_a_warning_line_is_enough() -> None:
    event = EngineEvent("preemption", None, 1, "preempted", {"mode": "RECOMPUTE", "cumulative_preemptions": 101.0})
    found, fixes = judged(events=(event,))
    assert found.first == "kv_starvation"
    assert found.bottlenecks[0].figures["cumulative_preemptions"] == 101
    assert fixes[0].setting == "gpu_memory_utilization"


def test_preemptions_order_the_cheap_change_first() -> None:
    found, fixes = judged(
        effective=flags(f"{LLAMA} --max-num-seqs 256"),
        samples=samples([200] * 6, 30, 0.99, 3000.0, 500.0, preemptions=[0, 20, 41, 60, 83, 100]),
    )
    assert found.first == "kv_starvation"
    assert [fix.setting for fix in fixes[:3]] == ["max_num_seqs", "gpu_memory_utilization", "kv_cache_dtype"]
    assert fixes[0].to_value == 160


def test_seats_are_not_cut_with_few_requests_running() -> None:
    parts: dict[str, Any] = {
        "effective": flags(f"{LLAMA} --max-num-seqs 256"),
        "samples": samples([5] * 6, 3, 0.99, 100.0, 50.0, preemptions=[0, 2, 4, 6, 8, 10]),
    }
    found, fixes = judged(**parts)
    assert found.first == "kv_starvation"
    assert all(fix.setting != "max_num_seqs" for fix in fixes)
    reasons = {item.setting: item.reason for item in must_not(Evidence(**parts), found)}
    assert "Only 5 requests run" in reasons["max_num_seqs"]


def test_one_long_request_is_slow_progress_not_a_deadlock() -> None:
    found = bottleneck("kv_starvation", samples=samples([1, 1, 1], 14, [0.765, 0.767, 0.768], [5.4, 5.4, 5.5], 0.0))
    assert found.figures["not_deadlock"] is True
    assert found.figures["kv_tokens_about"] == pytest.approx(36_000, rel=0.02)


def test_a_pool_that_the_same_requests_fill_is_forecast_with_both_explanations() -> None:
    found = bottleneck("kv_starvation", samples=samples([38] * 5, 0, [0.80, 0.83, 0.86, 0.885, 0.915], 840.0, 0.0))
    assert found.figures["seconds_to_full"] == pytest.approx(30, abs=3)
    assert found.discriminate[0].startswith("leak") and found.discriminate[1].startswith("runaway")


def test_utilisation_below_0_7_is_raised_before_other_knobs() -> None:
    _, fixes = judged(
        effective=flags(f"{LLAMA} --gpu-memory-utilization 0.6 --max-num-seqs 256"),
        samples=samples([200] * 6, 30, 0.99, 3000.0, 500.0, preemptions=[0, 20, 41, 60, 83, 100]),
    )
    assert (fixes[0].setting, fixes[0].from_value, fixes[0].to_value) == ("gpu_memory_utilization", 0.6, 0.9)


def test_blocks_in_use_with_nobody_there_are_a_leak() -> None:
    series = samples([4, 3, 0, 0, 0], 0, [0.5, 0.45, 0.4, 0.4, 0.4], [90.0, 80.0, 0.0, 0.0, 0.0], 0.0)
    found, fixes = judged(samples=series)
    assert found.first == "kv_leak" and not fixes


def test_outputs_that_only_the_length_limit_ends_are_runaways() -> None:
    tokens = Histogram((1000.0, 5000.0), (0.0, 100.0), 100.0, 390_000.0)
    prompts = Histogram((1000.0, 5000.0), (100.0, 100.0), 100.0, 20_000.0)
    totals = EngineTotals(
        duration_s=600.0,
        finished={"length": 95.0, "stop": 5.0},
        histograms={"generation_tokens": tokens, "prompt_tokens": prompts},
    )
    found, fixes = judged(
        effective=flags(f"{LLAMA} --max-model-len 4096"), samples=samples([40] * 5, 0, 0.6, 900.0, 50.0), totals=totals
    )
    assert found.first == "runaway_generation"
    assert fixes[0].setting == "max_tokens"


# ---------------------------------------------------------------- seats


def test_seats_pinned_with_free_blocks() -> None:
    parts: dict[str, Any] = {
        "effective": flags(f"{LLAMA} --max-num-seqs 256"),
        "samples": samples([256], 251, 0.205, 7573.2, 0.0),
    }
    found, fixes = judged(**parts)
    assert found.first == "waiting_queue_stall"
    assert (fixes[0].setting, fixes[0].from_value, fixes[0].to_value) == ("max_num_seqs", 256, 512)
    assert "41" in fixes[0].reason
    assert {"gpu_memory_utilization", "kv_cache_dtype"} <= {item.setting for item in must_not(Evidence(**parts), found)}


def test_seats_never_go_beyond_what_the_blocks_hold() -> None:
    _, fixes = judged(
        effective=flags(f"{LLAMA} --max-num-seqs 64"), samples=samples([64] * 5, 300, 0.6, 2000.0, 1000.0)
    )
    assert fixes[0].setting == "max_num_seqs"
    assert 64 < fixes[0].to_value <= 64 / 0.6


def test_an_unknown_seat_limit_shows_by_running_requests_that_are_pinned() -> None:
    found = bottleneck("waiting_queue_stall", samples=samples([128] * 6, [40, 44, 50, 60, 66, 70], 0.3, 3000.0, 900.0))
    assert found.confidence == "medium" and found.figures["max_num_seqs"] == 128


def test_a_round_number_in_one_sample_is_a_seat_limit_when_nothing_else_holds_requests_back() -> None:
    found, fixes = judged(samples=samples([256], 251, 0.205, 7573.2, 0.0))
    assert found.first == "waiting_queue_stall" and found.bottlenecks[0].confidence == "medium"
    assert (fixes[0].setting, fixes[0].from_value, fixes[0].to_value) == ("max_num_seqs", 256, 512)


def test_waiting_that_nothing_explains_is_not_called_healthy() -> None:
    """Tokens flow, no prompt is computed, seats and blocks are free: a gate that the figures do not show."""
    found, _ = judged(
        effective=flags(f"{LLAMA} --max-num-seqs 256"), samples=samples([40, 37, 43, 39], 25, 0.2, 900.0, 0.0)
    )
    assert found.first == "waiting_queue_stall" and found.bottlenecks[0].confidence == "weak"
    assert len(found.bottlenecks[0].discriminate) == 3


def test_flat_throughput_with_growing_waits_asks_how_many_run() -> None:
    found, _ = judged(
        loads=sweep({1: 137.0, 4: 520.0, 8: 520.0, 16: 520.0}, mean_ttft_ms={1: 30.0, 4: 30.0, 8: 3900.0, 16: 11800.0})
    )
    assert found.first == "waiting_queue_stall"
    assert "num_requests_running" in {item.figure for item in found.missing}
