"""The four batching policies, as the design's table defines them."""

from __future__ import annotations

import pytest

from headway.core.policies import make_policy
from headway.core.request import FinishReason
from headway.core.scheduler import Scheduler
from headway.errors import ConfigError, ContextLengthError
from headway.executors.scripted import ScriptedExecutor
from tests.core.support import make_request, make_scheduler, one_step, shares


def _run(
    scheduler: Scheduler, prompts_and_outputs: list[tuple[int, int]], num_steps: int
) -> list[list[tuple[str, int]]]:
    for i, (num_prompt, num_output) in enumerate(prompts_and_outputs):
        request = make_request(f"r{i}", num_prompt, num_output)
        scheduler.check(request)
        scheduler.add(request)
    executor = ScriptedExecutor()
    return [shares(one_step(scheduler, executor)[0]) for _ in range(num_steps)]


def test_naive_runs_one_request_at_a_time_from_prompt_to_last_token() -> None:
    steps = _run(make_scheduler("naive"), [(100, 2), (50, 2)], 4)
    assert steps == [[("r0", 100)], [("r0", 1)], [("r1", 50)], [("r1", 1)]]


def test_static_admits_a_batch_and_nobody_else_until_it_has_drained() -> None:
    steps = _run(make_scheduler("static", max_num_seqs=2), [(10, 3), (20, 1), (30, 1)], 4)
    assert steps == [[("r0", 10), ("r1", 20)], [("r0", 1)], [("r0", 1)], [("r2", 30)]]


def test_static_pads_prompts_to_the_longest_and_finished_rows_ride_along() -> None:
    scheduler, executor = make_scheduler("static", max_num_seqs=3), ScriptedExecutor()
    for name, num_prompt, num_output in (("a", 10, 3), ("b", 30, 1), ("c", 25, 2)):
        scheduler.add(make_request(name, num_prompt, num_output))
    padding = []
    for _ in range(3):
        plan, _ = one_step(scheduler, executor)
        padding.append([item.num_padding_tokens for item in plan.scheduled])
    # Prompts: 30 - 10, 0, 30 - 25. Then b's row rides along with the two left, then b's and c's with a.
    assert padding == [[20, 0, 5], [1, 0], [2]]
    assert not scheduler.has_requests


def test_a_row_that_was_aborted_rides_along_too() -> None:
    scheduler, executor = make_scheduler("static", max_num_seqs=2), ScriptedExecutor()
    scheduler.add(make_request("a", 10, 5))
    scheduler.add(make_request("b", 10, 5))
    one_step(scheduler, executor)
    scheduler.finish("a", FinishReason.ABORT)
    plan, _ = one_step(scheduler, executor)
    assert [(item.request.request_id, item.num_padding_tokens) for item in plan.scheduled] == [("b", 1)]


@pytest.mark.parametrize("policy", ["naive", "chunked", "continuous"])
def test_only_static_pads(policy: str) -> None:
    scheduler, executor = make_scheduler(policy), ScriptedExecutor()
    for i in range(3):
        scheduler.add(make_request(f"r{i}", 10 + i, 2 + i))
    while scheduler.has_requests:
        plan, _ = one_step(scheduler, executor)
        assert all(item.num_padding_tokens == 0 for item in plan.scheduled)


def test_continuous_refuses_to_chunk_and_raises_its_budget_to_the_longest_prompt() -> None:
    scheduler = make_scheduler("continuous", budget=64, max_model_len=300, long_prefill_token_threshold=8)
    assert scheduler.config.max_num_batched_tokens == 300
    # 200 + 90 fit whole; 30 more do not, and they wait rather than start with the 10 that are left.
    steps = _run(scheduler, [(200, 2), (90, 2), (30, 1)], 2)
    assert steps == [[("r0", 200), ("r1", 90)], [("r0", 1), ("r1", 1), ("r2", 30)]]


