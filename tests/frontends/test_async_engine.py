"""The asynchronous engine without HTTP: outputs, cancellation, failure, the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest

from headway.config import REFERENCE_ENGINE_VERSION, CacheConfig, SchedulerConfig
from headway.core.arrivals import Inbox
from headway.core.clock import WallClock
from headway.core.engine import Engine
from headway.core.request import FinishReason, Request
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import ContextLengthError, EngineDeadError, HeadwayError, QueueFullError, RequestError
from headway.frontends.async_engine import AsyncEngine
from headway.frontends.generation import FinishedRequest
from headway.frontends.request_stream import Delta, GenerationRequest, ModelLimits
from tests.server.support import PromptedExecutor, Script, byte_tokenizer, endless, says


class Recorder:
    """Notes what an observer is told."""

    def __init__(self) -> None:
        self.ttfts: list[float] = []
        self.gaps: list[float] = []
        self.records: list[FinishedRequest] = []

    def first_token(self, ttft_s: float) -> None:
        """See `RequestObserver`."""
        self.ttfts.append(ttft_s)

    def inter_token(self, gap_s: float) -> None:
        """See `RequestObserver`."""
        self.gaps.append(gap_s)

    def finished(self, record: FinishedRequest) -> None:
        """See `RequestObserver`."""
        self.records.append(record)


@asynccontextmanager
async def engine_on(
    script: Script = endless,
    *,
    step_duration_s: float = 0.0,
    max_queue: int = 100,
    observer: Recorder | None = None,
) -> AsyncIterator[tuple[AsyncEngine, PromptedExecutor]]:
    """A started engine, closed at the end; every block must then be free."""
    tokenizer = byte_tokenizer()
    scheduler = Scheduler(SchedulerConfig(4, 64, 256), CacheConfig(65), engine_version=REFERENCE_ENGINE_VERSION)
    executor, inbox = PromptedExecutor(script, step_duration_s), Inbox()
    limits = ModelLimits(256, 16, tokenizer.vocab_size, tokenizer.eos_token_ids)
    engine = AsyncEngine(
        Engine(scheduler, executor, WallClock(), inbox),
        inbox,
        tokenizer,
        limits,
        max_queue=max_queue,
        observer=observer,
    )
    engine.start()
    try:
        yield engine, executor
    finally:
        executor.gate.set()
        await asyncio.wait_for(engine.close(), 10)
    if executor.failure is None:
        assert scheduler.kv.pool.num_free_blocks == scheduler.kv.pool.num_usable_blocks
        assert not scheduler.requests


def request(prompt: str = "ab", **sampling: object) -> GenerationRequest:
    """A request for a prompt of plain letters."""
    return GenerationRequest(list(prompt.encode()), SamplingParams(**sampling))  # type: ignore[arg-type]


async def deltas_of(engine: AsyncEngine, spec: GenerationRequest) -> list[Delta]:
    """All outputs of a request."""
    return [delta async for delta in engine.generate(spec)]


def test_outputs_come_one_a_step_and_the_last_says_why() -> None:
    async def main() -> None:
        async with engine_on(says("hi!")) as (engine, _):
            deltas = await deltas_of(engine, request())
            assert [delta.text for delta in deltas] == ["h", "i", "!", ""]
            assert [delta.num_output_tokens for delta in deltas] == [1, 2, 3, 4]
            assert [delta.finish_reason for delta in deltas] == [None, None, None, FinishReason.STOP]

    asyncio.run(main())


def test_cancelling_the_task_takes_the_request_out() -> None:
    async def main() -> None:
        async with engine_on(step_duration_s=0.002) as (engine, _):
            task = asyncio.create_task(deltas_of(engine, request()))
            while not engine.engine.scheduler.running:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while engine.engine.scheduler.requests:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_leaving_the_iteration_takes_the_request_out_even_while_it_waits() -> None:
    async def main() -> None:
        async with engine_on(step_duration_s=0.001) as (engine, _):
            async with aclosing(engine.generate(request())) as outputs:
                async for delta in outputs:
                    assert delta.text
                    break
            generations = [engine.submit([request()]) for _ in range(6)]  # four run, two wait
            while len(engine.engine.scheduler.running) < 4:
                await asyncio.sleep(0.001)
            for generation in reversed(generations):
                generation.abort()
                generation.abort()  # is safe
            while engine.engine.scheduler.requests:
                await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 10))


def test_nothing_follows_an_abort() -> None:
    """Whoever still iterates is not left waiting."""

    async def main() -> None:
        async with engine_on(step_duration_s=0.001) as (engine, _):
            generation = engine.submit([request()])
            assert await generation.next() is not None
            generation.abort()
            while await generation.next() is not None:
                pass

    asyncio.run(asyncio.wait_for(main(), 10))


def test_a_batch_is_admitted_as_a_whole_or_not_at_all() -> None:
    async def main() -> None:
        async with engine_on() as (engine, _):
            for bad in (
                request(""),
                GenerationRequest([5000], SamplingParams()),
                request(stop_token_ids=frozenset({9999})),
            ):
                with pytest.raises(RequestError):
                    engine.submit([request(), bad])
            with pytest.raises(ContextLengthError, match="256"):
                engine.submit([request(), request("x" * 256)])
            assert engine.num_waiting == 0 and not engine.engine.scheduler.requests

    asyncio.run(main())


def test_what_the_engine_turns_away_later_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check on submission lets it pass here; the engine's own does not."""

    async def main() -> None:
        async with engine_on() as (engine, _):
            monkeypatch.setattr(engine.engine, "check", lambda request: None)
            monkeypatch.setattr(type(engine.engine.scheduler), "check", refuse)
            with pytest.raises(RequestError, match="not today"):
                await deltas_of(engine, request())
            assert engine.refusal is None

    def refuse(*args: object) -> None:
        raise RequestError("not today")

    asyncio.run(asyncio.wait_for(main(), 10))


