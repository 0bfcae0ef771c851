"""A deployment's time beside real time: the steps of the virtual clock, whatever work the machine has besides."""

from __future__ import annotations

import threading
import time

import pytest

from headway.config import CacheConfig, SchedulerConfig
from headway.core.arrivals import Arrival, Finish, Inbox, TraceSource
from headway.core.clock import Clock, VirtualClock
from headway.core.engine import Engine
from headway.core.events import Event, StepFinished
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.executors.simulated.constant import ConstantOracle
from headway.executors.simulated.executor import SimulatedExecutor
from headway.frontends.pacing import ON_THE_WAY_S, PacedClock, PacedInbox

ORACLE = ConstantOracle(step_ms=20.0, prefill_us=40.0, host_ms=1.0)
SENT_AT = (0.0, 0.013, 0.021, 0.022, 0.05, 0.2, 0.2001, 0.29)


def _request(name: str, arrived_at: float) -> Request:
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=4)
    return Request(name, SyntheticContent(name), 100, sampling, 2048, arrived_at=arrived_at)


def _received(sent_at: float) -> float:
    """When the server notes a request that was sent then."""
    return sent_at + ON_THE_WAY_S


def _engine(clock: Clock, source: Inbox | TraceSource, *, depth: int) -> tuple[Engine, list[tuple[float, list[str]]]]:
    """An engine, and the ends of its steps with who was in them."""
    config = SchedulerConfig(8, 256, 2048, async_scheduling=depth > 1)
    scheduler = Scheduler(config, CacheConfig(100, 16), engine_version="0.32.0", max_in_flight=depth)
    steps: list[tuple[float, list[str]]] = []

    def listen(event: Event) -> None:
        if isinstance(event, StepFinished) and event.plan.num_tokens:
            steps.append((event.at, sorted(item.request.request_id for item in event.plan.scheduled)))

    return Engine(scheduler, SimulatedExecutor(ORACLE), clock, source, max_in_flight=depth, listeners=[listen]), steps


@pytest.mark.parametrize("depth", [1, 2])
def test_steps_are_those_of_the_virtual_clock(depth: int) -> None:
    """Every step has the same requests and ends at the same instant, on and off asynchronous scheduling."""
    arrivals = [(at, Arrival(_request(str(index), at))) for index, at in enumerate(SENT_AT)]
    simulated, expected = _engine(VirtualClock(), TraceSource(list(arrivals)), depth=depth)
    for _ in simulated.run():
        pass

    clock = PacedClock()
    inbox = PacedInbox(clock)
    engine, found = _engine(clock, inbox, depth=depth)
    origin = clock.real_now() + 0.02
    for index, at in enumerate(SENT_AT):
        inbox.put(Arrival(_request(str(index), _received(origin + at))))
    inbox.close()
    for _ in engine.run():
        pass
    if clock.max_lag_s > 0.008:
        pytest.skip("this machine is too busy to keep to steps of 20 ms")
    assert [who for _, who in found] == [who for _, who in expected]
    assert [at - origin for at, _ in found] == pytest.approx([at for at, _ in expected], abs=1e-9)


class TestClock:
    """Two readings of one clock."""

    def test_tokens_leave_just_before_the_end(self) -> None:
        """By a millisecond at first; the engine sees the end itself."""
        clock = PacedClock()
        started = clock.real_now()
        clock.finish_step(started, 0.02)
        assert clock.now() == pytest.approx(started + 0.02)
        assert clock.real_now() >= started + 0.019

    def test_others_see_real_time(self) -> None:
        """While the engine's own stands still."""
        clock = PacedClock()
        clock.finish_step(clock.real_now(), 0.001)
        seen: list[float] = []
        time.sleep(0.02)
        thread = threading.Thread(target=lambda: seen.append(clock.now()))
        thread.start()
        thread.join()
        assert seen[0] >= clock.now() + 0.015

    def test_a_machine_that_cannot_keep_up_sets_the_time_forward(self) -> None:
        """Lateness does not add up beyond a step."""
        clock = PacedClock()
        clock.settle()
        clock.finish_step(clock.real_now() - 1.0, 0.01)
        assert clock.lag_s >= 0.9
        clock.settle()
        assert clock.now() >= clock.real_now() - 0.02

    def test_small_lateness_is_made_up_for(self) -> None:
        """The next deadline stays where it was."""
        clock = PacedClock()
        clock.settle()
        time.sleep(0.03)
        started = clock.real_now() - 0.022
        clock.finish_step(started, 0.02)
        clock.settle()
        assert clock.now() == pytest.approx(started + 0.02)


class TestInbox:
    """Who is let in when."""

    def test_a_request_that_was_long_in_reading_joins_the_step_it_came_in_time_for(self) -> None:
        """The engine decides the next step a little after the end, and then counts who was received before it."""
        clock = PacedClock()
        inbox = PacedInbox(clock)
        clock.settle()
        clock.finish_step(clock.real_now(), 0.05)
        end = clock.now()
        inbox.put(Arrival(_request("before", _received(end - 1e-4))))
        inbox.put(Arrival(_request("after", _received(end + 1e-4))))
        assert len(inbox.due(end, 0)) == 1
        assert clock.real_now() >= end + 0.004
        assert inbox.next_at() == pytest.approx(end + 1e-4)

    def test_a_request_of_the_future_waits(self) -> None:
        """Until the deployment's time has reached its receipt; its end waits with it, others' ends do not."""
        clock = PacedClock()
        inbox = PacedInbox(clock)
        clock.finish_step(clock.real_now(), 0.0)
        later = clock.now() + 60.0
        inbox.put(Arrival(_request("early", _received(clock.now()))))
        inbox.put(Arrival(_request("late", _received(later))))
        inbox.put(Finish("late"))
        inbox.put(Finish("other"))
        inbox.close()
        first = inbox.due(clock.now(), 0)
        assert [item.request.request_id if isinstance(item, Arrival) else item.request_id for item in first] == [
            "early",
            "other",
        ]
        assert inbox.next_at() == pytest.approx(later) and not inbox.exhausted
        assert len(inbox.due(later + 1.0, 1)) == 2 and inbox.exhausted and inbox.next_at() is None
