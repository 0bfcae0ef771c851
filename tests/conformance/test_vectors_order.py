"""Behaviours that vLLM's own core tests pin, as vectors against our scheduler: order, budgets, stops, preemption."""

from __future__ import annotations

import pytest

from headway.core.request import FinishReason, RequestStatus
from tests.conformance.stepper import EOS, Stepper, ids_of, shares


def test_requests_wait_in_order_of_arrival_until_aborted() -> None:
    """Each newcomer joins the end of the queue; an abort of a waiting request leaves no trace."""
    stepper = Stepper()
    for i in range(10):
        stepper.add(str(i), 10)
        assert len(stepper.scheduler.waiting) == len(stepper.scheduler.requests) == i + 1
    for i in range(10):
        stepper.abort(str(i))
        assert str(i) not in stepper.scheduler.requests
        assert stepper.waiting == [str(j) for j in range(i + 1, 10)]


@pytest.mark.parametrize("caching", [False, True])
def test_everything_that_fits_is_admitted_in_one_step(caching: bool) -> None:
    """10 requests: all scheduled with their whole prompts, running in order of arrival."""
    stepper = Stepper(enable_prefix_caching=caching)
    for i in range(10):
        stepper.add(str(i), 10, prompt_logprobs=5 if caching else None)
    plan = stepper.schedule()
    assert shares(plan) == {str(i): 10 for i in range(10)}
    assert ids_of(plan.new) == stepper.running == [str(i) for i in range(10)]
    assert stepper.waiting == []


def test_active_seats_cap_admission() -> None:
    """16 seats but at most 3 active: 3 of 10 run."""
    stepper = Stepper(max_num_active_seqs=3)
    for i in range(10):
        stepper.add(str(i), 10)
    assert len(stepper.schedule().scheduled) == 3
    assert len(stepper.waiting) == 7


@pytest.mark.parametrize("caching", [False, True])
def test_concurrent_partial_prefills_share_the_budget(caching: bool) -> None:
    """Budget 1,024, threshold 400, three prompts of 800: 400/400/224, again, then 1/1/352."""
    stepper = Stepper(max_num_batched_tokens=1024, long_prefill_token_threshold=400, enable_prefix_caching=caching)
    for name in "abc":
        stepper.add(name, 800)
    assert stepper.step() == {"a": 400, "b": 400, "c": 224}
    assert stepper.step() == {"a": 400, "b": 400, "c": 224}
    assert stepper.step() == {"a": 1, "b": 1, "c": 352}
    assert all(request.num_output_tokens == 2 - (request.request_id == "c") for request in stepper.requests.values())


