"""The engine loop of a simulation: the same loop, which takes many like steps at once where it can."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from headway.core.arrivals import ArrivalSource
from headway.core.clock import Clock
from headway.core.engine import Engine, Listener
from headway.core.events import StrideFinished
from headway.core.plan import RequestOutput, StepPlan
from headway.core.scheduler import Scheduler

if TYPE_CHECKING:
    from headway.executors.base import Executor


class DecodePrice(Protocol):
    """Device seconds of a step of decodes, by the sum of their contexts."""

    def __call__(self, num_context_tokens: int, /) -> float: ...


@runtime_checkable
class StridePricer(Protocol):
    """What fast-forward asks of an executor beyond `Executor`."""

    def price_decodes(self, num_requests: int, num_padding_tokens: int) -> tuple[DecodePrice, float]:
        """Prices of steps in which so many requests decode one token each: by context, and host seconds a step."""


class FastForwardEngine(Engine):
    """An engine under a virtual clock that takes strides: the same schedule and the same times as `Engine`.

    The scheduler must have been told `fast_forward()`, and the executor must be a `StridePricer`. A stride ends with
    the first step whose end reaches the next arrival, or before anything else can change the schedule.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Clock,
        source: ArrivalSource,
        *,
        max_in_flight: int = 1,
        listeners: Iterable[Listener] = (),
    ) -> None:
        super().__init__(scheduler, executor, clock, source, max_in_flight=max_in_flight, listeners=listeners)
        assert isinstance(executor, StridePricer), "fast-forward needs an executor that prices strides"
        self._pricer: StridePricer = executor
        self.may_stride = True
        """Whether several steps may be taken at once; otherwise lockstep alone saves work."""

    def step(self) -> list[RequestOutput]:
        """One iteration, or a stride of them, which has no outputs: listeners get a `StrideFinished`."""
        self._take(self.source.due(self.clock.now(), self.num_steps))
        if self.may_stride:
            most = self.scheduler.num_quiet_steps
            if most > 1 and self._is_steady():
                self._take_stride(most)
                return []
        return self._advance()

    def _is_steady(self) -> bool:
        """Whether the pipeline is as full as it will be, and holds nothing but decodes in lockstep."""
        if len(self._in_flight) != self._max_in_flight - 1:
            return False
        if not self._in_flight:
            return True
        plan, lockstep = self._in_flight[0][0], self.scheduler.lockstep
        run = plan.lockstep
        return (
            run is not None
            and lockstep is not None
            and run.items is None
            and not plan.scheduled
            and run.num_requests == len(lockstep)
        )

    def _take_stride(self, most: int) -> None:
        scheduler = self.scheduler
        lockstep = scheduler.lockstep
        assert lockstep is not None
        num_requests = len(lockstep)
        padding = scheduler.policy.decode_padding(num_requests)
        price, host_s = self._pricer.price_decodes(num_requests, padding)
        ends_at = (self._time_async if self._in_flight else self._time_sync)(
            most, num_requests, lockstep.num_context_tokens, price, host_s
        )
        stride = scheduler.stride(len(ends_at), ends_at[-1])
        self.num_steps += stride.num_steps
        if self._in_flight:
            self._replace_in_flight(scheduler, padding)
        for listener in self.listeners:
            listener(StrideFinished(ends_at, stride))

    def _time_sync(self, most: int, num_requests: int, context: int, price: DecodePrice, host_s: float) -> list[float]:
        """Ends of up to `most` steps, each submitted when the one before has ended."""
        until = self.source.next_at()
        now, free_at, host_free_at = self.clock.now(), self._free_at, self._host_free_at
        ends_at = []
        for context_tokens in range(context, context + most * num_requests, num_requests):
            host_free_at = max(now, host_free_at) + host_s
            started_at = max(host_free_at, free_at)
            duration_s = price(context_tokens)
            now = free_at = started_at + duration_s
            ends_at.append(now)
            if until is not None and now >= until:
                break
        self._free_at, self._host_free_at = free_at, host_free_at
        self.clock.finish_step(started_at, duration_s)
        return ends_at

    def _time_async(self, most: int, num_requests: int, context: int, price: DecodePrice, host_s: float) -> list[float]:
        """The same where each step is submitted when the one before the last has ended; one stays in flight."""
        until = self.source.next_at()
        plan, ticket, submitted_at = self._in_flight[0]
        result = self.executor.collect(ticket)
        duration_s, step_host_s = result.duration_s, result.host_s
        now, free_at, host_free_at = self.clock.now(), self._free_at, self._host_free_at
        ends_at = []
        for context_tokens in range(context, context + most * num_requests, num_requests):
            submitted_next = now
            host_free_at = max(submitted_at, host_free_at) + step_host_s
            started_at = max(host_free_at, free_at)
            now = free_at = started_at + duration_s
            last_s = duration_s
            submitted_at, duration_s, step_host_s = submitted_next, price(context_tokens), host_s
            ends_at.append(now)
            if until is not None and now >= until:
                break
        self._free_at, self._host_free_at = free_at, host_free_at
        self.clock.finish_step(started_at, last_s)
        self._in_flight[0] = (plan, ticket, submitted_at)
        return ends_at

    def _replace_in_flight(self, scheduler: Scheduler, padding: int) -> None:
        """Asynchronous: the last step of the stride is now the one in flight."""
        assert scheduler.lockstep is not None
        run = scheduler.lockstep.last_run
        run.num_padding_tokens = padding
        plan = StepPlan(run.step_id, (), (), (), (), (), run.num_requests, run)
        self._in_flight[0] = (plan, self.executor.submit(plan), self._in_flight[0][2])
