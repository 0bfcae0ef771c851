"""Each kind of bottleneck from the evidence that proves it; and healthy servers that must be left in peace."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headway.doctor.evidence import Evidence, Objective
from headway.doctor.fixes import must_not
from headway.doctor.rules import find_bottlenecks
from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample, EngineTotals, Histogram
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


def test_flat_throughput_with_growing_waits_asks_how_many_run() -> None:
    found, _ = judged(
        loads=sweep({1: 137.0, 4: 520.0, 8: 520.0, 16: 520.0}, mean_ttft_ms={1: 30.0, 4: 30.0, 8: 3900.0, 16: 11800.0})
    )
    assert found.first == "waiting_queue_stall"
    assert "num_requests_running" in {item.figure for item in found.missing}


# ---------------------------------------------------------------- prompts and chunks


def test_prefill_holds_requests_back_when_neither_seats_nor_blocks_do() -> None:
    found, fixes = judged(
        effective=flags(f"{LLAMA} --max-num-seqs 256"),
        samples=samples([20] * 6, [100, 120, 140, 165, 190, 215], 0.3, 30.0, 31000.0),
        loads=(LoadResult("client", requests_per_s=8.0, mean_prompt_tokens=6000, mean_output_tokens=2),),
    )
    assert found.first == "prefill_compute_bound"
    assert found.bottlenecks[0].figures["offered_prefill_tps"] == 48000
    assert "kv_starvation" in found.ruled_out and "max_num_seqs" in found.ruled_out
    assert fixes[0].setting == "replicas" and fixes[0].to_value == 2
    assert found.has("offered_load_too_high")


def test_one_output_token_in_a_closed_loop_is_pure_prefill() -> None:
    found = bottleneck(
        "prefill_compute_bound",
        effective=flags("m --max-num-seqs 256 --max-num-batched-tokens 65536 --max-model-len 196608"),
        samples=samples([8], 35),
        loads=(LoadResult("client", concurrency=64, mean_prompt_tokens=1024, mean_output_tokens=1),),
    )
    assert found.figures["loop"] == "closed" and found.figures["offered_tokens_per_round"] == 65536


def test_a_chunk_too_large_for_a_slow_device() -> None:
    """8,192 tokens at 2,400 a second make steps of 3.4 s, and each decode gets one token a step."""
    found, fixes = judged(
        effective=flags("m --max-num-batched-tokens 8192 --max-num-seqs 128", gpu="GB10"),
        samples=samples(
            [1, 3, 3, 3, 3, 3], 0, 0.1, [29.1, 0.3, 0.2, 0.6, 8.0, 30.0], [0.0, 2400.0, 2380.0, 2410.0, 900.0, 0.0]
        ),
    )
    assert found.first == "chunk_missized"
    assert found.bottlenecks[0].figures["predicted_itl_s"] == pytest.approx(3.41, rel=0.03)
    assert [(fix.setting, fix.to_value) for fix in fixes[:2]] == [
        ("max_num_batched_tokens", 1024),
        ("max_num_batched_tokens", 240),
    ]


def test_the_same_chunk_with_prompts_counted_when_they_are_done() -> None:
    """V1 counts a prompt's tokens at its end: nothing, nothing, then three intervals' worth."""
    found = bottleneck(
        "chunk_missized",
        effective=flags("m --max-num-batched-tokens 8192", gpu="GB10"),
        samples=samples(
            [1, 3, 3, 3, 3, 3, 3, 3], 0, 0.1, [29.0, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 60.0],
            [0.0, 0.0, 0.0, 7200.0, 0.0, 0.0, 7200.0, 0.0],
        ),
    )  # fmt: skip
    assert found.figures["predicted_itl_s"] == pytest.approx(3.41, rel=0.05)


def test_a_busy_prefill_at_low_rate_is_no_long_step() -> None:
    """500 prompt tokens/s beside 20 fast decodes: the budget over that rate is no step time."""
    assert (
        first(effective=flags("m --max-num-batched-tokens 8192"), samples=samples([20] * 6, 0, 0.3, 900.0, 500.0))
        == "none"
    )


def test_a_tail_of_gaps_that_a_full_chunk_explains() -> None:
    load = LoadResult(
        "bench", requests_per_s=4.0, mean_prompt_tokens=6000, mean_output_tokens=200,
        measured={"p99_itl_ms": 900.0, "median_itl_ms": 25.0, "mean_ttft_ms": 900.0, "output_throughput": 700.0},
    )  # fmt: skip
    parts: dict[str, Any] = {
        "effective": flags(f"{LLAMA} --max-num-batched-tokens 16384", gpu="l40s"),
        "loads": (load,),
    }
    found, fixes = judged(**parts, objective=Objective({"p99_itl_ms": 200.0}))
    assert found.first == "chunk_missized"
    assert fixes[0].setting == "max_num_batched_tokens" and fixes[0].to_value < 4096


def test_a_chunk_so_small_that_decodes_take_it() -> None:
    found, fixes = judged(
        effective=flags(f"{LLAMA} --max-num-batched-tokens 256 --max-num-seqs 250"),
        samples=samples([180] * 6, [20, 30, 40, 50, 60, 70], 0.4, 5000.0, 800.0),
    )
    assert found.first == "chunk_missized"
    assert (fixes[0].setting, fixes[0].to_value) == ("max_num_batched_tokens", 2048)


def test_offline_work_takes_a_larger_budget() -> None:
    found, fixes = judged(
        effective=flags("m --enable-chunked-prefill --max-model-len 41000", version="0.5.4"),
        objective=Objective(goal="throughput"),
    )
    assert found.first == "chunk_missized"
    assert fixes[0].setting == "max_num_batched_tokens" and fixes[0].to_value > fixes[0].from_value


def test_a_budget_near_max_model_len_is_not_needed() -> None:
    _, fixes = judged(effective=flags("m --max-model-len 120000 --max-num-batched-tokens 64000 --max-num-seqs 8"))
    assert [(fix.setting, fix.to_value) for fix in fixes] == [
        ("max_num_batched_tokens", 8192),
        ("max_num_batched_tokens", 2048),
    ]


def test_long_prompts_hold_up_short_ones() -> None:
    load = LoadResult(
        "bench", requests_per_s=3.0, lengths=((300, 100),) * 50 + ((60000, 100),) * 2,
        measured={"median_ttft_ms": 200.0, "p99_ttft_ms": 9000.0},
    )  # fmt: skip
    found, fixes = judged(effective=flags(f"{LLAMA} --max-num-batched-tokens 2048"), loads=(load,))
    assert found.first == "long_prompt_hol" and found.bottlenecks[0].figures["rounds_for_prompt"] == 30
    assert (fixes[0].setting, fixes[0].to_value) == ("long_prefill_token_threshold", 512)


def test_sglang_lacks_the_mechanism() -> None:
    load = LoadResult(
        "report", lengths=((458000, 10), (300, 10), (300, 10)), measured={"p50_e2el_ms": 1326.0, "p99_e2el_ms": 46300.0}
    )
    found, fixes = judged(facts=EngineFacts(engine="sglang", max_num_batched_tokens=4096), loads=(load,))
    assert found.first == "long_prompt_hol"
    assert found.bottlenecks[0].figures["rounds_for_prompt"] == 112
    assert [fix.setting for fix in fixes] == ["replicas"]


# ---------------------------------------------------------------- standing still


def test_nothing_runs_and_somebody_waits() -> None:
    found, fixes = judged(
        facts=EngineFacts(kv_cache_tokens=76640, max_model_len=262144),
        samples=samples([0, 0, 0, 0], [1, 2, 3, 4], 0.0, 0.0, 0.0, interval_s=60.0),
    )
    assert found.first == "impossible_request_at_queue_head"
    assert fixes[0].setting == "max_model_len" and 0 < fixes[0].to_value <= 76640


def test_an_engine_that_stands_still_with_free_blocks() -> None:
    found, fixes = judged(
        samples=samples(
            [6, 7, 10, 9], [2, 3, 0, 0], [0.054, 0.06, 0.076, 0.075], [0.5, 0.5, 2.3, 74.7], [0, 0, 9177.3, 222.1]
        )
    )
    assert found.first == "engine_stall_other" and not fixes
    assert {"kv_starvation", "max_num_seqs"} <= set(found.ruled_out)


def test_adapters_wait_for_a_slot() -> None:
    facts = EngineFacts(max_lora=2, lora_running=("a", "b"), lora_waiting=("c", "d"))
    found, fixes = judged(
        effective=flags(f"{LLAMA} --enable-lora --max-loras 2"),
        facts=facts,
        samples=samples([6] * 5, [9, 10, 12, 12, 13], 0.2, 300.0, 0.0),
    )
    assert found.first == "lora_slots"
    assert (fixes[0].setting, fixes[0].to_value) == ("max_loras", 4)


# ---------------------------------------------------------------- device, client, speculation


def test_speculation_that_is_slower_than_none() -> None:
    found, fixes = judged(
        samples=(
            *samples([1], 0, 0.002, 128.3, 1357.9, source="log part 1"),
            *samples([1], 0, 0.001, 342.2, 967.2, source="log part 2"),
        ),
        events=(EngineEvent("spec_decode", 0.0, 2, "drafts", {"acceptance_rate": 0.966}, source="log part 1"),),
    )
    assert found.first == "spec_decode_overhead"
    assert (fixes[0].setting, fixes[0].to_value) == ("speculative_config", None)


def table(values: dict[tuple[bool, bool], float]) -> tuple[LoadResult, ...]:
    """Milliseconds a token with and without (speculation, eager execution)."""
    return tuple(
        LoadResult(
            f"spec={spec} eager={eager}",
            measured={"mean_tpot_ms": value},
            settings={"speculative_config": {"method": "mtp"} if spec else None, "enforce_eager": eager},
        )
        for (spec, eager), value in values.items()
    )


def test_knobs_of_a_measured_table_are_ranked_by_their_effect() -> None:
    runs = table({(True, True): 113.2, (True, False): 108.8, (False, True): 90.3, (False, False): 87.2})
    found, fixes = judged(
        effective=flags("org/Some-27B-NVFP4 --enforce-eager --speculative-config.method mtp", gpu="GB10"), loads=runs
    )
    assert [fix.setting for fix in fixes[:2]] == ["speculative_config", "enforce_eager"]
    assert found.first == "hbm_bound"
    assert fixes[0].predicted[0].after < fixes[0].predicted[0].before


def test_knobs_that_changed_nothing_are_named() -> None:
    before = {"gpu_memory_utilization": 0.8, "max_num_seqs": None}
    after = {"gpu_memory_utilization": 0.85, "max_num_seqs": 16}
    runs = [
        LoadResult("", concurrency=count, mean_prompt_tokens=512, measured={"output_throughput": rate}, settings=chosen)
        for chosen, rates in ((before, {1: 44.59, 2: 66.13, 4: 78.5}), (after, {1: 44.04, 2: 67.82, 4: 82.55}))
        for count, rate in rates.items()
    ]
    found, fixes = judged(loads=tuple(runs))
    assert found.first == "none" and not fixes
    assert found.bottlenecks[0].figures["parallel_efficiency_c4"] == pytest.approx(0.44, abs=0.03)


def test_fewer_requests_in_the_engine_than_the_client_says() -> None:
    found = bottleneck(
        "client_bound",
        samples=samples([4, 5, 4, 4, 5, 4], 0, 0.02, 300.0, 800.0),
        loads=(LoadResult("bench", concurrency=64, measured={"output_throughput": 300.0}),),
    )
    assert found.confidence == "strong"


def test_under_a_hundred_tokens_a_second_on_an_h100_the_client_is_looked_at_first() -> None:
    load = LoadResult("bench", concurrency=16, measured={"output_throughput": 80.0})
    found = bottleneck("client_bound", effective=flags(LLAMA), loads=(load,))
    assert "client first" in " ".join(found.evidence)


def test_a_single_stream_of_a_large_model_is_not_blamed_on_the_client() -> None:
    load = LoadResult("bench", concurrency=1, measured={"output_throughput": 36.0, "mean_tpot_ms": 27.0})
    found, _ = judged(
        effective=flags("meta-llama/Llama-3.3-70B-Instruct --quantization fp8 --max-model-len 8192"), loads=(load,)
    )
    assert not found.has("client_bound")


def test_a_missed_bound_at_the_bandwidth_floor_is_hbm_bound() -> None:
    load = LoadResult(
        "bench", concurrency=1, mean_prompt_tokens=1000, mean_output_tokens=200,
        measured={"mean_tpot_ms": 24.0, "p99_itl_ms": 26.0, "median_itl_ms": 24.0, "output_throughput": 41.0},
    )  # fmt: skip
    found, fixes = judged(
        effective=flags(LLAMA, gpu="l40s"), loads=(load,), objective=Objective({"mean_tpot_ms": 15.0})
    )
    assert found.first == "hbm_bound"
    assert fixes[0].setting == "quantization"


def test_more_is_offered_than_the_device_can_serve() -> None:
    """Physics says that a larger batch gives little more: no flag helps."""
    tokens = Histogram((1000.0,), (600.0,), 600.0, 120_000.0)
    prompts = Histogram((8000.0,), (600.0,), 600.0, 600 * 3000.0)
    totals = EngineTotals(
        duration_s=100.0,
        finished={"stop": 600.0},
        histograms={"generation_tokens": tokens, "prompt_tokens": prompts},
    )
    load = LoadResult("bench", requests_per_s=18.0)
    found, fixes = judged(
        effective=flags(f"{LLAMA} --max-num-seqs 256"),
        samples=samples([256] * 6, [100, 340, 580, 820, 1060, 1300], 0.8, 1200.0, 18000.0, interval_s=20.0),
        totals=totals,
        loads=(load,),
    )
    offered = found.get("offered_load_too_high")
    assert offered is not None and offered.figures["replicas_needed"] == 4
    assert any(fix.setting == "replicas" and fix.to_value == 4 for fix in fixes)


def test_eager_execution_of_a_small_model_waits_for_launches() -> None:
    found, fixes = judged(
        effective=flags("Qwen/Qwen2-0.5B --enforce-eager"), samples=samples([2] * 6, 0, 0.01, 100.0, 200.0)
    )
    assert found.first == "cpu_launch_bound"
    assert (fixes[0].setting, fixes[0].to_value) == ("enforce_eager", False)


def test_a_plan_that_does_not_fit_is_hbm_bound_with_the_planners_fixes() -> None:
    from headway.planner import plan

    planned = plan("llama-3.3-70b", "h100", max_model_len=8192)
    found, fixes = judged(plan=planned)
    assert found.first == "hbm_bound"
    assert fixes and fixes[0].setting in {"quantization", "tensor_parallel_size"}


def test_engines_of_one_server_are_judged_one_by_one() -> None:
    """One replica starves; the mean over both would look healthy."""
    series: tuple[EngineSample, ...] = (
        *samples([250] * 5, 80, 0.4, 3000.0, 900.0, engine="0"),
        *samples([20] * 5, 0, 0.05, 600.0, 900.0, engine="1"),
    )
    assert first(effective=flags(f"{LLAMA} --max-num-seqs 250"), samples=series) == "waiting_queue_stall"


def test_every_finding_says_what_would_refute_it() -> None:
    found = find_bottlenecks(Evidence(samples=samples([256] * 3, 99, 0.2, 700.0, 0.0)))
    assert all(item.evidence and item.refuted_by for item in found.bottlenecks)
