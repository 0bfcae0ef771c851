"""What to read and what to measure next, by finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.catalog.versions import Version
from headway.doctor.diagnosis import Bottleneck, BottleneckKind
from headway.doctor.figures import Figures

_PAPERS: Mapping[str, tuple[str, str]] = {
    "paged": (
        "Efficient Memory Management for Large Language Model Serving with PagedAttention (SOSP 2023)",
        "https://arxiv.org/abs/2309.06180",
    ),
    "sarathi": (
        "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve (OSDI 2024)",
        "https://arxiv.org/abs/2403.02310",
    ),
    "orca": (
        "Orca: A Distributed Serving System for Transformer-Based Generative Models (OSDI 2022)",
        "https://www.usenix.org/conference/osdi22/presentation/yu",
    ),
    "walkthrough": (
        "Inside vLLM: Anatomy of a High-Throughput LLM Inference System (the V1 engine, step by step)",
        "https://www.aleksagordic.com/blog/vllm",
    ),
    "optimization": (
        "vLLM: Optimization and Tuning (preemption, chunked prefill, parallelism)",
        "https://docs.vllm.ai/en/stable/configuration/optimization/",
    ),
    "speculation": ("vLLM: Speculative Decoding", "https://docs.vllm.ai/en/latest/features/speculative_decoding/"),
    "graphs": ("vLLM: CUDA Graphs", "https://docs.vllm.ai/en/latest/design/cuda_graphs/"),
    "scaling": ("vLLM: Parallelism and Scaling", "https://docs.vllm.ai/en/latest/serving/parallelism_scaling/"),
    "replicas": (
        "vLLM: Data Parallel Deployment",
        "https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/",
    ),
    "kv_dtype": (
        "vLLM: Quantized KV Cache",
        "https://docs.vllm.ai/en/latest/features/quantization/quantized_kvcache/",
    ),
    "hybrid": ("vLLM: Hybrid KV Cache Manager", "https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager/"),
    "lora": ("vLLM: LoRA Adapters", "https://docs.vllm.ai/en/latest/features/lora/"),
    "trouble": ("vLLM: Troubleshooting", "https://docs.vllm.ai/en/latest/usage/troubleshooting/"),
    "bench": ("vLLM: vllm bench serve", "https://docs.vllm.ai/en/latest/cli/bench/serve/"),
    "metrics": ("vLLM: Production Metrics", "https://docs.vllm.ai/en/stable/usage/metrics/"),
}
"""Titles and addresses."""

_BY_KIND: Mapping[BottleneckKind, tuple[str, ...]] = {
    "kv_starvation": ("paged", "optimization", "kv_dtype"),
    "waiting_queue_stall": ("orca", "optimization"),
    "prefill_compute_bound": ("sarathi", "scaling"),
    "long_prompt_hol": ("sarathi", "optimization"),
    "chunk_missized": ("sarathi", "optimization"),
    "decode_compute_bound": ("scaling", "optimization"),
    "hbm_bound": ("speculation", "scaling"),
    "impossible_request_at_queue_head": ("hybrid", "trouble"),
    "lora_slots": ("lora",),
    "engine_stall_other": ("trouble", "metrics"),
    "kv_leak": ("trouble", "metrics"),
    "runaway_generation": ("metrics",),
    "offered_load_too_high": ("replicas", "scaling"),
    "client_bound": ("bench",),
    "spec_decode_overhead": ("speculation",),
    "cpu_launch_bound": ("graphs",),
}
_ALWAYS = ("walkthrough",)
_MOST = 5


def read_next(figures: Figures, bottlenecks: Sequence[Bottleneck]) -> tuple[tuple[str, str], ...]:
    """(title, address): the release's own notes first, then what explains the findings, then the engine as a whole."""
    settings = figures.settings
    if settings.is_sglang:
        return (("SGLang release notes", "https://github.com/sgl-project/sglang/releases"),)
    wanted = [name for item in bottlenecks for name in _BY_KIND.get(item.kind, ())]
    if settings.speculation is not None:
        wanted.append("speculation")
    if not bottlenecks:
        wanted.append("metrics")
    papers = [_PAPERS[name] for name in dict.fromkeys([*wanted[: _MOST - 2], *_ALWAYS])]
    return (_release_notes(settings.version), *papers)


