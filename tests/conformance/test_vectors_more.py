"""Further behaviours that vLLM's own core tests pin: free queue, keys, windows, look-up counts, drafts, deferral."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headway.config import CacheConfig, EngineOptions
from headway.core.arrivals import Inbox
from headway.core.blocks import Block, FreeQueue
from headway.core.clock import VirtualClock
from headway.core.kv_cache import KVCacheManager
from headway.core.plan import StepPlan
from headway.core.profiles import profile_for
from headway.core.request import FinishReason, Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.errors import ConfigError
from tests.conformance.stepper import Stepper, ids_of, shares

# ------------------------------------------------------------------------------------- blocks and keys


def test_a_block_starts_clean_and_has_no_room_for_more() -> None:
    """Nobody references it and it holds nothing; millions of them exist, so they have no dictionary."""
    block = Block(7)
    assert (block.block_id, block.ref_count, block.key, block.previous, block.next) == (7, 0, None, None, None)
    assert not hasattr(block, "__dict__")


@pytest.mark.parametrize("count", [0, 1, 10])
def test_a_free_queue_starts_in_order(count: int) -> None:
    """Block 0 is reused first."""
    queue = FreeQueue([Block(i) for i in range(count)])
    assert queue.num_blocks == count and [block.block_id for block in queue] == [*range(count)]


@pytest.mark.parametrize("count", [1, 2, 16])
def test_a_drained_free_queue_can_be_refilled(count: int) -> None:
    """Taken all at once, appended, taken one by one, put in front."""
    blocks = [Block(i) for i in range(count)]
    queue = FreeQueue(blocks)
    assert queue.pop(0) == [] and queue.pop(count) == blocks
    assert queue.num_blocks == 0 and not list(queue)
    queue.append(reversed(blocks))
    assert [queue.pop(1)[0] for _ in range(count)] == blocks[::-1]
    queue.prepend(blocks)
    assert list(queue) == blocks and queue.num_blocks == count


def test_many_blocks_join_a_free_queue_at_once() -> None:
    """Appended behind those that are there, prepended before them, each in the given order; none is no change."""
    blocks = [Block(i) for i in range(6)]
    queue = FreeQueue(blocks[:2])
    queue.append(blocks[2:4])
    queue.prepend(blocks[4:])
    queue.append([])
    queue.prepend([])
    assert [block.block_id for block in queue] == [4, 5, 0, 1, 2, 3]
    queue.remove(blocks[4])
    queue.remove(blocks[3])
    assert [block.block_id for block in queue] == [5, 0, 1, 2] and queue.num_blocks == 4


def test_keys_of_appended_tokens_are_those_of_the_whole() -> None:
    """A conversation that grew token by token shares blocks with a prompt that repeats it."""
    whole = TokenContent([*range(12)], 4)
    grown = TokenContent([*range(5)], 4)
    first = grown.block_key(0)
    for token_id in range(5, 12):
        grown.extend(1, [token_id])
    assert [grown.block_key(i) for i in range(3)] == [whole.block_key(i) for i in range(3)]
    assert grown.block_key(0) == first


def test_a_salt_enters_the_first_block_and_so_every_key() -> None:
    """Whole prompts differ or agree; a salt is not repeated block by block, the chain carries it."""
    plain, salted, again = (TokenContent([*range(12)], 4, salt) for salt in (None, "s", "s"))
    for i in range(3):
        assert salted.block_key(i) == again.block_key(i) != plain.block_key(i)


# ------------------------------------------------------------------------------------- sliding windows


def window_manager(num_blocks: int = 40, block_size: int = 2, window: int = 4) -> KVCacheManager:
    config = CacheConfig(num_blocks, block_size, sliding_window=window)
    return KVCacheManager(config, profile_for("0.32.0"), 8192, 8192)


def make_request(name: str, ids: list[int], block_size: int) -> Request:
    return Request(name, TokenContent(ids, block_size), len(ids), SamplingParams(max_tokens=100), 8192)


def test_every_boundary_of_a_windowed_prompt_can_be_hit() -> None:
    """24 tokens in blocks of 2: a prompt that shares any number of whole blocks finds all of them."""
    kv = window_manager()
    first = make_request("a", [*range(24)], 2)
    assert kv.admit(first, 24, kv.lookup(first))
    assert first.num_registered_blocks == 12
    for shared in range(2, 25, 2):
        late = make_request("b", [*range(shared), 99], 2)
        assert kv.lookup(late).num_tokens == shared


def test_a_freed_window_reuses_its_scratch_first_and_its_prefix_last() -> None:
    """The block that was never full leads the free queue; those that can be hit again stand at its end, tail first."""
    kv = window_manager(num_blocks=10)
    request = make_request("a", [*range(7)], 2)
    assert kv.admit(request, 7, kv.lookup(request))
    assert request.block_ids == [1, 2, 3, 4]
    kv.free(request)
    assert [block.block_id for block in kv.pool.free_queue] == [4, 5, 6, 7, 8, 9, 3, 2, 1]


def test_admission_takes_exactly_what_it_counted() -> None:
    """A window's hit: of six cached blocks the last two are taken back, the four before them are not needed."""
    kv = window_manager(num_blocks=8)
    first = make_request("a", [*range(12)], 2)
    assert kv.admit(first, 12, kv.lookup(first))
    kv.free(first)
    assert kv.pool.num_free_blocks == 7
    late = make_request("b", [*range(12), 50, 51, 52], 2)
    hit = kv.lookup(late)
    assert hit.num_tokens == 12 and kv.admit(late, 3, hit)
    assert late.block_ids[:4] == [0] * 4 and kv.pool.num_free_blocks == 7 - 2 - 2
    kv.check_integrity([late])


