"""The engine loop: arrivals, refusals, aborts, idling, events; always with every invariant checked."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.arrivals import Arrival, Finish, Inbox, TraceSource
from headway.core.clock import WallClock
from headway.core.events import Event, RequestArrived, RequestEnded, RequestRefused, StepFinished, StepScheduled
from headway.core.plan import StepPlan
from headway.core.request import FinishReason, Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.errors import ContextLengthError, EngineDeadError, RequestError
from headway.executors.scripted import ScriptedExecutor
from tests.core.naive_device import Script
from tests.core.support import make_engine, make_request, make_scheduler, run
from tests.strategies import EOS_ID, RequestSpec, Setup, request_specs, setups


def test_time_runs_by_step_durations_and_jumps_between_arrivals() -> None:
    first, second = make_request("a", 10, 3), make_request("b", 10, 1)
    engine = make_engine(make_scheduler(), [(2.0, first), (100.0, second)])
    run(engine)
    assert (first.first_scheduled_at, first.first_token_at, first.finished_at) == (2.0, 3.0, 5.0)
    assert (second.first_token_at, engine.clock.now(), engine.num_steps) == (101.0, 101.0, 4)


def test_overlapping_steps_share_one_device() -> None:
    """Asynchronous: the second step is submitted early but starts when the first has ended."""
    request = make_request("a", 10, 3)
    engine = make_engine(make_scheduler(async_scheduling=True), [(0.0, request)], max_in_flight=2)
    run(engine)
    assert (request.first_token_at, request.finished_at) == (1.0, 3.0)


def test_a_request_larger_than_the_pool_is_refused_with_numbers_and_the_others_go_on() -> None:
    refused: list[tuple[str, str]] = []
    events: list[Event] = []
    engine = make_engine(
        make_scheduler(num_blocks=8),
        [(0.0, make_request("fits", 40, 5)), (1.0, make_request("too big", 200)), (2.0, make_request("late", 40, 5))],
        listeners=[events.append],
        on_refused=lambda request, error: refused.append((request.request_id, str(error))),
    )
    tokens = run(engine)
    assert {name: len(ids) for name, ids in tokens.items()} == {"fits": 5, "late": 5}
    ((request_id, message),) = refused
    assert request_id == "too big" and "13 KV blocks" in message and "200 tokens" in message and "has 7" in message
    assert [event.request.request_id for event in events if isinstance(event, RequestRefused)] == ["too big"]


@pytest.mark.parametrize("max_in_flight", [1, 2])
@pytest.mark.parametrize("max_tokens", [60, None])
def test_eight_blocks_and_four_long_generations_preempt_and_do_not_hang(
    max_in_flight: int, max_tokens: int | None
) -> None:
    """One sequence alone could outgrow the pool: it then ends at what the pool holds, by length."""
    requests = [make_request(str(i), 20, max_tokens, max_model_len=1024) for i in range(4)]
    scheduler = make_scheduler(num_blocks=8, async_scheduling=max_in_flight > 1)
    tokens = run(make_engine(scheduler, [(0.0, request) for request in requests], max_in_flight=max_in_flight))
    assert scheduler.stats.num_preemptions > 0
    expected = 60 if max_tokens else 7 * 16 - 20
    assert [len(tokens[str(i)]) for i in range(4)] == [expected] * 4
    assert all(request.finish_reason is FinishReason.LENGTH for request in requests)


def test_a_step_that_only_preempts_is_not_a_stall() -> None:
    """The least important request preempts itself and the step runs nothing; the engine must carry on."""
    low = make_request("low", 32, 40, priority=5)
    high = make_request("high", 12, 40, priority=0, arrived_at=1.0)
    events: list[Event] = []
    scheduler = make_scheduler(num_blocks=6, scheduling_policy="priority")
    tokens = run(make_engine(scheduler, [(0.0, low), (1.0, high)], listeners=[events.append]))
    assert {name: len(ids) for name, ids in tokens.items()} == {"low": 40, "high": 40}
    plans = [event.plan for event in events if isinstance(event, StepScheduled)]
    assert any(plan.preempted and not plan.scheduled for plan in plans), "the case did not occur"


def test_an_abort_frees_blocks_and_only_ends_its_own_request() -> None:
    events: list[Event] = []
    source = TraceSource(
        [(0.0, Arrival(make_request("a", 40, 50))), (0.0, Arrival(make_request("b", 40, 5))), (2.0, Finish("a"))]
    )
    engine = make_engine(make_scheduler(), source=source, listeners=[events.append])
    tokens = run(engine)
    assert (len(tokens["a"]), len(tokens["b"])) == (2, 5)
    (ended,) = (event for event in events if isinstance(event, RequestEnded))
    assert (ended.request.request_id, ended.request.finish_reason) == ("a", FinishReason.ABORT)
    assert engine.stats.finished == {FinishReason.ABORT: 1, FinishReason.LENGTH: 1}


def test_ending_an_unknown_request_is_no_error() -> None:
    source = TraceSource([(0.0, Finish("nobody")), (0.0, Arrival(make_request("a", 4, 2)))])
    assert len(run(make_engine(make_scheduler(), source=source))["a"]) == 2


def test_a_frontend_can_stop_a_request_with_its_stop_string() -> None:
    request = make_request("a", 4, 50)
    source = TraceSource([(0.0, Arrival(request)), (3.0, Finish("a", FinishReason.STOP, "\n\n"))])
    run(make_engine(make_scheduler(), source=source))
    assert (request.finish_reason, request.stop_reason, request.num_output_tokens) == (FinishReason.STOP, "\n\n", 3)


def test_events_tell_the_life_of_a_request_in_order() -> None:
    events: list[Event] = []
    run(make_engine(make_scheduler(), [(1.0, make_request("a", 4, 2))], listeners=[events.append]))
    kinds = [type(event) for event in events]
    assert kinds == [RequestArrived, StepScheduled, StepFinished, StepScheduled, StepFinished]
    assert [getattr(event, "at", None) for event in events] == [1.0, 1.0, 2.0, 2.0, 3.0]
    last = events[-1]
    assert isinstance(last, StepFinished) and last.outputs[0].finish_reason is FinishReason.LENGTH


def test_counters() -> None:
    engine = make_engine(make_scheduler(caching=True), [(0.0, make_request(str(i), range(40), 3)) for i in range(3)])
    run(engine)
    stats = engine.stats
    assert (stats.num_prompt_tokens, stats.num_generation_tokens, stats.num_preemptions) == (120, 9, 0)
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (120, 64)


def test_duplicate_ids_are_refused_and_the_first_goes_on() -> None:
    refused: list[Exception] = []
    engine = make_engine(
        make_scheduler(),
        [(0.0, make_request("a", 4, 3)), (0.0, make_request("a", 5, 3))],
        on_refused=lambda request, error: refused.append(error),
    )
    assert len(run(engine)["a"]) == 3
    assert [type(error) for error in refused] == [RequestError]


def test_executors_learn_of_every_end_even_if_nothing_runs_afterwards() -> None:
    """Otherwise they keep state of ended requests for ever, and give it to the next one of that id."""
    released: list[str] = []

    def price(plan: StepPlan) -> float:
        released.extend(plan.released_ids)
        return 1.0

    source = TraceSource(
        [(float(i), Arrival(make_request(f"r{i}", 20, 2))) for i in range(5)]
        + [(20.0, Arrival(make_request("x", 4, 1)))]
    )
    run(make_engine(make_scheduler(), source=source, executor=ScriptedExecutor(step_duration_s=price)))
    assert released == [f"r{i}" for i in range(5)]


def test_a_stalled_engine_says_so_instead_of_spinning() -> None:
    """Nothing lets such a request in through the door; put behind it, it must not hang the loop."""
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_request("too big", 500))
    engine = make_engine(scheduler)
    with pytest.raises(EngineDeadError, match=r"1 request\(s\) wait.*too big"):
        engine.step()


def test_a_stalled_engine_waits_for_what_is_still_to_come() -> None:
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_request("too big", 500))
    engine = make_engine(scheduler, source=TraceSource([(7.0, Finish("too big"))]))
    assert engine.step() == [] and engine.clock.now() == 7.0
    assert engine.step() == [] and not engine.has_work


def test_check_refuses_what_the_door_would_refuse_and_changes_nothing() -> None:
    engine = make_engine(make_scheduler(num_blocks=4))
    with pytest.raises(ContextLengthError):
        engine.check(make_request("r", 500))
    engine.check(make_request("r", 5))
    assert not engine.has_work


def test_an_inbox_wakes_an_idle_engine_from_another_thread() -> None:
    inbox = Inbox()
    engine = make_engine(make_scheduler(), source=inbox, clock=WallClock(), executor=ScriptedExecutor())
    got: list[str] = []

    def loop() -> None:
        got.extend(output.request.request_id for outputs in engine.run() for output in outputs)

    thread = threading.Thread(target=loop)
    thread.start()
    for i in range(20):
        inbox.put(Arrival(make_request(str(i), 3, 1)))
    inbox.close()
    thread.join(timeout=30)
    assert not thread.is_alive() and sorted(got, key=int) == [str(i) for i in range(20)]


def test_a_closed_inbox_ends_the_run_once_everything_is_done() -> None:
    inbox = Inbox()
    inbox.put(Arrival(make_request("a", 4, 3)))
    inbox.close()
    assert not inbox.exhausted
    assert len(run(make_engine(make_scheduler(), source=inbox))["a"]) == 3
    assert inbox.exhausted


@given(setup=setups(), arrivals=st.lists(st.tuples(st.integers(0, 30), request_specs(30)), max_size=12))
def test_every_request_gets_exactly_its_tokens(setup: Setup, arrivals: list[tuple[int, RequestSpec]]) -> None:
    """Whatever the policy, the pool and the neighbours: the tokens of a run are each request's own, in order, once."""
    scheduler = setup.make()
    limit = scheduler.config.max_model_len
    requests: dict[str, tuple[Request, Script]] = {}
    items = []
    for i, (at, spec) in enumerate(arrivals):
        content = TokenContent(spec.prompt, setup.cache.block_size, spec.salt)
        sampling = SamplingParams(temperature=0.0, max_tokens=spec.max_tokens)
        eos = frozenset({EOS_ID})
        request = Request(
            str(i), content, len(spec.prompt), sampling, limit, eos_token_ids=eos, arrived_at=at, priority=spec.priority
        )
        requests[str(i)] = request, Script(i, spec)
        items.append((float(at), request))
    refused: set[str] = set()
    scripts = {name: [script.output(i) for i in range(limit)] for name, (_, script) in requests.items()}
    engine = make_engine(
        scheduler,
        items,
        executor=ScriptedExecutor(scripts, step_duration_s=1.0),
        max_in_flight=setup.depth,
        on_refused=lambda request, error: refused.add(request.request_id),
    )
    tokens = run(engine)
    for name, (request, script) in requests.items():
        if name not in refused:
            assert (tokens[name], request.finish_reason) == script.expected(request.max_total_tokens)
    assert len(tokens) + len(refused) == len(requests)
