"""A model with a real KV memory, in miniature: it writes what each step computes, and reads all that it attends to.

Each slot holds a digest of the whole sequence up to its token. Whatever goes wrong with block tables (a shared block
that was not full, a block reused too early, a window that moved too far, slots lost in a preemption) makes a read
find another digest than the sequence's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from headway.core.plan import NOTHING, Emission, ScheduledRequest, StepPlan, StepResult
from headway.core.request import FinishReason, Request
from tests.strategies import EOS_ID, RequestSpec

_REJECTED = -1


@dataclass(eq=False, slots=True)
class Script:
    """What the model will say to one request, whoever its neighbours are."""

    index: int
    spec: RequestSpec
    digests: list[int] = field(default_factory=list)

    def output(self, index: int) -> int:
        """Output token number `index`; unlike any other request's."""
        return EOS_ID if index == self.spec.eos_at else 10_000 * (self.index + 1) + index

    def digest(self, position: int) -> int:
        """Stands for salt and all tokens up to that position."""
        num_prompt = len(self.spec.prompt)
        while len(self.digests) <= position:
            i = len(self.digests)
            token = self.spec.prompt[i] if i < num_prompt else self.output(i - num_prompt)
            self.digests.append(hash((self.digests[-1] if i else self.spec.salt, token)))
        return self.digests[position]

    def expected(self, max_total_tokens: int) -> tuple[list[int], FinishReason]:
        """All that the client must get, and why it ends."""
        most = max_total_tokens - len(self.spec.prompt)
        if self.spec.eos_at is not None and self.spec.eos_at < most:
            return [self.output(i) for i in range(self.spec.eos_at + 1)], FinishReason.STOP
        return [self.output(i) for i in range(most)], FinishReason.LENGTH


class NaiveDevice:
    """Carries out plans. Drafts are accepted at random; how many never changes what a client gets."""

    def __init__(self, block_size: int, window: int | None, num_drafts: int) -> None:
        self._block_size = block_size
        self._window = window
        self._num_drafts = num_drafts
        self._memory: dict[tuple[int, int], int] = {}
        self._tables: dict[str, list[int]] = {}
        self._num_sampled: dict[Request, int] = {}
        self.scripts: dict[Request, Script] = {}

    def execute(self, plan: StepPlan, random: Random) -> StepResult:
        """One step: forget, write, read, sample. Raises AssertionError where a plan cannot be carried out."""
        for request_id in plan.released_ids:
            self._tables.pop(request_id, None)
        fresh = {*plan.new, *plan.resumed}
        spans = [self._write(item, item.request in fresh, random) for item in plan.scheduled]
        emissions = [self._read(item, *span) for item, span in zip(plan.scheduled, spans, strict=True)]
        return StepResult(plan.step_id, [self._propose(e, random) for e in emissions], 0.0, "naive")

    def _write(self, item: ScheduledRequest, is_fresh: bool, random: Random) -> tuple[int, int, int]:
        """Returns first position, end of the positions that count, and number of accepted drafts."""
        request, script = item.request, self.scripts[item.request]
        table = self._tables[request.request_id] = [] if is_fresh else self._tables[request.request_id]
        table += item.new_block_ids
        assert len(table) == len(request.block_table), "the plan's new blocks do not make up the table"
        known = request.num_prompt_tokens + self._num_sampled.get(request, 0)
        # With drafts in flight the plan is optimistic: it counts all of them as accepted. The device knows better.
        start = min(item.num_computed_tokens, known - 1)
        end = start + item.num_tokens
        num_accepted = random.randint(0, item.num_draft_tokens)
        if item.samples:
            assert end - item.num_draft_tokens == known, f"{request} samples at {end}, but {known} tokens are known"
        else:
            assert end < known and not item.num_draft_tokens
        num_good = min(end, known + num_accepted)
        for position in range(start, end):
            slot = table[position // self._block_size], position % self._block_size
            assert request.block_table[position // self._block_size].block_id == slot[0]
            self._memory[slot] = script.digest(position) if position < num_good else _REJECTED
        return start, num_good, num_accepted

    def _read(self, item: ScheduledRequest, start: int, end: int, num_accepted: int) -> Emission:
        request, script = item.request, self.scripts[item.request]
        table = self._tables[request.request_id]
        first = 0 if self._window is None else max(0, start - self._window + 1)
        for position in range(first, end):
            slot = table[position // self._block_size], position % self._block_size
            assert self._memory.get(slot) == script.digest(position), f"{request}: wrong KV at position {position}"
        if not item.samples:
            return NOTHING
        done = self._num_sampled.get(request, 0)
        self._num_sampled[request] = done + 1 + num_accepted
        return Emission(1 + num_accepted, [script.output(done + i) for i in range(1 + num_accepted)])

    def _propose(self, emission: Emission, random: Random) -> Emission:
        if not emission.num_tokens:
            return emission
        return emission._replace(num_next_draft_tokens=random.randint(0, self._num_drafts))
