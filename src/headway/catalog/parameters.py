"""Counting weights, by part and by GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.catalog.architecture import (
    Attention,
    CompressedAttention,
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
from headway.catalog.quantization import Quantization, named_quantization
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Part:
    """Weights of one kind: split over the tensor-parallel group, or the same on each GPU."""

    name: str
    split: int
    copied: int = 0
    active: int | None = None
    """How many one token touches; None: all."""


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Weights by part: embedding, head, attention, state, dense, experts, shared_experts, router, norms, …"""

    by_part: Mapping[str, int]
    total: int
    active: int
    """Touched by one token; the embedding table's other rows are left out, as model cards do for neither."""


def count_parameters(model: ModelArchitecture) -> ParameterCounts:
    """All weights of the language model, plus the vision tower where its size is known."""
    parts: dict[str, int] = defaultdict(int)
    active = 0
    for part in all_parts(model, model.layers, first=True, last=True):
        size = part.split + part.copied
        parts[part.name] += size
        active += size if part.active is None else part.active
    return ParameterCounts(dict(parts), sum(parts.values()), active)


def all_parts(model: ModelArchitecture, layers: Sequence[Layer], *, first: bool, last: bool) -> Iterator[Part]:
    """Parts of a pipeline rank that holds `layers`; `first` has the embedding, `last` the head."""
    table, streams = model.vocab_size * model.hidden_size, model.num_residual_streams
    if first or (last and model.tie_word_embeddings):
        yield Part("embedding", table)
    if first and model.vision_params:
        yield Part("vision", 0, model.vision_params)
    if first and model.extra_params:
        yield Part("extra", model.extra_params)
    if last and not model.tie_word_embeddings:
        yield Part("head", table)
    for layer in layers:
        if layer.mixer is not None:
            yield from mixer_parts(layer.mixer, model.hidden_size)
        if layer.ffn is not None:
            yield from ffn_parts(layer.ffn, model.hidden_size)
        yield Part("norms", 0, 2 * model.hidden_size)
        if streams > 1:  # Two mixes of the streams a layer, kept in 32 bits: counted double.
            yield Part("streams", 0, 2 * 2 * (2 + streams) * streams * streams * model.hidden_size)


def mixer_parts(mixer: Mixer, hidden: int) -> Iterator[Part]:
    """Weights of an attention or recurrent layer."""
    if isinstance(mixer, Attention):
        q, kv = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads
        outputs = q * (2 if mixer.output_gate else 1) + kv * (mixer.head_dim + mixer.v_head_dim)
        split = hidden * outputs + mixer.num_heads * mixer.v_head_dim * hidden
        bias = (outputs if mixer.qkv_bias else 0) + (hidden if mixer.output_bias else 0)
        yield Part("attention", split)
        if bias:
            yield Part("bias", bias)
    elif isinstance(mixer, LatentAttention):
        yield from _latent_parts(mixer, hidden)
    elif isinstance(mixer, StateSpace):
        inner = mixer.num_value_heads * mixer.value_head_dim
        inputs = mixer.conv_dim + inner + 2 * mixer.num_value_heads
        yield Part("state", hidden * (inputs + inner))
        yield Part("norms", mixer.conv_dim * mixer.conv_kernel + 3 * mixer.num_value_heads)
    else:
        yield from _compressed_parts(mixer, hidden)


def _latent_parts(mixer: LatentAttention, hidden: int) -> Iterator[Part]:
    qk = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    from_query = mixer.q_lora_rank or hidden
    split = from_query * mixer.num_heads * qk
    split += mixer.kv_lora_rank * mixer.num_heads * (mixer.qk_nope_head_dim + mixer.v_head_dim)
    split += mixer.num_heads * mixer.v_head_dim * hidden * (2 if mixer.output_gate else 1)
    copied = hidden * (mixer.kv_lora_rank + mixer.qk_rope_head_dim)
    copied += hidden * mixer.q_lora_rank if mixer.q_lora_rank else 0
    yield Part("attention", split, copied)
    if mixer.num_index_heads:
        copied = from_query * mixer.num_index_heads * mixer.index_head_dim
        copied += hidden * (mixer.index_head_dim + mixer.num_index_heads)
        yield Part("attention", 0, copied)


def _compressed_parts(mixer: CompressedAttention, hidden: int) -> Iterator[Part]:
    """Low-rank queries and outputs (the latter by groups); compressors and most of the index stay in 16 bits."""
    if not mixer.is_modelled:
        return
    values = mixer.num_heads * mixer.head_dim
    split = (mixer.q_lora_rank + mixer.o_lora_rank) * values
    split += mixer.num_output_groups * mixer.o_lora_rank * hidden
    copied = hidden * (mixer.q_lora_rank + mixer.head_dim)
    copied += mixer.q_lora_rank * mixer.num_index_heads * mixer.index_head_dim
    yield Part("attention", split, copied)
    overlaps = 2 if mixer.num_index_heads else 1
    compressed = mixer.head_dim + (mixer.index_head_dim if mixer.num_index_heads else 0)
    wide = hidden * (2 * overlaps * compressed + mixer.num_index_heads) if mixer.ratio else 0
    yield Part("compressor", 0, wide)


