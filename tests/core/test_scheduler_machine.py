"""The scheduler under every policy, queue order, depth and feature, driven step by step against a naive device.

After every rule all invariants hold, and at the end every request got exactly its tokens, in order, once, and every
block is free.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from headway.core.plan import StepPlan, StepResult
from headway.core.profiles import UnchunkedHandling
from headway.core.request import FinishReason, Request, RequestStatus, TokenContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import RequestError
from tests.core.naive_device import NaiveDevice, Script
from tests.strategies import EOS_ID, CountedMachine, RequestSpec, Setup, request_specs, run_machine, setups

_MOST_DRAIN_STEPS = 5_000


class _Before:
    """What a plan is judged by: the state before it was made."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.running = list(scheduler.running)
        self.waiting = list(scheduler.waiting)
        self.stale = {request for request in self.waiting if request.num_stale_tokens}
        self.wanted = {request: self._wanted(scheduler, request) for request in self.running}

    def _wanted(self, scheduler: Scheduler, request: Request) -> int:
        """Tokens that a running request could still be given."""
        known = request.num_tokens + request.num_output_placeholders + request.num_draft_tokens
        cap = scheduler.config.max_model_len - (1 if scheduler.profile.caps_at_max_model_len else 0)
        return min(known, cap) - request.num_computed_tokens


