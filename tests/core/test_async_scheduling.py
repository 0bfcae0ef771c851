"""Steps that overlap: scheduling runs ahead of results, and nothing is lost, repeated or wasted."""

from __future__ import annotations

import pytest

from headway.core.plan import StepPlan
from headway.core.request import FinishReason
from headway.core.scheduler import Scheduler
from headway.executors.scripted import ScriptedExecutor
from tests.core.support import make_engine, make_request, make_scheduler, run, shares


def _async(**limits: object) -> Scheduler:
    return make_scheduler(async_scheduling=True, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
def test_no_step_is_wasted_at_max_tokens(max_tokens: int) -> None:
    scheduler, plans = _async(), list[StepPlan]()
    executor = ScriptedExecutor(step_duration_s=lambda plan: plans.append(plan) or 1.0)  # type: ignore[func-returns-value]
    run(make_engine(scheduler, [(0.0, make_request("r", 10, max_tokens))], executor=executor, max_in_flight=2))
    assert sum(plan.num_tokens for plan in plans) == 10 + max_tokens - 1


def test_a_stop_costs_one_useless_step_whose_token_is_dropped() -> None:
    scheduler, plans = _async(), list[StepPlan]()
    executor = ScriptedExecutor(
        {"r": [1, 2, 7, 99]},
        step_duration_s=lambda plan: plans.append(plan) or 1.0,  # type: ignore[func-returns-value]
    )
    request = make_request("r", 10, 9, eos=frozenset({7}))
    tokens = run(make_engine(scheduler, [(0.0, request)], executor=executor, max_in_flight=2))
    assert tokens == {"r": [1, 2, 7]}
    assert sum(plan.num_tokens for plan in plans) == 10 + 3


def test_a_prompt_in_flight_is_not_scheduled_again_before_its_output_when_synchronous() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 10))
    assert shares(scheduler.schedule(0.0)) == [("a", 10)]
    scheduler.add(make_request("b", 12))
    assert shares(scheduler.schedule(0.0)) == [("b", 12)]


def test_an_abort_in_flight_frees_at_once_and_the_late_output_is_ignored() -> None:
    scheduler, executor = _async(), ScriptedExecutor()
    scheduler.add(make_request("a", 40, 9))
    plan = scheduler.schedule(0.0)
    scheduler.finish("a", FinishReason.ABORT)
    assert scheduler.kv.pool.num_referenced_blocks == 0
    assert scheduler.update(plan, executor.execute(plan), 0.0) == []
    scheduler.check_integrity()


def test_an_id_that_returns_while_its_old_step_is_in_flight_gets_only_its_own_tokens() -> None:
    scheduler = _async()
    old, new = make_request("r", 10, 3), make_request("r", 20, 3)
    scheduler.add(old)
    old_plan = scheduler.schedule(0.0)
    executor = ScriptedExecutor({"r": [1, 2, 3]})
    old_result = executor.execute(old_plan)
    scheduler.finish("r", FinishReason.ABORT)
    scheduler.add(new)
    new_plan = scheduler.schedule(0.0)
    assert new_plan.released_ids == ["r"] and new_plan.new == [new]
    new_result = executor.execute(new_plan)
    assert scheduler.update(old_plan, old_result, 0.0) == []
    (output,) = scheduler.update(new_plan, new_result, 0.0)
    assert output.request is new and output.token_ids == (1,)
    assert old.num_output_tokens == 0


def test_a_request_preempted_in_flight_keeps_its_token_and_waits_for_it_before_it_resumes() -> None:
    """11 blocks of 16, two prompts of 80: the first decode preempts b while b's first token is in flight."""
    scheduler, executor = _async(num_blocks=11, budget=200), ScriptedExecutor({"b": [42, 43]})
    for name in "ab":
        scheduler.add(make_request(name, 80, 20))
    first = scheduler.schedule(0.0)
    result = executor.execute(first)
    second = scheduler.schedule(0.0)
    victim = scheduler.requests["b"]
    assert [request.request_id for request in second.preempted] == ["b"] and victim.num_stale_tokens == 80
    scheduler.finish("a", FinishReason.ABORT)
    assert shares(scheduler.schedule(0.0)) == [], "there is room, but its token is still to come"
    outputs = scheduler.update(first, result, 0.0)
    assert [(output.request.request_id, output.token_ids) for output in outputs] == [("b", (42,))]
    assert shares(scheduler.schedule(0.0)) == [("b", 81)]
    scheduler.check_integrity()


def test_overlap_and_order_give_the_same_tokens() -> None:
    scripts = {str(i): range(100 * i, 100 * i + 50) for i in range(6)}
    results = []
    for is_async, depth in ((False, 1), (False, 2), (True, 2)):
        scheduler = make_scheduler(num_blocks=12, budget=40, async_scheduling=is_async)
        arrivals = [(0.5 * i, make_request(str(i), 20 + i, 10 + 3 * i)) for i in range(6)]
        engine = make_engine(scheduler, arrivals, executor=ScriptedExecutor(scripts), max_in_flight=depth)
        results.append(run(engine))
    assert results[0] == results[1] == results[2]
    assert results[0] == {str(i): list(range(100 * i, 100 * i + 10 + 3 * i)) for i in range(6)}
