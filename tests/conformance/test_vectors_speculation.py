"""Behaviours that vLLM's own core tests pin, as vectors against our scheduler: drafts, padding, asynchrony."""

from __future__ import annotations

import pytest

from headway.core.plan import StepPlan
from headway.core.request import FinishReason
from tests.conformance.stepper import Stepper, ids_of, shares


def drafts_of(plan: StepPlan) -> dict[str, int]:
    return {item.request.request_id: item.num_draft_tokens for item in plan.scheduled if item.num_draft_tokens}


@pytest.mark.parametrize(
    ("num_drafts", "tokens", "computed"),
    [(3, [1, 2, 3, 4], 14), (3, [1, 5], 12), (3, [9], 11), (1, [1, 2], 12), (0, [5], 11)],
)
def test_verifying_drafts(num_drafts: int, tokens: list[int], computed: int) -> None:
    """1 + k tokens are scheduled to verify k drafts; rejected ones are rolled back from the computed tokens."""
    stepper = Stepper(num_speculative_tokens=3, num_lookahead_tokens=3)
    request = stepper.add("a", 10, max_tokens=50)
    stepper.step({"a": [0]}, drafts=num_drafts)
    plan = stepper.schedule()
    assert shares(plan) == {"a": 1 + num_drafts}
    assert drafts_of(plan) == ({"a": num_drafts} if num_drafts else {})
    stepper.update(plan, {"a": tokens})
    assert request.num_computed_tokens == computed
    assert request.num_output_tokens == 1 + len(tokens)
    assert stepper.step() == {"a": 1}


def test_drafts_that_outlive_the_request_are_dropped() -> None:
    """max_tokens 3: of four verified tokens two are kept."""
    stepper = Stepper(num_speculative_tokens=3)
    request = stepper.add("a", 10, max_tokens=3)
    stepper.step({"a": [0]}, drafts=3)
    stepper.step({"a": [1, 2, 3, 4]})
    assert stepper.delivered["a"] == [0, 1, 2] and request.finish_reason is FinishReason.LENGTH


def test_no_drafts_for_a_prefill_chunk() -> None:
    """Budget 50, prompt 80: 50, then 30 and not 33; drafts start after the prompt: 1 + 3."""
    stepper = Stepper(max_num_batched_tokens=50, num_speculative_tokens=3)
    stepper.add("a", 80)
    plan = stepper.schedule()
    assert shares(plan) == {"a": 50}
    stepper.update(plan, {}, drafts=3)
    plan = stepper.schedule()
    assert shares(plan) == {"a": 30} and not drafts_of(plan)
    stepper.update(plan, {"a": [1]}, drafts=3)
    assert stepper.step() == {"a": 4}


def test_drafts_are_cut_at_the_model_length() -> None:
    """Room for two tokens more: one draft of three is verified."""
    stepper = Stepper(max_model_len=13, max_num_batched_tokens=50, num_speculative_tokens=3)
    stepper.add("a", 10, max_tokens=50)
    stepper.step({"a": [0]}, drafts=3)
    plan = stepper.schedule()
    assert shares(plan) == {"a": 2} and drafts_of(plan) == {"a": 1}


def test_unverified_drafts_are_never_cached() -> None:
    """Block size 4: 7 known tokens and 3 drafts reach into a third block, but only known tokens become findable."""
    stepper = Stepper(block_size=4, num_speculative_tokens=3, enable_prefix_caching=True)
    request = stepper.add("a", 7, max_tokens=50)
    stepper.step({"a": [0]}, drafts=3)
    stepper.schedule()
    assert request.num_computed_tokens == 11 and request.num_registered_blocks == 2


def full_hit(stepper: Stepper, request_id: str) -> None:
    """A 33-token prompt, 32 tokens of which an earlier request has cached: one token is left to compute."""
    stepper.add(request_id, [*range(33)])


def warm(stepper: Stepper) -> None:
    full_hit(stepper, "warm")
    stepper.step({"warm": [1]})
    stepper.abort("warm")


@pytest.mark.parametrize(("version", "expected"), [("0.32.0", 4), ("0.24.0", 1)])
def test_a_first_decode_is_padded_to_the_uniform_size(version: str, expected: int) -> None:
    """From 0.25 on a request admitted with one token left joins running verifications as 1 + k placeholders."""
    stepper = Stepper(engine_version=version, num_speculative_tokens=3, enable_prefix_caching=True)
    warm(stepper)
    stepper.add("other", [*range(500, 510)])
    stepper.step({"other": [1]}, drafts=3)
    full_hit(stepper, "late")
    plan = stepper.schedule()
    assert shares(plan) == {"other": 4, "late": expected}
    assert plan.scheduled[1].samples


def test_no_padding_next_to_a_running_prefill() -> None:
    """The step is mixed anyway."""
    stepper = Stepper(
        num_speculative_tokens=3,
        enable_prefix_caching=True,
        max_num_batched_tokens=64,
        long_prefill_token_threshold=40,
    )
    warm(stepper)
    stepper.add("long", [*range(500, 600)])
    stepper.add("longer", [*range(700, 702)])
    stepper.step({"longer": [1]})
    full_hit(stepper, "late")
    assert stepper.step()["late"] == 1


def test_a_one_token_prompt_that_starts_a_batch_is_not_padded() -> None:
    """Nothing of it is computed and nothing runs: it is a prefill like any other."""
    stepper = Stepper(num_speculative_tokens=3)
    stepper.add("a", 1)
    stepper.add("b", 1)
    assert stepper.step() == {"a": 1, "b": 1}


