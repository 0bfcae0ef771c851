"""Paged attention for a mixed batch of prompt chunks and decodes, in plain torch.

A step's rows are laid out so that each piece of attention work is one contiguous range of rows. What depends only on
the plan (gather indices, masks) is computed once a step; `run` is called once a layer.

Queries of one key-value head are folded together: all heads of a group read the same keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from headway.executors.torch.kv_cache import Indices, PagedKVCache


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """The rows of one request in one step: consecutive positions, which attend to the request's blocks.

    Args:
        first_position: of the first row.
        num_rows: padding rows included; those come last, and their results are of no use to anybody.
        block_ids: the request's block table.
    """

    first_position: int
    num_rows: int
    block_ids: Indices

    @property
    def context_length(self) -> int:
        """Tokens that the last row sees, itself included."""
        return self.first_position + self.num_rows


class AttentionWork(Protocol):
    """Attention of one contiguous range of rows."""

    def run(self, qkv: Tensor, cache: PagedKVCache, layer: int) -> Tensor:
        """Attend; `qkv` is the projection of these rows, and their keys and values are in the cache already.

        Returns: [num_rows, num_heads * head_dim].
        """


class GroupAttention:
    """Several requests with the same small number of rows each, and contexts of similar length, as one product."""

    def __init__(self, spans: Sequence[Span], window: int | None, cache: PagedKVCache, num_heads: int) -> None:
        self._num_requests, self._rows_each = len(spans), spans[0].num_rows
        self._num_heads = num_heads
        tables, first_blocks = _gathered_tables(spans, window, cache.block_size)
        self._units = cache.unit_indices(tables)
        queries = np.array([[span.first_position] for span in spans]) + np.arange(self._rows_each)
        keys = first_blocks[:, None] * cache.block_size + np.arange(tables.shape[1] * cache.block_size)
        mask = _mask(queries[:, :, None], keys[:, None, :], window)
        # One row serves all query heads where a request has one row; otherwise rows repeat for each head of a group.
        repeats = 1 if self._rows_each == 1 else num_heads // cache.num_kv_heads
        shape = (len(spans), cache.num_kv_heads, repeats, *mask.shape[1:])
        expanded = np.broadcast_to(mask[:, None, None], shape)
        flat = expanded.reshape(len(spans) * cache.num_kv_heads, repeats * self._rows_each, -1)
        self._mask = torch.from_numpy(np.array(flat)).to(cache.device)

    def run(self, qkv: Tensor, cache: PagedKVCache, layer: int) -> Tensor:
        """See `AttentionWork.run`."""
        num_requests, rows_each, num_kv_heads = self._num_requests, self._rows_each, cache.num_kv_heads
        head_dim, heads_each = cache.head_dim, self._num_heads // num_kv_heads
        queries = qkv[:, : self._num_heads * head_dim].view(num_requests, rows_each, num_kv_heads, heads_each, head_dim)
        folded = queries.permute(0, 2, 3, 1, 4).reshape(num_requests * num_kv_heads, -1, head_dim)
        keys, values = cache.gather(layer, self._units, num_requests)
        scores = torch.baddbmm(self._mask, folded, keys.transpose(1, 2), alpha=1 / math.sqrt(head_dim))
        mixed = torch.bmm(torch.softmax(scores, dim=-1), values)
        unfolded = mixed.view(num_requests, num_kv_heads, heads_each, rows_each, head_dim)
        return unfolded.permute(0, 3, 1, 2, 4).reshape(num_requests * rows_each, -1)


class ChunkAttention:
    """One request with many rows. The first chunk of a prompt needs no cache: its keys are all in `qkv`."""

    def __init__(self, span: Span, window: int | None, cache: PagedKVCache, num_heads: int) -> None:
        self._num_heads = num_heads
        self._units: Tensor | None = None
        self._mask: Tensor | None = None
        first_key, num_keys = 0, span.num_rows
        if span.first_position > 0:
            tables, first_blocks = _gathered_tables([span], window, cache.block_size)
            self._units = cache.unit_indices(tables)
            first_key, num_keys = int(first_blocks[0]) * cache.block_size, tables.shape[1] * cache.block_size
        elif window is None or window >= span.num_rows:
            return
        queries = span.first_position + np.arange(span.num_rows)[:, None]
        mask = _mask(queries, first_key + np.arange(num_keys)[None, :], window)
        self._mask = torch.from_numpy(mask).to(cache.device)

    def run(self, qkv: Tensor, cache: PagedKVCache, layer: int) -> Tensor:
        """See `AttentionWork.run`."""
        num_rows, num_kv_heads, head_dim = len(qkv), cache.num_kv_heads, cache.head_dim
        q_size, heads_each = self._num_heads * head_dim, self._num_heads // num_kv_heads
        if self._units is None:
            keys, values = qkv[:, q_size:].view(num_rows, 2, num_kv_heads, head_dim).permute(1, 2, 0, 3)
        else:
            keys, values = cache.gather(layer, self._units, 1)
        # Key-value heads take the place of the batch, so that repeating keys over a group is a stride of zero.
        queries = qkv[:, :q_size].view(num_rows, num_kv_heads, heads_each, head_dim).permute(1, 2, 0, 3)
        shape = (num_kv_heads, heads_each, keys.shape[1], head_dim)
        mixed = F.scaled_dot_product_attention(
            queries,
            keys[:, None].expand(shape),
            values[:, None].expand(shape),
            attn_mask=self._mask,
            is_causal=self._mask is None,
        )
        return mixed.permute(2, 0, 1, 3).reshape(num_rows, q_size)


def _gathered_tables(spans: Sequence[Span], window: int | None, block_size: int) -> tuple[Indices, Indices]:
    """Blocks that each span reads, and the index within its table of the first of them.

    Shorter tables are filled up with a block of the same request, so that nothing of another request is ever read.
    """
    firsts = [0 if window is None else max(0, span.first_position - window + 1) // block_size for span in spans]
    needed = [
        span.block_ids[first : -(-span.context_length // block_size)] for span, first in zip(spans, firsts, strict=True)
    ]
    width = max(len(block_ids) for block_ids in needed)
    tables = np.empty((len(spans), width), dtype=np.int64)
    for row, block_ids in zip(tables, needed, strict=True):
        row[: len(block_ids)] = block_ids
        row[len(block_ids) :] = block_ids[-1]
    return tables, np.array(firsts, dtype=np.int64)


def _mask(queries: Indices, keys: Indices, window: int | None) -> NDArray[np.float32]:
    """0 where the query at one position sees the key at another, minus infinity elsewhere."""
    visible = keys <= queries
    if window is not None:
        visible &= keys > queries - window
    return np.where(visible, np.float32(0), np.float32("-inf"))
