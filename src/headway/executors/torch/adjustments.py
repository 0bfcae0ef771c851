"""Settings that change logits before temperature: allowed ids, min_tokens, bias, and the three penalties.

Each works on the rows that ask for it and leaves the others alone. All edits of one kind are made at
once, as flat lists of (row, token id).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from headway.executors.torch.sampler import SamplingRow


_LARGEST_LOGIT = 1e30
"""Still finite in 32 bits when divided by the smallest temperature that is not greedy."""


def adjust(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Apply the settings of each row to logits [num_rows, vocab_size], in place, in vLLM's order."""
    _allow_only(logits, rows)
    _forbid_stops(logits, rows)
    _add_bias(logits, rows)
    _penalise_repetition(logits, rows)
    _penalise_outputs(logits, rows)


def _allow_only(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    for index, row in enumerate(rows):
        if row.params.allowed_token_ids is None:
            continue
        allowed = torch.tensor(sorted(row.params.allowed_token_ids), device=logits.device)
        kept = logits[index, allowed]
        logits[index].fill_(float("-inf"))
        logits[index, allowed] = kept


def _forbid_stops(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    edits = _Edits()
    for index, row in enumerate(rows):
        if row.num_output_tokens < row.params.min_tokens:
            edits.add(index, [token_id for token_id in row.stop_ids if token_id < logits.shape[1]], float("-inf"))
    if edits:
        where, values = edits.tensors(logits)
        logits.index_put_(where, values)


def _add_bias(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    edits = _Edits()
    for index, row in enumerate(rows):
        for token_id, bias in row.params.logit_bias.items():
            edits.add(index, [token_id], bias)
    if edits:
        where, values = edits.tensors(logits)
        logits.index_put_(where, values, accumulate=True)


def _penalise_repetition(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Tokens of prompt or output: positive logits are divided by the penalty, negative ones multiplied."""
    edits = _Edits()
    for index, row in enumerate(rows):
        if row.params.repetition_penalty != 1.0:
            edits.add(index, sorted(set(row.token_ids)), row.params.repetition_penalty)
    if edits:
        where, penalties = edits.tensors(logits)
        seen = logits[where]
        penalised = torch.where(seen > 0, seen / penalties, seen * penalties)
        # A penalty near 0 would overflow, and leave a distribution of NaN; a token that was ruled out stays so.
        penalised = torch.where(seen.isinf(), seen, penalised.clamp(-_LARGEST_LOGIT, _LARGEST_LOGIT))
        logits.index_put_(where, penalised)


def _penalise_outputs(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Tokens of the output: minus frequency_penalty for each occurrence, minus presence_penalty once."""
    edits = _Edits()
    for index, row in enumerate(rows):
        frequency, presence = row.params.frequency_penalty, row.params.presence_penalty
        if frequency or presence:
            for token_id, count in Counter(row.token_ids[row.num_prompt_tokens :]).items():
                edits.add(index, [token_id], -(frequency * count + presence))
    if edits:
        where, values = edits.tensors(logits)
        logits.index_put_(where, values, accumulate=True)


class _Edits:
    """A flat list of values by (row, token id)."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._token_ids: list[int] = []
        self._values: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, row: int, token_ids: Sequence[int], value: float) -> None:
        """The same value for several tokens of a row."""
        self._rows += [row] * len(token_ids)
        self._token_ids += token_ids
        self._values += [value] * len(token_ids)

    def tensors(self, logits: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Indices into `logits`, and the values."""
        rows = torch.tensor(self._rows, device=logits.device)
        token_ids = torch.tensor(self._token_ids, device=logits.device)
        return (rows, token_ids), logits.new_tensor(self._values)