def test_no_padding_beyond_the_model_length() -> None:
    """Padding must leave room for the sampled token: 33 tokens of at most 36 are not padded, of 37 they are."""
    for max_model_len, expected in ((36, 1), (37, 4)):
        stepper = Stepper(
            num_speculative_tokens=3,
            enable_prefix_caching=True,
            max_model_len=max_model_len,
            max_num_batched_tokens=64,
            async_scheduling=True,
        )
        warm(stepper)
        full_hit(stepper, "late")
        assert shares(stepper.schedule()) == {"late": expected}


# ------------------------------------------------------------------------------------- asynchronous scheduling


def run_async(stepper: Stepper, depth: int = 2) -> int:
    """Run to the end with `depth` plans in flight. Returns the tokens scheduled."""
    in_flight: list[StepPlan] = []
    total = 0
    while stepper.scheduler.has_requests or in_flight:
        if stepper.scheduler.has_requests:
            in_flight.append(stepper.schedule())
            total += in_flight[-1].num_tokens
        if len(in_flight) >= depth or not stepper.scheduler.has_requests:
            stepper.update(in_flight.pop(0))
    return total


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5])
@pytest.mark.parametrize(("version", "wasted"), [("0.32.0", 0), ("0.11.1", 0), ("0.11.0", 2)])
def test_no_step_is_wasted_at_max_tokens(max_tokens: int, version: str, wasted: int) -> None:
    """Two requests: prompt + max_tokens - 1 tokens each; before 0.11.1 one more, whose output nobody takes."""
    stepper = Stepper(engine_version=version, async_scheduling=True)
    for name in "ab":
        stepper.add(name, 10, max_tokens=max_tokens)
    assert run_async(stepper) == 2 * (10 + max_tokens - 1) + wasted
    assert all(len(tokens) == max_tokens for tokens in stepper.delivered.values())


def test_outputs_in_flight_of_an_aborted_request_are_ignored() -> None:
    """A request aborted after its third output has three, although a fourth was on its way."""
    stepper = Stepper(async_scheduling=True)
    stepper.add("a", 10, max_tokens=20)
    plans = [stepper.schedule()]
    while len(stepper.delivered.get("a", ())) < 3:
        plans.append(stepper.schedule())
        stepper.update(plans.pop(0))
    stepper.abort("a")
    assert stepper.update(plans.pop(0)) == []
    assert len(stepper.delivered["a"]) == 3


def test_identical_prompts_of_one_step_are_computed_once() -> None:
    """100 tokens, block size 16: the first takes 100, the others of the same and later steps 4."""
    stepper = Stepper(async_scheduling=True, enable_prefix_caching=True)
    stepper.add("a", [*range(100)], max_tokens=3)
    stepper.add("b", [*range(100)], max_tokens=3)
    first = stepper.schedule()
    assert shares(first) == {"a": 100, "b": 4}
    stepper.add("c", [*range(100)], max_tokens=3)
    second = stepper.schedule()
    assert shares(second)["c"] == 4


def test_a_next_turn_computes_only_what_is_new() -> None:
    """Prompt and outputs of the turn before are cached: of 300 tokens 12 are left (300 mod 16)."""
    stepper = Stepper(async_scheduling=True, enable_prefix_caching=True)
    stepper.add("first", [*range(200)], max_tokens=101)
    run_async(stepper)
    stepper.add("next", [*range(200), *stepper.delivered["first"][:100]])
    assert shares(stepper.schedule()) == {"next": 12}


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_tokens_in_flight_are_delivered_once_and_in_order(num_drafts: int) -> None:
    """Four plans in flight and a pool so small that requests are preempted while their outputs are on the way."""
    stepper = Stepper(
        async_scheduling=True,
        max_in_flight=4,
        num_blocks=12,
        block_size=4,
        max_num_seqs=4,
        max_model_len=40,
        num_speculative_tokens=num_drafts,
        num_lookahead_tokens=num_drafts,
    )
    for name in "abcd":
        stepper.add(name, 6, max_tokens=16, ignore_eos=True)
    counters = dict.fromkeys("abcd", 0)
    in_flight: list[tuple[StepPlan, dict[str, list[int]]]] = []
    num_preemptions = 0
    while stepper.scheduler.has_requests or in_flight:
        if stepper.scheduler.has_requests:
            plan = stepper.schedule()
            num_preemptions += len(plan.preempted)
            tokens = {}
            for item in plan.scheduled:
                if item.samples:
                    name = item.request.request_id
                    tokens[name] = [counters[name]]
                    counters[name] += 1
            in_flight.append((plan, tokens))
        if len(in_flight) >= 4 or not stepper.scheduler.has_requests:
            stepper.update(*in_flight.pop(0))
    assert num_preemptions > 0
    assert all(tokens == [*range(16)] for tokens in stepper.delivered.values())
    assert stepper.num_free_blocks == 11


def test_a_preempted_request_waits_for_its_outputs() -> None:
    """Its tokens on the way would be computed twice if it resumed at once."""
    stepper = Stepper(async_scheduling=True, max_in_flight=4, num_blocks=5, block_size=4)
    stepper.add("a", 8, max_tokens=9)
    stepper.add("b", 8, max_tokens=9)
    plans = [stepper.schedule()]
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["b"]
    plans.append(plan)
    stepper.abort("a")
    assert not stepper.schedule().scheduled
    stepper.update(plans.pop(0))
    assert ids_of(stepper.schedule().resumed) == ["b"]
