"""The same workload under several policies, on scripted steps whose price grows with their tokens."""

from __future__ import annotations

import json

import pytest

from headway.config import BATCHING_POLICIES, CacheConfig, SchedulerConfig
from headway.core.arrivals import TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.plan import StepPlan
from headway.core.request import TokenContent
from headway.core.scheduler import Scheduler
from headway.errors import WorkloadError
from headway.executors.scripted import ScriptedExecutor
from headway.frontends.comparison import (
    PromptSource,
    expected_reservation_waste,
    measure_capacity,
    offer,
    offered_rate,
    result_row,
    run_policy,
)
from headway.frontends.replay import ReplayResult
from headway.workload import Generated, TraceRequest, UniformLength, Workload, from_zero, read_trace, scale_lengths
from tests.shared_data import shared_path

PROMPTS = PromptSource(None)
MAX_MODEL_LEN = 2048


def price(plan: StepPlan) -> float:
    """2 ms a step and 0.2 ms a token, padding included: roughly the shape of a small model on a CPU."""
    return 0.002 + 0.0002 * (plan.num_tokens + sum(item.num_padding_tokens for item in plan.scheduled))


def make_engine(policy: str) -> Engine:
    config = SchedulerConfig(max_num_seqs=32, max_num_batched_tokens=256, max_model_len=MAX_MODEL_LEN)
    cache = CacheConfig(num_blocks=32 * MAX_MODEL_LEN // 16 + 1)
    scheduler = Scheduler(config, cache, policy=policy, engine_version="0.32.0")
    return Engine(scheduler, ScriptedExecutor(step_duration_s=price), VirtualClock(), TraceSource([]))


def generated(num_requests: int = 120) -> Workload:
    spec = Generated(num_requests, 1.0, prompt=UniformLength(20, 400), output=UniformLength(2, 60), seed=3)
    return Workload(list(spec.requests()))


def replay_all(workload: Workload, load: float) -> dict[str, ReplayResult]:
    capacity = measure_capacity(make_engine, workload, PROMPTS).summary["request_throughput"]
    assert capacity is not None
    offered = offer(workload, load * capacity)
    return {policy: run_policy(make_engine, policy, offered, PROMPTS) for policy in BATCHING_POLICIES}


def test_at_seventy_percent_of_capacity_chunking_keeps_gaps_short_at_no_cost_in_throughput() -> None:
    results = {policy: result.summary for policy, result in replay_all(generated(), 0.7).items()}
    assert results["chunked"]["p99_itl_ms"] < results["continuous"]["p99_itl_ms"]  # type: ignore[operator]
    throughput = {policy: summary["output_throughput"] or 0.0 for policy, summary in results.items()}
    assert throughput["chunked"] == pytest.approx(throughput["continuous"], rel=0.02)
    assert throughput["naive"] < throughput["continuous"]
    assert all(summary["completed"] == 120 for summary in results.values())


@pytest.mark.parametrize("name", ["azure2023_code", "azure2023_conv"])
def test_waste_of_reservations_is_foretold_by_the_lengths(name: str) -> None:
    """The first 200 requests of the recorded traces, divided by 4, as the published table replays them."""
    trace = read_trace(shared_path(f"traces/{name}.csv.gz"), limit=200)
    workload = Workload(from_zero(list(scale_lengths(trace, 4))))
    results = replay_all(workload, 0.7)
    expected = expected_reservation_waste(workload.requests, MAX_MODEL_LEN)
    for policy in ("naive", "static"):
        assert results[policy].summary["mean_kv_waste"] == pytest.approx(expected, abs=0.02)
    assert results["chunked"].summary["mean_kv_waste"] < 0.04  # type: ignore[operator]


def test_expected_waste_weights_requests_by_their_steps() -> None:
    """10 + 1 tokens: one step with 10. 20 + 3 tokens: steps with 20, 21 and 22. Mean length 73 / 4."""
    requests = [TraceRequest(0.0, 10, 1), TraceRequest(0.0, 20, 3)]
    assert expected_reservation_waste(requests, 100) == pytest.approx(1 - 73 / 4 / 100)


def test_capacity_is_measured_with_all_requests_at_once() -> None:
    spread = measure_capacity(make_engine, offer(generated(), 0.001), PROMPTS).summary
    dense = measure_capacity(make_engine, offer(generated(), 1000.0), PROMPTS).summary
    assert spread["request_throughput"] == pytest.approx(dense["request_throughput"])


def test_every_policy_generates_exactly_the_trace_s_tokens() -> None:
    workload = generated(30)
    for policy in BATCHING_POLICIES:
        summary = run_policy(make_engine, policy, workload, PROMPTS).summary
        assert summary["total_output_tokens"] == workload.num_output_tokens
        assert summary["total_input_tokens"] == workload.num_prompt_tokens


def test_prompts_have_ids_of_the_vocabulary_and_requests_end_by_length_alone() -> None:
    workload = Workload([TraceRequest(0.0, 7, 3, "mine"), TraceRequest(1.0, 5, 2)])
    arrivals = PromptSource(range(50, 60), seed=1).arrivals(workload, make_engine("chunked"))
    (_, first), (at, second) = arrivals
    assert (first.request_id, second.request_id, at) == ("mine", "request-1", 1.0)
    assert isinstance(first.content, TokenContent)
    assert len(first.content.token_ids) == 7 and set(first.content.token_ids) <= set(range(50, 60))
    assert first.sampling.ignore_eos and first.sampling.max_tokens == 3 and first.sampling.greedy


def test_a_request_that_can_never_fit_is_named_before_anything_runs() -> None:
    workload = Workload([TraceRequest(0.0, 7, 3), TraceRequest(1.0, MAX_MODEL_LEN, 1)])
    with pytest.raises(WorkloadError, match=r"Request 2 of the workload has 2048 \+ 1 tokens, more than the longest"):
        run_policy(make_engine, "chunked", workload, PROMPTS)


def test_a_result_row_is_json_with_vllm_s_keys_and_ours() -> None:
    workload = generated(5)
    row = result_row("chunked", run_policy(make_engine, "chunked", workload, PROMPTS), workload, {"model_id": "tiny"})
    again = json.loads(json.dumps(row))
    assert again["policy"] == again["label"] == "chunked" and again["model_id"] == "tiny"
    assert again["request_rate"] == pytest.approx(offered_rate(workload))
    assert again["max_concurrency"] is None and again["loop"] == "open"
    for key in ("output_throughput", "mean_ttft_ms", "p99_itl_ms", "mean_kv_waste", "num_preemptions", "interrupted"):
        assert key in again


def test_a_closed_loop_has_no_offered_rate() -> None:
    workload = Workload(generated(6).requests, "closed", 2)
    row = result_row("chunked", run_policy(make_engine, "chunked", workload, PROMPTS), workload, {})
    assert (row["request_rate"], row["max_concurrency"], row["loop"]) == ("inf", 2, "closed")
