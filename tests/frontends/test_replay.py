"""Replays under a virtual clock, with every instant known in advance."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from headway.config import CacheConfig, SchedulerConfig
from headway.core.arrivals import TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.plan import StepPlan, StepResult
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.executors.scripted import ScriptedExecutor
from headway.frontends.replay import progress_bar, replay
from headway.report import Slo


def make_engine(
    *, executor: ScriptedExecutor | None = None, policy: str = "chunked", num_blocks: int = 65, max_num_seqs: int = 8
) -> Engine:
    config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=64, max_model_len=128)
    scheduler = Scheduler(config, CacheConfig(num_blocks=num_blocks), policy=policy, engine_version="0.32.0")
    return Engine(scheduler, executor or ScriptedExecutor(step_duration_s=0.5), VirtualClock(), TraceSource([]))


def request(name: str, num_prompt_tokens: int, num_output_tokens: int) -> Request:
    sampling = SamplingParams(ignore_eos=True, max_tokens=num_output_tokens)
    return Request(name, SyntheticContent(name), num_prompt_tokens, sampling, 128)


def test_an_output_comes_at_the_end_of_its_step_and_waiting_for_a_step_counts() -> None:
    """Steps take 0.5 s. `b` comes at 10.2, in the middle of a's first step, and gets its first token at 11.0."""
    result = replay(make_engine(), [(10.0, request("a", 20, 3)), (10.2, request("b", 20, 1))])
    a, b = sorted(result.records, key=lambda record: record.request_id)
    assert (a.sent_at, a.first_token_at, a.last_token_at) == pytest.approx((10.0, 10.5, 11.5))
    assert (b.sent_at, b.first_token_at, b.last_token_at) == pytest.approx((10.2, 11.0, 11.0))
    assert (a.num_prompt_tokens, a.num_output_tokens, a.max_itl_s) == pytest.approx((20, 3, 0.5))
    assert result.summary["duration"] == pytest.approx(1.5), "from the first arrival, not from instant 0"
    assert result.summary["mean_itl_ms"] == pytest.approx(500)
    assert result.summary["num_steps"] == 3 and result.summary["num_unfinished"] == 0
    assert not result.interrupted


def test_a_clock_that_is_already_late_does_not_make_arrivals_late() -> None:
    """Arrivals count from the start of the replay, whatever the clock says by then."""
    engine = make_engine()
    engine.clock.wait_until(1000.0)
    (record,) = replay(engine, [(2.0, request("a", 20, 1))]).records
    assert record.sent_at == pytest.approx(1002.0) and record.ttft_s == pytest.approx(0.5)


def test_the_longest_gap_of_a_request_is_kept() -> None:
    """A prefill chunk of 63 tokens beside a decode makes one long step: a stall that `itl_ms` must see."""
    executor = ScriptedExecutor(step_duration_s=lambda plan: 0.01 * plan.num_tokens)
    arrivals = [(0.0, request("a", 1, 6)), (0.015, request("b", 100, 1))]
    result = replay(make_engine(executor=executor), arrivals, slo=Slo(itl_ms=100))
    a = next(record for record in result.records if record.request_id == "a")
    assert a.max_itl_s == pytest.approx(0.64)
    assert result.summary["request_goodput"] == pytest.approx(1 / result.summary["duration"])  # type: ignore[operator]


def test_a_closed_loop_keeps_that_many_requests_under_way_and_ignores_arrivals() -> None:
    arrivals = [(100.0 * i, request(f"r{i}", 10, 2)) for i in range(5)]
    result = replay(make_engine(), arrivals, concurrency=2)
    sent = [record.sent_at for record in sorted(result.records, key=lambda record: record.request_id)]
    assert sent == pytest.approx([0.0, 0.0, 1.0, 1.0, 2.0])
    assert result.summary["duration"] == pytest.approx(3.0)


def test_a_refused_request_is_a_failure_and_frees_its_client() -> None:
    arrivals = [(0.0, request("long", 500, 2)), (0.0, request("a", 10, 2)), (0.0, request("b", 10, 2))]
    for concurrency in (None, 1):
        fresh = [(at, request(r.request_id, r.num_prompt_tokens, 2)) for at, r in arrivals]
        result = replay(make_engine(), fresh, concurrency=concurrency)
        assert (result.summary["completed"], result.summary["failed"], result.summary["num_unfinished"]) == (2, 1, 0)


def test_preemptions_are_counted_by_request_and_in_all() -> None:
    """Two requests of 32 + 30 tokens need 8 blocks of 16 at their longest; the pool has 6."""
    arrivals = [(0.0, request("a", 32, 30)), (0.0, request("b", 32, 30))]
    result = replay(make_engine(num_blocks=7), arrivals)
    assert result.summary["completed"] == 2
    assert result.summary["num_preemptions"] == sum(record.num_preemptions for record in result.records) > 0


def test_kv_waste_is_what_a_reservation_leaves_unused() -> None:
    """128 slots reserved; the steps hold 20, 21, 22 and 23 tokens."""
    result = replay(make_engine(policy="naive"), [(0.0, request("a", 20, 4))])
    assert result.summary["mean_kv_waste"] == pytest.approx(1 - 86 / (4 * 128))
    assert result.summary["peak_kv_waste"] == pytest.approx(1 - 20 / 128)


class InterruptedExecutor(ScriptedExecutor):
    """Ctrl-C arrives in the third step."""

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.step_id == 2:
            raise KeyboardInterrupt
        return super().execute(plan)


def test_an_interrupt_reports_what_was_done() -> None:
    executor = InterruptedExecutor(step_duration_s=0.5)
    result = replay(make_engine(executor=executor), [(0.0, request("a", 5, 2)), (0.0, request("b", 5, 9))])
    assert result.interrupted
    assert (result.summary["completed"], result.summary["num_unfinished"], result.summary["failed"]) == (1, 1, 0)
    assert result.summary["mean_ttft_ms"] == pytest.approx(500)


def test_progress_counts_requests_and_tokens() -> None:
    seen: list[tuple[int, int]] = []

    def note(num_ended: int, num_tokens: int) -> None:
        seen.append((num_ended, num_tokens))

    replay(make_engine(), [(0.0, request("a", 5, 2)), (0.0, request("b", 5, 3))], on_progress=note)
    assert seen == [(0, 2), (1, 4), (2, 5)]


def test_the_progress_bar_is_for_terminals_and_others_get_two_lines() -> None:
    for is_terminal in (True, False):
        stream = io.StringIO()
        with progress_bar("chunked", 2, Console(file=stream, force_terminal=is_terminal)) as on_progress:
            arrivals = [(0.0, request("a", 5, 2)), (0.0, request("b", 5, 3))]
            replay(make_engine(), arrivals, on_progress=on_progress)
        assert ("2/2" in stream.getvalue()) is is_terminal
        assert is_terminal or stream.getvalue().splitlines() == ["chunked: 2 requests …", "chunked: done"]


def test_nothing_to_replay_is_an_empty_result() -> None:
    arrivals: Sequence[tuple[float, Request]] = []
    result = replay(make_engine(), arrivals)
    assert result.records == [] and result.summary["completed"] == 0
