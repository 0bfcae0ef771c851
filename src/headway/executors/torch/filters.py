"""min_p, top_k and top_p: which tokens a row may be drawn from.

Each filter is a threshold on the row's logits, so tokens with equal logits are kept or dropped together, and the
result does not depend on how a sort breaks ties (vLLM's does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from headway.core.sampling import SamplingParams

_NUM_SORTED = (256, 4096)
"""Nucleus search sorts so many of the likeliest tokens first: the whole vocabulary is twenty times the work."""


def drop_unlikely(logits: Tensor, params: Sequence[SamplingParams]) -> None:
    """Set logits [num_rows, vocab_size] of dropped tokens to minus infinity, in place; at least one is kept."""
    vocab_size = logits.shape[1]
    _apply(logits, [index for index, p in enumerate(params) if p.min_p > 0], params, _min_p_thresholds)
    _apply(logits, [index for index, p in enumerate(params) if 0 < p.top_k < vocab_size], params, _top_k_thresholds)
    _apply(logits, [index for index, p in enumerate(params) if p.top_p < 1], params, _top_p_thresholds)


def _apply(
    logits: Tensor,
    rows: Sequence[int],
    params: Sequence[SamplingParams],
    thresholds: Callable[[Tensor, Sequence[SamplingParams]], Tensor],
) -> None:
    """Drop what lies below its row's threshold, in the given rows only."""
    if not rows:
        return
    chosen = logits[rows]
    limits = thresholds(chosen, [params[row] for row in rows])
    logits[rows] = chosen.masked_fill_(chosen < limits, float("-inf"))


def _min_p_thresholds(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """p < min_p * max(p) is, in logits, a fixed distance below the largest; → [num_rows, 1]."""
    distances = logits.new_tensor([math.log(p.min_p) for p in params])
    return logits.amax(dim=-1, keepdim=True) + distances[:, None]


def _top_k_thresholds(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The k-th largest logit; → [num_rows, 1]."""
    counts = torch.tensor([p.top_k for p in params], device=logits.device)
    largest = logits.topk(int(counts.max()), dim=-1).values
    return largest.gather(1, counts[:, None] - 1)


def _top_p_thresholds(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The logit of the last token of the nucleus: the first whose predecessors reach top_p with it; → [num_rows, 1]."""
    limits = logits.new_tensor([p.top_p for p in params], dtype=torch.float64)[:, None]
    total = torch.logsumexp(logits, dim=-1, keepdim=True)
    thresholds = torch.empty_like(total)
    rows = torch.arange(len(logits), device=logits.device)
    vocab_size = logits.shape[1]
    for num_sorted in (*(count for count in _NUM_SORTED if count < vocab_size), vocab_size):
        found, complete = _nucleus(logits[rows], total[rows], limits[rows], num_sorted)
        thresholds[rows] = found
        rows = rows[~complete]
        if not len(rows):
            break
    return thresholds


def _nucleus(logits: Tensor, total: Tensor, limits: Tensor, num_sorted: int) -> tuple[Tensor, Tensor]:
    """Thresholds [num_rows, 1], and for which rows [num_rows] the nucleus lies within the num_sorted likeliest."""
    largest = logits.topk(num_sorted, dim=-1).values
    probabilities = (largest - total).to(torch.float64).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    sizes = (before < limits).sum(dim=-1, keepdim=True)
    return largest.gather(1, sizes - 1), sizes[:, 0] < num_sorted
