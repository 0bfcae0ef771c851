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

_NUM_SORTED = 1024
"""Nucleus search looks at so many of the likeliest tokens first; sorting a whole vocabulary is ten times the work."""


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
    thresholds, complete = _nucleus(logits, total, limits, min(_NUM_SORTED, logits.shape[1]))
    wide = torch.nonzero(~complete)[:, 0]
    if len(wide):
        thresholds[wide] = _nucleus(logits[wide], total[wide], limits[wide], logits.shape[1])[0]
    return thresholds


def _nucleus(logits: Tensor, total: Tensor, limits: Tensor, num_sorted: int) -> tuple[Tensor, Tensor]:
    """Thresholds [num_rows, 1], and for which rows [num_rows] the nucleus lies within the num_sorted likeliest."""
    largest = logits.topk(num_sorted, dim=-1).values
    probabilities = (largest - total).to(torch.float64).exp()
    before = probabilities.cumsum(dim=-1) - probabilities
    sizes = (before < limits).sum(dim=-1, keepdim=True)
    complete = (sizes[:, 0] < num_sorted) | torch.tensor(num_sorted == logits.shape[1], device=logits.device)
    return largest.gather(1, sizes - 1), complete
