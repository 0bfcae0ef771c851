"""Behaviours that vLLM's own core tests pin, as vectors against our KV tables: caching, windows, the free queue."""

from __future__ import annotations

import pytest

from headway.config import CacheConfig
from headway.core.blocks import Block, BlockPool, FreeQueue
from headway.core.kv_cache import KVCacheManager
from headway.core.profiles import EngineCrashError, profile_for
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from tests.conformance.stepper import Stepper, shares

COMMON = [i for i in range(3) for _ in range(16)]
"""Three blocks of 16 that the requests of a test share."""


def manager(num_blocks: int, block_size: int = 16, *, version: str = "0.32.0", **settings: object) -> KVCacheManager:
    config = CacheConfig(num_blocks, block_size, **({"enable_prefix_caching": True} | settings))  # type: ignore[arg-type]
    return KVCacheManager(config, profile_for(version), 8192, 8192)


def request(name: str, ids: list[int], block_size: int = 16, salt: str | None = None, **sampling: object) -> Request:
    params = SamplingParams(max_tokens=100, **sampling)  # type: ignore[arg-type]
    return Request(name, TokenContent(ids, block_size, salt), len(ids), params, 8192)


def admit(kv: KVCacheManager, r: Request, num_tokens: int | None = None) -> int:
    """Admit with whatever is cached. Returns the number of tokens hit."""
    hit = kv.lookup(r)
    wanted = r.num_tokens - hit.num_tokens if num_tokens is None else num_tokens
    assert kv.admit(r, wanted, hit)
    r.num_computed_tokens = hit.num_tokens + wanted
    return hit.num_tokens


def free_ids(kv: KVCacheManager) -> list[int]:
    return [block.block_id for block in kv.pool.free_queue]


def append(kv: KVCacheManager, r: Request, count: int) -> int | None:
    """Append tokens and compute them. Returns how many blocks that took, None if they do not fit."""
    r.content.extend(count, [9] * count)
    r.num_tokens += count
    added = kv.extend(r, count)
    if added is None:
        return None
    r.num_computed_tokens += count
    return len(added)


def test_a_shared_prefix_is_hit_and_its_blocks_are_shared() -> None:
    """Block size 16, 10 usable blocks: 48 common tokens and 7 of its own, then the same prefix and 5 others."""
    kv = manager(11)
    first = request("0", COMMON + [3] * 7)
    assert admit(kv, first) == 0
    assert first.block_ids == [1, 2, 3, 4] and first.num_registered_blocks == 3
    second = request("1", COMMON + [3] * 5)
    assert admit(kv, second) == 48
    assert second.block_ids == [1, 2, 3, 5]
    assert [block.ref_count for block in second.block_table] == [2, 2, 2, 1]
    assert kv.pool.num_free_blocks == 5
    kv.free(first)
    kv.free(second)
    assert free_ids(kv) == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    third = request("2", COMMON + [3] * 6)
    assert admit(kv, third) == 48
    assert third.block_ids == [1, 2, 3, 5]
    kv.free(third)
    whole = request("3", [99] * 160)
    assert admit(kv, whole) == 0
    assert whole.block_ids == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]


def test_older_releases_append_blocks_without_a_key() -> None:
    """Until 0.23 a freed partial block goes to the tail of the free queue, not to its head."""
    for version in ("0.18.0", "0.23.0"):
        kv = manager(11, version=version)
        first, second = request("0", COMMON + [3] * 7), request("1", COMMON + [3] * 5)
        admit(kv, first)
        admit(kv, second)
        kv.free(first)
        kv.free(second)
        assert free_ids(kv) == [6, 7, 8, 9, 10, 4, 5, 3, 2, 1]


def test_growth_takes_a_block_only_at_a_boundary() -> None:
    """55 tokens in 4 blocks: 9 more fit; the block they fill becomes findable; the next token takes a fifth."""
    kv = manager(11)
    r = request("0", COMMON + [3] * 7)
    admit(kv, r)
    assert append(kv, r, 4) == 0 and r.num_registered_blocks == 3
    assert append(kv, r, 5) == 0 and r.num_registered_blocks == 4
    assert append(kv, r, 1) == 1 and r.num_registered_blocks == 4
    assert len(r.block_table) == 5


