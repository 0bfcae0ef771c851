"""What callers of the asynchronous engine exchange with it: requests, deltas of output, records of latency."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headway.core.plan import RequestOutput
from headway.core.request import FinishReason, Request
from headway.core.sampling import SamplingParams
from headway.errors import ContextLengthError, HeadwayError, RequestError
from headway.text.detokenizer import IncrementalDetokenizer


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request must respect, and what ends it."""

    max_model_len: int
    block_size: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt, one choice.

    `received_at` is the instant of receipt on the engine's clock; latencies are counted from it (default: submission).
    `num_choices` is how many choices the client asked for, for the statistics.
    """

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    received_at: float | None = None
    prompt_param: str = "prompt"
    num_choices: int = 1


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step brought one request. `text` may be empty: characters may be incomplete or held back."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Any, ...] | None
    """One entry a token, as the sampler made them; None if none were asked for."""
    num_output_tokens: int
    """Up to and including this step."""
    num_cached_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """Latencies and counts of a request that has ended, as vLLM defines them; times in seconds, None if not reached."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_choices: int
    max_tokens: int | None
    most_output_tokens: int | None
    """Of all choices of this prompt; None but for the last of them to end."""
    e2e_s: float
    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None
    inference_s: float | None


class RequestObserver(Protocol):
    """Told of latencies as they happen, on the event loop."""

    def first_token(self, ttft_s: float) -> None:
        """The first token of a request reached the frontend this long after receipt."""

    def inter_token(self, gap_s: float) -> None:
        """A later step brought tokens, this long after the one before."""

    def finished(self, record: FinishedRequest) -> None:
        """A request has ended, for whatever reason."""


class Stream:
    """One live request on the loop's side."""

    __slots__ = (
        "_detokenizer",
        "first_token_at",
        "generation",
        "index",
        "last_token_at",
        "num_output_tokens",
        "received_at",
        "request",
        "spec",
    )

    def __init__(
        self,
        generation: Generation,
        index: int,
        spec: GenerationRequest,
        request: Request,
        detokenizer: IncrementalDetokenizer,
    ) -> None:
        self.generation = generation
        self.index = index
        self.spec = spec
        self.request = request
        self.received_at = request.arrived_at if spec.received_at is None else spec.received_at
        self.num_output_tokens = 0
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self._detokenizer = detokenizer

    def advance(self, output: RequestOutput) -> Delta:
        """Turn a step's tokens into text, up to the first stop string."""
        detokenizer, finish_reason = self._detokenizer, output.finish_reason
        ids = tuple(output.token_ids or ())
        num_before = detokenizer.num_tokens
        # The token that ended the request is no text, unless the client wants to see stops.
        hides_last = finish_reason is FinishReason.STOP and not self.spec.sampling.include_stop_str_in_output
        text = detokenizer.push(ids[:-1] if hides_last else ids)
        if detokenizer.stop_reason is not None:
            ids = ids[: detokenizer.num_tokens - num_before]
        elif finish_reason is not None:
            text += detokenizer.finish()
        stop_reason = self.request.stop_reason if finish_reason is not None else None
        if detokenizer.stop_reason is not None:
            finish_reason, stop_reason = FinishReason.STOP, detokenizer.stop_reason
        self.num_output_tokens += len(ids)
        return Delta(
            text=text,
            token_ids=ids,
            logprobs=None if output.logprobs is None else tuple(output.logprobs[: len(ids)]),
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.request.num_cached_tokens,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )


class Aborter(Protocol):
    """Whoever runs the streams."""

    def abort(self, streams: Sequence[Stream]) -> None:
        """Stop those that have not ended."""


class Generation:
    """Outputs of requests submitted together: iterate for (index, Delta) until every one has ended.

    Leaving it early must be followed by `abort()`; use it as a context manager, or `AsyncEngine.generate`.
    """

    def __init__(self, aborter: Aborter, num_requests: int) -> None:
        self._aborter = aborter
        self._ready: deque[tuple[int, Delta]] = deque()
        self._error: HeadwayError | None = None
        self._changed = asyncio.Event()
        self._num_open = num_requests
        self._ended: dict[int, list[int]] = {}
        self.streams: dict[str, Stream] = {}
        """The requests that have not ended yet, by id."""

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.abort()

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> tuple[int, Delta]:
        item = await self.next()
        if item is None:
            raise StopAsyncIteration
        return item

    async def next(self) -> tuple[int, Delta] | None:
        """The next output, or None after the last. Cancelling the wait loses nothing.

        Raises:
            HeadwayError: the requests failed, or the client is gone; outputs from before that have been handed out.
        """
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self._num_open == 0:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._ready.popleft()

    def next_ready(self) -> tuple[int, Delta] | None:
        """The next output if it is there already."""
        return self._ready.popleft() if self._ready else None

    def abort(self) -> None:
        """Give up what has not ended: the engine frees its blocks at its next step. Safe to call at any time."""
        self._aborter.abort(list(self.streams.values()))

    def put(self, index: int, delta: Delta) -> None:
        """Called by the engine: hand one output to the consumer."""
        if delta.finish_reason is not None:
            self._num_open -= 1
        self._ready.append((index, delta))
        self._changed.set()

    def count_ended(self, stream: Stream) -> int | None:
        """Called by the engine as a request ends: most output tokens of its prompt's choices, if it is the last."""
        group = stream.index // stream.spec.num_choices
        ended = self._ended.setdefault(group, [])
        ended.append(stream.num_output_tokens)
        return max(ended) if len(ended) == stream.spec.num_choices else None

    def fail(self, error: HeadwayError) -> None:
        """Called by the engine, or on a disconnect: the consumer gets this error after what is ready."""
        self._error = self._error or error
        self._changed.set()


def check_prompt(token_ids: Sequence[int], limits: ModelLimits, param: str) -> None:
    """Refuse a prompt that cannot be run.

    Raises:
        RequestError: empty, or with an id that the model does not have.
        ContextLengthError: no room is left to generate.
    """
    if not token_ids:
        raise RequestError("The prompt has no tokens.", param=param)
    if len(token_ids) >= limits.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt has "
            f"{len(token_ids)} tokens, which leaves no room to generate.",
            hint="Shorten the prompt.",
            param=param,
        )
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= limits.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise RequestError(
            f"The prompt has token id {wrong}, but the vocabulary has ids 0 to {limits.vocab_size - 1}.",
            param=param,
        )


def finished_record(stream: Stream, reason: FinishReason, now: float) -> FinishedRequest:
    """What is known of a request at its end; `now` on the engine's clock."""
    request = stream.request
    scheduled, first, last = request.first_scheduled_at, stream.first_token_at, stream.last_token_at
    return FinishedRequest(
        finish_reason=reason,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=stream.num_output_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
        num_choices=stream.spec.num_choices,
        most_output_tokens=stream.generation.count_ended(stream),
        max_tokens=stream.spec.sampling.max_tokens,
        e2e_s=now - stream.received_at,
        queue_s=None if scheduled is None else scheduled - request.arrived_at,
        prefill_s=None if scheduled is None or first is None else first - scheduled,
        decode_s=None if first is None or last is None else last - first,
        inference_s=None if scheduled is None or last is None else last - scheduled,
    )
