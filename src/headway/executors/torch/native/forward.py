"""One step by the kernels: the plan's rows laid out in flat arrays, one native call, logits or best tokens back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.executors.torch.batch import RequestRows
from headway.executors.torch.forward import Scores
from headway.executors.torch.native.kv_cache import NativeKVCache
from headway.executors.torch.native.library import KernelEngine, StepStruct
from headway.executors.torch.native.weights import QuantizedWeights
from headway.executors.torch.rotary import Rotary
from headway.executors.torch.spec import ModelSpec

_PADDING_TOKEN_ID = 0
_Array = NDArray[Any]


class NativeForward:
    """Forward pass in int8, with a KV cache of its own. See `ForwardPass`.

    What it computes for a request depends neither on the rest of the batch nor on how the prompt is cut, to the bit.
    """

    def __init__(self, spec: ModelSpec, weights: QuantizedWeights, engine: KernelEngine, cache: NativeKVCache) -> None:
        self.cache = cache
        self._spec = spec
        self._weights = weights
        self._engine = engine
        self._rotary = Rotary(spec.head_dim, spec.rope_theta, spec.rope_scaling, torch.device("cpu"))

    def run(self, requests: Sequence[RequestRows]) -> Scores:
        """See `ForwardPass.run`."""
        layout = _lay_out(requests, self.cache)
        cosines, sines = self._rotations(layout.positions)
        num_logit_rows = layout.num_logit_rows
        logits = torch.empty(num_logit_rows, self._weights.num_logit_columns)
        best = np.empty(len(layout.sampled_rows), dtype=np.int32)
        step = StepStruct(
            num_rows=len(layout.token_ids),
            num_spans=len(layout.spans),
            num_sampled=len(layout.sampled_rows),
            num_logit_rows=num_logit_rows,
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            logits=logits.data_ptr(),
            best_tokens=best.ctypes.data,
            **{name: getattr(layout, name).ctypes.data for name in _POINTERS},
        )
        self._engine.forward(self._weights.model, self.cache.struct, step)
        return Scores(logits[:, : self._spec.vocab_size], [int(token_id) for token_id in best[num_logit_rows:]])

    def _rotations(self, positions: _Array) -> tuple[Tensor, Tensor]:
        """Factors for pairs of neighbouring dimensions: each cosine twice, each sine negated and as it is."""
        pairs = torch.view_as_real(self._rotary.rotations(torch.from_numpy(positions)))[:, 0]
        cosines, sines = pairs[..., 0], pairs[..., 1]
        width = (len(positions), self._spec.head_dim)
        return torch.stack((cosines, cosines), -1).reshape(width), torch.stack((-sines, sines), -1).reshape(width)


_POINTERS = ("token_ids", "kv_blocks", "kv_slots", "spans", "tables", "sampled_rows")


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """A step as arrays of int32; `csrc/headway.h` says what each means."""

    token_ids: _Array
    positions: _Array
    kv_blocks: _Array
    kv_slots: _Array
    spans: _Array
    tables: _Array
    sampled_rows: _Array
    num_logit_rows: int


def _lay_out(requests: Sequence[RequestRows], cache: NativeKVCache) -> _Layout:
    """Rows in the order of the requests; behind them padding rows, each a sequence of one token in the spare block."""
    tokens: list[int] = []
    spans: list[tuple[int, int, int, int]] = []
    tables, positions = [], []
    table_start = 0
    with_logits: list[int] = []
    without_logits: list[int] = []
    for rows in requests:
        first_row, count = len(tokens), len(rows.token_ids)
        spans.append((first_row, count, rows.first_position, table_start))
        tokens += rows.token_ids
        positions.append(np.arange(rows.first_position, rows.first_position + count, dtype=np.int32))
        tables.append(rows.block_ids)
        table_start += len(rows.block_ids)
        end = first_row + count
        (with_logits if rows.wants_logits else without_logits).extend(range(end - rows.num_sampled, end))
    num_real, num_padding = len(tokens), sum(rows.num_padding for rows in requests)
    spans += [(num_real + i, 1, 0, table_start) for i in range(num_padding)]
    tables.append(np.array([cache.padding_block_id]))
    positions.append(np.zeros(num_padding, dtype=np.int32))
    table, starts = np.concatenate(tables).astype(np.int32), np.array(spans, dtype=np.int32)
    where = np.concatenate(positions)
    blocks = table[np.repeat(starts[:, 3], starts[:, 1]) + where // cache.block_size]
    return _Layout(
        token_ids=np.array(tokens + [_PADDING_TOKEN_ID] * num_padding, dtype=np.int32),
        positions=where,
        kv_blocks=blocks,
        kv_slots=where % cache.block_size,
        spans=starts,
        tables=table,
        sampled_rows=np.array(with_logits + without_logits, dtype=np.int32),
        num_logit_rows=len(with_logits),
    )
