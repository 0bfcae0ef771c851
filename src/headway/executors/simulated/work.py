"""What a step costs in bytes and operations on one GPU of a replica: counted, not fitted."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from headway.catalog.accelerators import Accelerator, find_accelerator, list_accelerators
from headway.catalog.architecture import (
    Attention,
    ExpertFeedForward,
    LatentAttention,
    ModelArchitecture,
    StateSpace,
    token_bytes,
)
from headway.catalog.dtypes import dtype_bytes
from headway.catalog.parameters import all_parts, resolve_quantization
from headway.catalog.quantization import Quantization
from headway.errors import ConfigError
from headway.executors.simulated.layers import PLAIN, LayerTraffic, layer_traffic

_WEIGHT_ONLY = ("awq", "gptq", "w4a16", "bitsandbytes", "mxfp4")
"""Formats that are widened before the product: they save bytes, not operations."""
_ARITHMETIC = {"fp8": "fp8", "fbgemm_fp8": "fp8", "int8": "int8", "nvfp4": "fp4"}
_EMPTY_ROWS = 16
"""Rows of an expert are multiplied in tiles, of 16 to 128 rows by vLLM's tables of block sizes; the last tile of each
is half empty. Of 16, 32, 64, … the tile of 32 fits measured mixtures best."""
_NO_MATRIX = ("embedding", "vision", "extra", "head", "experts")


@dataclass(frozen=True, slots=True)
class LinearWork:
    """Everything but attention, on one GPU: bytes of weights read a step, operations a row."""

    weight_bytes: float
    row_flops: float
    expert_bytes: float
    expert_row_flops: float
    expert_share: float
    """Share of the experts that one row reaches."""
    head_bytes: float
    head_row_flops: float
    state_bytes: float
    """Recurrent state read and written for each sequence."""
    product_row_bytes: float
    expert_row_bytes: float
    pass_row_bytes: float
    """Activations of one row: in and out of products and of experts, and what passes over memory between them."""
    num_layers: float
    """In dense layers, by kernels launched."""

    def experts_for(self, num_rows: int) -> float:
        """Experts' weights read for so many rows: of those that are expected to be reached."""
        return self.expert_bytes * (1.0 - (1.0 - self.expert_share) ** num_rows)

    def expert_rows(self, num_rows: int) -> float:
        """Rows that experts multiply, in those of the model: a tile of each that is reached is half empty."""
        reached = 1.0 - (1.0 - self.expert_share) ** num_rows
        return num_rows + _EMPTY_ROWS * reached / self.expert_share if self.expert_share else 0.0

    def bytes_for(self, num_rows: int) -> float:
        """Weights read for so many rows: of the experts, those that are expected to be reached."""
        return self.weight_bytes + self.experts_for(num_rows)


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """The layers of one kind: KV bytes a token and operations a pair of positions, all its layers together."""

    window: int | None
    token_bytes: float
    pair_flops: float


def linear_work(model: ModelArchitecture, quantization: str | None, tp: int) -> LinearWork:
    """Count a model's linear layers.

    Raises:
        ConfigError: the size of the weights is not known.
    """
    chosen = resolve_quantization(model, quantization)
    wide = dtype_bytes(model.dtype)
    weights = flops = experts = expert_flops = head = head_flops = 0.0
    for part in all_parts(model, model.layers, first=True, last=True):
        narrow = chosen is not None and part.name in chosen.parts
        each = chosen.bits / 8 if chosen is not None and narrow else wide
        size = part.split / tp + part.copied
        if part.name == "experts":
            experts += size * each
            expert_flops += 2.0 * (part.active or 0) / tp
        elif part.name == "head" or (part.name == "embedding" and model.tie_word_embeddings):
            head += size * each
            head_flops += 2.0 * size
        elif part.name not in _NO_MATRIX:
            weights += size * each
            flops += 2.0 * size
    routed = [ffn for ffn in model.ffn_counts if isinstance(ffn, ExpertFeedForward)]
    share = routed[0].experts_per_token / routed[0].num_experts if routed else 0.0
    state = 2.0 * model.state_bytes_per_request(tp)
    traffic = LayerTraffic()
    for layer in model.layers:
        traffic = traffic.plus(layer_traffic(layer, model.hidden_size, tp))
    return LinearWork(
        weights,
        flops,
        experts,
        expert_flops,
        share,
        head,
        head_flops,
        state,
        wide * traffic.products,
        wide * traffic.experts,
        wide * traffic.passes,
        traffic.num_kernels / PLAIN,
    )


def attention_work(model: ModelArchitecture, kv_cache_dtype: str, tp: int) -> tuple[AttentionWork, ...]:
    """Count a model's attention layers, by kind. Sparse latent attention reads at most its top-k tokens."""
    found = []
    for mixer, count in model.mixer_counts.items():
        if isinstance(mixer, Attention):
            pair = 2.0 * count * mixer.num_heads * (mixer.head_dim + mixer.v_head_dim) / tp
            found.append(AttentionWork(mixer.window, count * token_bytes(mixer, kv_cache_dtype, model.dtype, tp), pair))
        elif isinstance(mixer, LatentAttention):
            width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
            each = count * token_bytes(mixer, kv_cache_dtype, model.dtype, tp)
            found.append(AttentionWork(mixer.index_topk or None, each, 2.0 * count * mixer.num_heads * width / tp))
        elif not isinstance(mixer, StateSpace):
            raise ConfigError(
                f"{model.id} compresses its KV cache along the sequence, which is not modelled.",
                hint="Use --latency constant:… with your own figures.",
            )
    return tuple(found)


def narrow_ratio(card: Accelerator, model: ModelArchitecture, quantization: str | None) -> float:
    """The card's peak in the format that the weights are multiplied in, over its 16-bit peak.

    1 for a format that the card cannot multiply, or that is stored narrow and multiplied wide.
    """
    wide = wide_flops(card)
    chosen: Quantization | None = resolve_quantization(model, quantization)
    if chosen is None or chosen.method in _WEIGHT_ONLY:
        return 1.0
    name = _ARITHMETIC.get(chosen.method, "int8" if chosen.bits >= 8 else "")
    narrow = card.flops(name) if name else None
    return 1.0 if narrow is None else narrow / wide


def wide_flops(card: Accelerator) -> float:
    """16-bit operations a second.

    Where the catalogue has no figure: the card's bandwidth × the median operations a byte of its architecture.

    Raises:
        ConfigError: neither is known.
    """
    flops = card.flops("bf16")
    if flops is not None:
        return flops
    cards = [find_accelerator(name) for name in list_accelerators()]
    ratios = [
        peak / (other.bandwidth_gbps * 1e9)
        for other in cards
        if other.architecture == card.architecture and other.bandwidth_gbps and (peak := other.flops("bf16"))
    ]
    if not ratios or card.bandwidth_gbps is None:
        raise ConfigError(f"The arithmetic of {card.id} is not known.", hint="Use --latency constant:….")
    return median(ratios) * card.bandwidth_gbps * 1e9
