"""How vLLM lays the KV cache out in blocks: groups of layers that share one pool.

Layers that keep their past in the same way form groups of equal size, and each group takes its own blocks from the
pool; a block is as large as one page of every layer of one group. A model whose layers are all alike has one group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.catalog.architecture import Attention, CompressedAttention, LatentAttention, Layer, StateSpace, token_bytes
from headway.catalog.defaults import version_fact
from headway.catalog.versions import Version
from headway.errors import ConfigError

PastKind = Literal["full", "sliding", "state"]
_PADDED_HEAD = 256
_KERNEL_BLOCK = 16
"""Attention blocks are enlarged in steps of this many tokens until a page holds a recurrent state."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """`num_groups` groups of layers that keep their past in one way."""

    kind: PastKind
    num_layers: int
    num_groups: int
    block_size: int
    """Tokens in a block; for recurrent states a block is one state."""
    window: int = 0

    def blocks_per_request(self, num_tokens: int, in_flight_tokens: int, state_blocks: int) -> int:
        """Blocks that one request of `num_tokens` holds at most, in all groups of this kind."""
        if self.kind == "state":
            return self.num_groups * state_blocks
        if self.kind == "sliding":
            kept = min(self.window - 1 + in_flight_tokens, num_tokens)
            return self.num_groups * (-(-kept // self.block_size) + 1)
        return self.num_groups * -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Groups over one pool. `block_bytes` is one pool block on one GPU; `state_blocks` what a request's state takes."""

    groups: tuple[KVGroup, ...]
    block_bytes: int
    state_blocks: int = 1

    @property
    def block_size(self) -> int:
        """Tokens in a block of the groups that keep tokens (the smallest)."""
        return min((group.block_size for group in self.groups if group.kind != "state"), default=1)

    @property
    def num_groups(self) -> int:
        """Groups in all."""
        return sum(group.num_groups for group in self.groups)

    def blocks_per_request(self, num_tokens: int, in_flight_tokens: int) -> int:
        """Pool blocks that a request of `num_tokens` needs at its longest."""
        return sum(group.blocks_per_request(num_tokens, in_flight_tokens, self.state_blocks) for group in self.groups)

    def token_blocks(self, num_tokens: int) -> int:
        """Pool blocks of the groups that keep every one of a request's tokens."""
        return sum(group.blocks_per_request(num_tokens, 0, 0) for group in self.groups if group.kind == "full")

    def longest_request(self, num_blocks: int, in_flight_tokens: int) -> int:
        """The most tokens that one request can have in a pool of `num_blocks`; 0 if not even one token fits."""
        low, high = 0, 1
        while high < 1 << 40 and self.blocks_per_request(high, in_flight_tokens) <= num_blocks:
            low, high = high, high * 2
        while high - low > 1:
            middle = (low + high) // 2
            if self.blocks_per_request(middle, in_flight_tokens) <= num_blocks:
                low = middle
            else:
                high = middle
        return low


@dataclass(frozen=True, slots=True)
class _Spec:
    kind: PastKind
    bytes_per_token: int
    """Of a state: its bytes."""
    window: int = 0


def kv_layout(
    layers: Iterable[Layer],
    *,
    dtype: str,
    kv_cache_dtype: str = "auto",
    tp: int = 1,
    block_size: int = 16,
    hybrid: bool = True,
    state_blocks: int = 1,
) -> KVLayout:
    """The layout of the layers of one pipeline rank on one GPU of `tp`.

    Args:
        hybrid: layers of different kinds get groups of their own; else sliding windows are sized as full attention.
        state_blocks: blocks of recurrent state that one request holds (1, or 2 where states are cached).

    Raises:
        ConfigError: a layer's cache is not modelled.
    """
    specs = [spec for layer in layers if (spec := _spec(layer, dtype, kv_cache_dtype, tp, hybrid)) is not None]
    if not specs:
        return KVLayout((), 0, state_blocks)
    kinds = {(spec.kind, spec.window) for spec in specs}
    if len(kinds) == 1:
        return _uniform(specs, block_size, state_blocks)
    return _grouped(specs, block_size, state_blocks)


def as_cached(layers: Sequence[Layer], version: Version) -> tuple[Layer, ...]:
    """The layers as a version caches them: before 0.7.1 latent attention kept a key and a value of every head, padded
    to 256 elements."""
    if version_fact("latent_cache", version):
        return tuple(layers)
    return tuple(
        Layer(Attention(mixer.num_heads, mixer.num_heads, _PADDED_HEAD, _PADDED_HEAD), layer.ffn)
        if isinstance(mixer := layer.mixer, LatentAttention)
        else layer
        for layer in layers
    )


def _spec(layer: Layer, dtype: str, kv_cache_dtype: str, tp: int, hybrid: bool) -> _Spec | None:
    mixer = layer.mixer
    if mixer is None:
        return None
    if isinstance(mixer, CompressedAttention):
        raise ConfigError(
            "This model compresses its KV cache along the sequence, which is not modelled.",
            hint="Its KV tokens are unknown; read them from vLLM's own start-up log.",
        )
    if isinstance(mixer, StateSpace):
        return _Spec("state", mixer.state_bytes(dtype, tp))
    assert isinstance(mixer, Attention | LatentAttention)
    size = round(token_bytes(mixer, kv_cache_dtype, dtype, tp))
    if isinstance(mixer, Attention) and mixer.kind == "sliding" and hybrid:
        assert mixer.window is not None
        return _Spec("sliding", size, mixer.window)
    return _Spec("full", size)


def _uniform(specs: Sequence[_Spec], block_size: int, state_blocks: int) -> KVLayout:
    kind, window = specs[0].kind, specs[0].window
    tokens = 1 if kind == "state" else block_size
    group = KVGroup(kind, len(specs), 1, tokens, window)
    return KVLayout((group,), sum(spec.bytes_per_token for spec in specs) * tokens, state_blocks)


def _grouped(specs: Sequence[_Spec], block_size: int, state_blocks: int) -> KVLayout:
    by_kind: dict[tuple[PastKind, int], list[_Spec]] = {}
    for spec in specs:
        by_kind.setdefault((spec.kind, spec.window), []).append(spec)
    token_sizes = {
        key: max(spec.bytes_per_token for spec in members) for key, members in by_kind.items() if key[0] != "state"
    }
    state = max((spec.bytes_per_token for spec in specs if spec.kind == "state"), default=0)
    if state and token_sizes:
        step = _KERNEL_BLOCK * max(token_sizes.values())
        block_size = max(block_size, _KERNEL_BLOCK * -(-state // step))
    page = max([state, *(size * block_size for size in token_sizes.values())])
    counts = [len(members) for members in by_kind.values()]
    group_size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = tuple(
        KVGroup(
            kind=key[0],
            num_layers=len(members),
            num_groups=-(-len(members) // group_size),
            block_size=1 if key[0] == "state" else _filled(page, token_sizes[key], block_size),
            window=key[1],
        )
        for key, members in by_kind.items()
    )
    return KVLayout(groups, page * group_size, state_blocks)


def _filled(page: int, bytes_per_token: int, block_size: int) -> int:
    """Tokens of a smaller layer that fill the common page, as a whole multiple of the block size."""
    return block_size * max(1, page // (bytes_per_token * block_size))
