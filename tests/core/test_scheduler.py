"""Single decisions of the scheduler, many of them vectors of vLLM's own tests (`docs/scheduler-vs-vllm.md`)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headway.core.plan import NOTHING, Emission, RequestOutput, StepPlan, StepResult
from headway.core.request import FinishReason, Request, RequestStatus, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import ContextLengthError, RequestError
from headway.executors.scripted import ScriptedExecutor
from tests.core.support import make_request, make_scheduler, one_step, shares


def _emit(scheduler: Scheduler, plan: StepPlan, emissions: Iterable[Emission]) -> list[RequestOutput]:
    outputs = scheduler.update(plan, StepResult(plan.step_id, list(emissions), 0.0), 0.0)
    scheduler.check_integrity()
    return outputs


def _running_one(request: Request) -> tuple[Scheduler, StepPlan]:
    scheduler = make_scheduler()
    scheduler.add(request)
    return scheduler, scheduler.schedule(0.0)


# ---------------------------------------------------------------------- how a request ends


def test_eos_ends_a_request_without_a_stop_reason() -> None:
    scheduler, plan = _running_one(make_request("r", 5, 9, eos=frozenset({7})))
    (output,) = _emit(scheduler, plan, [Emission(1, [7])])
    assert (output.finish_reason, output.request.stop_reason) == (FinishReason.STOP, None)


def test_a_stop_id_ends_a_request_and_is_the_stop_reason() -> None:
    scheduler, plan = _running_one(make_request("r", 5, 9, stop_token_ids=frozenset({42})))
    (output,) = _emit(scheduler, plan, [Emission(1, [42])])
    assert (output.finish_reason, output.request.stop_reason) == (FinishReason.STOP, 42)


def test_ignore_eos_generates_past_it() -> None:
    scheduler, plan = _running_one(make_request("r", 5, 9, eos=frozenset({7}), ignore_eos=True))
    (output,) = _emit(scheduler, plan, [Emission(1, [7])])
    assert output.finish_reason is None


def test_eos_on_the_last_allowed_token_is_a_stop_not_a_length() -> None:
    scheduler, plan = _running_one(make_request("r", 5, 1, eos=frozenset({7})))
    (output,) = _emit(scheduler, plan, [Emission(1, [7])])
    assert output.finish_reason is FinishReason.STOP


def test_tokens_after_a_stop_id_are_dropped() -> None:
    request = make_request("r", 5, 9, stop_token_ids=frozenset({42}))
    scheduler, plan = _running_one(request)
    plan = _with_drafts(scheduler, plan, request, 2)
    (output,) = _emit(scheduler, plan, [Emission(3, [10, 42, 12])])
    assert (output.num_tokens, output.token_ids, request.num_output_tokens) == (2, [10, 42], 3)


def test_tokens_after_max_tokens_are_dropped() -> None:
    request = make_request("r", 5, 3)
    scheduler, plan = _running_one(request)
    plan = _with_drafts(scheduler, plan, request, 2)
    (output,) = _emit(scheduler, plan, [Emission(3, [10, 11, 12])])
    assert (output.token_ids, output.finish_reason) == ([10, 11], FinishReason.LENGTH)


def _with_drafts(scheduler: Scheduler, plan: StepPlan, request: Request, num_drafts: int) -> StepPlan:
    """The first token has come with drafts; returns the step that verifies them."""
    _emit(scheduler, plan, [Emission(1, [1], num_next_draft_tokens=num_drafts)])
    return scheduler.schedule(0.0)


def test_a_simulated_stop_past_the_length_limit_is_a_length() -> None:
    request = Request("r", SyntheticContent("r"), 5, SamplingParams(max_tokens=2), 100)
    scheduler, plan = _running_one(request)
    plan = _with_drafts_simulated(scheduler, plan)
    (output,) = _emit(scheduler, plan, [Emission(3, stop=True)])
    assert (output.num_tokens, output.finish_reason) == (1, FinishReason.LENGTH)


def _with_drafts_simulated(scheduler: Scheduler, plan: StepPlan) -> StepPlan:
    _emit(scheduler, plan, [Emission(1, num_next_draft_tokens=2)])
    return scheduler.schedule(0.0)


def test_a_request_ends_at_max_model_len_and_never_computes_past_it() -> None:
    scheduler, executor = make_scheduler(max_model_len=20), ScriptedExecutor()
    request = make_request("r", 15, 100, max_model_len=20)
    scheduler.add(request)
    while scheduler.has_requests:
        one_step(scheduler, executor)
        assert request.num_computed_tokens <= 19
    assert (request.num_tokens, request.finish_reason) == (20, FinishReason.LENGTH)


# ---------------------------------------------------------------------- the door


@pytest.mark.parametrize(
    ("num_prompt", "error"), [(0, RequestError), (100, ContextLengthError), (500, ContextLengthError)]
)
def test_prompts_that_can_never_run_are_refused_with_the_numbers(num_prompt: int, error: type[RequestError]) -> None:
    scheduler = make_scheduler(max_model_len=100)
    with pytest.raises(error) as caught:
        scheduler.check(make_request("r", num_prompt))
    assert num_prompt == 0 or ("100" in caught.value.message and str(num_prompt) in caught.value.message)


def test_the_longest_prompt_that_leaves_room_for_one_token_is_let_in() -> None:
    make_scheduler(max_model_len=100).check(make_request("r", 99))
    make_scheduler(num_blocks=2).check(make_request("r", 15))
    with pytest.raises(ContextLengthError, match=r"needs 2 KV blocks .* prompt of 16 tokens, but the KV cache has 1"):
        make_scheduler(num_blocks=2).check(make_request("r", 16))


def test_look_ahead_slots_count_at_the_door() -> None:
    """Otherwise the request would wait for ever: its last chunk wants slots that the pool does not have."""
    scheduler = make_scheduler(num_blocks=2, num_lookahead_tokens=3)
    scheduler.check(make_request("r", 12))
    with pytest.raises(ContextLengthError):
        scheduler.check(make_request("r", 13))


def test_an_id_may_return_once_its_request_has_ended() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("r", 5))
    with pytest.raises(RequestError, match="already running"):
        scheduler.add(make_request("r", 6))
    scheduler.finish("r", FinishReason.ABORT)
    scheduler.add(make_request("r", 6))
    plan = scheduler.schedule(0.0)
    assert (shares(plan), plan.released_ids) == ([("r", 6)], ["r"])


# ---------------------------------------------------------------------- budget, seats, order


def test_concurrent_partial_prompts() -> None:
    """vLLM's vector: budget 1024, threshold 400, three prompts of 800."""
    scheduler, executor = make_scheduler(budget=1024, long_prefill_token_threshold=400), ScriptedExecutor()
    for name in "abc":
        scheduler.add(make_request(name, 800))
    steps = [[num_tokens for _, num_tokens in shares(one_step(scheduler, executor)[0])] for _ in range(3)]
    assert steps == [[400, 400, 224], [400, 400, 224], [1, 1, 352]]


