"""How vLLM lays out a cache that is compressed along the sequence (DeepSeek V4).

Each layer keeps several things: entries that stand for 4 or 128 tokens, an index over them, the partial sums of entries
that are not complete, and a window of single tokens. Entries and indices of all layers form one group; windows and
partial sums form groups of their own, which are split so that all groups are about as large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from headway.catalog.architecture import CompressedAttention, Layer
from headway.errors import ConfigError
from headway.planner.kv_parts import KVGroup, KVLayout, LayoutRules, PastKind

DEFAULT_BLOCK_SIZE = 256
"""What this attention's kernels prefer."""

_ALIGNMENT = 576
"""Pages are multiples of it: FlashMLA's row."""

_WINDOW_BLOCK = 64
_SUM_BLOCKS = {4: 4, 128: 8}
"""Tokens in a block of windows, and of partial sums by ratio."""

_DENSE = ("stacked", "balanced")
"""Rules under which pages lie next to one another, whatever their size."""


@dataclass(frozen=True, slots=True)
class _Page:
    """What one layer adds to one group."""

    layer: int
    family: tuple[str, int, int]
    """What it is, tokens in a block, window (0: all tokens)."""
    num_bytes: int


def compressed_layout(
    layers: Sequence[Layer], *, kv_cache_dtype: str, block_size: int, rules: LayoutRules, here: range
) -> KVLayout:
    """The layout on one GPU, which holds the layers `here` of the model's; the same whatever tensor parallelism is.

    Raises:
        ConfigError: a cache type that is not modelled, or that the version does not take.
    """
    _check(layers, kv_cache_dtype, rules)
    pages = [page for index, layer in enumerate(layers) for page in _pages(index, layer.mixer, block_size)]
    families = [list(found) for _, found in groupby(sorted(pages, key=_order), key=lambda page: page.family)]
    if not families[0][0].family[0] == "entries":
        raise ConfigError("No layer compresses its KV cache.", hint="At least one of compress_ratios must be 4 or 128.")
    splits = _splits(families, rules)
    entry_sizes = {page.num_bytes for page in families[0]}
    groups: list[KVGroup] = []
    here_by_group: list[list[int]] = []
    for family, split in zip(families, splits, strict=True):
        _, tokens, window = family[0].family
        sizes = _by_group(family, split, here, () if rules.compressed_blocks in _DENSE else entry_sizes)
        here_by_group += sizes
        kind: PastKind = "sliding" if window else "full"
        groups.append(KVGroup(kind, len(family), split, tokens, window, page_bytes=sum(map(sum, sizes))))
    return KVLayout(
        tuple(groups),
        _block_bytes(here_by_group, rules),
        counts_bytes=rules.compressed_requests_in_bytes,
        token_block_size=block_size,
    )


def _check(layers: Iterable[Layer], kv_cache_dtype: str, rules: LayoutRules) -> None:
    mixers = [layer.mixer for layer in layers]
    if not all(isinstance(mixer, CompressedAttention) and mixer.is_modelled for mixer in mixers):
        raise ConfigError(
            "This model compresses its KV cache along the sequence in a way that is not modelled.",
            hint="Its KV tokens are unknown; read them from vLLM's own start-up log.",
        )
    if not rules.compressed_blocks:
        raise ConfigError("This version has no compressed KV cache.", hint="vLLM 0.20.0 and later have.")
    if kv_cache_dtype == "auto" and not rules.compressed_auto_is_fp8:
        raise ConfigError(
            "Before 0.30.0 vLLM starts this model only with its KV cache type given.", hint="Give --kv-cache-dtype fp8."
        )
    if kv_cache_dtype != "auto" and not kv_cache_dtype.startswith("fp8"):
        raise ConfigError(
            f"The size of this model's compressed cache in {kv_cache_dtype} is not modelled.",
            hint="Give --kv-cache-dtype fp8.",
        )


