"""Situations that users report, by what is to be told from what: each rule beside the one that it may be taken for."""

from __future__ import annotations

import pytest

from headway.doctor.evidence import Evidence
from headway.doctor.rules import find_bottlenecks
from headway.evidence.engine import EngineFacts
from headway.evidence.load import LoadResult
from tests.doctor.building import first, flags, judged, samples


@pytest.mark.parametrize("seats", [64, 128, 256, 384])
def test_running_pinned_below_a_default_refutes_the_default(seats: int) -> None:
    """Nobody wrote max_num_seqs, and the release's default is 1,024: what is seen outranks it."""
    seen = samples([seats], waiting=251, kv=0.205, generation=7573.0, prompt=0.0)
    findings, fixes = judged(effective=flags("llama-3.1-8b"), samples=seen)
    assert findings.first == "waiting_queue_stall"
    assert fixes[0].setting == "max_num_seqs"
    assert fixes[0].from_value == seats < fixes[0].to_value


def test_a_number_of_seats_that_was_written_is_believed() -> None:
    seen = samples([64] * 4, waiting=80, kv=0.2, generation=900.0, prompt=0.0)
    findings, fixes = judged(effective=flags("llama-3.1-8b --max-num-seqs 512"), samples=seen)
    assert not any(fix.setting == "max_num_seqs" and fix.from_value == 64 for fix in fixes)
    assert "max_num_seqs" not in {fix.setting for fix in fixes}
    assert findings.first in ("waiting_queue_stall", None)


def test_blocks_that_are_full_explain_a_steady_batch_without_a_limit_on_seats() -> None:
    seen = samples([35] * 4, waiting=[115, 118, 121, 125], kv=0.99, generation=118.0, prompt=380.0)
    findings, fixes = judged(samples=seen)
    assert findings.first == "kv_starvation"
    assert not findings.has("waiting_queue_stall")
    assert fixes[0].setting == "gpu_memory_utilization"


def test_a_benchmark_with_fast_first_tokens_is_not_overloaded() -> None:
    """Its last requests end after the last arrival, so that completions lag the offered rate."""
    measured = {"request_throughput": 13.65, "mean_ttft_ms": 151.0, "p99_ttft_ms": 232.0, "mean_itl_ms": 82.6}
    assert first(loads=(LoadResult("bench", requests_per_s=15.0, measured=measured),)) == "none"


def test_an_engine_that_runs_refutes_an_estimate_by_which_it_could_not_start() -> None:
    from headway.doctor.gather import gather

    evidence = gather(
        "vllm serve Qwen/Qwen3-32B --max-model-len=16384 -tp 2 --no-enable-prefix-caching",
        observed=["concurrency=64,request_throughput=0.457,mean_ttft_ms=48302"],
        gpu="a100-40gb",
        engine_version="0.9.0",
    )
    assert not find_bottlenecks(evidence).has("impossible_request_at_queue_head")


def test_clients_that_wait_for_first_tokens_of_long_prompts_wait_for_prefill() -> None:
    measured = {"request_throughput": 1.21, "mean_ttft_ms": 18854.0, "mean_tpot_ms": 875.0, "median_itl_ms": 44.6}
    load = LoadResult("bench", concurrency=30, mean_prompt_tokens=777.0, mean_output_tokens=6.0, measured=measured)
    findings, _ = judged(loads=(load,))
    assert findings.first == "prefill_compute_bound"
    assert "num_requests_running" in {item.figure for item in findings.missing}


def test_prefill_is_judged_by_what_a_single_stream_gets() -> None:
    lengths = {"mean_prompt_tokens": 16000.0, "mean_output_tokens": 200.0}
    alone = LoadResult("one", 1, measured={"mean_ttft_ms": 3345.0, "request_throughput": 0.13}, **lengths)
    busy = LoadResult("five", 5, measured={"mean_ttft_ms": 9800.0, "request_throughput": 0.17}, **lengths)
    idle = LoadResult("five", 5, measured={"mean_ttft_ms": 9800.0, "request_throughput": 0.03}, **lengths)
    assert first(loads=(alone, busy)) == "prefill_compute_bound"
    assert first(loads=(alone, idle)) != "prefill_compute_bound"


def test_late_first_tokens_of_long_answers_are_not_called_prefill() -> None:
    measured = {"request_throughput": 0.5, "mean_ttft_ms": 9000.0, "mean_tpot_ms": 50.0}
    load = LoadResult("bench", concurrency=30, mean_prompt_tokens=777.0, mean_output_tokens=900.0, measured=measured)
    assert first(loads=(load,)) != "prefill_compute_bound"


def test_a_queue_said_to_grow_beside_gauges_with_room_is_prefill() -> None:
    evidence = Evidence(
        facts=EngineFacts(),
        samples=samples([20], waiting=None, kv=0.32),
        loads=(LoadResult("stated", requests_per_s=8.0, mean_prompt_tokens=6000.0, mean_output_tokens=2.0),),
        stated={"num_waiting": "growing"},
    )
    findings = find_bottlenecks(evidence)
    assert findings.first == "prefill_compute_bound"
    assert findings.bottlenecks[0].figures["offered_prefill_tps"] == 48000.0
