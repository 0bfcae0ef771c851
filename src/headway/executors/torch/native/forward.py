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
_FEWEST_POSITIONS = 1024
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
        self._turns = _Turns(Rotary(spec.head_dim, spec.rope_theta, spec.rope_scaling, torch.device("cpu")))

    def run(self, requests: Sequence[RequestRows]) -> Scores:
        """See `ForwardPass.run`."""
        layout = _lay_out(requests, self.cache)
        cosines, sines = self._turns.up_to(layout.num_positions)
        num_logit_rows = layout.num_logit_rows
        logits = torch.empty(num_logit_rows, self._weights.num_logit_columns)
        best = np.empty(len(layout.sampled_rows), dtype=np.int32)
        step = StepStruct(
            num_rows=len(layout.token_ids),
            num_spans=len(layout.spans),
            num_sampled=len(layout.sampled_rows),
            num_logit_rows=num_logit_rows,
            token_ids=layout.token_ids.ctypes.data,
            cosines=cosines.data_ptr(),
            sines=sines.data_ptr(),
            spans=layout.spans.ctypes.data,
            tables=layout.tables.ctypes.data,
            sampled_rows=layout.sampled_rows.ctypes.data,
            logits=logits.data_ptr(),
            best_tokens=best.ctypes.data,
        )
        self._engine.forward(self._weights.model, self.cache.struct, step)
        return Scores(logits[:, : self._spec.vocab_size], best[num_logit_rows:].tolist())


class _Turns:
    """Factors that turn pairs of neighbouring dimensions, by position; as many as were asked for, and some more."""

    def __init__(self, rotary: Rotary) -> None:
        self._rotary = rotary
        self._known = 0
        self._factors = (torch.empty(0), torch.empty(0))

    def up_to(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Each cosine twice, each sine negated and as it is: both [at least num_positions, head_dim]."""
        if num_positions > self._known:
            self._known = max(_FEWEST_POSITIONS, 1 << (num_positions - 1).bit_length())
            pairs = torch.view_as_real(self._rotary.rotations(torch.arange(self._known))[:, 0])
            cosines, sines = pairs[..., 0], pairs[..., 1]
            self._factors = (
                torch.stack((cosines, cosines), -1).flatten(1),
                torch.stack((-sines, sines), -1).flatten(1),
            )
        return self._factors


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """A step as arrays of int32; `csrc/headway.h` says what each means."""

    token_ids: _Array
    spans: _Array
    tables: _Array
    sampled_rows: _Array
    num_logit_rows: int
    num_positions: int


def _lay_out(requests: Sequence[RequestRows], cache: NativeKVCache) -> _Layout:
    """Rows in the order of the requests; behind them padding rows, each a sequence of one token in the spare block."""
    tokens: list[int] = []
    spans: list[tuple[int, int, int, int]] = []
    tables = []
    table_start = num_positions = num_padding = 0
    with_logits: list[int] = []
    without_logits: list[int] = []
    for rows in requests:
        first_row, count = len(tokens), len(rows.token_ids)
        end, start = first_row + count, rows.first_position
        spans.append((first_row, count, start, table_start))
        tokens += rows.token_ids
        tables.append(rows.block_ids)
        table_start += len(rows.block_ids)
        num_positions = max(num_positions, start + count)
        num_padding += rows.num_padding
        if rows.num_sampled:
            (with_logits if rows.wants_logits else without_logits).extend(range(end - rows.num_sampled, end))
    if num_padding:
        spans += [(len(tokens) + i, 1, 0, table_start) for i in range(num_padding)]
        tokens += [_PADDING_TOKEN_ID] * num_padding
        tables.append(np.array([cache.padding_block_id]))
    return _Layout(
        token_ids=np.array(tokens, dtype=np.int32),
        spans=np.array(spans, dtype=np.int32),
        tables=np.concatenate(tables).astype(np.int32),
        sampled_rows=np.array(with_logits + without_logits, dtype=np.int32),
        num_logit_rows=len(with_logits),
        num_positions=num_positions,
    )
