"""What a GPU holds beside weights and KV cache: activations, workspaces, CUDA graphs.

The forward pass and the sampler are counted from the shapes of what they keep alive. What cannot be counted (the CUDA
context, collectives, kernels' code and workspaces) has a size each, drawn from start-up logs of many models and cards
towards a value expected beforehand (`bench/fit_memory.py`); which of them a version's profiling sees is a fact of the
version.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from headway.catalog.architecture import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    LatentAttention,
    Layer,
    Mixer,
    ModelArchitecture,
    StateSpace,
)
from headway.catalog.defaults import version_fact
from headway.catalog.dtypes import dtype_bytes
from headway.catalog.versions import Version

_SORTED_BYTES_PER_LOGIT = 36
"""PyTorch's segmented sort, of 128 rows and more: float32 logits (4), sorted values (4), 64-bit indices (8) and the
order to start from (8), and radix sort's second buffer for keys and values (12)."""
_FEW_ROWS_SORTED_BYTES_PER_LOGIT = 48
"""Fewer rows are sorted as one: indices with segments twice (16) and another copy of the keys (4) instead of the order
to start from."""
_SORT_BY_SEGMENTS_FROM_ROWS = 128
_FILTERED_BYTES_PER_LOGIT = 12
"""Top-k and top-p without a sort (Triton, FlashInfer): float32 logits, and two more float32 arrays (probabilities and
either noise or masked logits)."""
_COPIED_BYTES_PER_LOGIT = 4
"""V2's model runner profiles sampling without top-k and top-p: one float32 copy, noise made in the kernel."""
_KERNEL_HEADS = 64
"""Heads that the kernel of compressed attention makes outputs for at least."""


@dataclass(frozen=True, slots=True)
class MemoryCoefficients:
    """Sizes of what cannot be counted, in GiB, and how far plans were off. See `profile_sees` in vllm_defaults.json."""

    kernels_gib: float
    """Code of kernels and small workspaces that appear during the profiling run."""
    context_gib: float
    """The CUDA context, in versions that take everything on the card off the budget."""
    collectives_gib: float
    """NCCL and all-reduce buffers, where the process group forms after the profiling's first look."""
    nvlink_collectives_gib: float
    """The same between GPUs of one NVLink domain: NCCL keeps a buffer for each of many channels on the GPU, while over
    PCIe or the network there are few channels and some of their buffers lie in host memory."""
    group_gib: float
    """What working together still adds where it forms before: all-reduce workspaces made later."""
    cached_gib: float
    """What torch keeps in its cache beyond its peak, in versions that count the cache."""
    cuda_graph_gib_per_layer: float
    """What the first and largest graph takes: its pool, and what capturing leaves outside torch's pools."""
    cuda_graph_gib_per_layer_and_size: float
    """What each further batch size adds."""
    cuda_graph_low: float
    cuda_graph_high: float
    """The graphs' range, as shares of the likely value."""
    error_gib: float
    error_share: float
    """Nine of ten start-ups of sources left out of the fit were closer than `error_gib` and this share of what is
    neither weights nor KV cache."""
    source: str


