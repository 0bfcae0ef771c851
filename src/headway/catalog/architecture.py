"""What a language model is made of: enough to count its weights, its KV cache and the work of a step.

Layers are listed one by one, each a mixer (attention of some kind, or a recurrent state) and a feed-forward part,
either of which may be missing. Equal parts are the same object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from headway.catalog.dtypes import dtype_bytes
from headway.catalog.quantization import Quantization
from headway.errors import ConfigError

AttentionKind = Literal["full", "sliding", "chunked"]
StateKind = Literal["gated_delta", "mamba2", "kda"]


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with a KV pair for each token. `window` is set for sliding and chunk-local layers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    kind: AttentionKind = "full"
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    output_gate: bool = False
    """The query projection also makes a gate of the same width (Qwen3-Next, Qwen3.5)."""

    def kv_elements_per_token(self, tp: int = 1) -> int:
        """Numbers that one token stores on one GPU of `tp`; KV heads are copied where there are fewer than GPUs."""
        return max(1, self.num_kv_heads // tp) * (self.head_dim + self.v_head_dim)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention: one compressed vector and one rotary key a token, the same on every GPU."""

    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    num_index_heads: int = 0
    index_head_dim: int = 0
    index_topk: int = 0
    """Sparse attention reads only this many tokens, found by an index that keeps one FP8 key a token."""
    output_gate: bool = False

    def kv_elements_per_token(self, tp: int = 1) -> int:
        """Numbers that one token stores on each GPU, whatever `tp` is."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def index_bytes_per_token(self) -> int:
        """The index key in FP8 and one float32 scale for each 128 of it."""
        return self.index_head_dim + 4 * -(-self.index_head_dim // 128) if self.index_head_dim else 0


@dataclass(frozen=True, slots=True)
class StateSpace:
    """A recurrent layer: a state of fixed size for each request, nothing for each token.

    In Mamba 2, value heads are the heads, `key_head_dim` is the state size and key heads are the groups.
    """

    kind: StateKind
    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    state_dtype: str = "auto"

    @property
    def conv_dim(self) -> int:
        """Channels of the short convolution."""
        return 2 * self.num_key_heads * self.key_head_dim + self.num_value_heads * self.value_head_dim

    def state_bytes(self, dtype: str, tp: int = 1) -> int:
        """Convolution and recurrent state of one request in one layer on one GPU."""
        conv = self.conv_dim // tp * (self.conv_kernel - 1) * dtype_bytes(dtype)
        recurrent = self.num_value_heads // tp * self.value_head_dim * self.key_head_dim
        state_dtype = dtype if self.state_dtype == "auto" else self.state_dtype
        return int(conv + recurrent * dtype_bytes(state_dtype))


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Attention over a window of single tokens, and over entries that stand for `ratio` tokens each (DeepSeek V4).

    `ratio` is 0 where there is only the window. With `num_index_heads` an index with entries of its own finds those to
    read. A `head_dim` of 0 stands for compression of another kind, which is not modelled.
    """

    num_heads: int
    head_dim: int = 0
    rope_head_dim: int = 0
    window: int = 0
    ratio: int = 0
    q_lora_rank: int = 0
    o_lora_rank: int = 0
    num_output_groups: int = 1
    num_index_heads: int = 0
    index_head_dim: int = 0

    @property
    def is_modelled(self) -> bool:
        """The cache's layout is known."""
        return self.head_dim > 0

    @property
    def entry_bytes(self) -> int:
        """One entry as vLLM stores it (fp8_ds_mla): FP8, a rotary part in 16 bits, an 8-bit scale for each 64 numbers,
        and a byte to fill up."""
        plain = self.head_dim - self.rope_head_dim
        return plain + 2 * self.rope_head_dim + plain // 64 + 1

    @property
    def index_entry_bytes(self) -> int:
        """One entry of the index in FP8 with a float32 scale for each 128 of it; 0 without an index."""
        return self.index_head_dim + 4 * -(-self.index_head_dim // 128) if self.num_index_heads else 0

    def token_bytes(self, *, windowed: bool) -> float:
        """A token's share of the entries, and its own in the window if `windowed`."""
        compressed = (self.entry_bytes + self.index_entry_bytes) / self.ratio if self.ratio else 0.0
        return compressed + (self.entry_bytes if windowed else 0)


Mixer = Attention | LatentAttention | StateSpace | CompressedAttention


@dataclass(frozen=True, slots=True)
class DenseFeedForward:
    """One MLP; `gated` ones have a third matrix."""

    intermediate_size: int
    gated: bool = True


@dataclass(frozen=True, slots=True)
class ExpertFeedForward:
    """A mixture of experts. `shared_intermediate_size` and `dense_intermediate_size` run for every token."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0
    dense_intermediate_size: int = 0
    latent_size: int | None = None
    """The experts work on vectors of this size instead of the hidden size."""
    gated: bool = True


FeedForward = DenseFeedForward | ExpertFeedForward


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of the model."""

    mixer: Mixer | None
    ffn: FeedForward | None


@dataclass(frozen=True, slots=True)
class ModelArchitecture:
    """Facts about one model, with their source.

    `vision_params` is 0 for text-only models and None where a tower exists whose size is not known.
    `num_kv_shared_layers`: the last layers that reuse the KV of earlier ones. `notes` are said to the user.
    """

    id: str
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    tie_word_embeddings: bool
    dtype: str
    max_model_len: int | None
    quantization: Quantization | None = None
    architecture: str | None = None
    vision_params: int | None = 0
    num_mtp_layers: int = 0
    num_kv_shared_layers: int = 0
    extra_params: int = 0
    """Weights beside the layers that are known by number only (per-layer embeddings)."""
    num_residual_streams: int = 1
    """Hidden vectors that a token carries from layer to layer (hyper-connections keep several)."""
    stored_bytes: int | None = None
    """Size of the weights in the model's own files, where those were read."""
    source: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        return len(self.layers)

    @property
    def mixer_counts(self) -> Mapping[Mixer, int]:
        """How many layers have each distinct mixer, in order of first appearance."""
        return Counter(layer.mixer for layer in self.layers if layer.mixer is not None)

    @property
    def ffn_counts(self) -> Mapping[FeedForward, int]:
        """How many layers have each distinct feed-forward part."""
        return Counter(layer.ffn for layer in self.layers if layer.ffn is not None)

    @property
    def num_heads(self) -> int:
        """Query heads of the attention layers (the first kind, where they differ)."""
        for mixer in self.mixer_counts:
            if not isinstance(mixer, StateSpace):
                return mixer.num_heads
        return 0

    @property
    def is_moe(self) -> bool:
        """Any layer has experts."""
        return any(isinstance(ffn, ExpertFeedForward) for ffn in self.ffn_counts)

    @property
    def is_hybrid(self) -> bool:
        """Layers keep their past in more than one way, so that vLLM makes several KV groups."""
        return len({way for mixer in self.mixer_counts for way in _ways(mixer)}) > 1

    @property
    def kv_is_known(self) -> bool:
        """Every layer's cache can be computed."""
        return all(not isinstance(mixer, CompressedAttention) or mixer.is_modelled for mixer in self.mixer_counts)

    def num_params(self, *, active: bool = False) -> int:
        """Weights in all, or those that one token touches; `headway.catalog.parameters` gives them by part."""
        from headway.catalog.parameters import count_parameters

        parts = count_parameters(self)
        return parts.active if active else parts.total

    def weight_bytes(self, quantization: str | None = None, *, tp: int = 1) -> int:
        """Bytes of all layers' weights on one GPU of `tp`; None takes the model's own quantization.

        Raises:
            ConfigError: the quantization is unknown, or one whose layout is not modelled.
        """
        from headway.catalog.parameters import rank_weight_bytes

        return rank_weight_bytes(self, quantization=quantization, tp=tp)

    def kv_bytes_per_token(self, kv_dtype: str = "auto", tp: int = 1, *, windowed: bool = True) -> int:
        """Bytes that one token takes on one GPU of `tp`, in all layers that keep a KV pair.

        Args:
            windowed: count sliding and chunk-local layers, which forget what left their window.

        Raises:
            ConfigError: a layer's cache is not modelled, or the dtype is unknown.
        """
        if not self.kv_is_known:
            raise ConfigError(
                f"{self.id} compresses its KV cache along the sequence, which is not modelled.",
                hint="Its bytes per token are unknown.",
            )
        total = 0.0
        kept = self.layers[: self.num_layers - self.num_kv_shared_layers]
        for mixer, count in Counter(layer.mixer for layer in kept).items():
            if isinstance(mixer, Attention | LatentAttention) and (windowed or _past(mixer) == "full"):
                total += count * token_bytes(mixer, kv_dtype, self.dtype, tp)
            elif isinstance(mixer, CompressedAttention):
                total += count * mixer.token_bytes(windowed=windowed)
        return int(total)

    def state_bytes_per_request(self, tp: int = 1) -> int:
        """Bytes of recurrent state of one request on one GPU of `tp`."""
        return sum(
            count * mixer.state_bytes(self.dtype, tp)
            for mixer, count in self.mixer_counts.items()
            if isinstance(mixer, StateSpace)
        )


def token_bytes(mixer: Attention | LatentAttention, kv_dtype: str, dtype: str, tp: int = 1) -> float:
    """Bytes that one token takes in one layer on one GPU.

    FP8 with a packed MLA layout (`fp8_ds_mla`) keeps the latent in FP8 with a float32 scale for each 128 numbers, and
    the rotary key in 16 bits.
    """
    if isinstance(mixer, LatentAttention):
        if kv_dtype == "fp8_ds_mla":
            latent = mixer.kv_lora_rank + 4 * -(-mixer.kv_lora_rank // 128) + 2.0 * mixer.qk_rope_head_dim
        else:
            latent = mixer.kv_elements_per_token() * dtype_bytes(kv_dtype, auto=dtype)
        return latent + mixer.index_bytes_per_token
    return mixer.kv_elements_per_token(tp) * dtype_bytes(kv_dtype, auto=dtype)


def _past(mixer: Mixer) -> str:
    if isinstance(mixer, Attention):
        return mixer.kind
    return "full" if isinstance(mixer, LatentAttention) else "state"


def _ways(mixer: Mixer) -> tuple[str, ...]:
    """How a layer keeps its past; compressed attention does so in several ways at once."""
    return ("window", "entries") if isinstance(mixer, CompressedAttention) else (_past(mixer),)
