"""One scheduler, two executors: on the same trace, with the same token outcomes, both engines take the same steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headway.config import REFERENCE_ENGINE_VERSION, CacheConfig, SchedulerConfig
from headway.core.arrivals import Arrival, Finish, Item
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.events import Event, StepFinished
from headway.core.request import Content, Request, SyntheticContent, TokenContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.executors.base import Executor
from headway.executors.simulated.constant import ConstantOracle
from headway.executors.simulated.executor import SimulatedExecutor
from headway.executors.torch import LoadedModel, TorchExecutor
from tests.torch_executor.support import random_ids

BLOCK_SIZE, NUM_BLOCKS, MAX_MODEL_LEN = 16, 33, 256
StepLog = list[dict[str, Any]]


class StepSource:
    """Items by step number, so that two clocks cannot make a difference."""

    wake: threading.Event | None = None

    def __init__(self, items: Sequence[tuple[int, Item]]) -> None:
        self._items = list(items)

    def due(self, now: float, step: int) -> Sequence[Item]:
        due = [item for at, item in self._items if at <= step]
        self._items = [(at, item) for at, item in self._items if at > step]
        return due

    def next_at(self) -> float | None:
        return None

    @property
    def exhausted(self) -> bool:
        return not self._items


def prompts() -> list[list[int]]:
    """Twelve prompts of 20 to 119 tokens; every third begins like the first."""
    stem = random_ids(48, 200, seed=99)
    return [(stem if i % 3 == 0 else []) + random_ids(20 + 37 * i % 71, 200, seed=i) for i in range(12)]


def run(executor: Executor, contents: Sequence[Content], policy: str, *, is_async: bool) -> StepLog:
    """The step log of the trace: arrivals spread over steps, one abort under way, a pool that must preempt."""
    config = SchedulerConfig(8, 64, MAX_MODEL_LEN, async_scheduling=is_async)
    cache = CacheConfig(NUM_BLOCKS, BLOCK_SIZE)
    scheduler = Scheduler(config, cache, policy=policy, engine_version=REFERENCE_ENGINE_VERSION)
    items: list[tuple[int, Item]] = []
    for i, (content, prompt) in enumerate(zip(contents, prompts(), strict=True)):
        sampling = SamplingParams(temperature=0.0, max_tokens=12 + 5 * i, ignore_eos=True)
        request = Request(f"r{i}", content, len(prompt), sampling, MAX_MODEL_LEN, arrived_at=float(i))
        items.append((2 * i, Arrival(request)))
    items.append((19, Finish("r5")))
    log: StepLog = []

    def note(event: Event) -> None:
        if isinstance(event, StepFinished):
            plan = event.plan
            log.append(
                {
                    "scheduled": [
                        (item.request.request_id, item.num_tokens, item.num_computed_tokens, list(item.new_block_ids))
                        for item in plan.scheduled
                    ],
                    "preempted": [request.request_id for request in plan.preempted],
                    "finished": [out.request.request_id for out in event.outputs if out.finish_reason is not None],
                    "free_blocks": scheduler.kv.pool.num_free_blocks,
                }
            )

    engine = Engine(
        scheduler, executor, VirtualClock(), StepSource(items), max_in_flight=2 if is_async else 1, listeners=[note]
    )
    for _ in engine.run():
        scheduler.check_integrity()
    assert scheduler.kv.pool.num_referenced_blocks == 0
    return log


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("policy", ["chunked", "continuous", "static"])
def test_real_and_simulated_step_logs_are_equal(
    policy: str, is_async: bool, loaded: Callable[[str], LoadedModel]
) -> None:
    """Requests, tokens, prefix hits, block ids, preemptions and ends, step by step."""
    real_contents = [TokenContent(prompt, BLOCK_SIZE) for prompt in prompts()]
    executor = TorchExecutor(loaded("llama"), num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    real = run(executor, real_contents, policy, is_async=is_async)
    outcomes = [
        SyntheticContent(f"r{i}", [content.block_key(k) for k in range(len(content.token_ids) // BLOCK_SIZE)])
        for i, content in enumerate(real_contents)
    ]
    simulated = run(SimulatedExecutor(ConstantOracle(decode_ms=10.0)), outcomes, policy, is_async=is_async)
    assert simulated == real
    if policy != "static":
        assert any(step["preempted"] for step in real)
        assert any(computed for step in real for _, _, computed, _ in step["scheduled"])
