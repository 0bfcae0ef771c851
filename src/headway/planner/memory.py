"""What a GPU holds beside weights and KV cache: activations, workspaces, CUDA graphs.

The forward pass and the sampler are counted from the shapes of what they keep alive; five coefficients, fitted once on
start-up logs of many models and cards (`bench/fit_memory.py`), scale them and stand for what cannot be counted.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from headway.catalog.architecture import (
    Attention,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    ModelArchitecture,
    StateSpace,
)
from headway.catalog.dtypes import dtype_bytes
from headway.catalog.versions import Version

_SAMPLER_BYTES_PER_LOGIT = 16
"""V1 profiles a sampling step: logits in float32, sorted in float32, with 64-bit indices, all alive at once."""


@dataclass(frozen=True, slots=True)
class MemoryCoefficients:
    """Fitted numbers, with how far the fit was off. Sizes in GiB of memory."""

    activation_scale: float
    non_torch_gib: float
    non_torch_group_gib: float
    """More, where GPUs work together (NCCL, all-reduce buffers)."""
    context_gib: float
    """More in versions that take everything on the card off the budget, the CUDA context too."""
    cuda_graph_gib_per_layer: float
    cuda_graph_low: float
    cuda_graph_high: float
    """The graphs' range, as shares of the likely value."""
    residual_share: float
    """Nine of ten rows of the fit were closer than this share of the budget."""
    source: str


@cache
def coefficients() -> MemoryCoefficients:
    """The fitted coefficients of `catalog/memory_coefficients.json`."""
    text = resources.files("headway.catalog").joinpath("memory_coefficients.json").read_text(encoding="utf-8")
    return MemoryCoefficients(**json.loads(text))


def forward_bytes(
    model: ModelArchitecture,
    layers: tuple[Layer, ...],
    num_tokens: int,
    *,
    tp: int,
    version: Version,
    ep: int | None = None,
    narrow_activations: bool = False,
) -> int:
    """What one forward pass of `num_tokens` keeps alive at its widest layer, unscaled.

    That is a few hidden vectors a token (three in V0, one more in V1's compiled graphs) and the intermediate results of
    the widest part. `narrow_activations`: the input of a second matrix is kept in 8 bits or less.
    """
    widest = 0.0
    for layer in layers:
        widths = [0.0]
        if layer.ffn is not None:
            widths.append(_ffn_width(layer.ffn, model.hidden_size, tp, ep, narrow_activations))
        if layer.mixer is not None:
            widths.append(_mixer_width(layer.mixer, tp))
        widest = max(widest, *widths)
    hidden_vectors = 3 if version < (0, 8, 0) else 4
    return int(num_tokens * (widest + hidden_vectors * model.hidden_size) * dtype_bytes(model.dtype))


def sampler_bytes(model: ModelArchitecture, max_num_seqs: int, num_tokens: int, version: Version) -> int:
    """What sampling for every seat at once keeps alive; V0's profile run makes the logits and no more."""
    each = dtype_bytes(model.dtype) if version < (0, 8, 0) else _SAMPLER_BYTES_PER_LOGIT
    return int(min(max_num_seqs, num_tokens) * model.vocab_size * each)


def _ffn_width(ffn: FeedForward, hidden: int, tp: int, ep: int | None, narrow: bool) -> float:
    matrices = (3 if ffn.gated else 2) - (0.5 if narrow else 0.0)
    if isinstance(ffn, DenseFeedForward):
        return matrices * ffn.intermediate_size / tp
    assert isinstance(ffn, ExpertFeedForward)
    width = matrices * ffn.intermediate_size / (1 if ep else tp)
    routed = ffn.experts_per_token * (width + (ffn.latent_size or hidden))
    return routed + matrices * max(ffn.shared_intermediate_size, ffn.dense_intermediate_size) / tp


def _mixer_width(mixer: Mixer, tp: int) -> float:
    if isinstance(mixer, Attention):
        queries = mixer.num_heads * (mixer.head_dim + mixer.v_head_dim) / tp
        return queries + 2 * mixer.kv_elements_per_token(tp)
    if isinstance(mixer, LatentAttention):
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        return mixer.num_heads * (2 * width + 2 * mixer.v_head_dim) / tp
    if isinstance(mixer, StateSpace):
        return (2 * mixer.conv_dim + 2 * mixer.num_value_heads * mixer.value_head_dim) / tp
    return 0.0