def test_tokens_in_flight_are_counted_until_their_step_is_processed() -> None:
    """A chunk of 8 and one of 4; an abort while they fly; a request that never ran has none."""
    stepper = Stepper(max_num_batched_tokens=8, async_scheduling=True)
    request = stepper.add("a", 12)
    assert request.num_in_flight_tokens == 0
    first = stepper.schedule()
    assert request.num_in_flight_tokens == 8
    second = stepper.schedule()
    assert request.num_in_flight_tokens == 12
    stepper.update(first, {})
    assert request.num_in_flight_tokens == 4
    stepper.abort("a")
    stepper.update(second)
    assert request.num_in_flight_tokens == 0 and "a" not in stepper.delivered


# ------------------------------------------------------------------------------------- what a look-up counts


def test_a_prompt_of_17_tokens_hits_16_the_second_time() -> None:
    """Block size 16: one whole block, and the token that must be computed."""
    stepper = Stepper(enable_prefix_caching=True)
    for name in "ab":
        stepper.add(name, [*range(17)], max_tokens=1)
        stepper.step()
    stats = stepper.scheduler.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (34, 16)


def test_a_look_up_counts_when_it_leads_to_admission() -> None:
    """The second request is looked up at every step, but admitted after the first has gone: one look-up, one hit."""
    stepper = Stepper(enable_prefix_caching=True, num_blocks=6, block_size=4)
    stepper.add("a", [*range(12)], max_tokens=6)
    stepper.add("b", [*range(8), *range(50, 62)], max_tokens=1)
    stepper.step()
    stepper.step()
    assert stepper.waiting == ["b"]
    stats = stepper.scheduler.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (12, 0)
    while stepper.scheduler.has_requests:
        stepper.step()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (12 + 20, 8)


def test_without_caching_there_is_no_look_up() -> None:
    """An admission is not a miss."""
    stepper = Stepper()
    stepper.add("a", 20)
    stepper.step()
    assert stepper.scheduler.stats.prefix_cache_queries == 0 and stepper.scheduler.stats.num_prompt_tokens == 20


# ------------------------------------------------------------------------------------- drafts


def test_a_resumed_request_is_padded_even_if_nobody_runs() -> None:
    """All but one of its 13 tokens are still cached: it joins at the uniform width of 1 + 3, not by itself."""
    stepper = Stepper(num_speculative_tokens=3, enable_prefix_caching=True, num_blocks=8, block_size=4)
    stepper.add("a", 12, max_tokens=30)
    stepper.add("b", 12, max_tokens=30)
    stepper.step()
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["b"]
    stepper.update(plan)
    stepper.abort("a")
    plan = stepper.schedule()
    assert ids_of(plan.resumed) == ["b"] and shares(plan) == {"b": 4}
    assert plan.scheduled[0].num_draft_tokens == 3


def test_a_padded_request_that_does_not_fit_the_budget_waits() -> None:
    """Rather not at all than at another width than the rest: 2 tokens of the budget are left, 4 are wanted."""
    stepper = Stepper(num_speculative_tokens=3, enable_prefix_caching=True, max_num_batched_tokens=6)
    stepper.add("warm", [*range(17)], max_tokens=1)
    while stepper.scheduler.has_requests:
        stepper.step()
    stepper.add("a", 2)
    stepper.step({"a": [1]}, drafts=3)
    stepper.add("late", [*range(17)])
    assert stepper.step() == {"a": 4}
    assert stepper.waiting == ["late"]


