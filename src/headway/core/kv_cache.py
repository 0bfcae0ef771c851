"""Block tables: which KV blocks hold which tokens of which request, with prefix caching and sliding windows.

Token ranges of one request, and who owns their blocks:

    | computed            | new                 | lookahead |      slots in the block table
    | cached prefix | own | this step's tokens  | drafts    |
    ^ shared, ref_count++ ^ own, ref_count 1

Nothing changes when an allocation fails, except that blocks which left a sliding window are already returned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.config import CacheConfig
from headway.core.blocks import Block, BlockPool
from headway.core.profiles import EngineCrashError, SchedulerProfile
from headway.core.request import Request


class PrefixHit(NamedTuple):
    """The longest cached prefix of a request. Nothing is referenced until the request is admitted with it."""

    blocks: Sequence[Block]
    num_tokens: int


NO_HIT = PrefixHit((), 0)
_NO_BLOCKS: tuple[Block, ...] = ()


class KvUsage(NamedTuple):
    """KV slots at one instant, in tokens: what live requests hold, and what of it holds computed tokens."""

    num_reserved_slots: int
    """Slots in blocks that live requests reference, shared blocks once; cached but free blocks are not counted."""
    num_used_slots: int
    """Of those, slots that hold a computed token, shared ones once."""

    @property
    def waste(self) -> float:
        """Share of the reserved slots that hold nothing, 0 to 1."""
        return 1.0 - self.num_used_slots / self.num_reserved_slots if self.num_reserved_slots else 0.0


class KVCacheManager:
    """Gives requests KV slots and takes them back.

    Args:
        max_in_flight_tokens: most tokens scheduled but not yet processed; bounds what a sliding-window request holds.
    """

    def __init__(
        self, config: CacheConfig, profile: SchedulerProfile, max_model_len: int, max_in_flight_tokens: int
    ) -> None:
        self.config = config
        self.pool = BlockPool(
            config.num_blocks,
            enable_caching=config.enable_prefix_caching,
            reuse_unkeyed_first=profile.reuses_unkeyed_blocks_first
            or (config.sliding_window is not None and profile.reuses_unkeyed_window_blocks_first),
            has_null_block=profile.has_null_block,
        )
        self.block_size = config.block_size
        self._max_model_len = max_model_len
        self._window = config.sliding_window if profile.matches_sliding_window else None
        self._caching = config.enable_prefix_caching
        self._drops_last_hit_block = config.drops_last_hit_block
        self._num_watermark_blocks = int(config.watermark * config.num_blocks) if profile.has_watermark else 0
        self._num_preallocated_blocks = -(-profile.num_preallocated_tokens // self.block_size)
        self._window_counts_in_flight = profile.window_counts_in_flight
        self._chains_keys = profile.chains_keys_over_table
        self._window_cap: int | None = None
        self._caps_everywhere = profile.caps_window_everywhere
        if self._window is not None and profile.caps_window_at_gate:
            num_tokens = min(self._window - 1 + max_in_flight_tokens, max_model_len)
            self._window_cap = -(-num_tokens // self.block_size) + 1
        self._adds_one = not self._num_preallocated_blocks and not (self._caps_everywhere and self._window_cap)
        """Whether a request that lacks one block gets exactly that."""

    @property
    def has_window(self) -> bool:
        """Whether blocks are returned as they leave a sliding window."""
        return self._window is not None

    @property
    def most_blocks_per_token(self) -> int:
        """Most blocks that a running request takes when it needs one more slot."""
        return 1 + self._num_preallocated_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def peak_blocks(self, num_tokens: int) -> int:
        """Most blocks that one sequence of `num_tokens` ever holds at once."""
        needed = self.blocks_for(num_tokens)
        return needed if self._window_cap is None else min(needed, self._window_cap)

    def lookup(self, request: Request) -> PrefixHit:
        """The longest cached prefix, at most all tokens but the last, whose logits must be computed."""
        if not self._caching or request.sampling.prompt_logprobs is not None:
            return NO_HIT
        max_blocks = (request.num_tokens - 1) // self.block_size
        blocks = (
            self._find_prefix(request, max_blocks) if self._window is None else self._find_window(request, max_blocks)
        )
        if self._drops_last_hit_block:
            blocks = blocks[:-1]
        return PrefixHit(blocks, len(blocks) * self.block_size)

    def _find_prefix(self, request: Request, max_blocks: int) -> list[Block]:
        blocks: list[Block] = []
        for i in range(max_blocks):
            block = self.pool.find(request.content.block_key(i))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _find_window(self, request: Request, max_blocks: int) -> list[Block]:
        """Right to left: the last run of cached blocks that covers a window; blocks before it may be null."""
        assert self._window is not None
        wanted = -(-(self._window - 1) // self.block_size) + self._drops_last_hit_block
        blocks = [self.pool.null_block] * max_blocks
        run = 0
        for i in range(max_blocks - 1, -1, -1):
            block = self.pool.find(request.content.block_key(i))
            if block is None:
                run = 0
                continue
            blocks[i] = block
            run += 1
            if run >= wanted:
                return blocks[: i + run]
        return blocks[:run]

    def admit(
        self,
        request: Request,
        num_new_tokens: int,
        hit: PrefixHit,
        *,
        num_lookahead_tokens: int = 0,
        whole_sequence_must_fit: bool = False,
        keep_watermark: bool = False,
        num_reserved_tokens: int = 0,
    ) -> bool:
        """Give a waiting request its cached prefix and slots for its next tokens; False if they do not fit.

        Args:
            whole_sequence_must_fit: refuse unless all tokens known so far would fit now.
            keep_watermark: leave the watermark's blocks free.
            num_reserved_tokens: take slots for at least this many tokens.
        """
        num_computed = request.num_computed_tokens + hit.num_tokens
        spare = self.pool.num_free_blocks - (self._num_watermark_blocks if keep_watermark else 0)
        if whole_sequence_must_fit:
            num_tokens = min(request.num_tokens, self._max_model_len)
            if self._num_missing(self.peak_blocks(num_tokens), num_computed, hit) > spare:
                return False
        num_slots = min(num_computed + num_new_tokens + num_lookahead_tokens, self._max_model_len)
        num_required = self.blocks_for(max(num_slots, num_reserved_tokens))
        if self._num_missing(self._counted(num_required), num_computed, hit) > spare:
            return False
        self._adopt(request, hit)
        self._grow(request, num_required, num_lookahead_tokens)
        self.register(request, min(num_computed + num_new_tokens, request.num_tokens))
        return True

    def _counted(self, num_required: int) -> int:
        """Blocks that an allocation is judged by."""
        return min(num_required, self._window_cap) if self._caps_everywhere and self._window_cap else num_required

    def _num_missing(self, num_required: int, num_computed: int, hit: PrefixHit) -> int:
        """Free blocks that admission consumes: new ones, and hit ones that nobody else references."""
        num_skipped = self._num_skipped_blocks(num_computed)
        num_new = max(num_required - max(num_skipped, len(hit.blocks)), 0)
        null = self.pool.null_block
        return num_new + sum(block.ref_count == 0 and block is not null for block in hit.blocks[num_skipped:])

    def _adopt(self, request: Request, hit: PrefixHit) -> None:
        num_skipped = self._num_skipped_blocks(hit.num_tokens)
        kept = hit.blocks[num_skipped:]
        self.pool.touch(kept)
        request.block_table = [self.pool.null_block] * num_skipped
        request.block_table += kept
        request.num_registered_blocks = len(request.block_table)

    def extend(self, request: Request, num_new_tokens: int, num_lookahead_tokens: int = 0) -> Sequence[Block] | None:
        """Give a running request slots for its next tokens.

        Returns:
            The blocks added to its table (often none), or None if too few are free.
        """
        end = request.num_computed_tokens + num_new_tokens
        if self._window is not None:
            self._return_skipped(request)
        added: Sequence[Block] = _NO_BLOCKS
        num_slots = end + num_lookahead_tokens
        num_lacking = num_slots - len(request.block_table) * self.block_size
        if 0 < num_lacking <= self.block_size and self._adds_one and num_slots <= self._max_model_len:
            if not self.pool.free_queue.num_blocks:
                return None
            block = self.pool.allocate_one()
            request.block_table.append(block)
            added = (block,)
        elif num_lacking > 0:
            num_required = self.blocks_for(min(num_slots, self._max_model_len))
            if self._counted(num_required) - len(request.block_table) > self.pool.num_free_blocks:
                return None
            added = self._grow(request, num_required, num_lookahead_tokens)
        if self._caching:
            known = min(end, request.num_tokens)
            if known // self.block_size > request.num_registered_blocks:
                self.register(request, known)
        return added

    def _grow(self, request: Request, num_required: int, num_lookahead_tokens: int) -> Sequence[Block]:
        num_new = num_required - len(request.block_table)
        if num_new <= 0:
            return _NO_BLOCKS
        if self._num_preallocated_blocks:
            extra = max(0, self._num_preallocated_blocks - num_lookahead_tokens // self.block_size)
            most = self.blocks_for(self._max_model_len) - len(request.block_table)
            num_new = min(num_new + extra, self.pool.num_free_blocks, most)
        if num_new > self.pool.num_free_blocks:
            raise EngineCrashError(f"ValueError: Cannot get {num_new} free blocks from the pool")
        blocks = self.pool.allocate(num_new)
        request.block_table += blocks
        return blocks

    def register(self, request: Request, num_tokens: int) -> None:
        """Make the full blocks among the first `num_tokens` tokens findable. The tokens must be known."""
        if not self._caching:
            return
        num_full = num_tokens // self.block_size
        first = request.num_registered_blocks
        if self._chains_keys and 0 < first < num_full and request.block_table[first - 1] is self.pool.null_block:
            raise EngineCrashError("AssertionError: the block before has no hash: it left the window")
        for i in range(first, num_full):
            block = request.block_table[i]
            if block is not self.pool.null_block:
                self.pool.register(block, request.content.block_key(i))
        request.num_registered_blocks = max(request.num_registered_blocks, num_full)

    def free(self, request: Request) -> None:
        """Take back all blocks of a request: its tail will be reused before its head."""
        self.pool.free(request.block_table[::-1])
        request.block_table = []
        request.num_registered_blocks = 0

    def _num_skipped_blocks(self, num_computed: int) -> int:
        """Leading blocks that no later token attends to."""
        if self._window is None:
            return 0
        return max(0, num_computed - self._window + 1) // self.block_size

    def _return_skipped(self, request: Request) -> None:
        """Return blocks that left the sliding window, judged by tokens already processed."""
        table, null = request.block_table, self.pool.null_block
        processed = request.num_computed_tokens
        if not self._window_counts_in_flight:
            processed = max(0, processed - request.num_in_flight_tokens)
        returned = []
        for i in range(min(self._num_skipped_blocks(processed), len(table)) - 1, -1, -1):
            if table[i] is null:
                break
            returned.append(table[i])
            table[i] = null
        if returned:
            self.pool.free(returned)

    def usage_by(self, running: Iterable[Request], held: tuple[int, int] = (0, 0)) -> KvUsage:
        """Reserved and used slots, `running` being all requests that hold blocks. O(requests).

        Args:
            held: computed tokens and table entries of others that hold blocks, summed.
        """
        num_computed, num_references = held
        for request in running:
            num_computed += request.num_computed_tokens
            num_references += len(request.block_table)
            if self._window is not None:
                num_null = sum(block is self.pool.null_block for block in request.block_table)
                num_computed -= num_null * self.block_size
                num_references -= num_null
        num_referenced = self.pool.num_referenced_blocks
        num_duplicates = num_references - num_referenced
        return KvUsage(num_referenced * self.block_size, num_computed - num_duplicates * self.block_size)

    def check_integrity(self, running: Iterable[Request]) -> None:
        """Assert that reference counts are exactly the block tables of `running`, and that tables are long enough."""
        self.pool.check_integrity()
        counts = dict.fromkeys((block.block_id for block in self.pool.blocks), 0)
        for request in running:
            assert len(request.block_table) * self.block_size >= request.num_computed_tokens, f"{request} lacks slots"
            assert request.num_registered_blocks <= len(request.block_table), f"{request} registered too much"
            for block in request.block_table:
                counts[block.block_id] += block is not self.pool.null_block
        for block in self.pool.blocks:
            assert block is self.pool.null_block or block.ref_count == counts[block.block_id], (
                f"{block} is referenced {block.ref_count} times but is in {counts[block.block_id]} tables"
            )
