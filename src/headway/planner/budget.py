"""The memory of one GPU of each pipeline rank, term by term."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.catalog.accelerators import GIB
from headway.catalog.architecture import Layer
from headway.catalog.defaults import version_fact
from headway.catalog.parameters import rank_weight_bytes, resolve_quantization
from headway.planner.deployment import Resolved
from headway.planner.kv_layout import KVLayout, kv_layout
from headway.planner.memory import (
    MemoryCoefficients,
    forward_bytes,
    sampler_bytes,
)


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the budget of a GPU. Taken from the budget unless `counted` is false.

    `low` and `high` bound `num_bytes`; `source` says where the number comes from.
    """

    name: str
    num_bytes: int
    source: str
    low: int
    high: int
    counted: bool = True


@dataclass(frozen=True, slots=True)
class RankBudget:
    """One GPU of one pipeline rank: its terms, and what is left for the KV cache (never below 0 in blocks)."""

    rank: int
    num_layers: int
    terms: tuple[Term, ...]
    requested_bytes: int
    available_bytes: int
    available_low: int
    available_high: int
    layout: KVLayout

    def num_blocks(self, available: int | None = None) -> int:
        """Pool blocks in `available` bytes (by default the likely value)."""
        size = self.available_bytes if available is None else available
        return max(0, size) // self.layout.block_bytes if self.layout.block_bytes else 0

    def term(self, name: str) -> Term:
        """The term of that name."""
        return next(term for term in self.terms if term.name == name)


def rank_budgets(resolved: Resolved, fitted: MemoryCoefficients) -> tuple[RankBudget, ...]:
    """The budget of a GPU of each pipeline rank.

    Raises:
        ConfigError: the weights' size or the KV cache is not known.
    """
    ranks: list[RankBudget] = []
    start = 0
    for rank, size in enumerate(resolved.partition):
        layers = resolved.deployment.model.layers[start : start + size]
        ranks.append(_rank_budget(resolved, fitted, rank, layers))
        start += size
    return tuple(ranks)


def _rank_budget(resolved: Resolved, fitted: MemoryCoefficients, rank: int, layers: tuple[Layer, ...]) -> RankBudget:
    deployment = resolved.deployment
    total = _total_term(resolved, rank)
    terms = (
        _weights_term(resolved, rank, layers),
        _activation_term(resolved, fitted, rank, layers),
        _non_torch_term(resolved, fitted),
        _graph_term(resolved, fitted, layers),
    )
    if deployment.kv_cache_memory_bytes is not None:
        available = (deployment.kv_cache_memory_bytes,) * 3
    else:
        likely = total.num_bytes - sum(term.num_bytes for term in terms if term.counted)
        margin = fitted.residual_share * total.num_bytes
        down, up = (math.hypot(margin, total.num_bytes - bound) for bound in (total.low, total.high))
        available = (int(likely - down), likely, int(likely + up))
    return RankBudget(
        rank=rank,
        num_layers=len(layers),
        terms=(total, *terms),
        requested_bytes=total.num_bytes,
        available_bytes=available[1],
        available_low=available[0],
        available_high=available[2],
        layout=rank_layout(resolved, layers),
    )


def rank_layout(resolved: Resolved, layers: tuple[Layer, ...]) -> KVLayout:
    """KV blocks of the layers of one rank."""
    model = resolved.deployment.model
    return kv_layout(
        _without_shared_kv(resolved, layers),
        dtype=model.dtype,
        kv_cache_dtype=resolved.deployment.kv_cache_dtype,
        tp=resolved.deployment.tensor_parallel_size,
        block_size=resolved.defaults.block_size,
        hybrid=resolved.hybrid_groups,
        state_blocks=resolved.state_blocks,
    )


