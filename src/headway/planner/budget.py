"""The memory of one GPU of each pipeline rank, term by term."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headway.catalog.accelerators import GIB
from headway.catalog.architecture import CompressedAttention, Layer
from headway.catalog.defaults import version_fact
from headway.catalog.parameters import rank_weight_bytes, resolve_quantization
from headway.planner.deployment import Resolved
from headway.planner.kv_layout import as_cached, kv_layout
from headway.planner.kv_parts import KVLayout
from headway.planner.memory import (
    MemoryCoefficients,
    Split,
    forward_bytes,
    held_bytes,
    sampler_bytes,
)
from headway.planner.sparse_memory import workspace_bytes

_HOST_SHARE = 0.05
"""Where the host shares the memory, what it caches or frees between the profiling's two looks counts too."""

_VISION_GIB = 4.0
"""What profiling a vision tower may take, which is not planned: about 3 GiB for Gemma 4 31B in a public log."""

_COMPRESSED_GIB = 8.0
"""What profiling compressed attention may take beyond what is counted: DeepSeek V4 Pro's one public log."""


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
        ranks.append(_rank_budget(resolved, fitted, rank, range(start, start + size)))
        start += size
    return tuple(ranks)


def _rank_budget(resolved: Resolved, fitted: MemoryCoefficients, rank: int, here: range) -> RankBudget:
    deployment = resolved.deployment
    layers = deployment.model.layers[here.start : here.stop]
    total = _total_term(resolved, rank)
    terms = (
        _weights_term(resolved, rank, layers),
        _activation_term(resolved, rank, layers),
        _non_torch_term(resolved, fitted),
        _graph_term(resolved, fitted, layers),
    )
    if deployment.kv_cache_memory_bytes is not None:
        available = (deployment.kv_cache_memory_bytes,) * 3
    else:
        available = _available(resolved, fitted, rank, layers, total, terms)
    return RankBudget(
        rank=rank,
        num_layers=len(layers),
        terms=(total, *terms),
        requested_bytes=total.num_bytes,
        available_bytes=available[1],
        available_low=available[0],
        available_high=available[2],
        layout=rank_layout(resolved, here),
    )


def _available(
    resolved: Resolved,
    fitted: MemoryCoefficients,
    rank: int,
    layers: tuple[Layer, ...],
    total: Term,
    terms: tuple[Term, ...],
) -> tuple[int, int, int]:
    """Low, likely and high KV memory.

    The error is one of bytes taken elsewhere, so that small pools have wide ranges relative to their size. Where the
    version may sample in either of two ways, the other way's difference is added on its side.
    """
    counted = [term for term in terms if term.counted]
    likely = total.num_bytes - sum(term.num_bytes for term in counted)
    beside = sum(term.num_bytes for term in counted if term.name != "weights")
    margin = math.hypot(fitted.error_gib * GIB, fitted.error_share * beside)
    if resolved.deployment.accelerator_of(rank).is_integrated:
        margin = math.hypot(margin, _HOST_SHARE * resolved.deployment.accelerator_of(rank).memory_bytes)
    down, up = (math.hypot(margin, total.num_bytes - bound) for bound in (total.low, total.high))
    if resolved.deployment.model.vision_params != 0:
        down = math.hypot(down, _VISION_GIB * GIB)
    if any(isinstance(layer.mixer, CompressedAttention) for layer in layers):
        down = math.hypot(down, _COMPRESSED_GIB * GIB)
    other = _other_sampling(resolved, rank, layers)
    down, up = down + max(0, other), up + max(0, -other)
    return int(likely - down), likely, int(likely + up)


def rank_layout(resolved: Resolved, here: range) -> KVLayout:
    """KV blocks of one rank, which holds the layers `here`.

    From 0.11.0 groups are formed of the whole model's layers, before of each rank's own.
    """
    model, defaults = resolved.deployment.model, resolved.defaults
    layers = as_cached(model.layers, defaults.version)
    if not version_fact("groups_of_whole_model", defaults.version):
        layers, here = layers[here.start : here.stop], range(len(here))
    return kv_layout(
        _without_shared_kv(resolved, layers),
        dtype=model.dtype,
        kv_cache_dtype=resolved.deployment.kv_cache_dtype,
        tp=resolved.deployment.tensor_parallel_size,
        block_size=defaults.block_size,
        rules=resolved.layout_rules,
        here=here,
    )


