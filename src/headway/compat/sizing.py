"""The memory that a deployment's effective configuration plans out to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from headway.catalog.accelerators import Accelerator
from headway.catalog.architecture import ModelArchitecture
from headway.deployment.effective import Effective
from headway.errors import ConfigError
from headway.planner import Deployment, Plan, make_plan

_FIELDS = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "quantization",
    "kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "block_size",
    "enforce_eager", "enable_chunked_prefill", "enable_prefix_caching", "async_scheduling", "kv_cache_memory_bytes",
    "num_gpu_blocks_override",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Memory:
    """One side's memory, or why it cannot be planned."""

    num_gpu_blocks: int | None = None
    kv_cache_tokens: int | None = None
    available_bytes: int | None = None
    max_concurrency: float | None = None
    fits: bool | None = None
    reason: str = ""


def plan_flags(effective: Effective) -> dict[str, Any]:
    """Effective settings in the planner's names; what vLLM would leave open is left open."""
    flags = {
        name: setting.value
        for name in _FIELDS
        if (setting := effective.settings.get(name)) is not None
        and setting.value is not None
        and name not in effective.unresolved
    }
    if not effective.facts.get("is_moe"):
        flags.pop("enable_expert_parallel", None)
    return flags


def size(effective: Effective, accelerator: Accelerator | None, model: ModelArchitecture | None) -> Memory:
    """Plan one side's memory."""
    if model is None:
        return Memory(reason="the model is not in the catalogue; give --model or --hf-config")
    if accelerator is None:
        return Memory(reason="the GPU is not known; give --gpu")
    try:
        plan = _plan(effective, accelerator, model)
    except ConfigError as error:
        return Memory(reason=str(error))
    return Memory(
        num_gpu_blocks=plan.num_gpu_blocks,
        kv_cache_tokens=plan.kv_cache_tokens.likely,
        available_bytes=plan.available_kv_cache_bytes,
        max_concurrency=round(plan.max_concurrency, 2),
        fits=plan.fits,
    )


def planned_block_size(effective: Effective) -> int | None:
    """Tokens in a KV block of the deployment's model; None where model or GPU is not known, or it cannot be planned."""
    if effective.model is None or effective.accelerator is None:
        return None
    try:
        return _plan(effective, effective.accelerator, effective.model).block_size
    except ConfigError:
        return None


def _plan(effective: Effective, accelerator: Accelerator, model: ModelArchitecture) -> Plan:
    deployment = Deployment(model, accelerator, engine_version=effective.version_text)
    return make_plan(replace(deployment, **plan_flags(effective)))
