"""KVCacheManager against the naive one: equal answers, equal tables, equal free order, after each step."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from headway.config import CacheConfig
from headway.core.kv_cache import KVCacheManager
from headway.core.profiles import profile_for
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from tests.core.naive_kv import NaiveKv, NaiveTable
from tests.strategies import CountedMachine, prompts, run_machine

_MAX_MODEL_LEN = 30
_MAX_IN_FLIGHT = 16


@dataclass(eq=False, slots=True)
class _Live:
    request: Request
    table: NaiveTable


class KVCacheMachine(CountedMachine):
    """Requests look up, are admitted, grow (drafts and rejections included), learn tokens and leave."""

    @initialize(
        num_blocks=st.integers(2, 14),
        block_size=st.integers(1, 4),
        caching=st.sampled_from([True, True, False]),
        window=st.sampled_from([None, None, 2, 5, 9]),
        watermark=st.sampled_from([0.0, 0.2]),
        version=st.sampled_from(["0.32.0", "0.22.1"]),
    )
    def set_up(
        self, num_blocks: int, block_size: int, caching: bool, window: int | None, watermark: float, version: str
    ) -> None:
        self.profile = profile = profile_for(version)
        config = CacheConfig(
            num_blocks, block_size, caching, watermark if profile.has_watermark else 0.0, sliding_window=window
        )
        self.kv = KVCacheManager(config, profile, _MAX_MODEL_LEN, _MAX_IN_FLIGHT)
        self.naive = NaiveKv(config, profile.reuses_unkeyed_blocks_first, _MAX_MODEL_LEN, _MAX_IN_FLIGHT)
        self.live: list[_Live] = []
        self.num_made = 0

    @rule(
        prompt=prompts(_MAX_MODEL_LEN - 1),
        salt=st.sampled_from([None, None, "s"]),
        num_new=st.integers(1, _MAX_IN_FLIGHT),
        num_lookahead=st.sampled_from([0, 0, 2]),
        whole=st.booleans(),
        keep_watermark=st.booleans(),
        num_reserved=st.sampled_from([0, 0, 0, _MAX_MODEL_LEN]),
    )
    def admit(
        self,
        prompt: tuple[int, ...],
        salt: str | None,
        num_new: int,
        num_lookahead: int,
        whole: bool,
        keep_watermark: bool,
        num_reserved: int,
    ) -> None:
        self.num_made += 1
        content = TokenContent(prompt, self.kv.block_size, salt)
        request = Request(str(self.num_made), content, len(prompt), SamplingParams(), _MAX_MODEL_LEN)
        table = NaiveTable(list(prompt), salt)
        hit = self.kv.lookup(request)
        assert hit.num_tokens == self.naive.lookup(table) * self.kv.block_size
        assert hit.num_tokens < request.num_tokens, "the last token must be computed, for its logits"
        num_new = min(num_new, request.num_tokens - hit.num_tokens)
        admitted = self.kv.admit(
            request,
            num_new,
            hit,
            num_lookahead_tokens=num_lookahead,
            whole_sequence_must_fit=whole,
            keep_watermark=keep_watermark,
            num_reserved_tokens=num_reserved,
        )
        assert admitted is self.naive.admit(
            table,
            num_new,
            num_lookahead=num_lookahead,
            whole=whole,
            keep_watermark=keep_watermark,
            num_reserved=num_reserved,
        )
        if admitted:
            request.num_computed_tokens = hit.num_tokens + num_new
            request.num_in_flight_tokens = num_new
            self.live.append(_Live(request, table))
        else:
            assert not request.block_table

    @precondition(lambda self: self.live)
    @rule(
        data=st.data(),
        num_wanted=st.integers(1, _MAX_IN_FLIGHT),
        num_drafts=st.sampled_from([0, 0, 3]),
        num_lookahead=st.sampled_from([0, 2]),
    )
    def extend(self, data: st.DataObject, num_wanted: int, num_drafts: int, num_lookahead: int) -> None:
        live = data.draw(st.sampled_from(self.live))
        request, computed = live.request, live.request.num_computed_tokens
        room = min(_MAX_MODEL_LEN - 1 - computed, _MAX_IN_FLIGHT - request.num_in_flight_tokens)
        num_new = min(num_wanted, request.num_tokens + num_drafts - computed, room)
        if num_new <= 0:
            return
        length, num_in_flight = len(request.block_table), request.num_in_flight_tokens
        added = self.kv.extend(request, num_new, num_lookahead)
        num_processed = computed - (0 if self.profile.window_counts_in_flight else num_in_flight)
        fits = self.naive.extend(live.table, computed, num_processed, num_new, num_lookahead)
        assert fits is (added is not None)
        if added is not None:
            assert list(added) == request.block_table[length:], "the blocks added are those at the table's end"
            request.num_computed_tokens += num_new
            request.num_in_flight_tokens += num_new

    @precondition(lambda self: self.live)
    @rule(data=st.data(), num_outputs=st.integers(0, 3))
    def process(self, data: st.DataObject, num_outputs: int) -> None:
        """A step's result: nothing stays in flight, outputs become known, unverified slots are taken back."""
        live = data.draw(st.sampled_from(self.live))
        request = live.request
        request.num_in_flight_tokens = 0
        if request.num_computed_tokens >= request.num_tokens:
            num_outputs = min(num_outputs, _MAX_MODEL_LEN - 1 - request.num_tokens)
            ids = [400 + request.num_tokens + i for i in range(num_outputs)]
            request.content.extend(num_outputs, ids)
            live.table.tokens += ids
            request.num_tokens += num_outputs
            request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens)
            self.kv.register(request, request.num_computed_tokens)
            self.naive.register(live.table, request.num_computed_tokens)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        live = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.kv.free(live.request)
        self.naive.free(live.table)

    @invariant()
    def agree(self) -> None:
        requests = [live.request for live in self.live]
        self.kv.check_integrity(requests)
        null = self.kv.pool.null_block
        for live in self.live:
            ids = [None if block is null else block.block_id for block in live.request.block_table]
            assert ids == live.table.blocks, live.request
        assert [block.block_id for block in self.kv.pool.free_queue] == self.naive.pool.free
        assert {block.block_id for block in self.kv.pool.blocks if block.key is not None} == set(self.naive.pool.keys)
        tables = [(live.table, live.request.num_computed_tokens) for live in self.live]
        assert tuple(self.kv.usage_by(requests)) == self.naive.usage(tables)

    def teardown(self) -> None:
        for live in self.live:
            self.kv.free(live.request)
        assert self.kv.pool.num_free_blocks == self.kv.pool.num_usable_blocks


@pytest.mark.slow
def test_manager_agrees_with_naive_tables() -> None:
    run_machine(KVCacheMachine)
