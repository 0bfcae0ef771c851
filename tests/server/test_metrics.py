"""/metrics speaks vLLM's names, types, labels and buckets, and the numbers are right."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headway.metrics import token_count_buckets
from tests.server.support import MODEL, LiveServer, endless, eventually, says, serving
from tests.shared_data import shared_path

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def families(server: LiveServer) -> dict[str, str]:
    """Type of each metric family."""
    text = server.call("GET", "/metrics").text
    return {family.name: family.type for family in text_string_to_metric_families(text)}


def test_every_metric_under_vllms_prefix_is_one_of_vllms_with_its_type() -> None:
    """Against the list of what vLLM 0.32 registers."""
    lines = shared_path("vllm_metrics.yaml").read_text().splitlines()
    known: dict[str, str] = {}
    name = ""
    for line in lines:
        if match := re.fullmatch(r"  (vllm:\w+):", line):
            name = match[1]
        elif match := re.fullmatch(r"    type: (\w+)", line):
            known[name] = match[1]
    with serving(says("x")) as server:
        ours = {n: kind for n, kind in families(server).items() if n.startswith("vllm:") and not n.endswith("_created")}
    assert len(ours) >= 25
    for name, kind in ours.items():
        assert known[name] == kind, name


@pytest.mark.parametrize(
    "name",
    [
        *("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        *("prompt_tokens_total", "generation_tokens_total", "num_preemptions_total"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "cache_config_info"),
        *("time_to_first_token_seconds_count", "inter_token_latency_seconds_count"),
        *("request_time_per_output_token_seconds_count", "e2e_request_latency_seconds_count"),
        *("request_queue_time_seconds_count", "request_prefill_time_seconds_count"),
        *("request_decode_time_seconds_count", "request_prompt_tokens_count", "request_generation_tokens_count"),
        *("iteration_tokens_total_count", "request_params_n_count", "request_params_max_tokens_count"),
    ],
)
def test_metrics_that_dashboards_read_are_there(name: str) -> None:
    with serving(says("x")) as server:
        pattern = rf'^vllm:{name}\{{.*engine="0".*model_name="{re.escape(MODEL)}".*\}} '
        assert re.search(pattern, server.call("GET", "/metrics").text, re.M)


def test_a_finished_request_is_counted_once_in_each_place() -> None:
    with serving(endless) as server:
        server.post("/v1/completions", prompt="p" * 40, max_tokens=5)
        server.post("/v1/completions", prompt="p" * 40, max_tokens=1)
        eventually(lambda: server.metric("vllm:request_success_total") == 2)
        assert server.metric("vllm:prompt_tokens_total") == 80
        assert server.metric("vllm:generation_tokens_total") == 6
        assert server.metric("vllm:prefix_cache_queries_total") == 80
        assert server.metric("vllm:prefix_cache_hits_total") == 32
        assert server.metric("vllm:time_to_first_token_seconds_count") == 2
        assert server.metric("vllm:inter_token_latency_seconds_count") == 4, "one a step after the first"
        assert server.metric("vllm:request_time_per_output_token_seconds_count") == 1, "one token has no rate"
        for name in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"):
            assert server.metric(f"vllm:{name}_seconds_count") == 2, name
        assert server.metric("vllm:request_prompt_tokens_sum") == 80
        assert server.metric("vllm:request_generation_tokens_sum") == 6
        assert server.metric("vllm:request_prefill_kv_computed_tokens_sum") == 48
        assert server.metric("vllm:request_params_max_tokens_sum") == 6
        assert server.metric("vllm:iteration_tokens_total_sum") == 40 + 4 + 8
        text = server.call("GET", "/metrics").text
        assert re.search(r'vllm:request_success_total\{.*finished_reason="length".*\} 2\.0', text)


def test_latencies_are_ordered_and_count_from_receipt() -> None:
    with serving(endless, step_duration_s=0.01) as server:
        server.post("/v1/completions", prompt="p", max_tokens=5)
        eventually(lambda: server.metric("vllm:request_success_total") == 1)
        e2e = server.metric("vllm:e2e_request_latency_seconds_sum")
        ttft = server.metric("vllm:time_to_first_token_seconds_sum")
        queue = server.metric("vllm:request_queue_time_seconds_sum")
        prefill = server.metric("vllm:request_prefill_time_seconds_sum")
        decode = server.metric("vllm:request_decode_time_seconds_sum")
        inference = server.metric("vllm:request_inference_time_seconds_sum")
        assert prefill >= 0.01 and decode >= 0.04
        assert inference == pytest.approx(prefill + decode)
        assert queue >= 0 and ttft >= queue + prefill and e2e >= queue + inference
        assert server.metric("vllm:inter_token_latency_seconds_sum") == pytest.approx(decode)


def test_choices_count_as_one_request_of_n() -> None:
    with serving(endless) as server:
        server.post("/v1/completions", prompt=["a", "b"], n=3, max_tokens=2)
        eventually(lambda: server.metric("vllm:request_success_total") == 6)
        assert server.metric("vllm:request_params_n_count") == 2 and server.metric("vllm:request_params_n_sum") == 6
        assert server.metric("vllm:request_max_num_generation_tokens_sum") == 4


def test_a_stop_string_counts_as_stop_and_only_with_the_tokens_that_were_used() -> None:
    with serving(endless) as server:
        usage = server.post("/v1/completions", prompt="p", max_tokens=900, stop="x").json["usage"]
        eventually(lambda: server.is_empty())
        text = server.call("GET", "/metrics").text
        assert re.search(r'vllm:request_success_total\{.*finished_reason="stop".*\} 1\.0', text)
        assert server.metric("vllm:request_generation_tokens_sum") == usage["completion_tokens"]


def test_the_cache_settings_are_shown() -> None:
    with serving(says("x"), num_blocks=77) as server:
        line = next(
            x for x in server.call("GET", "/metrics").text.splitlines() if x.startswith("vllm:cache_config_info{")
        )
        assert 'num_gpu_blocks="77"' in line and 'block_size="16"' in line and line.endswith(" 1.0")


def test_token_count_buckets_are_a_one_two_five_series() -> None:
    assert token_count_buckets(100) == [1, 2, 5, 10, 20, 50, 100]
    assert token_count_buckets(99) == [1, 2, 5, 10, 20, 50]