def test_continuous_keeps_a_budget_that_is_larger() -> None:
    assert make_scheduler("continuous", budget=500, max_model_len=300).config.max_num_batched_tokens == 500


def test_chunked_splits_prompts_at_the_budget_and_decodes_first() -> None:
    steps = _run(make_scheduler("chunked", budget=64), [(20, 4), (100, 1)], 3)
    assert steps == [[("r0", 20), ("r1", 44)], [("r0", 1), ("r1", 56)], [("r0", 1)]]


@pytest.mark.parametrize("policy", ["naive", "static"])
def test_reservation_takes_the_blocks_of_the_longest_sequence_at_admission(policy: str) -> None:
    scheduler = make_scheduler(policy, num_blocks=1 + 200, max_model_len=100)
    _run(scheduler, [(10, 4)], 1)
    assert scheduler.kv.pool.num_referenced_blocks == 7  # ceil(100 / 16)


def test_static_with_room_for_fewer_reservations_than_seats_starts_a_smaller_batch() -> None:
    # 15 blocks hold two reservations of 7: the third request waits for the whole batch, not for one row of it.
    scheduler = make_scheduler("static", num_blocks=1 + 15, max_model_len=100, max_num_seqs=4)
    steps = _run(scheduler, [(10, 3), (10, 1), (10, 1)], 4)
    assert steps == [[("r0", 10), ("r1", 10)], [("r0", 1)], [("r0", 1)], [("r2", 10)]]


def test_a_pool_below_one_reservation_refuses_at_the_door() -> None:
    scheduler = make_scheduler("static", num_blocks=1 + 6, max_model_len=100)
    with pytest.raises(ContextLengthError, match=r"needs 7 KV blocks of 16 tokens .* has 6"):
        scheduler.check(make_request("r", 10))


def test_static_does_not_share_blocks() -> None:
    assert not make_scheduler("static", caching=True).kv.config.enable_prefix_caching


def test_kv_waste_of_a_reservation_by_hand() -> None:
    """Reserved 112 slots (7 blocks); the steps compute 10, 11, 12 tokens: waste is 1 - 33 / 336."""
    scheduler = make_scheduler("static", max_model_len=100)
    _run(scheduler, [(10, 3)], 3)
    stats = scheduler.stats
    assert (stats.num_kv_samples, stats.kv_reserved_slots_sum, stats.kv_used_slots_sum) == (3, 336, 33)
    assert stats.mean_kv_waste == 1 - 33 / 336
    assert stats.peak_kv_waste == 1 - 10 / 112
    assert stats.peak_kv_reserved_slots == 112


def test_kv_waste_of_pages_by_hand() -> None:
    """30 tokens take 2 blocks until token 33 needs a third: (30 + 31 + 32) / 32 and 33 / 48."""
    scheduler = make_scheduler("chunked")
    _run(scheduler, [(30, 4)], 4)
    stats = scheduler.stats
    assert (stats.kv_reserved_slots_sum, stats.kv_used_slots_sum) == (3 * 32 + 48, 30 + 31 + 32 + 33)
    assert stats.peak_kv_waste == 1 - 33 / 48


def test_kv_waste_counts_shared_blocks_once_and_cached_free_ones_not_at_all() -> None:
    scheduler, executor = make_scheduler(caching=True), ScriptedExecutor()
    scheduler.add(make_request("gone", range(40), 1))
    one_step(scheduler, executor)  # 48 reserved, 40 used; then its two full blocks stay cached, free
    scheduler.add(make_request("a", range(40), 3))
    one_step(scheduler, executor)  # the same for a
    scheduler.add(make_request("b", range(40), 3))
    one_step(scheduler, executor)  # a and b: 2 shared + 1 each = 64 slots; 32 shared, 9 of a's own, 8 of b's
    stats = scheduler.stats
    assert stats.kv_reserved_slots_sum == 48 + 48 + 64
    assert stats.kv_used_slots_sum == 40 + 40 + 49


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="naive, static, continuous, chunked"):
        make_policy("magic")
