"""Behaviours that vLLM's own core tests pin, as vectors against our scheduler: the priority policy."""

from __future__ import annotations

import pytest

from headway.core.profiles import EngineCrashError
from tests.conformance.stepper import Stepper, ids_of, shares


def priority_stepper(**limits: object) -> Stepper:
    return Stepper(scheduling_policy="priority", **limits)  # type: ignore[arg-type]


def test_lowest_value_runs_first() -> None:
    """Priorities 2, 0, 1 are scheduled as 1, 2, 0."""
    stepper = priority_stepper()
    for i, priority in enumerate((2, 0, 1)):
        stepper.add(str(i), 10, priority=priority)
    assert ids_of(stepper.schedule().new) == ["1", "2", "0"]


def test_arrival_breaks_ties() -> None:
    """Equal priorities, arrivals 3, 1, 2."""
    stepper = priority_stepper()
    for i, arrived_at in enumerate((3.0, 1.0, 2.0)):
        stepper.add(str(i), 10, priority=1, arrived_at=arrived_at)
    assert ids_of(stepper.schedule().new) == ["1", "2", "0"]


def test_priority_goes_before_arrival() -> None:
    """(2, 1), (1, 3), (1, 2), (0, 4): by priority, then by arrival."""
    stepper = priority_stepper()
    for i, (priority, arrived_at) in enumerate(((2, 1.0), (1, 3.0), (1, 2.0), (0, 4.0))):
        stepper.add(str(i), 10, priority=priority, arrived_at=arrived_at)
    assert ids_of(stepper.schedule().new) == ["3", "2", "1", "0"]


def test_one_seat_leaves_the_rest_in_order() -> None:
    """Priorities 3, 1, 2, 0 with one seat: "3" runs, "1", "2", "0" wait in that order."""
    stepper = priority_stepper(max_num_seqs=1)
    for i, priority in enumerate((3, 1, 2, 0)):
        stepper.add(str(i), 10, priority=priority)
    assert ids_of(stepper.schedule().new) == ["3"]
    assert stepper.waiting == ["1", "2", "0"]


def test_a_newcomer_never_takes_a_seat_or_blocks_from_a_running_request() -> None:
    """Priority decides only who is admitted next and who falls when a running request cannot grow."""
    stepper = priority_stepper(max_num_seqs=1)
    stepper.add("low", 10, priority=9)
    stepper.step()
    stepper.add("high", 10, priority=0)
    plan = stepper.schedule()
    assert not plan.preempted and stepper.running == ["low"] and stepper.waiting == ["high"]


def test_the_lowest_running_priority_falls() -> None:
    """5 usable blocks of 16: `low` (32 tokens, priority 5) and `high` (32, 0) both need a third; `low` gives way."""
    stepper = priority_stepper(num_blocks=6, max_num_batched_tokens=200)
    stepper.add("low", 32, priority=5)
    assert stepper.step() == {"low": 32}
    stepper.add("high", 32, priority=0)
    assert stepper.step() == {"low": 1, "high": 32}
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["low"]
    assert shares(plan) == {"high": 1}
    assert stepper.running == ["high"] and stepper.waiting == ["low"]


def test_the_victim_is_the_latest_of_the_lowest() -> None:
    """Priorities 5, 5, 9 and arrivals 1, 2, 3; then equal priorities: the latest arrival falls."""
    for priorities, victim in (((5, 5, 9), "2"), ((5, 5, 5), "2"), ((5, 6, 5), "1")):
        stepper = priority_stepper(num_blocks=5, block_size=4, max_num_batched_tokens=64)
        for i, priority in enumerate(priorities):
            stepper.add(str(i), 4, priority=priority)
        stepper.step()
        stepper.step()
        assert victim in stepper.waiting, priorities