def _without_shared_kv(resolved: Resolved, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Layers at the model's end that reuse earlier KV have no cache of their own."""
    shared = resolved.deployment.model.num_kv_shared_layers
    if not shared or len(resolved.partition) > 1:
        return layers
    return layers[: len(layers) - shared]


def _total_term(resolved: Resolved, rank: int) -> Term:
    accelerator, share = resolved.deployment.accelerator_of(rank), resolved.defaults.gpu_memory_utilization
    low, likely, high = (math.ceil(total * share) for total in accelerator.memory_range_bytes)
    basis = {
        "torch": "torch's total as read on such cards",
        "nvidia-smi": "nvidia-smi's total less what the driver keeps",
        "label": "guessed from the card's label",
    }[accelerator.memory_basis]
    source = f"{share:g} of {accelerator.memory_bytes / GIB:.2f} GiB ({accelerator.id}: {basis})"
    return Term("requested", likely, source, low, high)


def _weights_term(resolved: Resolved, rank: int, layers: tuple[Layer, ...]) -> Term:
    deployment = resolved.deployment
    model, tp = deployment.model, deployment.tensor_parallel_size
    ranks = deployment.pipeline_parallel_size
    if deployment.model_weights_bytes is not None:
        size = int(deployment.model_weights_bytes * len(layers) / model.num_layers / tp)
        source = "given"
    else:
        size = rank_weight_bytes(
            model,
            quantization=deployment.quantization,
            tp=tp,
            ep=deployment.expert_parallel_size,
            layers=layers,
            first=rank == 0,
            last=rank == ranks - 1,
        )
        source = _weights_source(resolved)
    uncertain = 0.02 if deployment.quantization or model.quantization else 0.006
    return Term("weights", size, source, int(size * (1 - uncertain / 2)), int(size * (1 + uncertain)))


def _weights_source(resolved: Resolved) -> str:
    model, deployment = resolved.deployment.model, resolved.deployment
    if model.stored_bytes is not None and deployment.quantization is None:
        return "safetensors headers"
    own = model.quantization.method if model.quantization else model.dtype
    vision = ", vision tower of unknown size left out" if model.vision_params is None else ""
    return f"{model.num_params() / 1e9:.2f} B parameters as {deployment.quantization or own}{vision}"


def _activation_term(resolved: Resolved, fitted: MemoryCoefficients, rank: int, layers: tuple[Layer, ...]) -> Term:
    deployment = resolved.deployment
    tokens = resolved.defaults.max_num_batched_tokens
    seats = resolved.defaults.max_num_seqs
    forward = fitted.activation_scale * forward_bytes(
        deployment.model,
        layers,
        tokens,
        tp=deployment.tensor_parallel_size,
        version=resolved.defaults.version,
        ep=deployment.expert_parallel_size,
        narrow_activations=_narrow_activations(resolved),
    )
    is_last = rank == deployment.pipeline_parallel_size - 1
    sampler = sampler_bytes(deployment.model, seats, tokens, resolved.defaults.version) if is_last else 0
    size = int(max(forward, sampler))
    source = (
        f"fitted: forward pass of {tokens} tokens" if forward >= sampler else f"counted: sampling for {seats} seats"
    )
    return Term("activation_peak", size, source, int(size * 0.85), int(size * 1.15))


def _narrow_activations(resolved: Resolved) -> bool:
    """The weight format also quantizes what goes into the matrices, in V1's fused kernels."""
    quantization = resolve_quantization(resolved.deployment.model, resolved.deployment.quantization, strict=False)
    narrow = quantization is not None and quantization.method in ("fp8", "fbgemm_fp8", "int8", "nvfp4")
    return narrow and resolved.defaults.version >= (0, 8, 0)


def _non_torch_term(resolved: Resolved, fitted: MemoryCoefficients) -> Term:
    size = non_torch_gib(resolved, fitted)
    group = " and collectives" if resolved.deployment.num_gpus > 1 else ""
    return Term(
        "non_torch", int(size * GIB), f"fitted: workspaces{group}", int(size * 0.4 * GIB), int(size * 1.8 * GIB)
    )


def non_torch_gib(resolved: Resolved, fitted: MemoryCoefficients) -> float:
    """Workspaces, communication buffers and, in old versions, the CUDA context."""
    size = fitted.non_torch_gib
    if resolved.deployment.tensor_parallel_size > 1 or resolved.deployment.pipeline_parallel_size > 1:
        size += fitted.non_torch_group_gib
    return size + (fitted.context_gib if version_fact("context_counts", resolved.defaults.version) else 0.0)


def _graph_term(resolved: Resolved, fitted: MemoryCoefficients, layers: tuple[Layer, ...]) -> Term:
    counted = resolved.defaults.counts_cuda_graph_memory
    if not resolved.defaults.cuda_graph_sizes:
        return Term("cuda_graphs", 0, "off (enforce_eager)", 0, 0, counted)
    size = fitted.cuda_graph_gib_per_layer * len(layers) * GIB
    where = "taken from the budget" if counted else "on top of the budget in this version"
    return Term(
        "cuda_graphs",
        int(size),
        f"fitted: {len(layers)} layers, {where}",
        int(size * fitted.cuda_graph_low),
        int(size * fitted.cuda_graph_high),
        counted,
    )
