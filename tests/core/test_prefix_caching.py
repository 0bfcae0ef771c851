"""Prefix caching and block accounting on small examples, with the numbers worked out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from headway.core.kv_cache import KVCacheManager
from headway.core.request import FinishReason, SyntheticContent, TokenContent
from headway.core.scheduler import Scheduler
from headway.executors.scripted import ScriptedExecutor
from tests.core.support import make_request, make_scheduler, one_step, shares


def _serve(scheduler: Scheduler, name: str, prompt: Sequence[int], salt: str | None = None) -> int:
    """Serve one request to its end; returns how many of its prompt tokens were cached."""
    request = make_request(name, prompt, 1, salt=salt)
    scheduler.add(request)
    executor = ScriptedExecutor()
    while scheduler.has_requests:
        one_step(scheduler, executor)
    return request.num_cached_tokens


def test_an_equal_prefix_is_found_in_full_blocks_only() -> None:
    scheduler = make_scheduler(caching=True)
    assert _serve(scheduler, "a", range(40)) == 0
    assert _serve(scheduler, "b", range(40)) == 32
    assert _serve(scheduler, "c", [*range(20), 99, 98]) == 16


@pytest.mark.parametrize(("num_prompt", "num_cached"), [(31, 16), (32, 16), (33, 32), (16, 0), (17, 16)])
def test_the_last_prompt_token_is_always_recomputed(num_prompt: int, num_cached: int) -> None:
    """Its logits are needed; a prompt that fills its blocks recomputes the whole last block."""
    scheduler = make_scheduler(caching=True)
    _serve(scheduler, "a", range(64))
    assert _serve(scheduler, "b", range(num_prompt)) == num_cached


def test_generated_tokens_are_cached_for_the_next_turn() -> None:
    scheduler, executor = make_scheduler(caching=True), ScriptedExecutor({"a": range(500, 530)})
    scheduler.add(make_request("a", range(20), 30))
    while scheduler.has_requests:
        one_step(scheduler, executor)
    # 20 + 29 computed tokens fill three blocks; the last output was never computed.
    assert _serve(scheduler, "b", [*range(20), *range(500, 530), 7]) == 48


def test_another_salt_shares_nothing() -> None:
    scheduler = make_scheduler(caching=True)
    _serve(scheduler, "a", range(40), salt="tenant 1")
    assert _serve(scheduler, "b", range(40), salt="tenant 2") == 0
    assert _serve(scheduler, "c", range(40)) == 0
    assert _serve(scheduler, "d", range(40), salt="tenant 1") == 32


def test_a_salt_may_be_any_string_that_json_can_carry() -> None:
    """A lone surrogate must not end the engine's thread."""
    assert TokenContent(range(16), 16, "\ud800").block_key(0) != TokenContent(range(16), 16).block_key(0)


def test_block_keys_are_chained() -> None:
    same_second_block = (
        TokenContent([*range(100, 116), *range(16)], 16),
        TokenContent([*range(200, 216), *range(16)], 16),
    )
    assert same_second_block[0].block_key(1) != same_second_block[1].block_key(1)
    assert TokenContent(range(32), 16).block_key(1) == TokenContent(range(40), 16).block_key(1)


def test_synthetic_blocks_beyond_the_given_keys_are_private() -> None:
    first, second = SyntheticContent("a", ["x"]), SyntheticContent("b", ["x"])
    assert first.block_key(0) == second.block_key(0)
    assert first.block_key(1) != second.block_key(1)


def test_a_synthetic_request_never_finds_blocks_of_an_earlier_one_of_the_same_id() -> None:
    assert SyntheticContent("a").block_key(0) != SyntheticContent("a").block_key(0)


def _free_ids(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.pool.free_queue]


@pytest.mark.parametrize(
    ("version", "order"),
    [("0.32.0", [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]), ("0.22.1", [6, 7, 8, 9, 10, 4, 5, 3, 2, 1])],
)
def test_eviction_order(version: str, order: list[int]) -> None:
    """vLLM's vector: 55 tokens in blocks 1 to 4, then 48 of them and 5 more in [1, 2, 3, 5], freed in that order."""
    scheduler, executor = make_scheduler(caching=True, num_blocks=11, version=version), ScriptedExecutor()
    first, second = make_request("a", range(55), 9), make_request("b", [*range(48), *range(900, 905)], 9)
    for request in (first, second):
        scheduler.add(request)
        one_step(scheduler, executor)
    assert (first.block_ids, second.block_ids) == ([1, 2, 3, 4], [1, 2, 3, 5])
    assert first.block_table[0].ref_count == 2
    for request in (first, second):
        scheduler.finish(request.request_id, FinishReason.ABORT)
    assert _free_ids(scheduler.kv) == order


