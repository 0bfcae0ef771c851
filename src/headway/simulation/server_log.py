"""The lines that a vLLM V1 server of such a deployment would log, with virtual times."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta

from headway.catalog.accelerators import GIB
from headway.simulation.options import DeploymentOptions, ResolvedDeployment

STARTED_AT = datetime(2026, 1, 1, tzinfo=UTC)
"""What the virtual clock's 0 is called in logs and scrapes."""

_NO_FLAGS = {
    *("model", "gpu", "latency", "profile", "engine_version", "policy", "router", "scheduling_policy"),
    *("acceptance_rate", "draft_cost"),
}
"""Options that are no flags of vLLM under these names."""


def stamp(at_s: float) -> str:
    """The date and time of an instant, as vLLM writes it."""
    return (STARTED_AT + timedelta(seconds=at_s)).strftime("%m-%d %H:%M:%S")


def log_prefix(at_s: float) -> str:
    """What the server writes before each line then."""
    return f"(APIServer pid=1) INFO {stamp(at_s)}"


def epoch_ms(at_s: float) -> int:
    """The same in milliseconds since 1970."""
    return round((STARTED_AT.timestamp() + at_s) * 1e3)


def startup_lines(resolved: ResolvedDeployment) -> list[str]:
    """What the server logs before its first request: version, settings, memory, and the size of the KV cache."""
    config, options, plan = resolved.deployment.config, resolved.options, resolved.plan
    scheduler, cache = config.scheduler, config.cache
    name = options.model or "simulated"
    api, core = log_prefix(0.0), f"(EngineCore pid=2) INFO {stamp(0.0)}"
    lines = [
        f"{api} [utils.py:299] version {config.engine_version}",
        f"{api} [utils.py:233] non-default args: {_given(options)}",
        f"{api} [model.py:1500] Using max model len {scheduler.max_model_len}",
    ]
    if scheduler.enable_chunked_prefill:
        budget = scheduler.max_num_batched_tokens
        lines.append(f"{api} [scheduler.py:226] Chunked prefill is enabled with max_num_batched_tokens={budget}.")
    settings = {
        "model": repr(name),
        "speculative_config": options.speculative_config,
        "max_seq_len": scheduler.max_model_len,
        "tensor_parallel_size": options.tensor_parallel_size,
        "pipeline_parallel_size": options.pipeline_parallel_size,
        "data_parallel_size": options.data_parallel_size,
        "quantization": options.quantization,
        "enforce_eager": options.enforce_eager,
        "kv_cache_dtype": options.kv_cache_dtype,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "enable_chunked_prefill": scheduler.enable_chunked_prefill,
    }
    told = ", ".join(f"{key}={value}" for key, value in settings.items())
    lines.append(f"{core} [core.py:93] Initializing a V1 LLM engine (v{config.engine_version}) with config: {told}")
    num_tokens = (cache.num_blocks - 1) * cache.block_size
    if plan is not None:
        weights = plan.binding.term("weights").num_bytes / GIB
        lines += [
            f"{core} [gpu_model_runner.py:4080] Model loading took {weights:.2f} GiB memory and 10.0 seconds",
            f"{core} [gpu_worker.py:377] Available KV cache memory: {plan.available_kv_cache_bytes / GIB:.2f} GiB",
        ]
        num_tokens = plan.kv_cache_tokens.likely
    length = scheduler.max_model_len
    return [
        *lines,
        f"{core} [kv_cache_utils.py:1300] GPU KV cache size: {num_tokens:,} tokens",
        f"{core} [kv_cache_utils.py:1305] Maximum concurrency for {length:,} tokens per request: "
        f"{num_tokens / length:.2f}x",
    ]


def _given(options: DeploymentOptions) -> dict[str, object]:
    """The flags that differ from their defaults, as vLLM prints them."""
    given = {
        field.name: getattr(options, field.name)
        for field in fields(options)
        if field.name not in _NO_FLAGS and getattr(options, field.name) != field.default
    }
    return {"model": options.model, **given} if options.model is not None else given
