"""Fixed-size KV blocks, their reference counts, and the order in which free ones are reused.

A block is in exactly one of these states:

    ref_count > 0                referenced by that many block tables; never in the free queue
    ref_count == 0, key None     free and empty of meaning
    ref_count == 0, key set      free, but still holds a cached prefix: a hit takes it back, reuse evicts it
    the null block (id 0)        stands in for blocks that are never read; outside all accounting
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator


class Block:
    """One KV block. Only the pool writes it; `previous` and `next` link the free queue."""

    __slots__ = ("block_id", "key", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: Hashable | None = None
        self.previous: Block | None = None
        self.next: Block | None = None

    def __repr__(self) -> str:
        return f"Block({self.block_id}, refs={self.ref_count}, {'cached' if self.key is not None else 'plain'})"


class FreeQueue:
    """Doubly linked list of free blocks; the head is reused first. Every operation is O(1) a block."""

    __slots__ = ("_head", "_tail", "num_blocks")

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next = self._tail
        self._tail.previous = self._head
        self.num_blocks = 0
        self.append(blocks)

    def pop(self, num_blocks: int) -> list[Block]:
        """Take `num_blocks` from the head; there must be that many."""
        assert num_blocks <= self.num_blocks, f"{num_blocks} blocks wanted, {self.num_blocks} free"
        taken = []
        block = self._head.next
        for _ in range(num_blocks):
            assert block is not None
            taken.append(block)
            following = block.next
            block.previous = block.next = None
            block = following
        assert block is not None
        self._head.next = block
        block.previous = self._head
        self.num_blocks -= num_blocks
        return taken

    def pop_first(self) -> Block:
        """Take the head; the queue must not be empty."""
        head = self._head
        block = head.next
        assert block is not None
        following = block.next
        assert following is not None
        head.next, following.previous = following, head
        block.previous = block.next = None
        self.num_blocks -= 1
        return block

    def remove(self, block: Block) -> None:
        """Take one block out of the middle."""
        before, after = block.previous, block.next
        assert before is not None and after is not None, f"{block} is not in the free queue"
        before.next, after.previous = after, before
        block.previous = block.next = None
        self.num_blocks -= 1

    def append(self, blocks: Iterable[Block]) -> None:
        """Add at the tail, in the given order."""
        last = self._tail.previous
        assert last is not None
        self._insert(last, blocks, self._tail)

    def prepend(self, blocks: Iterable[Block]) -> None:
        """Add at the head, so that the given order is the order of reuse."""
        first = self._head.next
        assert first is not None
        self._insert(self._head, blocks, first)

    def _insert(self, last: Block, blocks: Iterable[Block], following: Block) -> None:
        """Put blocks between two neighbours, in the given order."""
        count = 0
        for block in blocks:
            last.next = block
            block.previous = last
            last = block
            count += 1
        self.num_blocks += count
        last.next, following.previous = following, last

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not self._tail:
            assert block is not None
            yield block
            block = block.next


class BlockPool:
    """All KV blocks of one device.

    Args:
        num_blocks: including the null block, as vLLM's num_gpu_blocks.
        enable_caching: keep keys on freed blocks, so that equal prefixes can find them.
        reuse_unkeyed_first: freed blocks without a key go to the head of the free queue (vLLM 0.24 and later);
            otherwise to the tail.
        has_null_block: block 0 is set aside (vLLM 0.8.2 and later).
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        enable_caching: bool,
        reuse_unkeyed_first: bool = True,
        has_null_block: bool = True,
    ) -> None:
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.enable_caching = enable_caching
        self._reuse_unkeyed_first = reuse_unkeyed_first
        self.null_block = self.blocks[0] if has_null_block else Block(-1)
        usable = self.blocks[1:] if has_null_block else self.blocks
        self.num_usable_blocks = len(usable)
        self.free_queue = FreeQueue(usable)
        self._cached: dict[Hashable, dict[int, Block]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated now, cached ones included."""
        return self.free_queue.num_blocks

    @property
    def num_referenced_blocks(self) -> int:
        """Blocks that live requests hold; one shared by several counts once."""
        return self.num_usable_blocks - self.free_queue.num_blocks

    @property
    def usage(self) -> float:
        """Share of the usable blocks that live requests hold, 0 to 1."""
        return self.num_referenced_blocks / self.num_usable_blocks

    def allocate(self, num_blocks: int) -> list[Block]:
        """Take blocks from the head of the free queue, evicting whatever prefix they still cached.

        There must be that many free; the caller checks.
        """
        blocks = self.free_queue.pop(num_blocks)
        for block in blocks:
            if block.key is not None:
                self._forget(block)
            block.ref_count = 1
        return blocks

    def allocate_one(self) -> Block:
        """As `allocate(1)`, which decoding asks for all the time."""
        block = self.free_queue.pop_first()
        if block.key is not None:
            self._forget(block)
        block.ref_count = 1
        return block

    def touch(self, blocks: Iterable[Block]) -> None:
        """Add a reference to cached blocks that a request hit; free ones leave the free queue."""
        for block in blocks:
            if block is self.null_block:
                continue
            if block.ref_count == 0:
                self.free_queue.remove(block)
            block.ref_count += 1

    def free(self, blocks: Iterable[Block]) -> None:
        """Drop one reference to each block; those that nobody references any more join the free queue.

        `blocks` is in the order in which they should be evicted: a request passes its table reversed, so that its
        tail goes before its head. Keyed blocks join at the tail (least recently used goes first); unkeyed ones at the
        head, since nothing can hit them, or at the tail where the engine version does that.
        """
        head: list[Block] = []
        tail: list[Block] = []
        null, unkeyed = self.null_block, head if self._reuse_unkeyed_first else tail
        for block in blocks:
            if block is null:
                continue
            block.ref_count -= 1
            if block.ref_count == 0:
                (unkeyed if block.key is None else tail).append(block)
        self.free_queue.prepend(head)
        self.free_queue.append(tail)

    def register(self, block: Block, key: Hashable) -> None:
        """Make a full, referenced block findable by its key. Blocks with equal keys coexist; the oldest is found."""
        if block.key is not None:
            self._forget(block)
        block.key = key
        self._cached.setdefault(key, {})[block.block_id] = block

    def find(self, key: Hashable) -> Block | None:
        """The block registered first under this key, if one is still cached."""
        candidates = self._cached.get(key)
        return next(iter(candidates.values())) if candidates else None

    def reset_cache(self) -> bool:
        """Forget every cached prefix. Refused (False) while any request holds a block."""
        if self.num_referenced_blocks:
            return False
        self._cached.clear()
        for block in self.blocks:
            block.key = None
        return True

    def _forget(self, block: Block) -> None:
        candidates = self._cached[block.key]
        del candidates[block.block_id]
        if not candidates:
            del self._cached[block.key]
        block.key = None

    def check_integrity(self) -> None:
        """Assert every invariant of the pool: for tests, after each step."""
        free = list(self.free_queue)
        assert len(free) == self.free_queue.num_blocks, "free queue miscounts"
        assert len({id(block) for block in free}) == len(free), "a block is twice in the free queue"
        assert all(block.ref_count == 0 for block in free), "a referenced block is in the free queue"
        assert self.null_block not in free and self.null_block.key is None, "the null block is in use"
        unreferenced = [b for b in self.blocks if b is not self.null_block and b.ref_count == 0]
        assert len(unreferenced) == len(free), "an unreferenced block is missing from the free queue"
        for key, candidates in self._cached.items():
            assert candidates, "an empty cache entry is kept"
            for block_id, block in candidates.items():
                assert block.block_id == block_id and block.key == key, f"{block} is cached under a wrong key"
        num_keyed = sum(block.key is not None for block in self.blocks)
        assert num_keyed == sum(map(len, self._cached.values())), "a keyed block is not in the cache map"