def test_the_threshold_is_ignored_by_a_lone_request_and_floored_by_the_fair_share() -> None:
    limits = {"budget": 1024, "max_model_len": 4096, "long_prefill_token_threshold": 100}
    for adaptive, num_other, expected in ((False, 0, [1024]), (False, 10, [100, 10]), (True, 10, [512, 10])):
        scheduler = make_scheduler(**limits, long_prefill_token_threshold_adaptive=adaptive)  # type: ignore[arg-type]
        scheduler.add(make_request("long", 2000, max_model_len=4096))
        if num_other:
            scheduler.add(make_request("short", num_other))
        assert [num_tokens for _, num_tokens in shares(scheduler.schedule(0.0))] == expected


def test_no_overtaking_when_prompts_are_whole() -> None:
    """vLLM's vector: 2 × 800 and 2 × 10 tokens, budget 1024: the second 800 does not fit, and nobody passes it."""
    for chunked, expected in ((True, [800, 224]), (False, [800])):
        scheduler = make_scheduler(budget=1024, max_num_seqs=3, enable_chunked_prefill=chunked)
        for name, num_prompt in (("a", 800), ("b", 800), ("c", 10), ("d", 10)):
            scheduler.add(make_request(name, num_prompt))
        assert [num_tokens for _, num_tokens in shares(scheduler.schedule(0.0))] == expected


def test_a_running_prompt_ahead_in_the_list_takes_the_budget_before_later_decodes() -> None:
    scheduler, executor = make_scheduler(budget=32), ScriptedExecutor()
    scheduler.add(make_request("long", 100))
    one_step(scheduler, executor)
    scheduler.add(make_request("late", 5))
    assert shares(one_step(scheduler, executor)[0]) == [("long", 32)]


def test_a_budget_below_the_number_of_decodes_leaves_the_last_ones_out() -> None:
    scheduler, executor = make_scheduler(budget=2), ScriptedExecutor()
    for name in "abc":
        scheduler.add(make_request(name, 1, 9))
    one_step(scheduler, executor)
    one_step(scheduler, executor)
    assert shares(one_step(scheduler, executor)[0]) == [("a", 1), ("b", 1)]


def test_priority_decides_who_waits() -> None:
    scheduler = make_scheduler(scheduling_policy="priority", max_num_seqs=1)
    for i, priority in enumerate([3, 1, 2, 0, 1]):
        scheduler.add(make_request(str(i), 5, priority=priority, arrived_at=float(i)))
    assert shares(scheduler.schedule(0.0)) == [("3", 5)]
    assert [request.request_id for request in scheduler.waiting] == ["1", "4", "2", "0"]


def test_an_active_seat_limit_caps_admission() -> None:
    scheduler = make_scheduler(max_num_seqs=8, max_num_active_seqs=3)
    for i in range(6):
        scheduler.add(make_request(str(i), 2))
    assert len(shares(scheduler.schedule(0.0))) == 3


# ---------------------------------------------------------------------- preemption


