"""What callers of the asynchronous engine hold: outputs to wait for, and records of latency."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.request import FinishReason
from headway.errors import HeadwayError
from headway.frontends.request_stream import Delta, RequestStream


@dataclass(frozen=True, slots=True)
class FinishedRequest:
    """Latencies and counts of a request that has ended, as vLLM defines them; times in seconds, None if not reached."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_choices: int
    max_tokens: int
    """What the client gave, or the room that the context leaves."""
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


class LiveStream:
    """One request that callers of the asynchronous engine wait for."""

    __slots__ = ("first_token_at", "generation", "index", "last_token_at", "received_at", "text")

    def __init__(self, generation: Generation, index: int, text: RequestStream) -> None:
        self.generation = generation
        self.index = index
        self.text = text
        received_at = text.spec.received_at
        self.received_at = text.request.arrived_at if received_at is None else received_at
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None

    @property
    def request_id(self) -> str:
        """The engine's id of the request."""
        return self.text.request.request_id


class Aborter(Protocol):
    """Whoever runs the streams."""

    def abort(self, streams: Sequence[LiveStream]) -> None:
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
        self.streams: dict[str, LiveStream] = {}
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
        """Give up what has not ended: its blocks are free after the next step, and no output follows what is ready.

        Safe to call at any time.
        """
        self._num_open = 0
        self._changed.set()
        self._aborter.abort(list(self.streams.values()))

    def put(self, index: int, delta: Delta) -> None:
        """Called by the engine: hand one output to the consumer."""
        if delta.finish_reason is not None:
            self._num_open -= 1
        self._ready.append((index, delta))
        self._changed.set()

    def count_ended(self, stream: LiveStream) -> int | None:
        """Called by the engine as a request ends: most output tokens of its prompt's choices, if it is the last."""
        group = stream.index // stream.text.spec.num_choices
        ended = self._ended.setdefault(group, [])
        ended.append(stream.text.num_output_tokens)
        return max(ended) if len(ended) == stream.text.spec.num_choices else None

    def fail(self, error: HeadwayError) -> None:
        """Called by the engine, or on a disconnect: the consumer gets this error after what is ready."""
        self._error = self._error or error
        self._changed.set()


def finished_record(stream: LiveStream, reason: FinishReason, now: float) -> FinishedRequest:
    """What is known of a request at its end; `now` on the engine's clock."""
    request = stream.text.request
    scheduled, first, last = request.first_scheduled_at, stream.first_token_at, stream.last_token_at
    return FinishedRequest(
        finish_reason=reason,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=stream.text.num_output_tokens,
        num_cached_tokens=request.num_cached_tokens,
        num_preemptions=request.num_preemptions,
        num_choices=stream.text.spec.num_choices,
        most_output_tokens=stream.generation.count_ended(stream),
        max_tokens=request.max_total_tokens - request.num_prompt_tokens,
        e2e_s=now - stream.received_at,
        queue_s=None if scheduled is None else scheduled - request.arrived_at,
        prefill_s=None if scheduled is None or first is None else first - scheduled,
        decode_s=None if first is None or last is None else last - first,
        inference_s=None if scheduled is None or last is None else last - scheduled,
    )
