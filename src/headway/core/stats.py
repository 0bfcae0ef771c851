"""Counters and typed events that every executor and frontend shares."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headway.core.kv_cache import KvUsage
from headway.core.plan import Stride
from headway.core.request import FinishReason, Request


@dataclass(slots=True)
class SchedulerStats:
    """Totals since the scheduler was made. KV waste is sampled once a step, weighted equally."""

    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    """Of requests that have got their first token: vLLM counts a prompt when it is done, not when it is admitted."""
    num_generation_tokens: int = 0
    prefix_cache_queries: int = 0
    """Tokens looked up in the prefix cache at admission."""
    prefix_cache_hits: int = 0
    """Tokens found there."""
    num_drafts: int = 0
    """Speculation: steps of one request that verified drafts."""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_position: list[int] = field(default_factory=list)
    """How often the draft at each position was accepted."""
    finished: Counter[FinishReason] = field(default_factory=Counter)
    samples_kv: bool = True
    num_kv_samples: int = 0
    kv_reserved_slots_sum: int = 0
    kv_used_slots_sum: int = 0
    peak_kv_waste: float = 0.0
    peak_kv_reserved_slots: int = 0

    def count_lookup(self, request: Request, num_hits: int, caching: bool) -> None:
        """A request was admitted with this many cached tokens. Re-admissions after a preemption are not counted."""
        if request.num_preemptions:
            return
        if caching:
            self.prefix_cache_queries += request.num_tokens
            self.prefix_cache_hits += num_hits

    def count_drafts(self, num_draft_tokens: int, num_accepted: int) -> None:
        """Drafts of one request were verified, and the first `num_accepted` of them accepted."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted
        per_position = self.num_accepted_per_position
        per_position += [0] * (num_draft_tokens - len(per_position))
        for position in range(num_accepted):
            per_position[position] += 1

    def count_finished(self, request: Request) -> None:
        """A request ended."""
        assert request.finish_reason is not None
        self.finished[request.finish_reason] += 1

    def sample_kv(self, usage: KvUsage) -> None:
        """Take one step's KV usage in; steps in which nothing is held do not count."""
        if not usage.num_reserved_slots:
            return
        self.num_kv_samples += 1
        self.kv_reserved_slots_sum += usage.num_reserved_slots
        self.kv_used_slots_sum += usage.num_used_slots
        self.peak_kv_waste = max(self.peak_kv_waste, usage.waste)
        self.peak_kv_reserved_slots = max(self.peak_kv_reserved_slots, usage.num_reserved_slots)

    def sample_kv_run(self, first: KvUsage, num_steps: int, growth: int) -> None:
        """The same for steps in which the reserved slots stay and the used ones grow by `growth` a step."""
        self.sample_kv(first)
        if first.num_reserved_slots and num_steps > 1:
            self.num_kv_samples += num_steps - 1
            self.kv_reserved_slots_sum += (num_steps - 1) * first.num_reserved_slots
            grown = growth * num_steps * (num_steps - 1) // 2
            self.kv_used_slots_sum += (num_steps - 1) * first.num_used_slots + grown

    def sample_stride(self, before: KvUsage, stride: Stride, block_size: int) -> None:
        """The same for a stride, from one step with new blocks to the next; `before` is the usage before it."""
        reserved, used = before
        start, growth = stride.first_step_id, stride.num_requests
        blocks_at: dict[int, int] = {}
        for step_id, _, blocks in stride.added:
            blocks_at[step_id] = blocks_at.get(step_id, 0) + len(blocks)
        for step_id in [*blocks_at, start + stride.num_steps]:
            if step_id > start:
                self.sample_kv_run(KvUsage(reserved, used + growth), step_id - start, growth)
                used += growth * (step_id - start)
                start = step_id
            reserved += blocks_at.get(step_id, 0) * block_size

    @property
    def mean_kv_waste(self) -> float:
        """Share of the slots that live requests held, over all steps, that held no computed token; 0 to 1."""
        if not self.kv_reserved_slots_sum:
            return 0.0
        return 1.0 - self.kv_used_slots_sum / self.kv_reserved_slots_sum
