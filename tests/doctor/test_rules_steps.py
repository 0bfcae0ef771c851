"""Prompts, chunks, and engines that stand still, from the evidence that proves it."""

from __future__ import annotations

from typing import Any

import pytest

from headway.doctor.evidence import Objective
from headway.evidence.engine import EngineFacts
from headway.evidence.load import LoadResult
from tests.doctor.building import bottleneck, first, flags, judged, samples

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

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
        ("max_num_batched_tokens", 192),
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


def test_flags_of_sglang_are_read_under_vllms_names() -> None:
    load = LoadResult(
        "report", lengths=((400000, 10), (300, 10), (300, 10)), measured={"p50_ttft_ms": 300.0, "p99_ttft_ms": 30000.0}
    )
    found, fixes = judged(effective=flags("m --chunked-prefill-size 4096 --tp 8"), loads=(load,))
    assert found.first == "long_prompt_hol" and found.bottlenecks[0].figures["rounds_for_prompt"] == 98
    assert "missing" in " ".join(found.bottlenecks[0].evidence) and [fix.setting for fix in fixes] == ["replicas"]


def test_chunked_prefill_is_advised_only_where_it_is_off() -> None:
    measured = {"p99_itl_ms": 2400.0, "median_itl_ms": 30.0}
    load = LoadResult("bench", requests_per_s=2.0, mean_prompt_tokens=6000, mean_output_tokens=200, measured=measured)
    _, off = judged(effective=flags("m --no-enable-chunked-prefill --max-model-len 8192"), loads=(load,))
    assert (off[0].setting, off[0].to_value) == ("enable_chunked_prefill", True)
    _, on = judged(effective=flags("m --max-model-len 8192"), loads=(load,))
    assert all(fix.setting != "enable_chunked_prefill" for fix in on)


def test_words_are_evidence_too() -> None:
    """Low KV usage, few running, many waiting: medium at most, and the prompt throughput is asked for."""
    found, _ = judged(stated={"kv_usage": "low", "num_running": "few", "num_waiting": "many"})
    assert found.first == "prefill_compute_bound" and found.bottlenecks[0].confidence == "medium"
    assert found.missing[0].figure == "avg_prompt_throughput"


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
