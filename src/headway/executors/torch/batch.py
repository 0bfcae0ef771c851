"""One step as flat tensors: every row of every request, in the order that attention likes best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.executors.torch.attention import AttentionWork, ChunkAttention, GroupAttention, Span
from headway.executors.torch.grouping import MAX_GROUPED_ROWS, group_spans
from headway.executors.torch.kv_cache import Indices, PagedKVCache

_PADDING_TOKEN_ID = 0


@dataclass(frozen=True, slots=True, eq=False)
class RequestRows:
    """What one request contributes to a step.

    Args:
        token_ids: its tokens at consecutive positions from first_position on.
        block_ids: its block table, which covers all of them.
        num_sampled: of how many rows, counted from the last, the logits are wanted.
        num_padding: rows to execute on top, whose keys and values go to the cache's padding block.
        wants_logits: whether the sampled rows' logits are wanted, or only the token with the largest.
    """

    token_ids: Sequence[int]
    first_position: int
    block_ids: Indices
    num_sampled: int
    num_padding: int = 0
    wants_logits: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class StepBatch:
    """Inputs of one forward pass over num_rows rows.

    Args:
        token_ids, positions: [num_rows].
        kv_rows: where the cache keeps each row's keys and values (`PagedKVCache.row_indices`).
        sampled_rows: rows whose logits are wanted, request by request in the order given.
        attention: for each window that some layer has, the work by contiguous ranges of rows.
    """

    token_ids: Tensor
    positions: Tensor
    kv_rows: Tensor
    sampled_rows: Tensor
    row_counts: list[int]
    """Rows of each piece of attention work; they add up to num_rows."""
    attention: Mapping[int | None, Sequence[AttentionWork]]


def build_batch(
    requests: Sequence[RequestRows], cache: PagedKVCache, num_heads: int, windows: Iterable[int | None]
) -> StepBatch:
    """Lay out the rows of a step and prepare its attention, once for all layers.

    Args:
        windows: the distinct windows of the model's layers.
    """
    pieces = [piece for index, rows in enumerate(requests) for piece in _pieces(index, rows, cache)]
    spans = [piece.span for piece in pieces]
    windows = list(windows)
    widest = None if None in windows else max(window for window in windows if window is not None)
    groups = group_spans(spans, cache.block_size, widest)
    ordered = [pieces[index] for group in groups for index in group]
    starts = np.cumsum([0] + [piece.span.num_rows for piece in ordered])
    sampled: list[list[int]] = [[] for _ in requests]
    for piece, start in zip(ordered, starts.tolist(), strict=False):
        last = start + piece.span.num_rows - piece.num_padding
        sampled[piece.request_index].extend(range(last - piece.num_sampled, last))
    device = cache.device
    return StepBatch(
        token_ids=torch.tensor([token for piece in ordered for token in piece.token_ids], device=device),
        positions=torch.from_numpy(np.concatenate([piece.positions for piece in ordered])).to(device),
        kv_rows=cache.row_indices(
            np.concatenate([piece.kv_blocks for piece in ordered]),
            np.concatenate([piece.positions for piece in ordered]) % cache.block_size,
        ),
        sampled_rows=torch.tensor([row for rows in sampled for row in rows], dtype=torch.int64, device=device),
        row_counts=[sum(spans[index].num_rows for index in group) for group in groups],
        attention={
            window: [_work([spans[index] for index in group], window, cache, num_heads) for group in groups]
            for window in windows
        },
    )


def _work(spans: Sequence[Span], window: int | None, cache: PagedKVCache, num_heads: int) -> AttentionWork:
    if spans[0].num_rows > MAX_GROUPED_ROWS:
        return ChunkAttention(spans[0], window, cache, num_heads)
    return GroupAttention(spans, window, cache, num_heads)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Rows that stay together: those of a request, or one padding row of a decode."""

    request_index: int
    span: Span
    token_ids: Sequence[int]
    positions: Indices
    kv_blocks: Indices
    num_sampled: int
    num_padding: int


def _pieces(index: int, rows: RequestRows, cache: PagedKVCache) -> list[_Piece]:
    """The rows of one request; padding of a prompt follows it as more rows, padding of a decode stands alone."""
    num_tokens = len(rows.token_ids)
    num_joined = rows.num_padding if num_tokens > 1 else 0
    span = Span(rows.first_position, num_tokens + num_joined, rows.block_ids)
    positions = rows.first_position + np.arange(span.num_rows)
    kv_blocks = np.full(span.num_rows, cache.padding_block_id, dtype=np.int64)
    kv_blocks[:num_tokens] = rows.block_ids[positions[:num_tokens] // cache.block_size]
    token_ids = [*rows.token_ids, *[_PADDING_TOKEN_ID] * num_joined]
    pieces = [_Piece(index, span, token_ids, positions, kv_blocks, rows.num_sampled, num_joined)]
    block, position = np.array([cache.padding_block_id]), np.array([0])
    alone = _Piece(index, Span(0, 1, block), [_PADDING_TOKEN_ID], position, block, 0, 0)
    pieces += [alone] * (rows.num_padding - num_joined)
    return pieces