# ------------------------------------------------------------------------------------- overlap and deferral


def test_a_request_decodes_ahead_of_its_outputs() -> None:
    """Asynchronous, deeper than two: one more token in every plan, while no output has come."""
    stepper = Stepper(async_scheduling=True, max_in_flight=4)
    request = stepper.add("a", 10, max_tokens=20)
    plans: list[StepPlan] = [stepper.schedule() for _ in range(4)]
    assert [shares(plan) for plan in plans] == [{"a": 10}, {"a": 1}, {"a": 1}, {"a": 1}]
    assert request.num_output_placeholders == 4
    for i, plan in enumerate(plans):
        stepper.update(plan, {"a": [i]})
    assert stepper.delivered["a"] == [0, 1, 2, 3] and request.num_output_placeholders == 0


def test_deferred_requests_return_to_the_front_in_their_order() -> None:
    """`c` and `d` wait for outputs in flight and are passed over; `e` behind them goes; they keep their places."""
    stepper = Stepper(async_scheduling=True, num_blocks=5, block_size=4)
    for name in "abcd":
        stepper.add(name, 4, max_tokens=20)
    first = stepper.schedule()
    assert ids_of(stepper.schedule().preempted) == ["d", "c"]
    stepper.abort("b")
    stepper.add("e", 4)
    assert ids_of(stepper.schedule().new) == ["e"]
    assert stepper.waiting == ["c", "d"]
    stepper.update(first)
    assert {name: len(tokens) for name, tokens in stepper.delivered.items()} == {"a": 1, "c": 1, "d": 1}


def test_passed_over_prompts_go_back_to_the_front() -> None:
    """0.11.2, chunked prefill off: two prompts too long for what is left are skipped, `d` is not.

    They return one by one, each before the last, as recorded logs of that release show.
    """
    stepper = Stepper(
        engine_version="0.11.2",
        max_num_batched_tokens=100,
        max_model_len=100,
        enable_chunked_prefill=False,
    )
    for name, length in (("a", 60), ("b", 50), ("c", 45), ("d", 10)):
        stepper.add(name, length)
    assert stepper.step() == {"a": 60, "d": 10}
    assert stepper.waiting == ["c", "b"]


def test_a_request_without_end_of_sequence_ids_ends_by_length() -> None:
    """No tokenizer, no special ids: whatever is sampled is text."""
    stepper = Stepper()
    request = Request("raw", TokenContent([1, 2, 3], 16), 3, SamplingParams(max_tokens=2), 8192)
    stepper.scheduler.add(request)
    stepper.step({"raw": [50_256]})
    stepper.step({"raw": [50_256]})
    assert request.finish_reason is FinishReason.LENGTH and request.num_output_tokens == 2


@pytest.mark.parametrize("version", ["0.9.2", "0.10.2", "0.11.0"])
def test_a_real_model_refuses_releases_that_compute_into_lost_blocks(version: str) -> None:
    """Priority scheduling of 0.9.2 to 0.11.0 leaves a victim in the step: fine to study, not to run."""
    pytest.importorskip("torch")
    from headway.factory import build_engine

    options = EngineOptions(scheduling_policy="priority", engine_version=version)
    with pytest.raises(ConfigError, match="blocks it gave away"):
        build_engine(cast(Any, None), options, Inbox(), VirtualClock())


def test_length_ends_a_request_below_min_tokens() -> None:
    """Whoever asks for at least 50 tokens where the model's length leaves 2 gets 2, and is not waited for."""
    stepper = Stepper(max_model_len=12, max_num_batched_tokens=64)
    request = stepper.add("a", 10, max_tokens=100, min_tokens=50)
    stepper.step()
    stepper.step()
    assert request.finish_reason is FinishReason.LENGTH and request.num_output_tokens == 2


def test_a_priority_queue_gives_its_requests_in_order() -> None:
    """However they came, and after one was taken out of the middle: by priority, arrival, id."""
    stepper = Stepper(scheduling_policy="priority")
    for i, (priority, arrived_at) in enumerate(((5, 0.0), (0, 3.0), (2, 1.0), (0, 2.0), (2, 1.0), (9, 0.5))):
        stepper.add(str(i), 4, priority=priority, arrived_at=arrived_at)
    assert stepper.waiting == ["3", "1", "2", "4", "0", "5"]
    stepper.abort("2")
    queue = stepper.scheduler.waiting
    assert [queue.pop().request_id for _ in range(len(queue))] == ["3", "1", "4", "0", "5"]
