"""From logits to tokens, with vLLM's settings in vLLM's order.

Order: logprobs are taken from the raw logits; then allowed ids, `min_tokens`, bias and penalties change the logits
(`adjustments`); a greedy row takes the largest; any other row is divided by its temperature, loses its unlikely tokens
(`filters`: min_p, then top_k, then top_p) and is drawn from.

Nothing is remembered between steps. The uniform number behind the k-th output token is a hash of the request's seed and
k, so it depends neither on neighbours, nor on preemption, nor on how many drafts were verified at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from headway.core.sampling import SamplingParams
from headway.executors.torch.adjustments import adjust
from headway.executors.torch.filters import drop_unlikely

_SMALLEST_TEMPERATURE = 1e-5
"""Colder is greedy, as in vLLM: dividing by less would overflow."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """What the model thought of one output token before any setting changed the logits.

    Args:
        rank: 1 is the most likely token; equals share the worse rank, as in vLLM.
        top: the most likely tokens and their logprobs, best first; as many as the request asked for.
    """

    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True, eq=False)
class SamplingRow:
    """All that the choice of one token depends on, apart from its logits.

    Args:
        token_ids: the request's tokens before the one to choose: prompt, then outputs.
        num_prompt_tokens: how many of them are the prompt.
        stop_ids: ids that `min_tokens` forbids until it is reached.
        seed: of the request.
    """

    params: SamplingParams
    token_ids: Sequence[int]
    num_prompt_tokens: int
    stop_ids: frozenset[int]
    seed: int

    @property
    def num_output_tokens(self) -> int:
        """Index among the outputs of the token to choose."""
        return len(self.token_ids) - self.num_prompt_tokens


@dataclass(frozen=True, slots=True)
class SampledToken:
    """One chosen token; logprobs only where the request asks for them."""

    token_id: int
    logprobs: TokenLogprobs | None = None


def takes_best(params: SamplingParams) -> bool:
    """Whether, once `min_tokens` is reached, the token with the largest logit is chosen and nothing else is told."""
    return (
        params.temperature < _SMALLEST_TEMPERATURE
        and params.logprobs is None
        and params.allowed_token_ids is None
        and not params.logit_bias
        and params.repetition_penalty == 1.0
        and not (params.presence_penalty or params.frequency_penalty)
    )


def sample(logits: Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken]:
    """Choose one token for each row of logits [num_rows, vocab_size], float32; the logits are overwritten."""
    wanted = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    raw_logprobs = torch.log_softmax(logits[wanted], dim=-1) if wanted else None
    adjust(logits, rows)
    token_ids = _choose(logits, rows)
    logprobs: dict[int, TokenLogprobs] = {}
    if raw_logprobs is not None:
        reported = _report(raw_logprobs, [rows[i].params.logprobs or 0 for i in wanted], [token_ids[i] for i in wanted])
        logprobs = dict(zip(wanted, reported, strict=True))
    return [SampledToken(token_id, logprobs.get(index)) for index, token_id in enumerate(token_ids)]


def uniform(seed: int, index: int) -> float:
    """A number strictly between 0 and 1 that belongs to the index-th output token under this seed."""
    digest = blake2b(f"{seed}/{index}".encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "little") + 0.5) / 2**32


def _choose(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    drawn = [index for index, row in enumerate(rows) if row.params.temperature >= _SMALLEST_TEMPERATURE]
    if not drawn:
        return [int(token_id) for token_id in logits.argmax(dim=-1).tolist()]
    if len(drawn) == len(rows):
        return _draw(logits, rows)
    token_ids = [int(token_id) for token_id in logits.argmax(dim=-1).tolist()]
    chosen = _draw(logits[drawn], [rows[index] for index in drawn])
    for index, token_id in zip(drawn, chosen, strict=True):
        token_ids[index] = token_id
    return token_ids


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    """Draw by inverting each row's cumulative distribution at the row's own uniform number."""
    logits.div_(logits.new_tensor([row.params.temperature for row in rows])[:, None])
    drop_unlikely(logits, [row.params for row in rows])
    cumulative = torch.softmax(logits, dim=-1).cumsum(dim=-1, dtype=torch.float64)
    numbers = cumulative.new_tensor([uniform(row.seed, row.num_output_tokens) for row in rows])
    # Times the sum, which rounding leaves a little off 1; `right` never stops at a token of probability 0.
    targets = (numbers * cumulative[:, -1])[:, None]
    chosen = torch.searchsorted(cumulative, targets, right=True)[:, 0]
    # Where settings rule out every token no number is found; an id of the vocabulary keeps the others' step alive.
    return [int(token_id) for token_id in chosen.clamp_(max=logits.shape[1] - 1).tolist()]


def _report(logprobs: Tensor, counts: Sequence[int], token_ids: Sequence[int]) -> list[TokenLogprobs]:
    chosen = logprobs.gather(1, torch.tensor(token_ids, device=logprobs.device)[:, None])
    ranks = (logprobs >= chosen).sum(dim=-1).tolist()
    values, ids = (tensor.tolist() for tensor in logprobs.topk(min(max(counts), logprobs.shape[1]), dim=-1))
    return [
        TokenLogprobs(token_id, logprob, rank, list(zip(row_ids[:count], row_values[:count], strict=True)))
        for token_id, logprob, rank, row_ids, row_values, count in zip(
            token_ids, chosen[:, 0].tolist(), ranks, ids, values, counts, strict=True
        )
    ]
