"""The engine for asyncio: one thread runs its steps, the event loop turns tokens into text and hands them out.

A step's outputs cross from the thread to the loop in one call. Stop strings are looked for on the loop's side: tokens
after the one that completes a stop string are dropped there, so text and usage never depend on how far the engine
had run ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from headway.core.arrivals import Arrival, Finish, Inbox
from headway.core.engine import Engine
from headway.core.plan import RequestOutput
from headway.core.policies import blaming
from headway.core.request import FinishReason, Request
from headway.errors import EngineDeadError, HeadwayError, QueueFullError
from headway.frontends.generation import Generation, LiveStream, RequestObserver, finished_record
from headway.frontends.request_stream import Delta, GenerationRequest, ModelLimits, open_stream
from headway.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)


class AsyncEngine:
    """Serves many callers on one event loop from one engine thread.

    Args:
        engine: owned from now on; only the thread touches it, apart from `check` and reading gauges.
        inbox: the engine's arrival source.
        tokenizer: turns tokens into text.
        limits: what requests must respect.
        max_queue: refuse newcomers when this many requests wait.
        observer: told of latencies.
    """

    def __init__(
        self,
        engine: Engine,
        inbox: Inbox,
        tokenizer: Tokenizer,
        limits: ModelLimits,
        *,
        max_queue: int = 2048,
        observer: RequestObserver | None = None,
    ) -> None:
        self.engine = engine
        self.limits = limits
        self.max_sequence_len = min(limits.max_model_len, engine.scheduler.longest_sequence)
        """Tokens (prompt + output) at which any request ends; below max_model_len if the KV cache is smaller."""
        self.max_queue = max_queue
        self._inbox = inbox
        self._tokenizer = tokenizer
        self._clock = engine.clock
        self._observer = observer
        self._streams: dict[str, LiveStream] = {}
        self._ids = itertools.count()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refusal: EngineDeadError | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    # ------------------------------------------------------------------ life

    def start(self) -> None:
        """Start the engine thread. To be called on the event loop that will consume the outputs."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="headway-engine", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Abort everything, stop the thread, release the executor."""
        self._refuse_newcomers("The server is shutting down.")
        self._fail_all(self._refusal or EngineDeadError("The engine is closed."))
        self._inbox.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self.engine.close()

    async def drain(self, grace_s: float) -> None:
        """Refuse newcomers, let the requests in flight finish for `grace_s` seconds, then fail the rest."""
        self._refuse_newcomers("The server is shutting down.")
        try:
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        except TimeoutError:
            self._fail_all(EngineDeadError("The server shut down before this request was finished."))

    @property
    def refusal(self) -> EngineDeadError | None:
        """Why no request is accepted any more: the engine died, or is closing. None while it serves."""
        return self._refusal

    def now(self) -> float:
        """The engine clock's instant, in seconds."""
        return self._clock.now()

    # ------------------------------------------------------------------ requests

    def submit(self, specs: Sequence[GenerationRequest]) -> Generation:
        """Hand requests to the engine, all or none.

        Raises:
            RequestError: one could never run. ContextLengthError: its prompt is too long.
            QueueFullError: too many wait already. EngineDeadError: nothing is served any more.
        """
        if self._refusal is not None:
            raise self._refusal
        if self.num_waiting + len(specs) > self.max_queue:
            raise QueueFullError(f"{self.num_waiting} requests are waiting already.", hint="Try again later.")
        generation = Generation(self, len(specs))
        texts = [open_stream(f"{next(self._ids)}", spec, self.engine, self._tokenizer, self.limits) for spec in specs]
        for index, text in enumerate(texts):
            stream = LiveStream(generation, index, text)
            self._streams[stream.request_id] = generation.streams[stream.request_id] = stream
            self._inbox.put(Arrival(text.request, self._refused))
        self._idle.clear()
        return generation

    async def generate(self, spec: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Outputs of one request; closing the iterator, or cancelling its task, aborts the request.

        Raises:
            HeadwayError: as `submit`, or the engine failed under way.
        """
        with self.submit([spec]) as generation:
            async for _, delta in generation:
                yield delta

    def abort(self, streams: Sequence[LiveStream]) -> None:
        """Take requests that have not ended out of the engine."""
        for stream in streams:
            if stream.request_id in self._streams:
                self._inbox.put(Finish(stream.request_id))
                self._remove(stream, FinishReason.ABORT)

    @property
    def num_requests(self) -> int:
        """Requests that have been accepted and have not ended."""
        return len(self._streams)

    @property
    def num_waiting(self) -> int:
        """Requests that have arrived and do not run; a snapshot."""
        return max(0, len(self._streams) - len(self.engine.scheduler.running))

    # ------------------------------------------------------------------ the engine thread

    def _run(self) -> None:
        assert self._loop is not None
        try:
            with blaming(self.engine.scheduler.policy.file):
                for outputs in self.engine.run():
                    if outputs:
                        self._call(self._deliver, outputs, self._clock.now())
        except HeadwayError as error:
            logger.error("The engine stopped: %s", error)
            self._call(self._die, error)
        except Exception as error:
            logger.exception("The engine stopped")
            self._call(self._die, error)

    def _call(self, function: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function, *args)

    def _refused(self, request: Request, error: Exception) -> None:
        """The engine turned away what `check` had let pass: nobody may wait for it."""
        self._call(self._fail_one, request.request_id, error)

    # ------------------------------------------------------------------ back on the event loop

    def _fail_one(self, request_id: str, error: Exception) -> None:
        """Fail a request, and with it what was submitted together."""
        stream = self._streams.get(request_id)
        if stream is not None:
            failure = error if isinstance(error, HeadwayError) else HeadwayError(str(error))
            stream.generation.fail(failure)
            self.abort(list(stream.generation.streams.values()))

    def _deliver(self, outputs: Sequence[RequestOutput], at: float) -> None:
        for output in outputs:
            stream = self._streams.get(output.request.request_id)
            if stream is None:
                continue
            try:
                self._deliver_one(stream, output, at)
            except Exception as error:
                logger.exception("Output of request %s could not be processed", stream.request_id)
                failure = HeadwayError(f"The output could not be processed ({type(error).__name__}).")
                self._fail_one(stream.request_id, failure)

    def _deliver_one(self, stream: LiveStream, output: RequestOutput, at: float) -> None:
        delta = stream.text.advance(output)
        if delta.token_ids:
            self._observe_tokens(stream, at)
        if delta.finish_reason is not None:
            if output.finish_reason is None:
                self._inbox.put(Finish(stream.request_id, FinishReason.STOP, delta.stop_reason))
            self._remove(stream, delta.finish_reason)
        stream.generation.put(stream.index, delta)

    def _observe_tokens(self, stream: LiveStream, at: float) -> None:
        if self._observer is not None:
            if stream.first_token_at is None:
                self._observer.first_token(self._clock.now() - stream.received_at)
            elif stream.last_token_at is not None:
                self._observer.inter_token(at - stream.last_token_at)
        if stream.first_token_at is None:
            stream.first_token_at = at
        stream.last_token_at = at

    def _remove(self, stream: LiveStream, reason: FinishReason) -> None:
        del self._streams[stream.request_id]
        del stream.generation.streams[stream.request_id]
        if not self._streams:
            self._idle.set()
        if self._observer is not None:
            self._observer.finished(finished_record(stream, reason, self._clock.now()))

    def _die(self, error: Exception) -> None:
        self._refusal = EngineDeadError(
            f"The engine has stopped after an error ({type(error).__name__}).", hint="Restart the server."
        )
        self._fail_all(HeadwayError(f"The engine failed while working on this request ({type(error).__name__})."))

    def _refuse_newcomers(self, message: str) -> None:
        if self._refusal is None:
            self._refusal = EngineDeadError(message)

    def _fail_all(self, error: HeadwayError) -> None:
        for stream in list(self._streams.values()):
            if stream.request_id in self._streams:
                stream.generation.fail(error)
                for other in list(stream.generation.streams.values()):
                    self._inbox.put(Finish(other.request_id))
                    self._remove(other, FinishReason.ERROR)