def test_a_hit_protects_its_blocks_from_the_same_allocation() -> None:
    """Two free blocks, both cached: a hit on one must take the other for the new tokens."""
    scheduler = make_scheduler(caching=True, num_blocks=3)
    _serve(scheduler, "a", range(17))  # block 1 cached, block 2 was partial
    request = make_request("b", [*range(16), 5], 1)
    scheduler.add(request)
    one_step(scheduler, ScriptedExecutor())
    assert request.num_cached_tokens == 16


def test_an_admission_that_fails_changes_nothing() -> None:
    scheduler = make_scheduler(caching=True, num_blocks=6)
    _serve(scheduler, "a", range(40))
    blocker = make_request("blocker", 40)
    scheduler.add(blocker)
    one_step(scheduler, ScriptedExecutor())  # holds three of five blocks
    before = _free_ids(scheduler.kv)
    scheduler.add(make_request("b", [*range(32), *range(900, 930)]))
    plan = scheduler.schedule(0.0)
    assert shares(plan) == [("blocker", 1)]
    assert _free_ids(scheduler.kv) == before
    assert all(block.ref_count == 0 for block in scheduler.kv.pool.free_queue)


def test_lookups_are_counted_once_at_admission() -> None:
    scheduler = make_scheduler(caching=True)
    _serve(scheduler, "a", range(40))
    _serve(scheduler, "b", range(40))
    assert (scheduler.stats.prefix_cache_queries, scheduler.stats.prefix_cache_hits) == (80, 32)
    assert scheduler.stats.num_prompt_tokens == 80


def test_prompt_logprobs_recompute_the_whole_prompt() -> None:
    scheduler, executor = make_scheduler(caching=True), ScriptedExecutor()
    _serve(scheduler, "a", range(40))
    scheduler.add(make_request("b", range(40), 1, prompt_logprobs=1))
    plan, _ = one_step(scheduler, executor)
    assert shares(plan) == [("b", 40)]


def test_resetting_the_cache_is_refused_while_blocks_are_held() -> None:
    scheduler = make_scheduler(caching=True)
    _serve(scheduler, "a", range(40))
    scheduler.add(make_request("b", 8))
    one_step(scheduler, ScriptedExecutor())
    assert not scheduler.kv.pool.reset_cache()
    scheduler.finish("b", FinishReason.ABORT)
    assert scheduler.kv.pool.reset_cache()
    assert _serve(scheduler, "c", range(40)) == 0


def test_a_sliding_window_request_holds_no_more_than_its_window() -> None:
    """Window 32 of blocks of 16: 200 tokens in chunks of 16 never hold more than ceil((31 + 16) / 16) + 1 blocks."""
    scheduler, executor = make_scheduler(window=32, budget=16, num_blocks=5, max_model_len=300), ScriptedExecutor()
    request = make_request("a", 200, 50, max_model_len=300)
    scheduler.check(request)
    scheduler.add(request)
    while scheduler.has_requests:
        one_step(scheduler, executor)
        assert scheduler.kv.pool.num_referenced_blocks <= 4
    assert request.finish_reason is FinishReason.LENGTH


def test_the_watermark_holds_newcomers_back_while_others_run() -> None:
    scheduler, executor = make_scheduler(num_blocks=10, watermark=0.2), ScriptedExecutor()
    scheduler.add(make_request("a", 16 * 5 - 1, 30))  # five of nine blocks; two must stay free
    scheduler.add(make_request("b", 16 * 2 - 1, 30))
    scheduler.add(make_request("c", 8, 30))
    plan = scheduler.schedule(0.0)
    assert shares(plan) == [("a", 64)]
    scheduler.update(plan, executor.execute(plan), 0.0)
    plan = scheduler.schedule(0.0)
    assert shares(plan) == [("a", 15), ("b", 31)]
    scheduler.update(plan, executor.execute(plan), 0.0)
    plan = scheduler.schedule(0.0)
    assert "c" not in dict(shares(plan)), "it would take the last but two"