def _without_shared_kv(resolved: Resolved, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Layers at the model's end that reuse earlier KV have no cache of their own."""
    shared = resolved.deployment.model.num_kv_shared_layers
    if not shared or len(resolved.partition) > 1:
        return layers
    return (*layers[: len(layers) - shared], *(Layer(None, layer.ffn) for layer in layers[len(layers) - shared :]))


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
    size = rank_weight_bytes(
        model,
        quantization=deployment.quantization,
        tp=tp,
        expert_gpus=deployment.num_expert_gpus,
        by_expert=deployment.enable_expert_parallel,
        layers=layers,
        first=rank == 0,
        last=rank == deployment.pipeline_parallel_size - 1,
        whole_bytes=deployment.model_weights_bytes,
    )
    source = "given" if deployment.model_weights_bytes is not None else _weights_source(resolved)
    uncertain = 0.02 if deployment.quantization or model.quantization else 0.006
    return Term("weights", size, source, int(size * (1 - uncertain / 2)), int(size * (1 + uncertain)))


def _weights_source(resolved: Resolved) -> str:
    model, deployment = resolved.deployment.model, resolved.deployment
    if model.stored_bytes is not None and deployment.quantization is None:
        return "safetensors headers"
    own = model.quantization.method if model.quantization else model.dtype
    vision = ", vision tower of unknown size left out" if model.vision_params is None else ""
    return f"{model.num_params() / 1e9:.2f} B parameters as {deployment.quantization or own}{vision}"


def _activation_term(resolved: Resolved, rank: int, layers: tuple[Layer, ...]) -> Term:
    deployment = resolved.deployment
    tokens, seats = resolved.defaults.max_num_batched_tokens, resolved.defaults.max_num_seqs
    forward = _forward(resolved, layers)
    sampler = _sampler(resolved, _sampling(resolved)) if rank == deployment.pipeline_parallel_size - 1 else 0
    held = _held(resolved, layers)
    size = max(forward, sampler) + held
    source = (
        f"counted: forward pass of {tokens} tokens"
        if forward >= sampler
        else f"counted: sampling for {seats} seats ({_sampling(resolved)} logits)"
    )
    if held:
        source += ", all-reduce's inputs kept to the end of the step"
    return Term("activation_peak", size, source, int(size * 0.85), int(size * 1.15))


def _held(resolved: Resolved, layers: tuple[Layer, ...]) -> int:
    """All-reduce's inputs where the version keeps them and its profiling sees them."""
    version, deployment = resolved.defaults.version, resolved.deployment
    facts = ("all_reduce_holds_inputs", "profile_counts_cache")
    if deployment.tensor_parallel_size == 1 or not all(version_fact(fact, version) for fact in facts):
        return 0
    return held_bytes(deployment.model, len(layers), resolved.defaults.max_num_batched_tokens)


def _other_sampling(resolved: Resolved, rank: int, layers: tuple[Layer, ...]) -> int:
    """By how much the activation peak would change if this version had, or had not, FlashInfer to sample with."""
    is_last = rank == resolved.deployment.pipeline_parallel_size - 1
    if not is_last or not version_fact("sampling_depends_on_flashinfer", resolved.defaults.version):
        return 0
    forward, chosen = _forward(resolved, layers), _sampling(resolved)
    other = "filtered" if chosen == "sorted" else "sorted"
    return max(forward, _sampler(resolved, other)) - max(forward, _sampler(resolved, chosen))


def _forward(resolved: Resolved, layers: tuple[Layer, ...]) -> int:
    deployment = resolved.deployment
    return forward_bytes(
        deployment.model,
        layers,
        resolved.defaults.max_num_batched_tokens,
        split=Split(
            tp=deployment.tensor_parallel_size,
            expert_gpus=deployment.num_expert_gpus,
            by_expert=deployment.enable_expert_parallel,
            dp=deployment.data_parallel_size,
        ),
        version=resolved.defaults.version,
        narrow_activations=_narrow_activations(resolved),
        workspace_bytes=workspace_bytes(
            layers,
            max_model_len=resolved.max_model_len,
            num_tokens=resolved.defaults.max_num_batched_tokens,
            tp=deployment.tensor_parallel_size,
            kv_cache_dtype=deployment.kv_cache_dtype,
            version=resolved.defaults.version,
        ),
    )


def _sampler(resolved: Resolved, sampling: str) -> int:
    defaults = resolved.defaults
    return sampler_bytes(
        resolved.deployment.model,
        defaults.max_num_seqs,
        defaults.max_num_batched_tokens,
        sampling,
        version=defaults.version,
    )


def _sampling(resolved: Resolved) -> str:
    """How the version's profiling run samples."""
    if runs_v2(resolved):
        return "copied"
    return str(version_fact("profiled_sampling", resolved.defaults.version))


def runs_v2(resolved: Resolved) -> bool:
    """The version runs this model on its second model runner by default."""
    rule, model = version_fact("v2_model_runner", resolved.defaults.version), resolved.deployment.model
    if model.architecture in rule.get("architectures", ()):
        quantization = resolve_quantization(model, resolved.deployment.quantization, strict=False)
        return bool(rule.get("quantized", True)) or quantization is None
    if resolved.has_states and not rule.get("hybrid"):
        return False
    return bool(rule.get("moe" if model.is_moe else "dense"))


def _narrow_activations(resolved: Resolved) -> bool:
    """The weight format also quantizes what goes into the matrices, in V1's fused kernels."""
    quantization = resolve_quantization(resolved.deployment.model, resolved.deployment.quantization, strict=False)
    narrow = quantization is not None and quantization.method in ("fp8", "fbgemm_fp8", "int8", "nvfp4")
    return narrow and resolved.defaults.version >= (0, 8, 0)


def _non_torch_term(resolved: Resolved, fitted: MemoryCoefficients) -> Term:
    parts = non_torch_gib(resolved, fitted)
    size = sum(parts.values())
    return Term(
        "non_torch",
        int(size * GIB),
        f"fitted: {', '.join(parts) or 'not counted in this version'}",
        int(size * 0.4 * GIB),
        int(size * 1.8 * GIB),
    )


def non_torch_gib(resolved: Resolved, fitted: MemoryCoefficients) -> dict[str, float]:
    """What the version's profiling sees outside torch's peak, by cause.

    "peak": nothing. "card": all that is taken on the card. "process": what was taken since before the process group
    formed. "after_group": what was taken since after that.
    """
    version, deployment = resolved.defaults.version, resolved.deployment
    sees = version_fact("profile_sees", version)
    if sees == "peak":
        return {}
    parts = {"kernels": fitted.kernels_gib}
    if sees == "card":
        parts["CUDA context"] = fitted.context_gib
    if deployment.has_device_group:
        if sees == "after_group":
            parts["all-reduce workspaces"] = fitted.group_gib
        elif deployment.within_nvlink:
            parts["collectives over NVLink"] = fitted.nvlink_collectives_gib
        else:
            parts["collectives"] = fitted.collectives_gib
    if version_fact("profile_counts_cache", version):
        parts["torch's cache"] = fitted.cached_gib
    return parts


def _captures_on_trial(resolved: Resolved) -> bool:
    """Graphs are captured once during profiling, and their estimate is taken off the budget."""
    if not resolved.defaults.cuda_graph_sizes:
        return False
    if runs_v2(resolved):
        return bool(version_fact("v2_graph_memory_counts", resolved.defaults.version))
    return resolved.defaults.counts_cuda_graph_memory


def _graph_term(resolved: Resolved, fitted: MemoryCoefficients, layers: tuple[Layer, ...]) -> Term:
    counted = _captures_on_trial(resolved)
    sizes = len(resolved.defaults.cuda_graph_sizes)
    if not sizes:
        return Term("cuda_graphs", 0, "off (enforce_eager)", 0, 0, counted)
    per_layer = fitted.cuda_graph_gib_per_layer + sizes * fitted.cuda_graph_gib_per_layer_and_size
    size = per_layer * len(layers) * GIB
    where = "taken from the budget" if counted else "on top of the budget in this version"
    return Term(
        "cuda_graphs",
        int(size),
        f"fitted: {len(layers)} layers, {sizes} batch sizes, {where}",
        int(size * fitted.cuda_graph_low),
        int(size * fitted.cuda_graph_high),
        counted,
    )