def ffn_parts(ffn: FeedForward, hidden: int) -> Iterator[Part]:
    """Weights of a feed-forward part."""
    matrices = 3 if ffn.gated else 2
    if isinstance(ffn, DenseFeedForward):
        yield Part("dense", matrices * hidden * ffn.intermediate_size)
        return
    assert isinstance(ffn, ExpertFeedForward)
    one = matrices * (ffn.latent_size or hidden) * ffn.intermediate_size
    yield Part("experts", ffn.num_experts * one, active=ffn.experts_per_token * one)
    yield Part("router", 0, hidden * ffn.num_experts)
    if ffn.shared_intermediate_size:
        yield Part("shared_experts", matrices * hidden * ffn.shared_intermediate_size)
    if ffn.dense_intermediate_size:
        yield Part("dense", matrices * hidden * ffn.dense_intermediate_size)
    if ffn.latent_size:
        yield Part("shared_experts", 2 * hidden * ffn.latent_size)


def resolve_quantization(model: ModelArchitecture, name: str | None, *, strict: bool = True) -> Quantization | None:
    """The format by name, or the model's own for None; unless `strict`, also one whose size is not known.

    Raises:
        ConfigError: unknown, or a mixture whose size is not known.
    """
    chosen = model.quantization if name is None else named_quantization(name)
    own = model.quantization
    if chosen is not None and own is not None and chosen.method == own.method:
        chosen = own
    if strict and chosen is not None and not chosen.is_modelled:
        raise ConfigError(
            f"{model.id} mixes weight formats ({chosen.method}); their size is not known.",
            hint="Give the model's folder, so that the size is read from the files, or --model-weights (their size).",
        )
    if chosen is not None and chosen.method == "nvfp4" and chosen is not own and model.is_moe:
        return Quantization("nvfp4", chosen.bits, ("experts",))
    return chosen


def rank_weight_bytes(
    model: ModelArchitecture,
    *,
    quantization: str | None = None,
    tp: int = 1,
    expert_gpus: int | None = None,
    by_expert: bool = False,
    layers: Sequence[Layer] | None = None,
    first: bool = True,
    last: bool = True,
    whole_bytes: int | None = None,
) -> int:
    """Bytes of weights on one GPU: its share of `layers` (all by default) and of what the first and last rank add.

    What vLLM makes of the weights while it loads counts too: padding, latent attention's up-projections, which it
    keeps a second time in 16 bits for decoding, and KV projections that more ranks than KV heads hold.

    Args:
        expert_gpus: GPUs that the experts are spread over, `tp` by default; whole ones if `by_expert`, else in parts.
        whole_bytes: size of the whole model's weights, where it is known; the model's files are taken for None, unless
            another quantization is asked for.

    Raises:
        ConfigError: the quantization is unknown or not modelled.
    """
    layers = model.layers if layers is None else layers
    stored = model.stored_bytes if whole_bytes is None and quantization is None else whole_bytes
    chosen = resolve_quantization(model, quantization, strict=stored is None)
    if chosen is not None and not chosen.is_modelled:
        chosen = None  # The files say how much it is; 16 bits everywhere say how it is shared.
    gpus = expert_gpus or tp
    total = _bytes(model, chosen, layers, (first, last), tp, gpus)
    if stored is not None:
        total *= stored / _bytes(model, chosen, model.layers, (True, True), 1, 1)
    total += dtype_bytes(model.dtype) * sum(_absorbed_elements(layer.mixer) for layer in layers) / tp
    if chosen is not None and chosen.padding is not None:
        total += _padding_bytes(model, chosen, layers, gpus, by_expert)
    return int(total)


def _bytes(
    model: ModelArchitecture,
    chosen: Quantization | None,
    layers: Sequence[Layer],
    ends: tuple[bool, bool],
    tp: int,
    expert_gpus: int,
) -> float:
    """Bytes on one GPU, without what loading adds; `ends`: the rank is the first, the last."""
    wide, total, first, last = dtype_bytes(model.dtype), 0.0, *ends

    def each(part: str) -> float:
        bits = chosen.bits_of(part) if chosen is not None else None
        return wide if bits is None else bits / 8

    for part in all_parts(model, layers, first=first, last=last):
        gpus = expert_gpus if part.name == "experts" else tp
        total += (part.split / gpus + part.copied) * each(part.name)
    return total + each("attention") * model.hidden_size * sum(_again_elements(layer.mixer, tp) for layer in layers)


def _again_elements(mixer: Mixer | None, tp: int) -> float:
    """Outputs of the KV projections on one of more ranks than KV heads, beyond its equal share."""
    if not isinstance(mixer, Attention) or tp <= mixer.num_kv_heads:
        return 0.0
    return (mixer.head_dim + mixer.v_head_dim) * (1 - mixer.num_kv_heads / tp)


def _absorbed_elements(mixer: Mixer | None) -> int:
    if not isinstance(mixer, LatentAttention):
        return 0
    return mixer.num_heads * (mixer.qk_nope_head_dim + mixer.v_head_dim) * mixer.kv_lora_rank


def _padding_bytes(
    model: ModelArchitecture, quantization: Quantization, layers: Sequence[Layer], gpus: int, by_expert: bool
) -> float:
    """What a kernel adds by rounding an expert's share on one GPU up to its tile sizes."""
    assert quantization.padding is not None
    extra = 0.0
    for layer in layers:
        ffn = layer.ffn
        if isinstance(ffn, ExpertFeedForward):
            width = ffn.intermediate_size if by_expert else -(-ffn.intermediate_size // gpus)
            experts = ffn.num_experts // gpus if by_expert else ffn.num_experts
            padded = _round_up(width, quantization.padding[0]) * _round_up(model.hidden_size, quantization.padding[1])
            exact = ffn.intermediate_size * model.hidden_size / (1 if by_expert else gpus)
            extra += experts * (3 if ffn.gated else 2) * (padded - exact) * quantization.bits / 8
    return extra


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