def test_freed_tails_are_evicted_before_heads() -> None:
    """87 tokens (6 blocks, the last partial) and 48 (3 blocks): order of the free queue, and a hit after eviction."""
    kv = manager(11)
    first = request("0", [*range(87)])
    second = request("1", [*range(1000, 1048)])
    admit(kv, first)
    admit(kv, second)
    assert kv.pool.num_free_blocks == 1
    kv.free(first)
    assert free_ids(kv) == [6, 10, 5, 4, 3, 2, 1]
    kv.free(second)
    assert free_ids(kv) == [6, 10, 5, 4, 3, 2, 1, 9, 8, 7]
    third = request("2", [*range(32), *range(2000, 2005)])
    assert admit(kv, third) == 32
    assert third.block_ids == [1, 2, 6] and kv.pool.num_free_blocks == 7


def test_reuse_forgets_what_a_block_held() -> None:
    """A keyed block that is handed out for a partial block has no key any more."""
    kv = manager(2)
    r = request("0", [*range(16)])
    admit(kv, r)
    kv.free(r)
    assert kv.pool.blocks[1].key is not None
    admit(kv, request("1", [*range(100, 108)]))
    assert kv.pool.blocks[1].key is None


def test_a_hit_block_is_not_evicted_for_the_same_request() -> None:
    """Two cached free blocks, a hit on the one reused first: the new block is the other."""
    kv = manager(3)
    one, two = request("0", [*range(16)]), request("1", [*range(16, 32)])
    admit(kv, one)
    admit(kv, two)
    kv.free(one)
    kv.free(two)
    assert free_ids(kv) == [1, 2]
    third = request("2", [*range(20)])
    assert admit(kv, third) == 16 and third.block_ids == [1, 2]


def test_without_caching_nothing_is_hit_and_a_full_pool_refuses() -> None:
    """4 usable blocks: 10 x 16 tokens do not fit, and a second copy of a prompt hits nothing."""
    kv = manager(5, enable_prefix_caching=False)
    assert admit(kv, request("0", [*range(40)])) == 0
    again = request("1", [*range(40)])
    assert kv.lookup(again).num_tokens == 0
    assert not kv.admit(again, 40, kv.lookup(again))
    assert kv.pool.num_free_blocks == 1


def test_a_whole_hit_still_computes_the_last_block() -> None:
    """An identical prompt of exactly three blocks hits two: the last token's logits are needed."""
    kv = manager(11)
    admit(kv, request("0", COMMON))
    assert kv.lookup(request("1", COMMON)).num_tokens == 32
    assert kv.lookup(request("2", [*COMMON, 1])).num_tokens == 48


def test_a_salt_separates_whole_prompts() -> None:
    """Same tokens: the same salt hits, another one or none does not."""
    kv = manager(20)
    admit(kv, request("0", COMMON + [3] * 7, salt="s1"))
    assert kv.lookup(request("1", COMMON + [3] * 7, salt="s1")).num_tokens == 48
    assert kv.lookup(request("2", COMMON + [3] * 7, salt="s2")).num_tokens == 0
    assert kv.lookup(request("3", COMMON + [3] * 7)).num_tokens == 0


def test_a_refused_admission_changes_nothing() -> None:
    """Hit blocks keep their reference counts, and stay in the free queue if they were there."""
    kv = manager(11)
    first = request("0", COMMON)
    admit(kv, first)
    second = request("1", [*COMMON, *range(100, 148)])
    admit(kv, second)
    kv.free(first)
    kv.free(second)
    assert kv.pool.num_free_blocks == 10
    admit(kv, request("2", [*range(200, 280)]))
    before = free_ids(kv)
    late = request("3", [*COMMON, *range(300, 348)])
    hit = kv.lookup(late)
    assert hit.num_tokens == 48 and not kv.admit(late, 48, hit)
    assert free_ids(kv) == before and [block.ref_count for block in hit.blocks] == [0, 0, 0]