@cache
def coefficients() -> MemoryCoefficients:
    """The fitted coefficients of `catalog/memory_coefficients.json`."""
    text = resources.files("headway.catalog").joinpath("memory_coefficients.json").read_text(encoding="utf-8")
    return MemoryCoefficients(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Split:
    """How the work of one step is divided: heads and feed-forward widths over `tp` GPUs; experts over `expert_gpus`,
    whole ones if `by_expert`, else a part of each; every MoE layer sees the tokens of `dp` engines."""

    tp: int = 1
    expert_gpus: int = 1
    by_expert: bool = False
    dp: int = 1


def forward_bytes(
    model: ModelArchitecture,
    layers: tuple[Layer, ...],
    num_tokens: int,
    *,
    split: Split,
    version: Version,
    narrow_activations: bool = False,
    workspace_bytes: int = 0,
) -> int:
    """What one forward pass of `num_tokens` keeps alive at its widest layer.

    That is a few hidden vectors a token (three in V0, one more in V1's compiled graphs) and the intermediate results of
    the widest part. `narrow_activations`: the input of a second matrix is kept in 8 bits or less. A `workspace_bytes`
    is kept throughout, and experts use it.
    """
    widest, workspace = 0.0, workspace_bytes / dtype_bytes(model.dtype)
    for layer in layers:
        if isinstance(layer.ffn, ExpertFeedForward):
            size = _expert_elements(layer.ffn, model.hidden_size, num_tokens, split, narrow_activations, version)
            if workspace_bytes:
                workspace = max(workspace, size)
            else:
                widest = max(widest, size)
        elif layer.ffn is not None:
            widest = max(widest, num_tokens * _dense_width(layer.ffn, split.tp, narrow_activations))
        if layer.mixer is not None:
            widest = max(widest, num_tokens * _mixer_width(layer.mixer, split.tp))
    hidden_vectors = 3 if version < (0, 8, 0) else 4
    hidden = num_tokens * hidden_vectors * model.hidden_size * model.num_residual_streams
    return int((widest + workspace + hidden) * dtype_bytes(model.dtype))


def sampler_bytes(
    model: ModelArchitecture, max_num_seqs: int, num_tokens: int, sampling: str, *, version: Version
) -> int:
    """What sampling for every seat at once keeps alive, the model's own logits included.

    V0 has the hidden vectors of all profiled tokens beside it; V1 has copied the last ones and let go of the rest.

    Args:
        sampling: "sorted", "filtered" or "copied", as the version profiles it.
    """
    rows = min(max_num_seqs, num_tokens)
    sorted_bytes = _SORTED_BYTES_PER_LOGIT if rows >= _SORT_BY_SEGMENTS_FROM_ROWS else _FEW_ROWS_SORTED_BYTES_PER_LOGIT
    beside = {"sorted": sorted_bytes, "filtered": _FILTERED_BYTES_PER_LOGIT, "copied": _COPIED_BYTES_PER_LOGIT}[
        sampling
    ]
    hidden = num_tokens * model.hidden_size if version < (0, 8, 0) else 0
    return int(rows * model.vocab_size * (dtype_bytes(model.dtype) + beside) + hidden * dtype_bytes(model.dtype))


def held_bytes(model: ModelArchitecture, num_layers: int, num_tokens: int) -> int:
    """Inputs of all-reduces that are not given back before the step ends: two in each layer, one for the embedding.

    torch.distributed kept them until the streams joined (vLLM issue 2150); what is kept counts where the cache does.
    """
    return int((2 * num_layers + 1) * num_tokens * model.hidden_size * dtype_bytes(model.dtype))


def _dense_width(ffn: DenseFeedForward, tp: int, narrow: bool) -> float:
    return _num_matrices(ffn.gated, narrow) * ffn.intermediate_size / tp


def _num_matrices(gated: bool, narrow: bool) -> float:
    return (3 if gated else 2) - (0.5 if narrow else 0.0)


def _expert_elements(
    ffn: ExpertFeedForward, hidden: int, num_tokens: int, split: Split, narrow: bool, version: Version
) -> float:
    """Intermediate results of an MoE layer, for the tokens of all its engines.

    Until 0.17 a chunk of tokens at a time, with the first results and the last in the same memory (fused_moe.py).
    """
    width = ffn.intermediate_size / (1 if split.by_expert else split.expert_gpus)
    seen, size = num_tokens * split.dp, ffn.latent_size or hidden
    chunk: int | None = version_fact("moe_chunk_tokens", version)
    if chunk is not None and version >= (0, 8, 0):
        routed = min(seen, chunk) * ffn.experts_per_token * (max(2 * width, size) + width)
    else:
        routed = seen * ffn.experts_per_token * (_num_matrices(ffn.gated, narrow) * width + size)
    beside = max(ffn.shared_intermediate_size, ffn.dense_intermediate_size) / split.tp
    gathered = seen * (2 * hidden + ffn.num_experts) if split.dp > 1 else 0
    return routed + gathered + num_tokens * _num_matrices(ffn.gated, narrow) * beside


def _mixer_width(mixer: Mixer, tp: int) -> float:
    if isinstance(mixer, Attention):
        queries = mixer.num_heads * (mixer.head_dim + mixer.v_head_dim) / tp
        return queries + 2 * mixer.kv_elements_per_token(tp)
    if isinstance(mixer, LatentAttention):
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        return mixer.num_heads * (2 * width + 2 * mixer.v_head_dim) / tp
    if isinstance(mixer, CompressedAttention):
        values = mixer.num_heads * mixer.head_dim / tp
        sums = 2 * 2 * (2 if mixer.num_index_heads else 1) * (mixer.head_dim + mixer.index_head_dim)
        return 2 * values + max(0.0, _KERNEL_HEADS * mixer.head_dim - values) + sums
    if isinstance(mixer, StateSpace):
        return (2 * mixer.conv_dim + 2 * mixer.num_value_heads * mixer.value_head_dim) / tp
    return 0.0
