"""Fast-forward: requests that decode one token in every step are advanced together, not one by one.

Between events, a running request that decodes does the same in every step: one token more is computed, one more is
known. A request is *in lockstep* while that holds. Its counters are then not written every step but follow from the
number of steps taken, and the scheduler touches it only when something happens to it: its block is full, or it ends.

    schedule of step s:  num_computed_tokens += 1   for every member that joined at or before s
    update   of step s:  num_tokens += 1            for the same

Nothing is decided here. Members are always the first of `Scheduler.running`; whatever else runs, waits or is admitted
goes through the ordinary loops, with the budget that the members left. When a member's block cannot be had, lockstep
is dissolved in the middle of the step, every counter is written, and the ordinary loop goes on from that request. So
the plans are those of the ordinary loops, in a shorter form; `Lockstep.expand` gives the long one.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headway.core.plan import AddedBlocks, LockstepRun, ScheduledRequest
from headway.core.request import Request

if TYPE_CHECKING:
    from headway.core.kv_cache import KVCacheManager


class _Member:
    """A request in lockstep, and up to which step its counters are written."""

    __slots__ = (
        "applied_schedule",
        "applied_update",
        "finish_step",
        "first_step",
        "is_active",
        "num_outstanding",
        "order",
        "request",
    )

    def __init__(self, request: Request, order: int, first_step: int, finish_step: int) -> None:
        self.request = request
        self.order = order
        """Grows along `Scheduler.running`."""
        self.first_step = first_step
        self.applied_schedule = first_step
        self.applied_update = first_step
        self.num_outstanding = 0
        """Runs in flight that it is part of, as far as written to the request."""
        self.finish_step = finish_step
        """The step whose update brings its last token."""
        self.is_active = True


def _order(member: _Member) -> int:
    return member.order


class Lockstep:
    """The requests in lockstep of one scheduler, and when something happens to each.

    Args:
        is_async: steps are scheduled before the one ahead of them is updated, so the lags differ by one.
    """

    def __init__(self, kv: KVCacheManager, *, is_async: bool) -> None:
        self._kv = kv
        self._is_async = is_async
        self._caching = kv.config.enable_prefix_caching
        self._members: dict[Request, _Member] = {}
        self._num_leaving = 0
        """Asynchronous: still in `running`, but their last token is in flight, so that no step is spent on them."""
        self._next_order = 0
        self._num_computed = 0
        """Sum of num_computed_tokens over the members, before the next schedule."""
        self._num_references = 0
        """Sum of the lengths of the members' block tables."""
        self._held_by_leaving = (0, 0)
        self._next_schedule = 0
        self._next_update = 0
        self._extend_due: dict[int, list[_Member]] = {}
        self._finish_due: dict[int, list[_Member]] = {}
        self._finish_steps: list[int] = []
        self._in_flight: deque[LockstepRun] = deque()
        self._last_update_at = 0.0

    # ------------------------------------------------------------------ what there is

    def __len__(self) -> int:
        """Number of members."""
        return len(self._members)

    @property
    def num_prefix(self) -> int:
        """How many requests at the head of `Scheduler.running` the ordinary loop need not look at."""
        return len(self._members) + self._num_leaving

    @property
    def num_context_tokens(self) -> int:
        """Tokens attended to by the members in the next step, summed: computed ones and the new one of each."""
        return self._num_computed + len(self._members)

    @property
    def held(self) -> tuple[int, int]:
        """Computed tokens and entries of block tables, summed over the first `num_prefix` requests of `running`."""
        return self._num_computed + self._held_by_leaving[0], self._num_references + self._held_by_leaving[1]

    def quiet_steps(self) -> int:
        """Steps that can be taken before a member ends, or may find no block. 0 without members."""
        num_members = len(self._members)
        if not num_members or self._num_leaving:
            return 0
        due = self._finish_steps
        while due[0] not in self._finish_due:
            heapq.heappop(due)
        until_finish = due[0] - self._next_update
        # Each member may need a block in its first step and one more every block_size steps.
        num_rounds = self._kv.pool.num_free_blocks // (num_members * self._kv.most_blocks_per_token)
        return min(until_finish, num_rounds * self._kv.block_size)

    # ------------------------------------------------------------------ joining

    def join(self, candidates: Iterable[Request], next_step: int) -> None:
        """Take in requests of `running`, in its order, up to the first that is not in a steady decode.

        Args:
            next_step: id of the step that will be scheduled next.
        """
        self._next_schedule = next_step
        for request in candidates:
            remaining = self._remaining(request)
            if remaining < 1:
                return
            finish_step = next_step + remaining - 1
            member = _Member(request, self._next_order, next_step, finish_step)
            self._next_order += 1
            self._members[request] = member
            self._num_computed += request.num_computed_tokens
            self._num_references += len(request.block_table)
            self._watch(member, next_step, request.num_computed_tokens)
            if finish_step not in self._finish_due:
                self._finish_due[finish_step] = []
                heapq.heappush(self._finish_steps, finish_step)
            self._finish_due[finish_step].append(member)

    def _remaining(self, request: Request) -> int:
        """Tokens that it will get in lockstep; 0 if it cannot join now."""
        lag = 1 if self._is_async else 0
        steady = (
            request.num_tokens - request.num_computed_tokens == 1 - lag
            and request.num_in_flight_tokens == lag
            and request.num_output_placeholders == lag
            and not request.is_prefill_chunk
            and not request.num_draft_tokens
            and not request.num_stale_tokens
        )
        if not steady:
            return 0
        limit = request.max_total_tokens
        if self._is_async and request.num_prompt_tokens + (request.sampling.max_tokens or limit) != limit:
            return 0
        return limit - request.num_tokens - lag

    def _watch(self, member: _Member, step: int, num_computed: int) -> None:
        """Note the first step, `step` or later, in which the KV manager has something to do for this member.

        `num_computed` is before `step`. A block is added when the table is full, and one becomes findable when the
        tokens known at schedule time fill it: the new one counts, unless it is still in flight.
        """
        request, block_size = member.request, self._kv.block_size
        quiet = len(request.block_table) * block_size - num_computed
        if self._caching:
            known = num_computed if self._is_async else num_computed + 1
            quiet = min(quiet, (request.num_registered_blocks + 1) * block_size - known)
        due = step + max(quiet, 0)
        if due in self._extend_due:
            self._extend_due[due].append(member)
        else:
            self._extend_due[due] = [member]

    # ------------------------------------------------------------------ a step

    def schedule(self, step_id: int, token_budget: int) -> LockstepRun | list[ScheduledRequest]:
        """Schedule one token for every member.

        Returns:
            The run; or, if lockstep had to be dissolved under way, what had been scheduled until then as ordinary
            items (none, if there are no members): the ordinary loop then goes on behind them.
        """
        self._next_schedule = step_id
        if self._is_async:
            self._let_go(step_id)
        num_members = len(self._members)
        if not num_members or num_members > token_budget:
            self.dissolve()
            return []
        added: list[AddedBlocks] = []
        if step_id in self._extend_due:
            failed = self._extend_members(step_id, added)
            if failed is not None:
                return self._cut_short(failed, added)
        self._num_computed += num_members
        self._next_schedule = step_id + 1
        run = LockstepRun(step_id, num_members, self._num_computed, added)
        self._in_flight.append(run)
        return run

    def _extend_members(self, step_id: int, added: list[AddedBlocks]) -> _Member | None:
        """Do what the KV manager has to do in this step. Returns the member that got no block, if one did not."""
        due = self._extend_due.pop(step_id)
        if len(due) > 1:
            due.sort(key=_order)
        extend, write, watch = self._kv.extend, self._write, self._watch
        for member in due:
            if not member.is_active or member.finish_step < step_id:
                continue
            request = member.request
            write(member)
            blocks = extend(request, 1)
            if blocks is None:
                return member
            if blocks:
                added.append((step_id, request, blocks))
                self._num_references += len(blocks)
            watch(member, step_id + 1, request.num_computed_tokens + 1)
        return None

    def _cut_short(self, failed: _Member, added: Sequence[AddedBlocks]) -> list[ScheduledRequest]:
        """Members before `failed` are scheduled as ordinary items; from there on the ordinary loop decides."""
        scheduled = [member.request for member in self._members.values() if member.order < failed.order]
        self.dissolve()
        block_ids = {request: [block.block_id for block in blocks] for _, request, blocks in added}
        items = []
        for request in scheduled:
            computed = request.num_computed_tokens
            items.append(ScheduledRequest(request, 1, computed, 0, 0, block_ids.get(request, ()), True))
            request.num_computed_tokens = computed + 1
            request.num_in_flight_tokens += 1
            if self._is_async:
                request.num_output_placeholders += 1
        return items

    def _let_go(self, step_id: int) -> None:
        """Asynchronous: the last token of these is in flight; no further step is spent on them."""
        for member in self._finish_due.get(step_id - 1, ()):
            if member.is_active and member.request in self._members:
                self._write(member)
                self._remove(member.request)
                self._count_leaving(member.request, 1)

    def _count_leaving(self, request: Request, change: int) -> None:
        self._num_leaving += change
        num_computed, num_references = self._held_by_leaving
        self._held_by_leaving = (
            num_computed + change * request.num_computed_tokens,
            num_references + change * len(request.block_table),
        )

    def _remove(self, request: Request) -> None:
        del self._members[request]
        self._num_computed -= request.num_computed_tokens
        self._num_references -= len(request.block_table)

    def update(self, step_id: int, run: LockstepRun | None, now: float) -> list[Request]:
        """Take a step's tokens in, if it had a run. Returns the requests that got their last one, in order."""
        self._next_update = step_id + 1
        if run is None:
            return []
        assert self._in_flight[0] is run, "updates come in the order of the schedules"
        self._in_flight.popleft()
        self._last_update_at = now
        finished = self._finish_due.pop(step_id, None)
        if finished is None:
            return []
        if len(finished) > 1:
            finished.sort(key=_order)
        return [self._end(member) for member in finished if member.is_active]

    def _end(self, member: _Member) -> Request:
        request = member.request
        member.is_active = False
        self._write(member)
        if self._is_async:
            self._count_leaving(request, -1)
            self._kv.register(request, request.num_computed_tokens)
        else:
            self._remove(request)
        return request

    def skip(self, num_steps: int, now: float) -> list[AddedBlocks]:
        """Take `num_steps` steps at once, at most `quiet_steps`; the last of them ends at `now`.

        Asynchronous: the run in flight is updated and that of the last step stays in flight (`last_run`).

        Returns:
            The blocks added on the way.
        """
        added: list[AddedBlocks] = []
        first = self._next_schedule
        for step_id in range(first, first + num_steps):
            if step_id in self._extend_due:
                self._next_schedule = step_id
                self._next_update = step_id - 1 if self._is_async else step_id
                failed = self._extend_members(step_id, added)
                assert failed is None, "a stride ran out of blocks"
        self._next_schedule = first + num_steps
        self._next_update = self._next_schedule - 1 if self._is_async else self._next_schedule
        self._num_computed += num_steps * len(self._members)
        self._last_update_at = now
        if self._is_async:
            self._in_flight[0] = LockstepRun(self._next_schedule - 1, len(self._members), self._num_computed, ())
        return added

    @property
    def last_run(self) -> LockstepRun:
        """The run scheduled last and not yet updated."""
        return self._in_flight[-1]

    # ------------------------------------------------------------------ leaving

    def _write(self, member: _Member) -> None:
        """Write the counters of a member as they are before the next schedule and the next update."""
        request = member.request
        next_schedule = min(self._next_schedule, member.finish_step + 1)
        request.num_computed_tokens += next_schedule - member.applied_schedule
        member.applied_schedule = next_schedule
        num_tokens = self._next_update - member.applied_update
        if num_tokens > 0:
            request.num_tokens += num_tokens
            request.last_token_at = self._last_update_at
            member.applied_update = self._next_update
        num_outstanding = next_schedule - max(self._next_update, member.first_step)
        if num_outstanding != member.num_outstanding:
            change = num_outstanding - member.num_outstanding
            member.num_outstanding = num_outstanding
            request.num_in_flight_tokens += change
            if self._is_async:
                request.num_output_placeholders += change

    def write_all(self) -> None:
        """Write the counters of all members; they stay in lockstep."""
        for member in self._members.values():
            self._write(member)

    def expand(self, run: LockstepRun) -> list[ScheduledRequest]:
        """The run as the items of an ordinary plan. Only until its members change: at the latest at its update."""
        block_ids = {request: [block.block_id for block in blocks] for _, request, blocks in run.added}
        items = []
        for member in self._everybody():
            if member.first_step <= run.step_id <= member.finish_step:
                computed = member.request.num_computed_tokens + run.step_id - member.applied_schedule
                new_block_ids = block_ids.get(member.request, ())
                items.append(ScheduledRequest(member.request, 1, computed, 0, 0, new_block_ids, True))
        if run.num_padding_tokens and items:
            items[0] = items[0]._replace(num_padding_tokens=run.num_padding_tokens)
        return items

    def _everybody(self) -> list[_Member]:
        """Members, and those whose last token is in flight, in the order of `Scheduler.running`."""
        everybody = list(self._members.values())
        if self._num_leaving:
            due = (member for members in self._finish_due.values() for member in members)
            everybody += [member for member in due if member.is_active and member.request not in self._members]
            everybody.sort(key=_order)
        return everybody

    def dissolve(self) -> None:
        """Nobody is in lockstep any more; runs in flight become ordinary items."""
        for run in self._in_flight:
            run.items = self.expand(run)
        for member in self._everybody():
            self._write(member)
            member.is_active = False
        self._in_flight.clear()
        self._members.clear()
        self._extend_due.clear()
        self._finish_due.clear()
        self._finish_steps.clear()
        self._num_computed = self._num_references = self._num_leaving = 0
        self._held_by_leaving = (0, 0)