def _release_notes(version: Version | None) -> tuple[str, str]:
    place = "https://github.com/vllm-project/vllm/releases"
    if version is None:
        return "vLLM release notes (of the release that runs; which it is is not known)", place
    text = ".".join(map(str, version))
    return f"vLLM {text} release notes", f"{place}/tag/v{text}"


@dataclass(frozen=True, slots=True)
class _Metrics:
    """Names of the metrics in this engine and release."""

    itl: str
    kv: str
    waiting: str
    running: str
    preemptions: str


def _metrics(figures: Figures) -> _Metrics:
    if figures.settings.is_sglang:
        return _Metrics(
            "sglang:inter_token_latency_seconds", "sglang:token_usage", "sglang:num_queue_reqs",
            "sglang:num_running_reqs", "sglang:num_retractions",
        )  # fmt: skip
    version = figures.settings.version or (1, 0, 0)
    return _Metrics(
        itl="vllm:inter_token_latency_seconds" if version >= (0, 10, 2) else "vllm:time_per_output_token_seconds",
        kv="vllm:kv_cache_usage_perc" if version >= (0, 9, 2) else "vllm:gpu_cache_usage_perc",
        waiting="vllm:num_requests_waiting",
        running="vllm:num_requests_running",
        preemptions="vllm:num_preemptions_total",
    )


def measure_next(figures: Figures, bottlenecks: Sequence[Bottleneck]) -> tuple[str, ...]:
    """What to watch while a fix is tried: P99 ITL, the block allocation rate or the WAITING depth, by finding."""
    names = _metrics(figures)
    texts = {
        "itl": f"P99 ITL ({names.itl}): the 0.99 quantile over five minutes, before and after.",
        "blocks": (
            f"Block allocation rate: tokens computed a second over block_size, beside {names.kv} and the growth of "
            f"{names.preemptions}. It must stay below what finished requests give back."
        ),
        "waiting": f"WAITING depth ({names.waiting}) beside {names.running}: whether the queue still grows.",
        "prefill": "Prompt tokens computed a second, and the time of a prefill: whether the plateau moves.",
        "acceptance": "Accepted over drafted tokens, and TPOT with speculation off, on the same prompts.",
        "client": "The client's own processor time, and the server's RUNNING while the client is at its limit.",
        "ends": "Requests by finish reason, and the longest answers: whether anything ends by `length`.",
        "steps": "Tokens a step (vllm:iteration_tokens_total) and the time between steps.",
    }
    wanted: Iterable[str] = [name for item in bottlenecks for name in _MEASURES.get(item.kind, ())] or [
        "waiting",
        "itl",
    ]
    return tuple(texts[name] for name in list(dict.fromkeys(wanted))[:3])


_MEASURES: Mapping[BottleneckKind, tuple[str, ...]] = {
    "kv_starvation": ("blocks", "waiting"),
    "waiting_queue_stall": ("waiting", "itl"),
    "prefill_compute_bound": ("waiting", "prefill"),
    "long_prompt_hol": ("waiting", "itl"),
    "chunk_missized": ("itl", "prefill"),
    "decode_compute_bound": ("itl",),
    "hbm_bound": ("itl",),
    "impossible_request_at_queue_head": ("waiting",),
    "lora_slots": ("waiting",),
    "engine_stall_other": ("steps", "waiting"),
    "kv_leak": ("blocks",),
    "runaway_generation": ("ends", "blocks"),
    "offered_load_too_high": ("waiting",),
    "client_bound": ("client", "waiting"),
    "spec_decode_overhead": ("acceptance", "itl"),
    "cpu_launch_bound": ("steps", "itl"),
    "none_idle": ("waiting",),
    "none": ("itl", "waiting"),
}