def test_threshold_is_ignored_when_nobody_else_could_starve() -> None:
    """Alone, 2,000 tokens take the whole budget of 1,024; next to a request of 10 they take the threshold's 400."""
    stepper = Stepper(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    stepper.add("long", 2000)
    assert stepper.step() == {"long": 1024}
    stepper = Stepper(max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    stepper.add("long", 2000)
    stepper.add("short", 10)
    assert stepper.step() == {"long": 400, "short": 10}


def test_adaptive_threshold_is_at_least_the_fair_share() -> None:
    """Threshold 100, two requests, budget 1,024: the long prompt gets 512."""
    stepper = Stepper(
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=100,
        long_prefill_token_threshold_adaptive=True,
    )
    stepper.add("long", 2000)
    stepper.add("short", 10)
    assert stepper.step() == {"long": 512, "short": 10}


@pytest.mark.parametrize(
    ("version", "chunked", "expected"),
    [
        ("0.32.0", True, {"a": 800, "b": 224}),
        ("0.32.0", False, {"a": 800}),
        ("0.11.2", False, {"a": 800, "c": 10, "d": 10}),
        ("0.9.1", False, {"a": 800, "b": 224}),
    ],
)
def test_unchunked_prompt_that_does_not_fit(version: str, chunked: bool, expected: dict[str, int]) -> None:
    """800, 800, 10, 10 tokens, budget 1,024, 3 seats: nobody overtakes, except from 0.9.2 to 0.11.2."""
    stepper = Stepper(
        engine_version=version,
        max_num_batched_tokens=1024,
        max_num_seqs=3,
        max_model_len=1024,
        enable_chunked_prefill=chunked,
    )
    for name, length in zip("abcd", (800, 800, 10, 10), strict=True):
        stepper.add(name, length)
    assert stepper.step() == expected


def test_requests_passed_over_return_in_reverse() -> None:
    """Chunked prefill off, 0.11.2: what did not fit the budget is looked at again with the last one first."""
    stepper = Stepper(
        engine_version="0.11.2", max_num_batched_tokens=48, max_model_len=48, enable_chunked_prefill=False
    )
    for name, length in zip("abc", (40, 20, 30), strict=True):
        stepper.add(name, length)
    assert stepper.step() == {"a": 40}
    assert stepper.waiting == ["c", "b"]


@pytest.mark.parametrize(
    ("sampling", "tokens", "kept", "reason", "stop_reason"),
    [
        ({}, [10, EOS], [10, EOS], FinishReason.STOP, None),
        ({"stop_token_ids": frozenset({42, 43})}, [10, 42, 12], [10, 42], FinishReason.STOP, 42),
        ({"max_tokens": 2}, [10, 11, 12], [10, 11], FinishReason.LENGTH, None),
        ({"ignore_eos": True}, [10, EOS], [10, EOS], None, None),
        ({"stop_token_ids": frozenset({42}), "min_tokens": 5}, [42], [42], FinishReason.STOP, 42),
        ({"min_tokens": 5}, [EOS], [EOS], FinishReason.STOP, None),
    ],
)
def test_what_ends_a_request(
    sampling: dict[str, object],
    tokens: list[int],
    kept: list[int],
    reason: FinishReason | None,
    stop_reason: int | None,
) -> None:
    """Tokens after the one that ends it are dropped. A sampled stop ends it even below min_tokens."""
    stepper = Stepper(num_speculative_tokens=2)
    request = stepper.add("a", 5, **({"max_tokens": 10} | sampling))  # type: ignore[arg-type]
    plan = stepper.schedule()
    (output,) = stepper.update(plan, {"a": tokens})
    assert output.token_ids == kept
    assert (output.finish_reason, request.stop_reason) == (reason, stop_reason)
    assert (request.status is RequestStatus.FINISHED) == (reason is not None)


def test_the_model_length_ends_a_request() -> None:
    """max_model_len 12, prompt 10: two tokens, whatever max_tokens says."""
    stepper = Stepper(max_model_len=12, max_num_batched_tokens=64)
    request = stepper.add("a", 10, max_tokens=100)
    stepper.step()
    stepper.step()
    assert request.finish_reason is FinishReason.LENGTH and request.num_output_tokens == 2


def test_a_second_batch_is_scheduled_while_the_first_runs() -> None:
    """Synchronous scheduler, two plans in flight: a request whose prompt is in flight waits for its output."""
    stepper = Stepper(max_num_batched_tokens=1024, max_num_seqs=2, max_in_flight=2)
    stepper.add("a", 800)
    stepper.add("b", 800)
    first = stepper.schedule()
    assert shares(first) == {"a": 800, "b": 224}
    second = stepper.schedule()
    assert shares(second) == {"b": 576}
    stepper.update(first)
    third = stepper.schedule()
    assert shares(third) == {"a": 1}
    stepper.update(second)
    assert shares(stepper.schedule()) == {"b": 1}


def test_a_token_in_flight_survives_the_preemption_of_its_request() -> None:
    """10 blocks of 16, two prompts of 80: the first decode needs a sixth block and evicts the other mid-flight."""
    stepper = Stepper(num_blocks=11, max_num_batched_tokens=100, max_in_flight=2)
    stepper.add("a", 80)
    first = stepper.schedule()
    victim = stepper.add("b", 80)
    second = stepper.schedule()
    stepper.update(first, {"a": [0]})
    third = stepper.schedule()
    assert ids_of(third.preempted) == ["b"] and shares(third) == {"a": 1}
    assert victim.status is RequestStatus.PREEMPTED
    stepper.update(second, {"b": [42]})
    assert victim.num_output_tokens == 1 and stepper.delivered["b"] == [42]


def test_preempted_requests_return_to_the_front_in_running_order() -> None:
    """A step that preempts twice queues the earlier-running one first, and admits nobody."""
    stepper = Stepper(num_blocks=5, block_size=4, max_num_batched_tokens=64)
    for name in "abcd":
        stepper.add(name, 4)
    assert stepper.step() == {"a": 4, "b": 4, "c": 4, "d": 4}
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["d", "c"]
    assert shares(plan) == {"a": 1, "b": 1}
    assert stepper.waiting == ["c", "d"] and not plan.new and not plan.resumed


def test_a_request_that_can_never_grow_preempts_itself() -> None:
    """Nobody is left to evict: it goes, nothing is scheduled, and its blocks are all free."""
    stepper = Stepper(num_blocks=2, block_size=4, max_model_len=64, max_num_batched_tokens=64)
    stepper.add("a", 4)
    stepper.step()
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["a"] and not plan.scheduled
    assert stepper.num_free_blocks == 1


def test_the_gate_wants_the_whole_sequence_to_fit() -> None:
    """30-token prompts, 10 blocks of 4, budget 8: the second waits although its first chunk would fit; 0.18 took it."""
    for version, seated in (("0.32.0", ["a"]), ("0.18.0", ["a", "b"])):
        stepper = Stepper(engine_version=version, num_blocks=11, block_size=4, max_num_batched_tokens=12)
        stepper.add("a", 30, max_tokens=4)
        stepper.step()
        stepper.step()
        stepper.add("b", 30, max_tokens=4)
        stepper.step()
        assert stepper.running == seated, version


def test_watermark_applies_only_next_to_running_requests() -> None:
    """10 blocks, watermark 0.5: alone a request may take 8; a second one of 2 must leave 5 free and waits."""
    stepper = Stepper(num_blocks=11, block_size=4, watermark=0.5, max_num_batched_tokens=64)
    stepper.add("a", 30)
    stepper.add("b", 8)
    assert stepper.step() == {"a": 30}
    assert stepper.waiting == ["b"]


def test_nothing_is_left_when_all_have_finished() -> None:
    """All blocks free, no request known, no reference held."""
    stepper = Stepper(enable_prefix_caching=True)
    for i in range(5):
        stepper.add(str(i), 10, max_tokens=10)
    while stepper.scheduler.has_requests:
        stepper.step()
    assert stepper.num_free_blocks == 9_999
    assert not stepper.running and not stepper.waiting
    assert all(block.ref_count == 0 for block in stepper.scheduler.kv.pool.blocks[1:])