def test_prompt_logprobs_read_nothing_but_fill_the_cache() -> None:
    """Every prompt row must be computed, so the lookup is skipped; others may hit what it computed."""
    kv = manager(20)
    admit(kv, request("0", COMMON + [3] * 7))
    scored = request("1", COMMON + [3] * 7, prompt_logprobs=5)
    assert admit(kv, scored) == 0
    assert scored.num_registered_blocks == 3


def test_the_cache_is_reset_only_when_nothing_is_held() -> None:
    """Refused while a request holds blocks; afterwards no prefix is known."""
    kv = manager(11)
    r = request("0", COMMON + [3] * 7)
    admit(kv, r)
    assert not kv.pool.reset_cache()
    kv.free(r)
    assert kv.pool.reset_cache()
    assert kv.lookup(request("1", COMMON + [3] * 7)).num_tokens == 0
    assert all(block.key is None for block in kv.pool.blocks)


def test_equal_blocks_coexist_and_the_oldest_is_found() -> None:
    """Two blocks under one key: the first registered answers; when it is evicted, the other does."""
    pool = BlockPool(4, enable_caching=True)
    first, second, third = pool.allocate(3)
    pool.register(first, "key")
    pool.register(second, "key")
    assert pool.find("key") is first
    pool.free([first])
    assert pool.allocate(1) == [first]
    assert pool.find("key") is second
    pool.free([third])
    pool.check_integrity()


@pytest.mark.parametrize(("new", "lookahead", "blocks"), [(3, 2, 2), (3, 4, 2), (3, 5, 2), (3, 6, 3)])
def test_lookahead_slots_are_taken_with_the_tokens(new: int, lookahead: int, blocks: int) -> None:
    """Block size 4: 3 tokens and 2 or 4 slots ahead need two blocks; 6 need three."""
    kv = manager(20, 4)
    r = request("0", [*range(new)], 4)
    assert kv.admit(r, new, kv.lookup(r), num_lookahead_tokens=lookahead)
    assert len(r.block_table) == blocks


def test_free_queue_order() -> None:
    """Taken from the head, removed from the middle, appended at the tail, prepended so that the given order is kept."""
    blocks = [Block(i) for i in range(5)]
    queue = FreeQueue(blocks)
    assert queue.pop(1) == blocks[:1]
    queue.remove(blocks[2])
    queue.append([blocks[2]])
    queue.prepend([blocks[0]])
    assert [block.block_id for block in queue] == [0, 1, 3, 4, 2] and queue.num_blocks == 5
    assert queue.pop(5) == [blocks[i] for i in (0, 1, 3, 4, 2)] and queue.num_blocks == 0


# ------------------------------------------------------------------------------------- sliding windows


def window_manager(num_blocks: int = 100, version: str = "0.32.0") -> KVCacheManager:
    """Window 4, block size 2: a hit needs two blocks in a row."""
    return manager(num_blocks, 2, version=version, sliding_window=4)


@pytest.mark.parametrize(
    ("cached", "num_tokens", "null_blocks"),
    [
        ("TTFTFFTTFTTT", 24, 10),
        ("TTFTFFTTFFFF", 16, 6),
        ("TTFTFFTFFFFF", 4, 0),
        ("TFFFFFFFFFFF", 2, 0),
        ("FFFFFFFFFFFF", 0, 0),
    ],
)
def test_a_window_hit_is_the_last_run_that_covers_it(cached: str, num_tokens: int, null_blocks: int) -> None:
    """Which of 12 blocks are cached (T): tokens hit, and how many leading blocks are replaced by the null block."""
    kv = window_manager()
    r = request("0", [*range(25)], 2)
    for i, flag in enumerate(cached):
        if flag == "T":
            kv.pool.register(kv.pool.allocate(1)[0], r.content.block_key(i))
    hit = kv.lookup(r)
    assert hit.num_tokens == num_tokens
    assert sum(block is kv.pool.null_block for block in hit.blocks[: null_blocks or None]) >= null_blocks - 1


