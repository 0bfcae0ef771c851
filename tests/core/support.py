"""Small makers for the core's example tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any
from zlib import crc32

from headway.config import CacheConfig, SchedulerConfig
from headway.core.arrivals import Arrival, ArrivalSource, TraceSource
from headway.core.clock import Clock, VirtualClock
from headway.core.engine import Engine, Listener
from headway.core.plan import RequestOutput, StepPlan, StepResult
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.executors.scripted import ScriptedExecutor

BLOCK_SIZE = 16


def make_request(
    request_id: str,
    prompt: int | Sequence[int],
    max_tokens: int | None = 4,
    *,
    max_model_len: int = 1024,
    block_size: int = BLOCK_SIZE,
    salt: str | None = None,
    arrived_at: float = 0.0,
    priority: int = 0,
    eos: frozenset[int] = frozenset(),
    **sampling: Any,
) -> Request:
    """A request; a prompt given as a number has that many tokens, which no other prompt has."""
    first = crc32(request_id.encode()) * 10_000
    ids = range(first, first + prompt) if isinstance(prompt, int) else prompt
    return Request(
        request_id,
        TokenContent(ids, block_size, salt),
        len(ids),
        SamplingParams(temperature=0.0, max_tokens=max_tokens, **sampling),
        max_model_len,
        eos_token_ids=eos,
        arrived_at=arrived_at,
        priority=priority,
    )


def make_scheduler(
    policy: str = "chunked",
    *,
    num_blocks: int = 1000,
    block_size: int = BLOCK_SIZE,
    caching: bool = False,
    window: int | None = None,
    watermark: float = 0.0,
    version: str = "0.32.0",
    max_num_seqs: int = 8,
    budget: int = 64,
    max_model_len: int = 1024,
    **limits: Any,
) -> Scheduler:
    """A scheduler; `limits` are further fields of SchedulerConfig."""
    config = SchedulerConfig(max_num_seqs, budget, max_model_len, **limits)
    cache = CacheConfig(num_blocks, block_size, caching, watermark, window)
    return Scheduler(config, cache, policy=policy, engine_version=version)


def shares(plan: StepPlan) -> list[tuple[str, int]]:
    """Who got how many tokens, in order."""
    return [(item.request.request_id, item.num_tokens) for item in plan.scheduled]


def one_step(scheduler: Scheduler, executor: ScriptedExecutor) -> tuple[StepPlan, list[RequestOutput]]:
    """Schedule, execute, update, and check every invariant."""
    plan = scheduler.schedule(0.0)
    result: StepResult = executor.execute(plan)
    outputs = scheduler.update(plan, result, 0.0)
    scheduler.check_integrity()
    return plan, outputs


def make_engine(
    scheduler: Scheduler,
    arrivals: Iterable[tuple[float, Request]] = (),
    *,
    executor: ScriptedExecutor | None = None,
    source: ArrivalSource | None = None,
    clock: Clock | None = None,
    max_in_flight: int = 1,
    listeners: Iterable[Listener] = (),
    on_refused: Callable[[Request, Exception], None] | None = None,
) -> Engine:
    """An engine with a scripted executor and a virtual clock, unless told otherwise."""
    items = [(at, Arrival(request, on_refused)) for at, request in arrivals]
    return Engine(
        scheduler,
        executor or ScriptedExecutor(step_duration_s=1.0),
        clock or VirtualClock(),
        source or TraceSource(items),
        max_in_flight=max_in_flight,
        listeners=listeners,
    )


def run(engine: Engine) -> dict[str, list[int]]:
    """Run to the end with every invariant checked after each step; the tokens that each request got."""
    tokens: dict[str, list[int]] = {}
    for outputs in engine.run():
        engine.scheduler.check_integrity()
        for output in outputs:
            tokens.setdefault(output.request.request_id, []).extend(output.token_ids or ())
    assert engine.scheduler.kv.pool.num_referenced_blocks == 0, "a block leaked"
    return tokens