class SchedulerMachine(CountedMachine):
    """Requests arrive, run, are preempted, aborted and ended from outside, with up to three steps in flight."""

    @initialize(setup=setups())
    def set_up(self, setup: Setup) -> None:
        self.setup = setup
        self.scheduler = setup.make()
        # Releases that do not return blocks behind the window are matched as full attention.
        matches_window = self.scheduler.profile.matches_sliding_window
        window = setup.cache.sliding_window if matches_window else None
        self.device = NaiveDevice(setup.cache.block_size, window, setup.scheduler.num_speculative_tokens)
        self.in_flight: deque[tuple[StepPlan, StepResult]] = deque()
        self.delivered: dict[Request, list[int]] = {}
        self.ended: dict[Request, FinishReason] = {}
        self.to_release: Counter[str] = Counter()
        self.num_preemptions = 0

    # ------------------------------------------------------------------ rules

    @rule(specs=st.lists(request_specs(30), min_size=1, max_size=4))
    def arrive(self, specs: list[RequestSpec]) -> None:
        for spec in specs:
            self._arrive(spec)

    def _arrive(self, spec: RequestSpec) -> None:
        limit = self.scheduler.config.max_model_len
        spec = replace(spec, prompt=spec.prompt[: limit - 1])
        index = len(self.delivered)
        request_id = str(index % 7)  # ids of ended requests are used again
        if request_id in self.scheduler.requests:
            request_id = f"{index} unique"
        request = Request(
            request_id,
            TokenContent(spec.prompt, self.setup.cache.block_size, spec.salt),
            len(spec.prompt),
            SamplingParams(temperature=0.0, max_tokens=spec.max_tokens),
            limit,
            eos_token_ids=frozenset({EOS_ID}),
            arrived_at=float(index),
            priority=spec.priority,
        )
        try:
            self.scheduler.check(request)
        except RequestError:
            return
        request.max_total_tokens = min(request.max_total_tokens, self.scheduler.longest_sequence)
        self.scheduler.add(request)
        self.device.scripts[request] = Script(index, spec)
        self.delivered[request] = []

    @rule(num_steps=st.integers(1, 12), seed=st.integers(0, 2**16))
    def step(self, num_steps: int, seed: int) -> None:
        random = Random(seed)
        for _ in range(num_steps):
            self._iterate(random)
            self._check_scheduler()

    @precondition(lambda self: self.in_flight)
    @rule()
    def collect_early(self) -> None:
        """Nothing obliges an engine to keep its queue of steps full."""
        self._collect()

    @precondition(lambda self: self.scheduler.requests)
    @rule(data=st.data(), reason=st.sampled_from([FinishReason.ABORT, FinishReason.STOP]))
    def finish(self, data: st.DataObject, reason: FinishReason) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.scheduler.requests)))
        request = self.scheduler.finish(request_id, reason, "stop string")
        assert request is not None and request.finish_reason is reason
        self._end(request, reason)
        assert self.scheduler.finish(request_id, reason) is None, "an ended request ends once"

    # ------------------------------------------------------------------ one iteration, as the engine does it

    def _iterate(self, random: Random) -> None:
        if self.scheduler.has_requests:
            before = _Before(self.scheduler)
            plan = self.scheduler.schedule(0.0)
            self._check_plan(plan, before)
            if plan.scheduled or plan.preempted or plan.released_ids or self.in_flight:
                self.in_flight.append((plan, self.device.execute(plan, random)))
            else:
                raise AssertionError(f"stalled: {list(self.scheduler.waiting)} wait, {self.scheduler.running} run")
        if len(self.in_flight) >= self.setup.depth or (self.in_flight and not self.scheduler.has_requests):
            self._collect()

    def _collect(self) -> None:
        plan, result = self.in_flight.popleft()
        for output in self.scheduler.update(plan, result, 0.0):
            request = output.request
            assert request not in self.ended, "an output after the end"
            assert output.token_ids is not None and output.num_tokens == len(output.token_ids)
            self.delivered[request] += output.token_ids
            if output.finish_reason is not None:
                self._end(request, output.finish_reason)
                tokens, reason = self.device.scripts[request].expected(request.max_total_tokens)
                assert (self.delivered[request], output.finish_reason) == (tokens, reason)

    def _end(self, request: Request, reason: FinishReason) -> None:
        assert request not in self.ended
        self.ended[request] = reason
        self.to_release[request.request_id] += 1

    # ------------------------------------------------------------------ what must hold

    def _check_plan(self, plan: StepPlan, before: _Before) -> None:
        config = self.scheduler.config
        requests = [item.request for item in plan.scheduled]
        assert plan.num_tokens == sum(item.num_tokens for item in plan.scheduled) <= config.max_num_batched_tokens
        assert len(set(requests)) == len(requests) and all(item.num_tokens > 0 for item in plan.scheduled)
        assert all(request.status is RequestStatus.RUNNING for request in requests)
        assert Counter(plan.released_ids) == self.to_release, "executors must learn of each end, once"
        self.to_release.clear()
        self.num_preemptions += len(plan.preempted)
        admitted = [*plan.new, *plan.resumed]
        assert not (plan.preempted and admitted), "a step that preempts admits nobody"
        assert not any(request.num_preemptions for request in plan.new)
        assert all(request.num_preemptions for request in plan.resumed)
        self._check_order(requests, admitted, before)
        if not plan.preempted:
            self._check_nobody_starves(plan, before)
        elif self.setup.scheduler.scheduling_policy == "fcfs":
            assert list(self.scheduler.waiting) == [*reversed(plan.preempted), *before.waiting], (
                "the front of the queue"
            )
        self._check_policy(plan, before)

    def _check_order(self, requests: list[Request], admitted: list[Request], before: _Before) -> None:
        """Running requests first, in list order; then a prefix of the queue: nobody overtakes."""
        num_running = len(requests) - len(admitted)
        assert requests[:num_running] == [r for r in before.running if r in set(requests)]
        waits = self.scheduler.profile.waits_for_stale_outputs
        queue = [request for request in before.waiting if not (waits and request in before.stale)]
        assert requests[num_running:] == queue[: len(admitted)]
        assert set(admitted) == set(queue[: len(admitted)])

    def _check_nobody_starves(self, plan: StepPlan, before: _Before) -> None:
        """A running request is left out only if those before it took the budget, or its outputs are in flight."""
        num_tokens = {item.request: item.num_tokens for item in plan.scheduled}
        left = self.scheduler.config.max_num_batched_tokens
        for request in before.running:
            if request not in num_tokens and before.wanted[request] > 0 and left > 0:
                assert self.scheduler.config.async_scheduling and request.num_output_placeholders
            left -= num_tokens.get(request, 0)

    def _check_policy(self, plan: StepPlan, before: _Before) -> None:
        policy, config = self.setup.policy, self.scheduler.config
        profile = self.scheduler.profile
        admitted = {*plan.new, *plan.resumed}
        if policy in ("naive", "static"):
            assert not plan.preempted
            assert not (admitted and before.running), "nobody joins a batch"
            assert policy == "static" or len(self.scheduler.running) <= 1
        if policy != "chunked" and profile.unchunked is not UnchunkedHandling.CHUNKED_ANYWAY:
            assert all(item.samples for item in plan.scheduled), "a prompt is never split"
        threshold = config.long_prefill_token_threshold if profile.honours_long_prefill_threshold else 0
        many = len(before.running) + len(before.waiting) > 1 or not profile.lone_request_ignores_threshold
        if threshold and many and not config.long_prefill_token_threshold_adaptive:
            most = max(threshold, 1 + config.num_speculative_tokens)
            assert all(item.num_tokens <= most for item in plan.scheduled)

    @invariant()
    def _check_scheduler(self) -> None:
        scheduler = self.scheduler
        scheduler.check_integrity()
        assert scheduler.stats.num_preemptions == self.num_preemptions
        assert scheduler.stats.finished == Counter(self.ended.values())
        assert scheduler.stats.num_generation_tokens == sum(map(len, self.delivered.values()))
        assert len(self.ended) + len(scheduler.requests) == len(self.delivered), "a request is lost"
        if not scheduler.requests:
            assert scheduler.kv.pool.num_free_blocks == scheduler.kv.pool.num_usable_blocks, "a block leaked"
            assert not scheduler.running and not len(scheduler.waiting)

    def teardown(self) -> None:
        """Everybody left finishes, in bounded time."""
        for _ in range(_MOST_DRAIN_STEPS):
            if not self.scheduler.has_requests and not self.in_flight:
                break
            self._iterate(Random(0))
        self._check_scheduler()
        assert not self.scheduler.has_requests, f"never finished: {self.scheduler.running}"
        for request, tokens in self.delivered.items():
            if self.ended[request] is FinishReason.ABORT:
                expected, _ = self.device.scripts[request].expected(request.max_total_tokens)
                assert tokens == expected[: len(tokens)]


@pytest.mark.slow
def test_scheduler_serves_everybody_exactly_once() -> None:
    run_machine(SchedulerMachine)
