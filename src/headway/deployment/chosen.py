"""Values that vLLM chooses at start-up where nothing was written, by version, engine and hardware."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headway.catalog.accelerators import Accelerator, find_accelerator
from headway.catalog.defaults import EngineDefaults, Usage, resolve_defaults, version_fact
from headway.catalog.flags import all_flags, flags_of
from headway.catalog.versions import Version
from headway.deployment.arguments import Parsed

if TYPE_CHECKING:
    from headway.deployment.effective import Effective

Chosen = dict[str, tuple[Any, str]]
_SHOWN = (
    "model", "dtype", "kv_cache_dtype", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "enforce_eager", "scheduling_policy", "enable_lora", "long_prefill_token_threshold", "scheduler_reserve_full_isl",
    "watermark", "swap_space", "cpu_offload_gb", "quantization", "speculative_config", "num_scheduler_steps",
    "enable_expert_parallel", "distributed_executor_backend", "max_num_partial_prefills", "max_long_partial_prefills",
    "disable_cascade_attn", "disable_async_output_proc", "enable_prompt_embeds", "decode_context_parallel_size",
    "prefill_context_parallel_size", "disable_hybrid_kv_cache_manager", "performance_mode", "optimization_level",
    "mamba_cache_mode",
)  # fmt: skip
"""Settings whose parser default is shown although nothing was written."""
_SMALL, _LARGE = "a10", "h100"
_LONG = 1 << 20


def chosen_defaults(parsed: Parsed, result: Effective, device: str | None) -> Chosen:
    """Name to value and reason, for settings that matter and were not written."""
    version = result.version
    release = f"default of vLLM {result.version_text}"
    chosen: Chosen = {}
    for name in _SHOWN:
        flag = all_flags()[name]
        if flag.exists_in(version):
            chosen[name] = (flag.default(version), release)
    chosen |= _batch(parsed, result, device)
    if result.model is not None and result.model.max_model_len is not None:
        chosen["max_model_len"] = (result.model.max_model_len, f"the limit of {result.model.id}")
    else:
        chosen["max_model_len"] = (None, "depends on the model's own limit")
    chosen |= _async_scheduling(version, release)
    return chosen


def _async_scheduling(version: Version, release: str) -> Chosen:
    flag = flags_of(version).get("async_scheduling")
    if flag is None:
        return {}
    if flag.default(version) is None:
        return {"async_scheduling": (True, f"{release}: on unless something else turns it off")}
    return {"async_scheduling": (flag.default(version), release)}


def _batch(parsed: Parsed, result: Effective, device: str | None) -> Chosen:
    """Budget, seats, caching, chunking, block size and memory share."""
    version = "0.8.0" if result.engine == "V1" and result.version < (0, 8, 0) else result.version_text
    version = "0.7.3" if result.engine == "V0" and result.version >= (0, 8, 0) else version
    usage: Usage = "llm" if result.invocation.facts.get("usage") == "llm" else "api"
    if device == "cpu":
        return _on_cpu(parsed, result, usage)
    if result.accelerator is not None:
        return _shown(_resolve(version, result.accelerator, parsed, result, usage))
    small = _shown(_resolve(version, find_accelerator(_SMALL), parsed, result, usage))
    large = _shown(_resolve(version, find_accelerator(_LARGE), parsed, result, usage))
    chosen: Chosen = {}
    for name, (value, reason) in small.items():
        other = large[name][0]
        if value == other:
            chosen[name] = (value, reason.replace(f"{find_accelerator(_SMALL).id}, ", ""))
        else:
            chosen[name] = (None, f"depends on the GPU: {value} on small ones, {other} on an H100 or larger")
    return chosen


def _resolve(version: str, card: Accelerator, parsed: Parsed, result: Effective, usage: Usage) -> EngineDefaults:
    length = _number(parsed, "max_model_len")
    if length is None or length < 1:
        length = (result.model.max_model_len if result.model is not None else None) or _LONG
    chunked = parsed.value("enable_chunked_prefill")
    unknown_length = length == _LONG and result.engine == "V0"
    return resolve_defaults(
        version,
        card,
        max_model_len=8192 if unknown_length else length,
        usage=usage,
        is_hybrid=bool(result.facts.derived.get("has_states") is True),
        max_num_seqs=_number(parsed, "max_num_seqs"),
        max_num_batched_tokens=_number(parsed, "max_num_batched_tokens"),
        enable_chunked_prefill=chunked if isinstance(chunked, bool) else None,
        enforce_eager=parsed.value("enforce_eager") is True,
    )


def _shown(defaults: EngineDefaults) -> Chosen:
    names = ("gpu_memory_utilization", "block_size", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill",
             "enable_prefix_caching")  # fmt: skip
    return {name: (getattr(defaults, name), defaults.reasons[name]) for name in names}


def _on_cpu(parsed: Parsed, result: Effective, usage: Usage) -> Chosen:
    """The CPU build scales its batch with the number of ranks from 0.10.0."""
    ranks = (_number(parsed, "tensor_parallel_size") or 1) * (_number(parsed, "pipeline_parallel_size") or 1)
    ranks = ranks if result.version >= (0, 10, 0) else 1
    seats = {"llm": 256, "api": 128}[usage] * ranks if result.version >= (0, 9, 2) else 256
    tokens = {"llm": 4096, "api": 2048}[usage] * ranks
    reason = f"default of the CPU build for {ranks} rank(s)"
    given_seats, given_tokens = _number(parsed, "max_num_seqs"), _number(parsed, "max_num_batched_tokens")
    length = _number(parsed, "max_model_len") or (result.model.max_model_len if result.model else None)
    chunked = parsed.value("enable_chunked_prefill")
    chunked = True if chunked is None else bool(chunked)
    if given_seats is None and given_tokens is not None:
        seats = min(seats, given_tokens)
    if not chunked and length:
        tokens = max(tokens, length)
    if length and length > 0:
        tokens = min(tokens, (given_seats or seats) * length)
    return {
        "max_num_seqs": (seats, reason),
        "max_num_batched_tokens": (tokens, reason),
        "enable_chunked_prefill": (True, "on in V1"),
        "enable_prefix_caching": (bool(version_fact("prefix_caching", result.version)), "on in V1"),
        "block_size": (128 if result.version >= (0, 11, 0) else 16, "default of the CPU build"),
        "gpu_memory_utilization": (version_fact("gpu_memory_utilization", result.version), "default"),
    }


def _number(parsed: Parsed, name: str) -> int | None:
    value = parsed.value(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
