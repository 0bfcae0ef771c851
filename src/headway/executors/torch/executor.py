"""Carries step plans out on a real model."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from headway.core.plan import NOTHING, Emission, ScheduledRequest, StepPlan, StepResult
from headway.core.request import Request, TokenContent
from headway.executors.base import SynchronousExecutor
from headway.executors.torch.batch import RequestRows, build_batch
from headway.executors.torch.kv_cache import Indices, PagedKVCache
from headway.executors.torch.loader import LoadedModel
from headway.executors.torch.model import TorchDecoder
from headway.executors.torch.sampler import SampledToken, SamplingRow, sample


class TorchExecutor(SynchronousExecutor):
    """Runs the model on KV tensors of its own.

    Requests need `TokenContent`. What is kept of a request is its block table, its seed, and the tokens it emitted that
    its content does not have yet (with asynchronous scheduling the next plan comes before they are appended). If a
    step raises, nothing is lost: the same plan may be executed again, or the next one.

    Args:
        model: the loaded model; several executors may share it.
        num_blocks: size of the pool, the null block included.
        block_size: tokens in a block.
    """

    def __init__(self, model: LoadedModel, num_blocks: int, block_size: int) -> None:
        spec = model.spec
        self.model = model
        self.cache = PagedKVCache(
            spec.num_layers,
            num_blocks,
            block_size,
            spec.num_kv_heads,
            spec.head_dim,
            device=model.device,
            dtype=model.dtype,
        )
        self._decoder = TorchDecoder(spec, model.weights)
        self._windows = frozenset(spec.layer_windows)
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
            logits = self._forward(plan.scheduled)
            emissions = self._emissions(plan.scheduled, logits)
        return StepResult(plan.step_id, emissions, time.perf_counter() - started_at)

    def _update_states(self, plan: StepPlan) -> None:
        """Take in what the plan says of requests and blocks, once, however often the plan is executed."""
        if plan.step_id == self._last_step_id:
            return
        for request_id in (*plan.released_ids, *(request.request_id for request in plan.preempted)):
            self._states.pop(request_id, None)
        for request in (*plan.new, *plan.resumed):
            self._states[request.request_id] = _RequestState(request.sampling.seed)
        for item in plan.scheduled:
            self._states[item.request.request_id].append_blocks(item.new_block_ids)
        self._last_step_id = plan.step_id

    def _forward(self, scheduled: Sequence[ScheduledRequest]) -> Tensor:
        rows = [self._rows(item) for item in scheduled]
        batch = build_batch(rows, self.cache, self.model.spec.num_heads, self._windows)
        return self._decoder.forward(batch, self.cache)

    def _rows(self, item: ScheduledRequest) -> RequestRows:
        num_known = item.num_tokens - item.num_draft_tokens
        start = item.num_computed_tokens
        state = self._states[item.request.request_id]
        known = state.known_tokens(item.request)[start : start + num_known]
        return RequestRows(
            token_ids=[*known, *_drafts(item)],
            first_position=start,
            block_ids=state.block_ids,
            num_sampled=item.num_draft_tokens + 1 if item.samples else 0,
            num_padding=item.num_padding_tokens,
        )

    def _emissions(self, scheduled: Sequence[ScheduledRequest], logits: Tensor) -> list[Emission]:
        sampling_rows = [row for item in scheduled if item.samples for row in self._sampling_rows(item)]
        sampled = sample(logits, sampling_rows) if sampling_rows else []
        emissions, start = [], 0
        for item in scheduled:
            if not item.samples:
                emissions.append(NOTHING)
                continue
            stop = start + item.num_draft_tokens + 1
            emission = _accept(_drafts(item), sampled[start:stop])
            self._states[item.request.request_id].remember(item.request, emission.token_ids or ())
            emissions.append(emission)
            start = stop
        return emissions

    def _sampling_rows(self, item: ScheduledRequest) -> list[SamplingRow]:
        """One row for the next token, and one more behind each draft, as if the drafts before it were accepted."""
        request, drafts = item.request, _drafts(item)
        state = self._states[request.request_id]
        token_ids = state.known_tokens(request)
        histories = [token_ids, *([*token_ids, *drafts[: count + 1]] for count in range(len(drafts)))]
        return [
            SamplingRow(request.sampling, history, request.num_prompt_tokens, request.stop_ids, state.seed)
            for history in histories
        ]


class _RequestState:
    """What is kept of a request between steps."""

    __slots__ = ("_buffer", "_emitted", "_num_blocks", "_num_known", "seed")

    def __init__(self, seed: int | None) -> None:
        self.seed = secrets.randbits(63) if seed is None else seed
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
    """The draft tokens that the step verifies."""
    if not item.num_draft_tokens:
        return ()
    drafts = item.request.draft_token_ids
    assert drafts is not None and len(drafts) >= item.num_draft_tokens, "drafts without ids"
    return drafts[: item.num_draft_tokens]


def _content(request: Request) -> TokenContent:
    content = request.content
    assert isinstance(content, TokenContent), "a real model needs real tokens"
    return content
