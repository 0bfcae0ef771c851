"""How vLLM lays the KV cache out in blocks: groups of layers that share one pool.

Layers that keep their past in the same way form groups of equal size, and each group takes its own blocks from the
pool; a block is as large as one page of every layer of one group. A model whose layers are all alike has one group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.catalog.architecture import Attention, CompressedAttention, LatentAttention, Layer, StateSpace, token_bytes
from headway.catalog.defaults import version_fact
from headway.catalog.versions import Version
from headway.planner.compressed_layout import compressed_layout
from headway.planner.kv_parts import KVGroup, KVLayout, LayoutRules, PastKind

_PADDED_HEAD = 256


@dataclass(frozen=True, slots=True)
class _Spec:
    kind: PastKind
    bytes_per_token: int
    """Of a state: its bytes."""
    window: int = 0
    is_latent: bool = False


def kv_layout(
    layers: Sequence[Layer],
    *,
    dtype: str,
    kv_cache_dtype: str = "auto",
    tp: int = 1,
    block_size: int = 16,
    rules: LayoutRules | None = None,
    here: range | None = None,
) -> KVLayout:
    """The layout on one GPU of `tp`.

    Args:
        layers: those that the groups are formed of: the model's, or one pipeline rank's.
        rules: the version's; the newest release's by default.
        here: the positions in `layers` of those that this GPU holds (all by default).

    Raises:
        ConfigError: a layer's cache is not modelled.
    """
    rules = rules or LayoutRules()
    here = range(len(layers)) if here is None else here
    if any(isinstance(layer.mixer, CompressedAttention) for layer in layers):
        return compressed_layout(layers, kv_cache_dtype=kv_cache_dtype, block_size=block_size, rules=rules, here=here)
    specs = [_spec(layer, dtype, kv_cache_dtype, tp, rules) for layer in layers]
    if not any(specs[index] for index in here):
        return KVLayout((), 0, rules.state_blocks)
    kinds = {(spec.kind, spec.window) for spec in specs if spec is not None}
    if len(kinds) == 1:
        return _uniform([spec for index in here if (spec := specs[index]) is not None], block_size, rules)
    return _grouped(specs, here, block_size, rules)


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


def _spec(layer: Layer, dtype: str, kv_cache_dtype: str, tp: int, rules: LayoutRules) -> _Spec | None:
    mixer = layer.mixer
    if mixer is None:
        return None
    if isinstance(mixer, StateSpace):
        return _Spec("state", mixer.state_bytes(dtype, tp))
    assert isinstance(mixer, Attention | LatentAttention)
    size = round(token_bytes(mixer, kv_cache_dtype, dtype, tp))
    if isinstance(mixer, LatentAttention):
        return _Spec("full", size, is_latent=True)
    forgets = mixer.kind == "sliding" or (mixer.kind == "chunked" and rules.chunked_groups)
    if forgets and rules.hybrid:
        assert mixer.window is not None
        return _Spec(mixer.kind, size, mixer.window)
    return _Spec("full", size)


def _uniform(specs: Sequence[_Spec], block_size: int, rules: LayoutRules) -> KVLayout:
    kind, window = specs[0].kind, specs[0].window
    tokens = 1 if kind == "state" else block_size
    group = KVGroup(kind, len(specs), 1, tokens, window)
    return KVLayout((group,), sum(spec.bytes_per_token for spec in specs) * tokens, rules.state_blocks)


def _grouped(specs: Sequence[_Spec | None], here: range, block_size: int, rules: LayoutRules) -> KVLayout:
    """Groups of equal size by kind; a page is as large as the largest layer's, and a block holds the pages that this
    GPU has of the group of which it has most."""
    by_spec: dict[_Spec, list[int]] = {}
    for index, spec in enumerate(specs):
        if spec is not None:
            by_spec.setdefault(spec, []).append(index)
    block_size = _enlarged(list(by_spec), block_size, rules)
    page = max(spec.bytes_per_token * (1 if spec.kind == "state" else block_size) for spec in by_spec)
    counts = [len(members) for members in by_spec.values()]
    group_size = max(counts) if max(counts) < rules.pad_below * min(counts) else min(counts)
    groups: list[KVGroup] = []
    most_pages = 0
    for spec, members in by_spec.items():
        num_groups = -(-len(members) // group_size)
        tokens = 1 if spec.kind == "state" else _filled(page, spec.bytes_per_token, block_size)
        groups.append(KVGroup(spec.kind, len(members), num_groups, tokens, spec.window))
        held = [sum(index in here for index in members[first::num_groups]) for first in range(num_groups)]
        most_pages = max(most_pages, *held)
    return KVLayout(tuple(groups), page * most_pages, rules.state_blocks)


def _enlarged(specs: Sequence[_Spec], block_size: int, rules: LayoutRules) -> int:
    """The block size, grown in steps until an attention page holds a recurrent state."""
    state = max((spec.bytes_per_token for spec in specs if spec.kind == "state"), default=0)
    attention = [spec for spec in specs if spec.kind != "state"]
    if not state or not attention:
        return block_size
    step = max(block_size, rules.latent_step if any(spec.is_latent for spec in attention) else 16)
    return step * -(-state // (step * max(spec.bytes_per_token for spec in attention)))


def _filled(page: int, bytes_per_token: int, block_size: int) -> int:
    """Tokens of a smaller layer in the common page: as many as fill it where its page divides it; else it is padded."""
    own = bytes_per_token * block_size
    return block_size * (page // own if page % own == 0 else 1)
