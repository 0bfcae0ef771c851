"""Carries step plans out on a real model."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch

from headway.config import Speculation, StepTime
from headway.core.plan import NOTHING, Emission, ScheduledRequest, StepPlan, StepResult
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.executors.base import SynchronousExecutor
from headway.executors.torch.batch import RequestRows
from headway.executors.torch.drafts import DraftGate, NgramIndex
from headway.executors.torch.forward import Scores
from headway.executors.torch.kv_cache import Indices
from headway.executors.torch.loader import LoadedModel
from headway.executors.torch.sampler import SampledToken, SamplingRow, sample, takes_best

_FILLER_TOKEN_ID = 0


class TorchExecutor(SynchronousExecutor):
    """Runs the model on KV tensors of its own.

    Requests need `TokenContent`. What is kept of a request is its block table, its seed, and the tokens it emitted that
    its content does not have yet (with asynchronous scheduling the next plan comes before they are appended). If a
    step raises, nothing is lost: the same plan may be executed again, or the next one.

    Args:
        model: the loaded model; several executors may share it.
        num_blocks: size of the pool, the null block included.
        block_size: tokens in a block.
        speculation: how drafts are made; None makes none.
        step_time: says when drafts pay; None drafts always.
    """

    def __init__(
        self,
        model: LoadedModel,
        num_blocks: int,
        block_size: int,
        *,
        speculation: Speculation | None = None,
        step_time: StepTime | None = None,
    ) -> None:
        self.model = model
        self._forward = model.forward_pass(num_blocks, block_size)
        self.cache = self._forward.cache
        self._speculation = speculation
        self._gate = DraftGate(step_time) if step_time is not None else None
        self._states: dict[str, _RequestState] = {}
        self._last_step_id: int | None = None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps."""
        return self.model.kv_bytes_per_token

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step: forward pass, sampling, verification of drafts."""
        started_at = time.perf_counter()
        self._update_states(plan)
        emissions: list[Emission] = [NOTHING] * len(plan.scheduled)
        if plan.scheduled:
            sampling = [self._sampling(item) for item in plan.scheduled]
            scores = self._forward.run([self._rows(*pair) for pair in zip(plan.scheduled, sampling, strict=True)])
            emissions = self._emissions(plan.scheduled, sampling, scores)
        return StepResult(plan.step_id, emissions, time.perf_counter() - started_at)

    def _update_states(self, plan: StepPlan) -> None:
        """Take in what the plan says of requests and blocks, once, however often the plan is executed."""
        if plan.step_id == self._last_step_id:
            return
        for request_id in (*plan.released_ids, *(request.request_id for request in plan.preempted)):
            self._states.pop(request_id, None)
        for request in (*plan.new, *plan.resumed):
            self._states[request.request_id] = _RequestState(request.sampling, self._speculation)
        for item in plan.scheduled:
            self._states[item.request.request_id].append_blocks(item.new_block_ids)
        self._last_step_id = plan.step_id

    def _rows(self, item: ScheduledRequest, sampling: _Sampling) -> RequestRows:
        num_known = item.num_tokens - item.num_draft_tokens
        start = item.num_computed_tokens
        state = self._states[item.request.request_id]
        known = state.known_tokens(item.request)[start : start + num_known]
        return RequestRows(
            token_ids=[*known, *_drafts(item)] if item.num_draft_tokens else known,
            first_position=start,
            block_ids=state.block_ids,
            num_sampled=sampling.num_rows,
            num_padding=item.num_padding_tokens,
            wants_logits=bool(sampling.rows),
        )

    def _emissions(
        self, scheduled: Sequence[ScheduledRequest], sampling: Sequence[_Sampling], scores: Scores
    ) -> list[Emission]:
        with_logits = [row for chosen in sampling for row in chosen.rows]
        drawn = iter(sample(scores.logits, with_logits) if with_logits else ())
        best = iter(scores.best_token_ids)
        drafts_next = self._speculation is not None and self._drafts_pay(scheduled)
        emissions = []
        for item, wanted in zip(scheduled, sampling, strict=True):
            if not wanted.num_rows:
                emissions.append(NOTHING)
                continue
            if wanted.rows:
                chosen = [next(drawn) for _ in wanted.rows]
            else:
                chosen = [SampledToken(token_id) for token_id in islice(best, wanted.num_rows)]
            emission = _accept(_drafts(item), chosen)
            self._states[item.request.request_id].remember(item.request, emission.token_ids or ())
            emissions.append(self._with_drafts(item, emission) if drafts_next else emission)
            if self._gate is not None and item.num_draft_tokens:
                self._gate.learn(item.num_draft_tokens, emission.num_tokens - 1)
        return emissions

    def _drafts_pay(self, scheduled: Sequence[ScheduledRequest]) -> bool:
        return self._gate is None or self._gate.opens(
            sum(item.num_tokens - item.num_draft_tokens for item in scheduled)
        )

    def _with_drafts(self, item: ScheduledRequest, emission: Emission) -> Emission:
        """The emission with drafts for the step after it, no more than the request may still generate."""
        state, request = self._states[item.request.request_id], item.request
        assert self._speculation is not None and state.ngrams is not None
        token_ids = state.known_tokens(request)
        most = min(self._speculation.num_speculative_tokens, request.max_total_tokens - len(token_ids) - 1)
        drafts = state.ngrams.propose(token_ids, most) if most > 0 else []
        return emission._replace(num_next_draft_tokens=len(drafts), next_draft_token_ids=drafts) if drafts else emission

    def _sampling(self, item: ScheduledRequest) -> _Sampling:
        """One row for the next token, and one more behind each draft, as if the drafts before it were accepted."""
        if not item.samples:
            return _NO_SAMPLING
        request, drafts = item.request, _drafts(item)
        state = self._states[request.request_id]
        num_rows, token_ids = 1 + len(drafts), state.known_tokens(request)
        if state.is_greedy and len(token_ids) - request.num_prompt_tokens >= request.sampling.min_tokens:
            return _Sampling(num_rows, ())
        histories = [token_ids, *([*token_ids, *drafts[: count + 1]] for count in range(len(drafts)))]
        rows = [
            SamplingRow(request.sampling, history, request.num_prompt_tokens, request.stop_ids, state.seed)
            for history in histories
        ]
        return _Sampling(num_rows, rows)


class _Sampling(NamedTuple):
    """What is to be chosen of a request's last rows.

    Args:
        rows: one for each row, or none if each takes the token with the largest logit and nothing else need be known.
    """

    num_rows: int
    rows: Sequence[SamplingRow]


_NO_SAMPLING = _Sampling(0, ())


class _RequestState:
    """What is kept of a request between steps."""

    __slots__ = ("_buffer", "_emitted", "_num_blocks", "_num_known", "is_greedy", "ngrams", "seed")

    def __init__(self, sampling: SamplingParams, speculation: Speculation | None) -> None:
        self.ngrams = NgramIndex(speculation) if speculation is not None else None
        self.seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        self.is_greedy = takes_best(sampling)
        self._buffer = np.empty(16, dtype=np.int64)
        self._num_blocks = 0
        self._emitted: list[int] = []
        self._num_known = 0
        """Length of the sequence whose last tokens are `_emitted`."""

    def known_tokens(self, request: Request) -> Sequence[int]:
        """Prompt and outputs, those included that were emitted and are yet to be appended to the content."""
        token_ids = _content(request).token_ids
        num_missing = self._num_known - len(token_ids)
        return [*token_ids, *self._emitted[-num_missing:]] if num_missing > 0 else token_ids

    def remember(self, request: Request, token_ids: Sequence[int]) -> None:
        """Keep tokens just emitted until the content has them."""
        num_appended = len(_content(request).token_ids)
        num_missing = max(0, self._num_known - num_appended)
        self._emitted = [*(self._emitted[-num_missing:] if num_missing else ()), *token_ids]
        self._num_known = num_appended + len(self._emitted)

    @property
    def block_ids(self) -> Indices:
        """The block table; valid until blocks are appended."""
        return self._buffer[: self._num_blocks]

    def append_blocks(self, block_ids: Sequence[int]) -> None:
        """Lengthen the block table."""
        needed = self._num_blocks + len(block_ids)
        if needed > len(self._buffer):
            self._buffer = np.concatenate([self.block_ids, np.empty(2 * needed, dtype=np.int64)])
        self._buffer[self._num_blocks : needed] = block_ids
        self._num_blocks = needed


def _accept(drafts: Sequence[int], sampled: Sequence[SampledToken]) -> Emission:
    """The sampled tokens up to and including the first that differs from its draft, or all of them."""
    num_accepted = 0
    while num_accepted < len(drafts) and drafts[num_accepted] == sampled[num_accepted].token_id:
        num_accepted += 1
    emitted = sampled[: num_accepted + 1]
    logprobs = [token.logprobs for token in emitted] if emitted[0].logprobs is not None else None
    return Emission(len(emitted), [token.token_id for token in emitted], logprobs=logprobs)


def _drafts(item: ScheduledRequest) -> Sequence[int]:
    """The draft tokens that the step verifies.

    The scheduler may ask for more than there are (it fills a first decode up, as vLLM does); any token will do then.
    """
    if not item.num_draft_tokens:
        return ()
    drafts = list(item.request.draft_token_ids or ())[: item.num_draft_tokens]
    return drafts + [_FILLER_TOKEN_ID] * (item.num_draft_tokens - len(drafts))


def _content(request: Request) -> TokenContent:
    content = request.content
    assert isinstance(content, TokenContent), "a real model needs real tokens"
    return content