def _pages(index: int, mixer: object, block_size: int) -> Iterator[_Page]:
    assert isinstance(mixer, CompressedAttention)
    windows = ("windows", _WINDOW_BLOCK, mixer.window)
    yield _Page(index, windows, _aligned(_WINDOW_BLOCK * mixer.entry_bytes))
    if not mixer.ratio:
        return
    entries, stored = ("entries", block_size, 0), block_size // mixer.ratio
    yield _Page(index, entries, _aligned(stored * mixer.entry_bytes))
    overlaps = 2 if mixer.num_index_heads else 1
    tokens = _SUM_BLOCKS[mixer.ratio]
    sums = (f"sums of {mixer.ratio}", tokens, overlaps * mixer.ratio)
    yield _Page(index, sums, _aligned(tokens * _sum_bytes(mixer.head_dim, overlaps)))
    if mixer.num_index_heads:
        yield _Page(index, entries, _aligned(stored * mixer.index_entry_bytes))
        yield _Page(index, sums, _aligned(tokens * _sum_bytes(mixer.index_head_dim, overlaps)))


def _sum_bytes(head_dim: int, overlaps: int) -> int:
    """Partial sums of values and of weights, in float32; overlapping entries need two of each."""
    return 2 * overlaps * head_dim * 4


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _order(page: _Page) -> tuple[bool, tuple[str, int, int], int]:
    return page.family[0] != "entries", page.family, page.layer


def _splits(families: Sequence[Sequence[_Page]], rules: LayoutRules) -> list[int]:
    """How many groups each family makes: each of about as many layers.

    Until 0.29.0 the entries stay whole and nothing is smaller than they are; since, a family whose layers are not alike
    stays whole, and the largest other one with several pages a layer is the measure.
    """
    sizes = [Counter(page.num_bytes for page in family) for family in families]
    counts = [max(found.values()) for found in sizes]
    if rules.compressed_blocks != "balanced":
        repeats = _repeats(counts, counts[0])
        return [1, *(-(-count // repeats) for count in counts[1:])]
    alike = [len(set(found.values())) == 1 for found in sizes]
    least = max(
        (max(found.values()) for found, same in zip(sizes, alike, strict=True) if same and len(found) > 1), default=0
    )
    if not least:
        return [1] * len(families)
    repeats = _repeats([count for count, same in zip(counts, alike, strict=True) if same], least)
    return [-(-count // repeats) if same else 1 for count, same in zip(counts, alike, strict=True)]


def _by_group(family: Sequence[_Page], split: int, here: range, entry_sizes: Iterable[int]) -> list[list[int]]:
    """Page sizes that this GPU has in each of a family's groups, which take its layers in turns.

    Until 0.27.0 a page is as large as the next larger one of the entries.
    """
    turns = {layer: turn for turn, layer in enumerate(sorted({page.layer for page in family}))}
    found: list[list[int]] = [[] for _ in range(split)]
    for page in family:
        if page.layer in here:
            size = min((other for other in entry_sizes if other >= page.num_bytes), default=page.num_bytes)
            found[turns[page.layer] % split].append(size)
    return found


def _repeats(counts: Sequence[int], least: int) -> int:
    """Layers in a group, no fewer than `least`: what pads the families' counts least, the larger of equals."""

    def padding(size: int) -> int:
        return sum(-count % size for count in counts)

    return min(range(least, max(*counts, least) + 1), key=lambda size: (padding(size), -size))


def _block_bytes(groups: Sequence[Sequence[int]], rules: LayoutRules) -> int:
    """One block of the pool, of which each group uses what it needs.

    First a row of all page sizes for each layer of the largest group; from 0.23.0 as many pages of each size as any
    group has; from 0.27.0 the largest group's pages.
    """
    if rules.compressed_blocks in _DENSE:
        return max(sum(sizes) for sizes in groups)
    most: Counter[int] = Counter()
    for sizes in groups:
        most |= Counter(sizes)
    if rules.compressed_blocks == "slots":
        return sum(size * count for size, count in most.items())
    return sum(set(groups[0])) * max(most.values())
