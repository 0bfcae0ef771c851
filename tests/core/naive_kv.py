"""A KV-cache manager written for clarity: lists, dicts and whole prefixes instead of links, hashes and counters.

It keeps its own token lists, tables and free order; tests compare them with the real manager's after each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.config import CacheConfig
from tests.core.test_blocks_machine import NaivePool

Prefix = tuple[str | None, tuple[int, ...]]
"""Salt, and every token from the start to the end of a block: what makes two blocks equal."""


@dataclass(slots=True)
class NaiveTable:
    """One request: its tokens and its blocks; None stands for a block that left the sliding window."""

    tokens: list[int]
    salt: str | None
    blocks: list[int | None] = field(default_factory=list)
    num_registered: int = 0

    def prefix(self, index: int, block_size: int) -> Prefix:
        """Identity of block `index`."""
        return self.salt, tuple(self.tokens[: (index + 1) * block_size])


class NaiveKv:
    """See `KVCacheManager`; `unkeyed_first` as in `BlockPool`."""

    def __init__(self, config: CacheConfig, unkeyed_first: bool, max_model_len: int, max_in_flight_tokens: int) -> None:
        self.config = config
        self.size = config.block_size
        self.pool = NaivePool(list(range(1, config.num_blocks)), unkeyed_first)
        self.max_model_len = max_model_len
        self.max_in_flight_tokens = max_in_flight_tokens
        self.num_watermark_blocks = int(config.watermark * config.num_blocks)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold that many tokens."""
        return (num_tokens + self.size - 1) // self.size

    def num_skipped(self, num_tokens: int) -> int:
        """Blocks that only hold tokens which the token after the first `num_tokens` does not attend to."""
        window = self.config.sliding_window
        if window is None:
            return 0
        first_needed = max(0, num_tokens + 1 - window)
        return first_needed // self.size

    def lookup(self, table: NaiveTable) -> int:
        """Blocks in the longest usable cached prefix: every block that the next token attends to is cached."""
        if not self.config.enable_prefix_caching:
            return 0
        most = (len(table.tokens) - 1) // self.size
        for num_blocks in range(most, 0, -1):
            needed = range(self.num_skipped(num_blocks * self.size), num_blocks)
            if all(self.pool.find(table.prefix(i, self.size)) is not None for i in needed):
                return num_blocks
        return 0

    def admit(
        self,
        table: NaiveTable,
        num_new: int,
        *,
        num_lookahead: int,
        whole: bool,
        keep_watermark: bool,
        num_reserved: int,
    ) -> bool:
        """See `KVCacheManager.admit`."""
        num_hit = self.lookup(table)
        first_kept = self.num_skipped(num_hit * self.size)
        hits = [self.pool.find(table.prefix(i, self.size)) for i in range(first_kept, num_hit)]
        num_idle_hits = sum(block in self.pool.free for block in hits)
        spare = len(self.pool.free) - (self.num_watermark_blocks if keep_watermark else 0)
        if whole:
            num_blocks = self.blocks_for(min(len(table.tokens), self.max_model_len))
            window = self.config.sliding_window
            if window is not None:
                most_held = min(window - 1 + self.max_in_flight_tokens, self.max_model_len)
                num_blocks = min(num_blocks, self.blocks_for(most_held) + 1)
            if max(0, num_blocks - num_hit) + num_idle_hits > spare:
                return False
        end = num_hit * self.size + num_new
        num_blocks = self.blocks_for(max(min(end + num_lookahead, self.max_model_len), num_reserved))
        if max(0, num_blocks - num_hit) + num_idle_hits > spare:
            return False
        for block in hits:
            assert block is not None
            self.pool.touch(block)
        table.blocks = [*([None] * first_kept), *hits]
        table.blocks += self.pool.allocate(max(0, num_blocks - len(table.blocks)))
        table.num_registered = num_hit
        self.register(table, min(end, len(table.tokens)))
        return True

    def extend(
        self, table: NaiveTable, num_computed: int, num_processed: int, num_new: int, num_lookahead: int
    ) -> bool:
        """See `KVCacheManager.extend`."""
        behind = min(self.num_skipped(num_processed), len(table.blocks))
        gone = [block for block in reversed(table.blocks[:behind]) if block is not None]
        self.pool.release(gone)
        table.blocks[:behind] = [None] * behind
        end = num_computed + num_new
        num_more = self.blocks_for(min(end + num_lookahead, self.max_model_len)) - len(table.blocks)
        if num_more > len(self.pool.free):
            return False
        table.blocks += self.pool.allocate(max(0, num_more))
        self.register(table, min(end, len(table.tokens)))
        return True

    def register(self, table: NaiveTable, num_tokens: int) -> None:
        """See `KVCacheManager.register`."""
        if not self.config.enable_prefix_caching:
            return
        while table.num_registered < num_tokens // self.size:
            block = table.blocks[table.num_registered]
            if block is not None:
                self.pool.register(block, table.prefix(table.num_registered, self.size))
            table.num_registered += 1

    def free(self, table: NaiveTable) -> None:
        """See `KVCacheManager.free`."""
        self.pool.release([block for block in reversed(table.blocks) if block is not None])
        table.blocks, table.num_registered = [], 0

    def usage(self, tables: Sequence[tuple[NaiveTable, int]]) -> tuple[int, int]:
        """Slots in referenced blocks, and those of them that hold a computed token; shared ones once."""
        held: dict[int, int] = {}
        for table, num_computed in tables:
            for i, block in enumerate(table.blocks):
                if block is not None:
                    held[block] = max(held.get(block, 0), min(self.size, max(0, num_computed - i * self.size)))
        return len(held) * self.size, sum(held.values())