@pytest.mark.parametrize(("computed", "returned"), [(4, 0), (5, 1), (6, 1), (7, 2), (11, 4)])
def test_blocks_that_left_the_window_are_returned(computed: int, returned: int) -> None:
    """Window 4, block size 2: after 5 computed tokens one block has left, after 7 two, after 11 four."""
    kv = window_manager(20)
    r = request("0", [*range(12)], 2)
    admit(kv, r, computed)
    held = r.block_ids
    assert kv.extend(r, 1) is not None
    assert r.block_ids[:returned] == [0] * returned and r.block_ids[returned : len(held)] == held[returned:]


def test_the_later_of_the_returned_blocks_is_evicted_first() -> None:
    """Keyed blocks join the tail of the free queue from the window's edge backwards."""
    kv = window_manager(20)
    r = request("0", [*range(12)], 2)
    admit(kv, r, 11)
    assert r.block_ids == [1, 2, 3, 4, 5, 6]
    kv.extend(r, 1)
    assert free_ids(kv)[-4:] == [4, 3, 2, 1]


def test_a_window_within_a_block_kills_early_releases() -> None:
    """Window 8, block size 8: until 0.10.1 a block's hash is made from the block before, which has left already."""
    for version, dies in (("0.10.0", True), ("0.10.2", False)):
        kv = manager(20, 8, version=version, sliding_window=8)
        r = request("0", [*range(8)], 8)
        admit(kv, r)
        assert append(kv, r, 7) == 1
        if dies:
            with pytest.raises(EngineCrashError):
                append(kv, r, 1)
        else:
            assert append(kv, r, 1) == 0


def test_free_hit_blocks_count_as_needed() -> None:
    """Ten hit blocks that nobody holds leave the free queue, so admission needs them and the new ones."""
    kv = manager(15, 2)
    first = request("0", [*range(20)], 2)
    admit(kv, first)
    kv.free(first)
    assert kv.pool.num_free_blocks == 14
    late = request("1", [*range(20), *range(100, 108)], 2)
    assert kv.lookup(late).num_tokens == 20
    assert admit(kv, late) == 20
    assert kv.pool.num_free_blocks == 0
    kv.free(late)
    longer = request("2", [*range(20), *range(200, 209)], 2)
    assert not kv.admit(longer, 9, kv.lookup(longer))


def test_the_gate_counts_what_a_window_can_hold_at_once() -> None:
    """Prompt of 40 blocks, window and budget of 8 tokens: admitted to a pool of 19 blocks from 0.20 on, before not."""
    for version, admitted in (("0.32.0", True), ("0.21.0", True), ("0.19.0", False)):
        stepper = Stepper(
            engine_version=version,
            num_blocks=20,
            block_size=1,
            sliding_window=8,
            max_num_batched_tokens=8,
            max_model_len=64,
        )
        stepper.add("a", 40, max_tokens=4)
        assert bool(stepper.schedule().scheduled) is admitted, version


def test_a_window_moves_only_past_processed_tokens() -> None:
    """Asynchronous: from 0.26 on blocks that a step in flight still reads are kept; synchronous steps free at once."""
    for version, is_async, num_free in (("0.32.0", True, 11), ("0.25.0", True, 15), ("0.32.0", False, 15)):
        stepper = Stepper(
            engine_version=version,
            num_blocks=20,
            block_size=1,
            sliding_window=4,
            max_num_batched_tokens=4,
            max_model_len=64,
            async_scheduling=is_async,
        )
        stepper.add("a", 16)
        first = stepper.schedule()
        if not is_async:
            stepper.update(first)
        second = stepper.schedule()
        assert shares(second) == {"a": 4}
        assert stepper.num_free_blocks == (19 - 8 if num_free == 11 else 19 - 7), (version, is_async)
