"""Fast-forward changes nothing but the time it takes: the same plans, the same instants, the same statistics."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from headway.config import CacheConfig, SchedulerConfig
from headway.core.arrivals import Arrival, Finish, Item, TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.events import Event, StepFinished, StepScheduled, StrideFinished
from headway.core.fast_forward import FastForwardEngine
from headway.core.plan import ScheduledRequest
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import EngineDeadError
from headway.executors.simulated.constant import ConstantOracle
from headway.executors.simulated.executor import SimulatedExecutor

Row = tuple[str, int, int, int, tuple[int, ...], bool]


def _row(item: ScheduledRequest) -> Row:
    return (
        item.request.request_id,
        item.num_tokens,
        item.num_computed_tokens,
        item.num_padding_tokens,
        tuple(item.new_block_ids),
        item.samples,
    )


class _Log:
    """Every plan in its long form, and every instant at which a step ended."""

    def __init__(self, scheduler: Scheduler, check: bool) -> None:
        self.plans: list[tuple[Any, ...]] = []
        self.ends: list[float] = []
        self._scheduler = scheduler
        self._check = check

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepScheduled):
            self._scheduled(event)
        elif isinstance(event, StepFinished):
            self.ends.append(event.at)
            if self._check:
                self._scheduler.check_integrity()
        elif isinstance(event, StrideFinished):
            self._stride(event)

    def _scheduled(self, event: StepScheduled) -> None:
        plan, items = event.plan, [_row(item) for item in event.plan.scheduled]
        if plan.lockstep is not None:
            assert self._scheduler.lockstep is not None
            items = [_row(item) for item in self._scheduler.lockstep.expand(plan.lockstep)] + items
        changes = tuple(tuple(r.request_id for r in part) for part in (plan.new, plan.resumed, plan.preempted))
        self.plans.append((plan.step_id, items, changes, list(plan.released_ids), plan.num_tokens))

    def _stride(self, event: StrideFinished) -> None:
        self.ends += event.ends_at
        stride, lockstep = event.stride, self._scheduler.lockstep
        assert lockstep is not None
        blocks = {(step_id, r.request_id): tuple(b.block_id for b in new) for step_id, r, new in stride.added}
        lockstep.write_all()
        for j in range(stride.num_steps):
            step_id = stride.first_step_id + j
            rows = []
            for position, request in enumerate(self._scheduler.running):
                computed = request.num_computed_tokens - stride.num_steps + j
                padding = self._scheduler.policy.decode_padding(stride.num_requests) if position == 0 else 0
                new = blocks.get((step_id, request.request_id), ())
                rows.append((request.request_id, 1, computed, padding, new, True))
            released = list(stride.released_ids) if j == 0 else []
            self.plans.append((step_id, rows, ((), (), ()), released, len(rows)))
        if self._check:
            self._scheduler.check_integrity()


def _workload(rng: Random) -> tuple[SchedulerConfig, CacheConfig, str, str, Callable[[], list[tuple[float, Item]]]]:
    policy = rng.choice(["chunked", "chunked", "chunked", "continuous", "static", "naive"])
    is_async = policy not in ("static", "naive") and rng.random() < 0.5
    max_model_len = rng.choice([128, 256, 512])
    config = SchedulerConfig(
        max_num_seqs=rng.choice([1, 2, 4, 8, 32]),
        max_num_batched_tokens=rng.choice([32, 64, 256]),
        max_model_len=max_model_len,
        long_prefill_token_threshold=rng.choice([0, 0, 16]),
        async_scheduling=is_async,
    )
    block_size = rng.choice([1, 4, 16])
    needed = max_model_len // block_size + 2
    cache = CacheConfig(
        num_blocks=needed + rng.choice([0, needed // 2, 4 * needed]),
        block_size=block_size,
        enable_prefix_caching=rng.random() < 0.5,
        watermark=rng.choice([0.0, 0.0, 0.05]),
    )
    version = rng.choice(
        ["0.12.0", "0.19.1", "0.32.0"] if is_async else ["0.8.0", "0.9.0", "0.12.0", "0.19.1", "0.32.0"]
    )
    specs = []
    at = 0.0
    for i in range(rng.randrange(1, 25)):
        at += rng.choice([0.0, 0.01, 0.3, 3.0]) * rng.random()
        prompt = rng.randrange(1, max_model_len // 2)
        output = rng.randrange(1, max_model_len // 2)
        keys = [("shared", j) for j in range(prompt // block_size)] if rng.random() < 0.3 else []
        abort = at + rng.random() if rng.random() < 0.1 else None
        specs.append((f"r{i}", at, prompt, output, keys, abort))

    def arrivals() -> list[tuple[float, Item]]:
        items: list[tuple[float, Item]] = []
        for request_id, arrival, prompt, output, keys, abort in specs:
            content = SyntheticContent(request_id, keys)
            sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output)
            request = Request(request_id, content, prompt, sampling, max_model_len, arrived_at=arrival)
            items.append((arrival, Arrival(request)))
            if abort is not None:
                items.append((abort, Finish(request_id)))
        return items

    return config, cache, policy, version, arrivals


_ORACLE = ConstantOracle(
    step_ms=3.0, prefill_us=40.0, decode_ms=7.0, decode_token_us=11.0, context_ns=900.0, host_ms=2.0
)


def _run(seed: int, fast: bool, may_stride: bool = True, check: bool = False) -> tuple[_Log, Scheduler, float]:
    config, cache, policy, version, arrivals = _workload(Random(seed))
    scheduler = Scheduler(config, cache, policy=policy, engine_version=version)
    if fast:
        assert scheduler.fast_forward()
    kind = FastForwardEngine if fast else Engine
    clock = VirtualClock()
    engine = kind(
        scheduler,
        SimulatedExecutor(_ORACLE),
        clock,
        TraceSource(arrivals()),
        max_in_flight=2 if scheduler.config.async_scheduling else 1,
    )
    if isinstance(engine, FastForwardEngine):
        engine.may_stride = may_stride
    log = _Log(scheduler, check)
    engine.listeners.append(log)
    try:
        for _ in engine.run():
            pass
    except EngineDeadError as error:
        log.plans.append(("dead", str(error)))
    return log, scheduler, clock.now()


@pytest.mark.parametrize(
    "first_seed", [0, 100, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(200, 1000, 100))]
)
def test_plans_and_times_are_those_of_single_steps(first_seed: int) -> None:
    """1,000 random workloads: policies, versions, asynchrony, preemption, shared prefixes, aborts."""
    num_strides = 0
    for seed in range(first_seed, first_seed + 100):
        slow, slow_scheduler, slow_end = _run(seed, fast=False)
        fast, fast_scheduler, fast_end = _run(seed, fast=True, may_stride=seed % 3 > 0, check=seed % 10 == 0)
        for expected, found in zip(slow.plans, fast.plans, strict=False):
            assert expected == found, f"seed {seed}"
        assert len(slow.plans) == len(fast.plans), f"seed {seed}"
        assert slow.ends == pytest.approx(fast.ends, rel=1e-9), f"seed {seed}"
        assert slow_end == pytest.approx(fast_end, rel=1e-9)
        assert slow_scheduler.stats == fast_scheduler.stats, f"seed {seed}"
        num_strides += len(slow.plans)
    assert num_strides > 1000, "the workloads took hardly any steps"
