"""Which requests share one attention product: equal numbers of rows, contexts of similar length."""

from __future__ import annotations

from collections.abc import Sequence

from headway.executors.torch.attention import Span

MAX_GROUPED_ROWS = 16
"""Requests with more rows than this in a step are attended to one by one."""
MAX_GROUP_BLOCKS = 512
"""Blocks gathered at once, so that what is gathered stays in the CPU's caches until it is used."""
_FREE_PADDING_BLOCKS = 8
"""Padding that costs no more than what another group would: some fifty microseconds a layer."""
_MAX_PADDING_SHARE = 0.2


def group_spans(spans: Sequence[Span], block_size: int, window: int | None) -> list[list[int]]:
    """Partition spans (by index) into groups that are worth attending to together.

    Args:
        window: the widest view of any layer, which bounds what is gathered; None if one sees everything.
    """
    buckets: dict[int, list[tuple[int, int]]] = {}
    groups: list[list[int]] = []
    for index, span in enumerate(spans):
        if span.num_rows > MAX_GROUPED_ROWS:
            groups.append([index])
            continue
        length = span.context_length if window is None else min(span.context_length, window + span.num_rows)
        buckets.setdefault(span.num_rows, []).append((-(-length // block_size), index))
    for bucket in buckets.values():
        groups += _by_length(sorted(bucket))
    return groups


def _by_length(bucket: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Cut a list of (num_blocks, index), shortest first, where going on would gather too much padding."""
    groups: list[list[int]] = []
    needed = 0
    for num_blocks, index in bucket:
        gathered = num_blocks * (len(groups[-1]) + 1) if groups else 0
        padding = gathered - needed - num_blocks
        allowed = max(_FREE_PADDING_BLOCKS, _MAX_PADDING_SHARE * needed)
        if groups and gathered <= MAX_GROUP_BLOCKS and padding <= allowed:
            groups[-1].append(index)
            needed += num_blocks
        else:
            groups.append([index])
            needed = num_blocks
    return groups
