"""The scheduler: one decision an iteration, step for step vLLM V1's.

There are no prefill and decode phases. Every request has tokens whose KV is computed and tokens that are known; each
step gives every request some of the difference, under a token budget and a seat limit. Running requests come first, in
list order, and may preempt from the tail; waiting ones follow, unless this step preempted, until one does not fit.

This file is longer than the others on purpose: what a step does to a request is read in one place, from top to bottom.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from headway.config import CacheConfig, EngineConfig, SchedulerConfig
from headway.core.blocks import Block
from headway.core.door import Door
from headway.core.kv_cache import NO_HIT, KVCacheManager, KvUsage, PrefixHit
from headway.core.outputs import append_tokens, reject_drafts
from headway.core.plan import (
    ONE_TOKEN,
    Emission,
    LockstepRun,
    RequestOutput,
    ScheduledRequest,
    StepPlan,
    StepResult,
    Stride,
)
from headway.core.policies import ChunkedPolicy, make_policy
from headway.core.profiles import EngineCrashError, UnchunkedHandling, VictimHandling, profile_for
from headway.core.queues import make_queue
from headway.core.request import FinishReason, Request, RequestStatus
from headway.core.stats import SchedulerStats
from headway.core.step import StepDraft
from headway.core.stride import Lockstep
from headway.errors import RequestError

_RUNNING, _FINISHED = RequestStatus.RUNNING, RequestStatus.FINISHED
"""Read once, since they are looked at for every request of every step."""


class Scheduler:
    """Decides, at every iteration, which requests run, how many tokens each gets and which KV blocks they use.

    It learns nothing of executors or clocks: `schedule` and `update` are told the time. Steps may overlap (asynchronous
    scheduling): `schedule` may be called again before the `update` of an earlier plan, never out of order.

    Args:
        policy: `naive`, `static`, `continuous`, `chunked` or `FILE.py:CLASS` (see `headway.core.policies`).
        engine_version: the vLLM release whose decisions are reproduced.
        max_in_flight: most plans between `schedule` and `update`.

    Example::

        >>> from headway import CacheConfig, Scheduler, SchedulerConfig
        >>> from headway.core.request import Request, SyntheticContent
        >>> from headway.core.sampling import SamplingParams
        >>> limits = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=512)
        >>> scheduler = Scheduler(limits, CacheConfig(num_blocks=40), engine_version="0.32.0")
        >>> scheduler.add(Request("a", SyntheticContent("a"), 100, SamplingParams(max_tokens=8), 512))
        >>> [item.num_tokens for item in scheduler.schedule(now=0.0).scheduled]
        [64]

    Raises:
        ConfigError: unknown policy or unsupported version.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        cache_config: CacheConfig,
        *,
        policy: str = "chunked",
        engine_version: str,
        max_in_flight: int | None = None,
    ) -> None:
        self.profile = profile_for(engine_version)
        self.policy: ChunkedPolicy = make_policy(policy)
        self.config = limits = self.policy.limits(config)
        depth = max_in_flight or (2 if limits.async_scheduling else 1)
        self.kv = KVCacheManager(
            self.policy.cache(cache_config),
            self.profile,
            limits.max_model_len,
            limits.max_num_batched_tokens * (depth if self.profile.counts_steps_in_flight else 1),
        )
        self._door = Door(limits, self.kv, self.policy)
        gate = limits.scheduler_reserve_full_isl
        self.gates_on_full_sequence = self.profile.gates_on_full_sequence and gate is not False
        active = limits.max_num_active_seqs if self.profile.has_active_seat_limit else None
        self._max_seats = min(active or limits.max_num_seqs, limits.max_num_seqs)
        self._num_draft_slots = limits.num_draft_slots if self.profile.counts_draft_slots else 0
        self._by_priority = (
            limits.scheduling_policy == "priority" and self.profile.victim_handling is not VictimHandling.IGNORED
        )
        self.running: list[Request] = []
        self.waiting = self.policy.queue(make_queue("priority" if self._by_priority else "fcfs"))
        self.requests: dict[str, Request] = {}
        self.stats = SchedulerStats()
        self.lockstep: Lockstep | None = None
        """Fast-forward, if it is on: what it takes in is left out of `StepPlan.scheduled` and of outputs."""
        self._depth = depth
        self._released_ids: list[str] = []
        self._step_id = 0
        self._is_blocked = False
        """Whether the head of the queue was refused for want of blocks, and none has been freed since."""

    @classmethod
    def of(cls, config: EngineConfig, *, max_in_flight: int) -> Scheduler:
        """The scheduler that resolved settings describe."""
        return cls(
            config.scheduler,
            config.cache,
            policy=config.policy,
            engine_version=config.engine_version,
            max_in_flight=max_in_flight,
        )

    # ------------------------------------------------------------------ requests come and go

    def check(self, request: Request) -> None:
        """Refuse a request that could never run; see `Door.check`. Reads limits only: safe from any thread.

        Raises:
            ContextLengthError: it can never fit. RequestError: its prompt is empty.
        """
        self._door.check(request)

    @property
    def longest_sequence(self) -> int:
        """Tokens (prompt + output) at which any one request must end; see `Door`."""
        return self._door.longest_sequence

    def add(self, request: Request) -> None:
        """Queue a request. Its id must not be that of a live one.

        Raises:
            RequestError: duplicate id.
        """
        if request.request_id in self.requests:
            raise RequestError(f"A request with id {request.request_id!r} is already running.", param="request_id")
        self.requests[request.request_id] = request
        self.waiting.add(request)

    def finish(
        self,
        request_id: str,
        reason: FinishReason,
        stop_reason: int | str | None = None,
        now: float | None = None,
    ) -> Request | None:
        """End a request from outside: an abort, or a stop string that the frontend saw. Blocks are freed at once.

        Returns:
            The request, or None if there is no live one of that id (it may have finished meanwhile).
        """
        request = self.requests.get(request_id)
        if request is None:
            return None
        if request.status is RequestStatus.RUNNING:
            if self.lockstep is not None:
                self.lockstep.dissolve()
            self.running.remove(request)
        else:
            self.waiting.remove([request])
        request.stop_reason = stop_reason
        self._release(request, reason, now)
        return request

    @property
    def has_requests(self) -> bool:
        """Whether anything is running or waiting."""
        return bool(self.requests)

    def _release(self, request: Request, reason: FinishReason, now: float | None) -> None:
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        request.finished_at = now
        self.kv.free(request)
        self._is_blocked = False
        del self.requests[request.request_id]
        self._released_ids.append(request.request_id)
        self.stats.count_finished(request)

    # ------------------------------------------------------------------ deciding a step

    def schedule(self, now: float) -> StepPlan:
        """Decide the next step and take the KV slots it needs.

        Raises:
            EngineCrashError: where the matched release would crash.
        """
        step = StepDraft(self.config.max_num_batched_tokens, self._prefill_threshold())
        self._is_blocked = False
        run, index = self._schedule_lockstep(step) if self.lockstep is not None else (None, 0)
        self._schedule_running(step, index)
        if not step.preempted:
            self._schedule_waiting(step, now)
        elif self.profile.victim_handling is VictimHandling.CRASH and len(step.scheduled) > len(self.running):
            raise EngineCrashError(
                "AssertionError: more requests scheduled than running: a victim was already in this step"
            )
        if run is None:
            scheduled = self.policy.padding(step.scheduled)
        else:
            scheduled = step.scheduled
            run.num_padding_tokens = self.policy.decode_padding(run.num_requests + len(scheduled))
        plan = StepPlan(
            step_id=self._step_id,
            scheduled=scheduled,
            new=step.new,
            resumed=step.resumed,
            preempted=step.preempted,
            released_ids=self._released_ids,
            num_tokens=step.num_tokens_given(self.config.max_num_batched_tokens, self._num_draft_slots),
            lockstep=run,
        )
        self._released_ids = []
        self._step_id += 1
        if self.stats.samples_kv:
            self.stats.sample_kv(self._kv_usage())
        return plan

    def _kv_usage(self) -> KvUsage:
        if self.lockstep is None:
            return self.kv.usage_by(self.running)
        return self.kv.usage_by(self.running[self.lockstep.num_prefix :], self.lockstep.held)

    def _prefill_threshold(self) -> int:
        """Most tokens that one prompt may take in this step; 0 is no limit."""
        threshold, profile = self.config.long_prefill_token_threshold, self.profile
        num_requests = len(self.running) + len(self.waiting)
        if not profile.honours_long_prefill_threshold:
            return 0
        if profile.lone_request_ignores_threshold and num_requests <= 1:
            return 0
        if threshold and self.config.long_prefill_token_threshold_adaptive and profile.has_adaptive_threshold:
            return max(threshold, self.config.max_num_batched_tokens // num_requests)
        return threshold

    def _schedule_running(self, step: StepDraft, index: int = 0) -> None:
        """Give running requests their tokens, from position `index` on."""
        running, extend, scheduled = self.running, self.kv.extend, step.scheduled
        lookahead, threshold = self.config.num_lookahead_tokens, step.threshold
        max_computed = self.config.max_model_len - (1 if self.profile.caps_at_max_model_len else 0)
        is_async, slots = self.config.async_scheduling, self._num_draft_slots
        while index < len(running) and step.token_budget > slots:
            request = running[index]
            computed = request.num_computed_tokens
            known = request.num_tokens + request.num_output_placeholders
            num_tokens = known + request.num_draft_tokens - computed
            if num_tokens != 1:
                if 0 < threshold < num_tokens:
                    num_tokens = threshold
                num_tokens = min(num_tokens, step.token_budget - slots)
            if computed + num_tokens > max_computed:
                num_tokens = max_computed - computed
            if num_tokens <= 0 or (is_async and self._ends_in_flight(request)):
                index += 1
                continue
            blocks = extend(request, num_tokens, lookahead)
            if blocks is None:
                blocks, index = self._preempt_for(request, num_tokens, step, index)
                if blocks is None:
                    if self.profile.self_preemption_ends_pass or not self._by_priority:
                        break
                    continue
            end = computed + num_tokens
            num_drafts = max(0, end - known) if request.num_draft_tokens else 0
            samples = end >= known
            step.carries_prefill |= request.is_prefill_chunk
            scheduled.append(
                ScheduledRequest(
                    request,
                    num_tokens,
                    computed,
                    num_drafts,
                    0,
                    [block.block_id for block in blocks] if blocks else (),
                    samples,
                )
            )
            step.token_budget -= num_tokens + slots
            request.num_computed_tokens = end
            request.num_in_flight_tokens += num_tokens
            request.is_prefill_chunk = not samples
            if num_drafts or request.num_draft_tokens:
                request.num_draft_tokens = 0
            if is_async and samples:
                self._expect_output(request, num_drafts)
            index += 1

    def _ends_in_flight(self, request: Request) -> bool:
        """Whether a step in flight surely brings this request to max_tokens, so that another would be wasted."""
        placeholders = request.num_output_placeholders
        if not placeholders or not self.profile.skips_finishing_requests:
            return False
        most = request.sampling.max_tokens
        return most is not None and request.num_computed_tokens + 2 - placeholders >= request.num_prompt_tokens + most

    def _expect_output(self, request: Request, num_drafts: int) -> None:
        """Asynchronous: account for tokens that the step just scheduled will bring."""
        request.num_output_placeholders += 1 + num_drafts
        request.num_draft_tokens = self.config.num_speculative_tokens

    def _preempt_for(
        self, request: Request, num_tokens: int, step: StepDraft, index: int
    ) -> tuple[Sequence[Block] | None, int]:
        """Preempt until `request` fits. Returns its new blocks, or None if it fell itself, and the moved cursor."""
        while True:
            victim = self._pick_victim()
            position = self.running.index(victim) if self._by_priority else len(self.running) - 1
            del self.running[position]
            item = step.share_of(victim) if self._by_priority else None
            undone = item is not None and self.profile.victim_handling is VictimHandling.UNDONE
            if item is not None and undone:
                step.take_back(item, self._num_draft_slots)
            if position < index and (undone or self.profile.victim_shifts_cursor):
                index -= 1
            self._preempt(victim)
            if item is not None and not undone:
                step.keep_without_blocks(item)
            step.preempted.append(victim)
            if victim is request:
                return None, index
            blocks = self.kv.extend(request, num_tokens, self.config.num_lookahead_tokens)
            if blocks is not None:
                return blocks, index

    def _pick_victim(self) -> Request:
        if self._by_priority:
            return max(self.running, key=lambda request: (request.priority, request.arrived_at))
        return self.running[-1]

    def _preempt(self, request: Request) -> None:
        """Recompute preemption: all blocks go, generated tokens stay, and it waits at the front."""
        self.kv.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.num_draft_tokens = 0
        request.num_output_placeholders = 0
        request.num_stale_tokens = request.num_in_flight_tokens
        request.num_preemptions += 1
        self.stats.num_preemptions += 1
        self.waiting.put_back(request)

    def _schedule_waiting(self, step: StepDraft, now: float) -> None:
        seats = self.policy.admit(len(self.running), self._max_seats)
        deferred: list[Request] = []
        slots = self._num_draft_slots
        while step.token_budget > slots and self.waiting and len(self.running) < seats:
            request = self.waiting.peek()
            if request.num_stale_tokens and self.profile.waits_for_stale_outputs:
                deferred.append(self.waiting.pop())
                continue
            hit = self.kv.lookup(request) if request.num_computed_tokens == 0 else NO_HIT
            computed = request.num_computed_tokens + hit.num_tokens
            num_tokens, num_drafts = self._admission_tokens(request, computed, step)
            if num_tokens > step.token_budget - slots:
                if num_drafts or not self._may_pass_over():
                    break
                deferred.append(self.waiting.pop())
                continue
            admitted = self.kv.admit(
                request,
                num_tokens,
                hit,
                num_lookahead_tokens=self.config.num_lookahead_tokens,
                whole_sequence_must_fit=self.gates_on_full_sequence,
                keep_watermark=bool(self.running),
                num_reserved_tokens=self.policy.reserve(self.config.max_model_len),
            )
            if not admitted:
                self._is_blocked = True
                break
            self.waiting.pop()
            self._start(request, step, hit, num_tokens, num_drafts, now)
        for request in deferred if self._may_pass_over() else reversed(deferred):
            self.waiting.put_back(request)

    def _admission_tokens(self, request: Request, computed: int, step: StepDraft) -> tuple[int, int]:
        """Tokens wanted by a waiting request, and how many of them are padding drafts.

        More than the budget means that it cannot be admitted now.
        """
        num_tokens = request.num_tokens - computed
        k = self.config.num_speculative_tokens
        if k and num_tokens == 1 and self.profile.pads_first_decodes and not step.carries_prefill:
            fits = computed + 1 + k + 1 <= self.config.max_model_len
            num_running = len(step.scheduled) - len(step.new) - len(step.resumed)
            if fits and (num_running or computed > 0):
                return 1 + k, k
        if 0 < step.threshold < num_tokens:
            num_tokens = step.threshold
        chunks = self.config.enable_chunked_prefill or self.profile.unchunked is UnchunkedHandling.CHUNKED_ANYWAY
        return (min(num_tokens, step.token_budget - self._num_draft_slots) if chunks else num_tokens), 0

    def _may_pass_over(self) -> bool:
        return self.profile.unchunked is UnchunkedHandling.SKIPPED

    def _start(
        self, request: Request, step: StepDraft, hit: PrefixHit, num_tokens: int, num_drafts: int, now: float
    ) -> None:
        resumed = request.status is RequestStatus.PREEMPTED
        (step.resumed if resumed else step.new).append(request)
        if not resumed:
            request.num_cached_tokens = hit.num_tokens
        if request.first_scheduled_at is None:
            request.first_scheduled_at = now
        self.stats.count_lookup(request, hit.num_tokens, self.kv.config.enable_prefix_caching)
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        computed = request.num_computed_tokens + hit.num_tokens
        end = computed + num_tokens
        samples = end >= request.num_tokens
        step.scheduled.append(
            ScheduledRequest(request, num_tokens, computed, num_drafts, 0, request.block_ids, samples)
        )
        step.token_budget -= num_tokens + self._num_draft_slots
        request.num_computed_tokens = end
        request.num_in_flight_tokens += num_tokens
        request.is_prefill_chunk = not samples
        if self.config.async_scheduling and samples:
            self._expect_output(request, num_drafts)

    # ------------------------------------------------------------------ taking a step's results in

    def update(self, plan: StepPlan, result: StepResult, now: float) -> list[RequestOutput]:
        """Append what a step emitted, roll back rejected drafts, finish and free. Plans come back in order.

        Returns:
            One output for each request that got a token or finished, in the plan's order.
        """
        outputs: list[RequestOutput] = []
        any_finished = False
        is_async, num_generated = self.config.async_scheduling, 0
        scheduled, emissions = plan.scheduled, result.emissions
        if self.lockstep is not None:
            scheduled, emissions = self._update_lockstep(plan, result, now, outputs)
            any_finished = bool(outputs)
        for item, emission in zip(scheduled, emissions, strict=True):
            request = item.request
            num_scheduled = item.num_tokens
            request.num_in_flight_tokens -= num_scheduled
            stale = request.num_stale_tokens > 0
            if stale:
                request.num_stale_tokens -= num_scheduled
            status = request.status
            if status is _FINISHED or not emission.num_tokens:
                continue
            if item.num_draft_tokens:
                self.stats.count_drafts(item.num_draft_tokens, emission.num_tokens - 1)
                if not stale:
                    reject_drafts(request, item.num_draft_tokens + 1 - emission.num_tokens)
            was_running = status is _RUNNING
            num_tokens, reason = append_tokens(request, emission)
            previous_token_at = request.last_token_at
            if previous_token_at is None:
                request.first_token_at = now
                self.stats.num_prompt_tokens += request.num_prompt_tokens
            request.last_token_at = now
            if is_async:
                self._settle(request, num_tokens, stale, was_running)
            elif emission.num_next_draft_tokens and was_running:
                request.num_draft_tokens = emission.num_next_draft_tokens
                request.draft_token_ids = emission.next_draft_token_ids
            if reason is not None:
                any_finished |= was_running
                if not was_running:
                    self.waiting.remove([request])
                self._release(request, reason, now)
            token_ids = emission.token_ids
            if token_ids is not None and num_tokens < len(token_ids):
                token_ids = token_ids[:num_tokens]
            num_generated += num_tokens
            outputs.append(RequestOutput(request, num_tokens, token_ids, emission.logprobs, reason, previous_token_at))
        self.stats.num_generation_tokens += num_generated
        if any_finished:
            self.running = [request for request in self.running if request.status is RequestStatus.RUNNING]
        if self.lockstep is not None and self.lockstep.num_prefix < len(self.running):
            self.lockstep.join(islice(self.running, self.lockstep.num_prefix, None), self._step_id)
        return outputs

    def _settle(self, request: Request, num_tokens: int, stale: bool, was_running: bool) -> None:
        """Asynchronous: outputs have arrived; the blocks they fill become findable."""
        if not stale:
            request.num_output_placeholders -= num_tokens
            assert request.num_output_placeholders >= 0, f"{request} got more than was expected"
        if was_running:
            self.kv.register(request, request.num_computed_tokens - request.num_output_placeholders)

    # ------------------------------------------------------------------ fast-forward

    def fast_forward(self) -> bool:
        """Turn fast-forward on, for simulation alone: requests must end at their max_tokens and not before.

        Returns:
            Whether it is on: not under a policy that forbids it, speculation, priorities or sliding windows, and not
            with several steps in flight unless they are those of asynchronous scheduling.
        """
        is_async = self.config.async_scheduling
        supported = (
            self.policy.may_fast_forward
            and not self.config.num_speculative_tokens
            and not self.config.num_lookahead_tokens
            and not self._by_priority
            and not self.kv.has_window
            and self._depth == (2 if is_async else 1)
            and (not is_async or self.profile.skips_finishing_requests)
        )
        self.lockstep = Lockstep(self.kv, is_async=is_async) if supported else None
        return supported

    def _schedule_lockstep(self, step: StepDraft) -> tuple[LockstepRun | None, int]:
        """Schedule everybody in lockstep. Returns the run, and where in `running` the ordinary loop goes on."""
        assert self.lockstep is not None
        run = self.lockstep.schedule(self._step_id, step.token_budget)
        if isinstance(run, LockstepRun):
            step.token_budget -= run.num_requests
            return run, self.lockstep.num_prefix
        if not run:
            return None, self.lockstep.num_prefix
        step.scheduled += run
        step.token_budget -= len(run)
        return None, self.running.index(run[-1].request) + 1

    def _update_lockstep(
        self, plan: StepPlan, result: StepResult, now: float, outputs: list[RequestOutput]
    ) -> tuple[Sequence[ScheduledRequest], Sequence[Emission]]:
        """Take the run's tokens in; adds outputs for the requests that ended. Returns what is left to update."""
        assert self.lockstep is not None
        run = plan.lockstep
        if run is not None and run.items is not None:
            self.lockstep.update(plan.step_id, None, now)
            return [*run.items, *plan.scheduled], [*(ONE_TOKEN,) * len(run.items), *result.emissions]
        for request in self.lockstep.update(plan.step_id, run, now):
            self._release(request, FinishReason.LENGTH, now)
            outputs.append(RequestOutput(request, 1, None, None, FinishReason.LENGTH, in_lockstep=True))
        if run is not None:
            self.stats.num_generation_tokens += run.num_requests
        return plan.scheduled, result.emissions

    @property
    def waits_for(self) -> str | None:
        """What the head of the queue lacked in the last step: `seats`, `blocks` or `budget`; None without a queue."""
        if not self.waiting:
            return None
        num_running = len(self.running)
        if num_running >= self.policy.admit(num_running, self._max_seats):
            return "seats"
        return "blocks" if self._is_blocked else "budget"

    @property
    def num_quiet_steps(self) -> int:
        """Steps ahead that would all be like the last one, if nothing arrives: everybody running decodes one token,
        nobody ends, nobody can be admitted and no block can be lacking. 0 without fast-forward.
        """
        lockstep = self.lockstep
        if lockstep is None or len(lockstep) != len(self.running) or len(lockstep) > self.config.max_num_batched_tokens:
            return 0
        if self.waiting and not (self._is_blocked and not self.kv.config.enable_prefix_caching):
            num_running = len(self.running)
            if num_running < self.policy.admit(num_running, self._max_seats):
                return 0
        return lockstep.quiet_steps()

    def stride(self, num_steps: int, now: float) -> Stride:
        """Take `num_steps` steps at once, at most `num_quiet_steps`; the last of them ends at `now`."""
        lockstep = self.lockstep
        assert lockstep is not None
        first, num_requests, context = self._step_id, len(lockstep), lockstep.num_context_tokens
        usage = self._kv_usage()
        added = lockstep.skip(num_steps, now)
        stride = Stride(first, num_steps, num_requests, context, added, self._released_ids)
        if self.stats.samples_kv:
            self.stats.sample_stride(usage, stride, self.kv.block_size)
        self._released_ids = []
        self._step_id += num_steps
        self.stats.num_generation_tokens += num_steps * num_requests
        return stride

    # ------------------------------------------------------------------ invariants

    def check_integrity(self) -> None:
        """Assert every invariant of scheduler, tables and pool: for tests, after each step."""
        if self.lockstep is not None:
            self.lockstep.write_all()
        self.kv.check_integrity(self.running)
        assert len(self.running) <= self.config.max_num_seqs, "more requests run than there are seats"
        waiting = list(self.waiting)
        assert len(self.running) + len(waiting) == len(self.requests), "a request is lost or counted twice"
        for request in self.running:
            assert request.status is RequestStatus.RUNNING and self.requests[request.request_id] is request
            num_unverified = self.config.num_speculative_tokens if request.num_in_flight_tokens else 0
            num_expected = request.num_tokens + request.num_output_placeholders + num_unverified
            assert request.num_computed_tokens <= num_expected, f"{request} computed tokens that do not exist"
            assert request.num_in_flight_tokens >= request.num_stale_tokens >= 0
        for request in waiting:
            assert request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
            assert not request.block_table, f"{request} waits but holds blocks"
            assert request.num_tokens < request.max_total_tokens or request.num_output_tokens == 0
