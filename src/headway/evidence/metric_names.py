"""What the metrics of vLLM (V0 and V1, all releases) and SGLang mean, by their names without prefix.

Sources: vLLM `vllm/engine/metrics.py` of V0 and `vllm/v1/metrics/loggers.py`, `vllm/v1/spec_decode/metrics.py` of 0.7.3
to 0.33.0; SGLang `sglang/srt/metrics/metrics_collector.py` of 0.3.5, later `sglang/srt/metrics/collector.py` and
`sglang/srt/observability/metrics_collector.py`.
Where several names mean the same, the first that is present counts: releases in between publish both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["gauge", "counter", "bucket", "sum", "count", "info"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """`key`: the field of `EngineSample`, or the key in `EngineTotals`; a smaller `rank` wins over a greater.

    Args:
        only: a label and the value it must have, for metrics that are split by a reason.
    """

    engine: str
    role: Role
    key: str
    rank: int = 0
    only: tuple[str, str] | None = None


_Names = Mapping[str, tuple[str, ...]]

_VLLM_GAUGES: _Names = {
    "num_running": ("num_requests_running",),
    "num_waiting": ("num_requests_waiting",),
    "num_swapped": ("num_requests_swapped",),
    "kv_usage": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "prompt_tokens_per_s": ("avg_prompt_throughput_toks_per_s",),
    "generation_tokens_per_s": ("avg_generation_throughput_toks_per_s",),
    "prefix_hit_rate": ("gpu_prefix_cache_hit_rate",),
}
_VLLM_COUNTERS: _Names = {
    "prompt_tokens": ("prompt_tokens",),
    "generation_tokens": ("generation_tokens",),
    "requests": ("request_success",),
    "preemptions": ("num_preemptions",),
    "prefix_cache_queries": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "prefix_cache_hits": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "external_cache_queries": ("external_prefix_cache_queries",),
    "external_cache_hits": ("external_prefix_cache_hits",),
    "mm_cache_queries": ("mm_cache_queries",),
    "mm_cache_hits": ("mm_cache_hits",),
    "drafts": ("spec_decode_num_drafts",),
    "draft_tokens": ("spec_decode_num_draft_tokens",),
    "accepted_tokens": ("spec_decode_num_accepted_tokens",),
}
_VLLM_HISTOGRAMS: _Names = {
    "ttft_s": ("time_to_first_token_seconds",),
    "itl_s": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "tpot_s": ("request_time_per_output_token_seconds",),
    "e2el_s": ("e2e_request_latency_seconds",),
    "queue_s": ("request_queue_time_seconds", "time_in_queue_requests"),
    "prefill_s": ("request_prefill_time_seconds",),
    "decode_s": ("request_decode_time_seconds",),
    "inference_s": ("request_inference_time_seconds",),
    "prompt_tokens": ("request_prompt_tokens",),
    "generation_tokens": ("request_generation_tokens",),
    "computed_prompt_tokens": ("request_prefill_kv_computed_tokens",),
    "step_tokens": ("iteration_tokens_total",),
    "max_tokens": ("request_params_max_tokens",),
    "preemptions": ("request_num_preemptions",),
}
_SGLANG_GAUGES: _Names = {
    "num_running": ("num_running_reqs", "num_requests_running"),
    "num_waiting": ("num_queue_reqs", "queue_req", "num_requests_waiting"),
    "kv_usage": ("token_usage", "full_token_usage"),
    "generation_tokens_per_s": ("gen_throughput",),
    "prefix_hit_rate": ("cache_hit_rate",),
    "max_total_num_tokens": ("max_total_num_tokens",),
    "max_running_requests": ("max_running_requests",),
    "context_len": ("context_len",),
}
_SGLANG_COUNTERS: _Names = {
    "prompt_tokens": ("prompt_tokens",),
    "generation_tokens": ("generation_tokens",),
    "requests": ("num_requests", "request_success"),
    "preemptions": ("num_retracted_requests",),
    "prefix_cache_hits": ("cached_tokens",),
}
_SGLANG_HISTOGRAMS: _Names = {
    "ttft_s": ("time_to_first_token_seconds",),
    "itl_s": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "e2el_s": ("e2e_request_latency_seconds",),
    "queue_s": ("queue_time_seconds", "queue_time_s", "waiting_request_latency_seconds"),
    "decode_s": ("decode_request_latency_seconds",),
    "prompt_tokens": ("prompt_tokens_histogram", "request_prompt_tokens"),
    "computed_prompt_tokens": ("uncached_prompt_tokens_histogram",),
    "generation_tokens": ("generation_tokens_histogram", "request_generation_tokens"),
}
V0_ONLY = frozenset((
    "num_requests_swapped", "cpu_cache_usage_perc", "avg_prompt_throughput_toks_per_s", "gpu_prefix_cache_hit_rate",
    "cpu_prefix_cache_hit_rate", "avg_generation_throughput_toks_per_s", "time_in_queue_requests",
))  # fmt: skip
V1_ONLY = frozenset((
    "kv_cache_usage_perc", "prefix_cache_queries_total", "gpu_prefix_cache_queries_total", "prefix_cache_queries",
    "gpu_prefix_cache_queries", "num_requests_waiting_by_reason", "inter_token_latency_seconds_count",
))  # fmt: skip
ENGINE_LABELS = (
    "namespace", "job", "instance", "pod", "replica", "ReplicaId", "model_name", "name", "engine", "dp_rank",
)  # fmt: skip
"""Labels that keep engines apart; those that are the same everywhere are left out of an engine's name."""


def _meanings(engine: str, gauges: _Names, counters: _Names, histograms: _Names) -> Iterator[tuple[str, Meaning]]:
    for key, names in gauges.items():
        for rank, name in enumerate(names):
            yield name, Meaning(engine, "gauge", key, rank)
    for key, names in counters.items():
        for rank, name in enumerate(names):
            yield name, Meaning(engine, "counter", key, rank)
            yield f"{name}_total", Meaning(engine, "counter", key, rank)
    for key, names in histograms.items():
        for rank, name in enumerate(names):
            yield f"{name}_bucket", Meaning(engine, "bucket", key, rank)
            yield f"{name}_sum", Meaning(engine, "sum", key, rank)
            yield f"{name}_count", Meaning(engine, "count", key, rank)


_KNOWN: Mapping[str, Mapping[str, Meaning]] = {
    "vllm": {
        **dict(_meanings("vllm", _VLLM_GAUGES, _VLLM_COUNTERS, _VLLM_HISTOGRAMS)),
        "num_requests_waiting_by_reason": Meaning("vllm", "gauge", "num_deferred", only=("reason", "deferred")),
        "cache_config_info": Meaning("vllm", "info", "cache_config"),
        "lora_requests_info": Meaning("vllm", "info", "lora"),
    },
    "sglang": dict(_meanings("sglang", _SGLANG_GAUGES, _SGLANG_COUNTERS, _SGLANG_HISTOGRAMS)),
}
_PREFIX = re.compile(r"(?:ray_)?(vllm|sglang)[:_.](.+)", re.DOTALL)


def split_name(name: str) -> tuple[str, str] | None:
    """The engine and the metric's name without prefix; collectors that allow no colon write `_` or `.` for it."""
    match = _PREFIX.fullmatch(name)
    return None if match is None else (match[1], match[2].replace(".", "_"))


def meaning_of(name: str) -> Meaning | None:
    """What a metric's full name means; None for those that nothing here uses."""
    parts = split_name(name)
    return None if parts is None else _KNOWN[parts[0]].get(parts[1])
