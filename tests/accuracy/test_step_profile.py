"""Profiling an executor step by step: which shapes, what is asked of the executor, and the file that comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.accuracy.step_profile import ProfileLimits, StepPoint, grid, host_seconds, time_steps, write_steps
from headway.config import CacheConfig, SchedulerConfig
from headway.core.arrivals import TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.plan import ONE_TOKEN, Emission, StepPlan, StepResult
from headway.core.scheduler import Scheduler
from headway.errors import ConfigError
from headway.executors.base import SynchronousExecutor
from headway.executors.simulated.oracle import Chunk, StepShape, decode_shape
from headway.executors.simulated.shape import shape_of
from headway.executors.simulated.table import TableOracle
from headway.executors.simulated.table_files import read_steps

LIMITS = ProfileLimits(max_num_batched_tokens=128, max_num_seqs=16, max_model_len=1024, num_blocks=300, block_size=16)


class Device(SynchronousExecutor):
    """Takes 1 ms a step and 10 us a token, and looks at the plans."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        """Price the rows."""
        self.plans.append(plan)
        emission = Emission(1, [0]) if plan.scheduled else ONE_TOKEN
        return StepResult(plan.step_id, [emission] * len(plan.scheduled), 1e-3 + plan.num_tokens * 1e-5)


def test_the_grid_stays_within_the_limits() -> None:
    """Decodes alone, chunks alone and both, with the limits themselves among them."""
    points = grid(LIMITS)
    assert len(set(points)) == len(points)
    assert {point.n_decode for point in points if not point.prefill_chunk} == {1, 2, 3, 4, 6, 8, 12, 16}
    assert {point.prefill_chunk for point in points} == {0, 8, 32, 128}
    assert max(point.kv_decode for point in points) <= LIMITS.max_model_len
    assert any(point.prefill_chunk and point.n_decode and point.kv_prefill for point in points)


def test_plans_have_the_shapes_that_are_asked_for() -> None:
    """Each execution brings new requests, releases those before, and stays off the null block."""
    device = Device()
    point = StepPoint(32, 512, 3, 100)
    measured = time_steps(device, [point], LIMITS, vocab_size=50, repeats=2)
    assert measured == {point: pytest.approx(1e-3 + 35e-5)}
    *steps, last = device.plans
    assert len(steps) == 3 and not last.scheduled
    for before, after in zip(steps, [*steps[1:], last], strict=True):
        assert list(after.released_ids) == [request.request_id for request in before.new]
    for plan in steps:
        assert shape_of(plan) == StepShape((Chunk(32, 512),), 3, 3, 300, 4)
        assert min(block for item in plan.scheduled for block in item.new_block_ids) >= 1
        assert max(block for item in plan.scheduled for block in item.new_block_ids) < LIMITS.num_blocks


def test_what_was_timed_is_what_is_priced(tmp_path: Path) -> None:
    """From an executor to a file to an oracle, at points of the grid and between them."""
    measured = time_steps(Device(), grid(LIMITS), LIMITS, vocab_size=50, repeats=1)
    path = write_steps(tmp_path / "profile", measured, {"model": "device", "host_us": 200.0})
    table, host_s = read_steps(path)
    oracle = TableOracle(table, step_s=host_s)
    for shape in (decode_shape(5, 500), StepShape((Chunk(20, 0), Chunk(50, 100)), 4, 4, 400, 6)):
        expected = 1e-3 + shape.num_tokens * 1e-5 + 200e-6
        assert oracle.step_time(shape).device_s == pytest.approx(expected, rel=1e-3)


def test_host_time_is_what_lies_between_steps() -> None:
    """Under a virtual clock nothing does."""

    def engine(source: TraceSource) -> Engine:
        scheduler = Scheduler(SchedulerConfig(8, 64, 256), CacheConfig(100), engine_version="0.32.0")
        return Engine(scheduler, Device(), VirtualClock(), source)

    assert host_seconds(engine, 50, 16) == pytest.approx(0.0, abs=1e-9)


def test_no_repeats() -> None:
    """Nothing would be known."""
    with pytest.raises(ConfigError, match="at least once"):
        time_steps(Device(), [StepPoint(0, 0, 1, 16)], LIMITS, vocab_size=50, repeats=0)
