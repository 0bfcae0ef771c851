"""What one layer asks for besides its weights: kernels to launch, and activations to read and write, on one GPU.

Products read their inputs and write their outputs while they compute; norms, rotations, gates and sums pass over memory
in turn, with no arithmetic to hide behind. Kernels are those of vLLM's layers, one by one; a plain dense layer is the
measure.
"""

from __future__ import annotations

from typing import NamedTuple

from headway.catalog.architecture import (
    Attention,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    StateSpace,
)

_SCAN_TOKENS = 64
"""Recurrent layers compute prompts in chunks of this many tokens, and keep a state for each."""


class LayerTraffic(NamedTuple):
    """Numbers read and written for each row, and kernels launched a step, of one layer or of some.

    `products` and `experts` are inputs and outputs of matrix products; `passes` is what lies between them.
    """

    num_kernels: float = 0.0
    products: float = 0.0
    experts: float = 0.0
    passes: float = 0.0

    def plus(self, other: LayerTraffic) -> LayerTraffic:
        """The sum."""
        return LayerTraffic(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def layer_traffic(layer: Layer, hidden: int, tp: int) -> LayerTraffic:
    """One layer on one GPU of a tensor-parallel group."""
    found = LayerTraffic()
    if layer.mixer is not None:
        found = found.plus(_norm(hidden)).plus(_mixer(layer.mixer, hidden, tp))
    if layer.ffn is not None:
        found = found.plus(_norm(hidden)).plus(_feed_forward(layer.ffn, hidden, tp))
    return found


def _norm(hidden: int) -> LayerTraffic:
    """Reads its input and the residual, writes both."""
    return LayerTraffic(1, passes=4.0 * hidden)


def _mixer(mixer: Mixer, hidden: int, tp: int) -> LayerTraffic:
    if isinstance(mixer, Attention):
        return _attention(mixer, hidden, tp)
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, hidden, tp)
    if isinstance(mixer, StateSpace):
        return _state(mixer, hidden, tp)
    return LayerTraffic()


def _attention(mixer: Attention, hidden: int, tp: int) -> LayerTraffic:
    """Query, key and value at once; rotation; cache; attention in two kernels; output."""
    query, output = mixer.num_heads * mixer.head_dim / tp, mixer.num_heads * mixer.v_head_dim / tp
    gate = query if mixer.output_gate else 0.0
    key_value = float(mixer.kv_elements_per_token(tp))
    rotated = query + key_value * mixer.head_dim / (mixer.head_dim + mixer.v_head_dim)
    return LayerTraffic(
        num_kernels=6 + mixer.output_gate,
        products=2.0 * hidden + query + gate + key_value + output,
        passes=2.0 * rotated + 2.0 * key_value + query + output + (3.0 * output if gate else 0.0),
    )


def _latent(mixer: LatentAttention, hidden: int, tp: int) -> LayerTraffic:
    """Two products down, two norms, one up; rotation; cache; absorbing and expanding; attention in two; output."""
    rank = float(mixer.kv_elements_per_token())
    query = mixer.num_heads * (mixer.qk_nope_head_dim + mixer.qk_rope_head_dim) / tp
    output = mixer.num_heads * mixer.v_head_dim / tp
    absorbed = mixer.num_heads * mixer.kv_lora_rank / tp
    down = float(mixer.q_lora_rank or 0)
    return LayerTraffic(
        num_kernels=12,
        products=3.0 * hidden + 2.0 * down + rank + 2.0 * query + 2.0 * absorbed + 2.0 * output,
        passes=2.0 * (down + rank) + 2.0 * query + 2.0 * rank + query + output,
    )


def _state(mixer: StateSpace, hidden: int, tp: int) -> LayerTraffic:
    """Two products in, convolution, gates, norm of keys, scan, gated norm, one product out."""
    inner = mixer.num_value_heads * mixer.value_head_dim / tp
    states = inner * mixer.key_head_dim / _SCAN_TOKENS
    conv = mixer.conv_dim / tp
    scan = conv + inner + 6.0 * inner + 2.0 * states
    return LayerTraffic(
        num_kernels=8,
        products=2.0 * hidden + conv + inner + inner,
        passes=2.0 * conv + scan + 3.0 * inner,
    )


def _feed_forward(ffn: FeedForward, hidden: int, tp: int) -> LayerTraffic:
    if isinstance(ffn, DenseFeedForward):
        return _dense(ffn.intermediate_size / tp, hidden, gated=ffn.gated)
    return _experts(ffn, hidden, tp)


def _dense(width: float, hidden: float, *, gated: bool) -> LayerTraffic:
    """A product up, the activation, a product down."""
    up = (2 if gated else 1) * width
    return LayerTraffic(3, products=2.0 * hidden + up + width, passes=up + width)


def _experts(ffn: ExpertFeedForward, hidden: int, tp: int) -> LayerTraffic:
    """The router; its top k, renormalised; rows sorted by expert in three kernels; two products around an activation;
    the weighted sum. Parts that every token passes are dense ones beside, and a sum."""
    width, each = ffn.intermediate_size / tp, float(ffn.latent_size or hidden)
    one, num = _dense(width, each, gated=ffn.gated), ffn.experts_per_token
    found = LayerTraffic(
        num_kernels=one.num_kernels + 7,
        experts=num * one.products,
        passes=num * one.passes + (num + 1) * each,
    )
    for size in (ffn.shared_intermediate_size, ffn.dense_intermediate_size):
        if size:
            found = found.plus(_dense(size / tp, hidden, gated=ffn.gated)).plus(LayerTraffic(1, passes=3.0 * hidden))
    return found


PLAIN = layer_traffic(Layer(Attention(1, 1, 1, 1), DenseFeedForward(1)), 1, 1).num_kernels
"""Kernels of a dense layer with attention: the measure."""
