"""BlockPool against lists and dicts: the same blocks, in exactly the same order of reuse and eviction."""

from __future__ import annotations

from collections.abc import Hashable

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from headway.core.blocks import Block, BlockPool
from tests.strategies import CountedMachine, run_machine

_KEYS = st.sampled_from("ABCD")


class NaivePool:
    """What a pool must do, written for clarity: O(blocks) everywhere."""

    def __init__(self, usable: list[int], unkeyed_first: bool) -> None:
        self.free = list(usable)
        self.refs = dict.fromkeys(usable, 0)
        self.keys: dict[int, Hashable] = {}
        self.registered: list[int] = []
        """Keyed blocks in order of registration."""
        self.unkeyed_first = unkeyed_first

    def forget(self, block_id: int) -> None:
        """The block loses its key."""
        if block_id in self.keys:
            del self.keys[block_id]
            self.registered.remove(block_id)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take from the head; what they cached is gone."""
        taken, self.free = self.free[:num_blocks], self.free[num_blocks:]
        for block_id in taken:
            self.forget(block_id)
            self.refs[block_id] = 1
        return taken

    def touch(self, block_id: int) -> None:
        """One more reference."""
        if block_id in self.free:
            self.free.remove(block_id)
        self.refs[block_id] += 1

    def release(self, block_ids: list[int]) -> None:
        """One reference fewer each; see `BlockPool.free` for the order."""
        head: list[int] = []
        tail: list[int] = []
        for block_id in block_ids:
            self.refs[block_id] -= 1
            if not self.refs[block_id]:
                (head if self.unkeyed_first and block_id not in self.keys else tail).append(block_id)
        self.free = head + self.free + tail

    def register(self, block_id: int, key: Hashable) -> None:
        """The block can be found by this key, after those that have it already."""
        self.forget(block_id)
        self.keys[block_id] = key
        self.registered.append(block_id)

    def find(self, key: Hashable) -> int | None:
        """The first block registered under the key."""
        return next((block_id for block_id in self.registered if self.keys[block_id] == key), None)


class BlockPoolMachine(CountedMachine):
    """Tables allocate, share, register and drop blocks; pool and naive pool must agree after each step."""

    @initialize(num_blocks=st.integers(2, 12), unkeyed_first=st.booleans(), has_null=st.booleans())
    def set_up(self, num_blocks: int, unkeyed_first: bool, has_null: bool) -> None:
        self.pool = BlockPool(
            num_blocks, enable_caching=True, reuse_unkeyed_first=unkeyed_first, has_null_block=has_null
        )
        self.naive = NaivePool(list(range(int(has_null), num_blocks)), unkeyed_first)
        self.tables: list[list[Block]] = []

    def _same(self, blocks: list[Block], ids: list[int]) -> None:
        assert [block.block_id for block in blocks] == ids

    @rule(num_blocks=st.integers(0, 6))
    def allocate(self, num_blocks: int) -> None:
        num_blocks = min(num_blocks, self.pool.num_free_blocks)
        blocks = self.pool.allocate(num_blocks)
        self._same(blocks, self.naive.allocate(num_blocks))
        self.tables.append(blocks)

    @rule(key=_KEYS)
    def hit(self, key: str) -> None:
        block = self.pool.find(key)
        if block is not None:
            self.pool.touch([self.pool.null_block, block])
            self.naive.touch(block.block_id)
            self.tables.append([block])

    @precondition(lambda self: any(self.tables))
    @rule(data=st.data(), key=_KEYS)
    def register(self, data: st.DataObject, key: str) -> None:
        block = data.draw(st.sampled_from([block for table in self.tables for block in table]))
        self.pool.register(block, key)
        self.naive.register(block.block_id, key)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.free([*table[::-1], self.pool.null_block])
        self.naive.release([block.block_id for block in reversed(table)])

    @rule()
    def reset_cache(self) -> None:
        held = any(self.tables)
        assert self.pool.reset_cache() is not held
        if not held:
            self.naive.keys.clear()
            self.naive.registered.clear()

    @invariant()
    def agree(self) -> None:
        self.pool.check_integrity()
        naive = self.naive
        assert [block.block_id for block in self.pool.free_queue] == naive.free
        assert {b.block_id: b.ref_count for b in self.pool.blocks if b is not self.pool.null_block} == naive.refs
        assert {b.block_id: b.key for b in self.pool.blocks if b.key is not None} == naive.keys
        for key in "ABCD":
            found = self.pool.find(key)
            assert (found and found.block_id) == naive.find(key)
        assert self.pool.num_referenced_blocks == len({b.block_id for table in self.tables for b in table})


def test_pool_agrees_with_naive_lists() -> None:
    run_machine(BlockPoolMachine)