def test_the_latest_arrival_is_preempted_and_stands_at_the_front_of_the_queue() -> None:
    """11 blocks of 16, two prompts of 80 fill ten: the first decode of one takes the other's place."""
    scheduler, executor = make_scheduler(num_blocks=11, budget=200), ScriptedExecutor()
    for name in "ab":
        scheduler.add(make_request(name, 80, 20))
    one_step(scheduler, executor)
    scheduler.add(make_request("late", 5))
    plan, _ = one_step(scheduler, executor)
    assert shares(plan) == [("a", 1)] and [request.request_id for request in plan.preempted] == ["b"]
    assert not plan.new, "a step that preempts admits nobody, whatever is free"
    assert [request.request_id for request in scheduler.waiting] == ["b", "late"]
    victim = scheduler.requests["b"]
    assert (victim.status, victim.num_computed_tokens, victim.num_output_tokens) == (RequestStatus.PREEMPTED, 0, 1)


def test_a_resumed_request_recomputes_its_outputs_too() -> None:
    scheduler, executor = make_scheduler(num_blocks=11, budget=200), ScriptedExecutor()
    for name in "ab":
        scheduler.add(make_request(name, 80, 20))
    one_step(scheduler, executor)
    one_step(scheduler, executor)
    scheduler.finish("a", FinishReason.ABORT)
    plan, _ = one_step(scheduler, executor)
    assert shares(plan) == [("b", 81)] and [request.request_id for request in plan.resumed] == ["b"]


def test_a_resumed_request_finds_its_own_blocks_but_is_not_counted_again() -> None:
    """Its second look-up would make the hit rate look better than what clients gained."""
    scheduler, executor = make_scheduler(num_blocks=11, budget=200, caching=True), ScriptedExecutor()
    for name in "ab":
        scheduler.add(make_request(name, 80, 20))
    one_step(scheduler, executor)
    one_step(scheduler, executor)
    scheduler.finish("a", FinishReason.ABORT)
    plan, _ = one_step(scheduler, executor)
    assert [request.request_id for request in plan.resumed] == ["b"] and plan.num_tokens < 81
    stats = scheduler.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.num_prompt_tokens) == (160, 0, 160)


def _self_preempting(version: str) -> Scheduler:
    """The least important request stands first, and finds the pool full of more important ones."""
    scheduler, executor = (
        make_scheduler(num_blocks=5, scheduling_policy="priority", version=version),
        ScriptedExecutor(),
    )
    scheduler.add(make_request("low", 32, 20, priority=5))
    one_step(scheduler, executor)
    scheduler.add(make_request("high", 1, 20, priority=0, arrived_at=1.0))
    while scheduler.requests["low"].num_computed_tokens < 48:
        one_step(scheduler, executor)
    return scheduler


@pytest.mark.parametrize(("version", "expected"), [("0.32.0", []), ("0.33.0", [("high", 1)])])
def test_a_request_that_preempts_itself_ends_the_pass_or_not(version: str, expected: list[tuple[str, int]]) -> None:
    """Up to 0.32 the step then runs nothing at all although another request could; the next step makes up for it."""
    scheduler = _self_preempting(version)
    plan = scheduler.schedule(0.0)
    assert [request.request_id for request in plan.preempted] == ["low"]
    assert shares(plan) == expected


# ---------------------------------------------------------------------- speculation


def test_rejected_drafts_are_rolled_back() -> None:
    request = make_request("r", 5, 20)
    scheduler, plan = _running_one(request)
    plan = _with_drafts(scheduler, plan, request, 3)
    (item,) = plan.scheduled
    assert (item.num_tokens, item.num_draft_tokens, item.samples) == (4, 3, True)
    assert request.num_computed_tokens == 9
    _emit(scheduler, plan, [Emission(2, [10, 11])])  # one of three accepted
    assert (request.num_tokens, request.num_computed_tokens) == (8, 7)
    assert shares(scheduler.schedule(0.0)) == [("r", 1)]


def test_no_drafts_for_a_prompt_that_is_not_done() -> None:
    """Budget 50, prompt 80: 50, then 30, not 33."""
    scheduler = make_scheduler(budget=50, num_speculative_tokens=3)
    scheduler.add(make_request("r", 80, 20))
    plan = scheduler.schedule(0.0)
    _emit(scheduler, plan, [NOTHING])
    plan = scheduler.schedule(0.0)
    assert shares(plan) == [("r", 30)] and plan.scheduled[0].num_draft_tokens == 0
    _emit(scheduler, plan, [Emission(1, [5], num_next_draft_tokens=3)])
    assert shares(scheduler.schedule(0.0)) == [("r", 4)]


def test_a_fully_cached_request_joins_at_the_uniform_width() -> None:
    """33 tokens, 32 cached, beside a running decode: padded with drafts that verify nothing."""
    scheduler, executor = make_scheduler(caching=True, num_speculative_tokens=3), ScriptedExecutor()
    scheduler.add(make_request("a", range(33), 20))
    one_step(scheduler, executor)
    scheduler.add(make_request("b", range(33), 20))
    plan = scheduler.schedule(0.0)
    assert shares(plan) == [("a", 1), ("b", 4)]
    assert plan.scheduled[1].num_draft_tokens == 3
    _emit(scheduler, plan, [Emission(1, [1]), Emission(1, [2])])
    assert scheduler.requests["b"].num_computed_tokens == 33