def test_a_preempted_request_resumes_with_its_outputs() -> None:
    """4 usable blocks of 16: low (30 + 2 tokens) falls when it needs a third; it resumes with all 32 to compute."""
    stepper = priority_stepper(num_blocks=5, max_num_batched_tokens=200)
    low = stepper.add("low", 30, priority=1)
    assert stepper.step() == {"low": 30}
    stepper.add("high", 32, max_tokens=4, priority=0)
    assert stepper.step() == {"low": 1, "high": 32}
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["low"] and shares(plan) == {"high": 1}
    assert low.num_tokens == 32 and low.num_computed_tokens == 0
    stepper.update(plan)
    while "high" in stepper.scheduler.requests:
        stepper.step()
    plan = stepper.schedule()
    assert ids_of(plan.resumed) == ["low"] and shares(plan) == {"low": 32}


def seated(stepper: Stepper, *requests: tuple[str, int, int]) -> Stepper:
    """Seat (id, prompt length, priority) in the given order, one plan each, before any output comes."""
    plans = []
    for name, length, priority in requests:
        stepper.add(name, length, priority=priority)
        plans.append(stepper.schedule())
    for plan in plans:
        stepper.update(plan)
    assert stepper.running == [name for name, _, _ in requests]
    return stepper


def victim_before_cursor(version: str) -> Stepper:
    """Running a, b, c hold all 5 blocks of 4. In the next step a decodes; then b needs a block, and a must fall."""
    stepper = priority_stepper(engine_version=version, num_blocks=6, block_size=4, max_num_batched_tokens=64)
    return seated(stepper, ("a", 5, 9), ("b", 4, 0), ("c", 5, 0))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.10.2", {"a": 1, "b": 1}),
        ("0.11.0", {"a": 1, "b": 1}),
        ("0.11.1", {"b": 1, "c": 1}),
        ("0.32.0", {"b": 1, "c": 1}),
    ],
)
def test_a_victim_that_this_step_had_scheduled(version: str, expected: dict[str, int]) -> None:
    """It stays in the step without blocks and the next request is skipped (to 0.11.0), or is taken out (0.11.1 on)."""
    stepper = victim_before_cursor(version)
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["a"]
    assert shares(plan) == expected
    assert not any(item.samples for item in plan.scheduled if item.request.request_id == "a")


def test_such_a_victim_resumes_behind_tokens_that_were_never_computed() -> None:
    """0.10.2: the share it had still counts as computed, so 1 of its 6 tokens is skipped, without a prefix lookup."""
    stepper = victim_before_cursor("0.10.2")
    stepper.step()
    assert stepper.requests["a"].num_computed_tokens == 1
    stepper.abort("b")
    stepper.abort("c")
    assert stepper.step() == {"a": 5}


def test_such_a_victim_kills_the_engine_of_early_releases() -> None:
    """0.9.2 to 0.10.1 count it as scheduled but not as running, and assert that the first is not more."""
    stepper = priority_stepper(engine_version="0.9.2", num_blocks=4, block_size=4, max_num_batched_tokens=64)
    seated(stepper, ("a", 5, 9), ("b", 4, 0))
    with pytest.raises(EngineCrashError):
        stepper.schedule()


def test_without_priorities_the_policy_is_first_come_first_served() -> None:
    """All equal: order of arrival."""
    stepper = priority_stepper()
    for i in range(5):
        stepper.add(str(i), 10, priority=3)
    assert ids_of(stepper.schedule().new) == [str(i) for i in range(5)]


@pytest.mark.parametrize(("version", "expected"), [("0.32.0", {"a": 1}), ("0.33.0", {"a": 1, "c": 1})])
def test_a_request_that_preempts_itself_lets_the_others_go_on(version: str, expected: dict[str, int]) -> None:
    """From 0.33.0 the pass over the running requests continues behind it; before, it ends there."""
    stepper = priority_stepper(engine_version=version, num_blocks=6, block_size=4, max_num_batched_tokens=64)
    seated(stepper, ("a", 5, 0), ("b", 4, 9), ("c", 5, 0))
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["b"] and shares(plan) == expected