def test_the_queue_is_bounded() -> None:
    async def main() -> None:
        async with engine_on(max_queue=2) as (engine, executor):
            executor.gate.clear()
            with engine.submit([request(), request()]):
                with pytest.raises(QueueFullError, match="2 requests"):
                    engine.submit([request()])
                executor.gate.set()

    asyncio.run(main())


def test_a_failing_step_fails_everybody_once_and_for_good() -> None:
    async def main() -> None:
        async with engine_on(step_duration_s=0.001) as (engine, executor):
            tasks = [asyncio.create_task(deltas_of(engine, request())) for _ in range(6)]
            await asyncio.sleep(0.01)
            executor.failure = ValueError("broken")
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, HeadwayError) and "ValueError" in str(result)
            assert engine.refusal is not None
            with pytest.raises(EngineDeadError, match="stopped"):
                await deltas_of(engine, request())

    asyncio.run(asyncio.wait_for(main(), 10))


def test_draining_lets_requests_finish_and_fails_those_that_take_too_long() -> None:
    async def main() -> None:
        async with engine_on(step_duration_s=0.002) as (engine, _):
            short = asyncio.create_task(deltas_of(engine, request(max_tokens=3)))
            long = asyncio.create_task(deltas_of(engine, request(max_tokens=250)))
            await asyncio.sleep(0.005)
            await engine.drain(0.1)
            assert (await short)[-1].finish_reason is FinishReason.LENGTH
            with pytest.raises(EngineDeadError, match="shut down"):
                await long
            with pytest.raises(EngineDeadError, match="shutting down"):
                engine.submit([request()])

    asyncio.run(asyncio.wait_for(main(), 10))


def test_the_observer_hears_of_every_token_and_every_end() -> None:
    async def main() -> None:
        recorder = Recorder()
        async with engine_on(observer=recorder) as (engine, executor):
            await deltas_of(engine, request(max_tokens=4))
            await deltas_of(engine, request(stop=("e",), max_tokens=200))

            def one_step_alone(asking: Request) -> Sequence[int]:
                executor.gate.clear()
                return endless(asking)

            executor.script = one_step_alone
            async with aclosing(engine.generate(request())) as outputs:
                await anext(outputs)
        assert len(recorder.ttfts) == 3 and len(recorder.gaps) >= 3
        first, second, third = recorder.records
        assert first.finish_reason is FinishReason.LENGTH and first.num_output_tokens == first.max_tokens == 4
        assert second.finish_reason is FinishReason.STOP
        assert third.finish_reason is FinishReason.ABORT
        for record in (first, second):
            assert record.queue_s is not None and record.prefill_s is not None and record.decode_s is not None
            assert record.queue_s >= 0 and record.prefill_s >= 0 and 0 <= record.decode_s <= record.e2e_s

    asyncio.run(main())


def test_closing_fails_what_is_left() -> None:
    async def main() -> None:
        async with engine_on(step_duration_s=0.001) as (engine, _):
            task = asyncio.create_task(deltas_of(engine, request()))
            while not engine.engine.scheduler.running:
                await asyncio.sleep(0.001)
        with pytest.raises(EngineDeadError):
            await task

    asyncio.run(asyncio.wait_for(main(), 10))
