"""The engine loop: take arrivals, decide a step, carry it out, take its results in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from headway.core.arrivals import Arrival, ArrivalSource, Item
from headway.core.clock import Clock
from headway.core.events import (
    Event,
    RequestArrived,
    RequestEnded,
    RequestRefused,
    StepFinished,
    StepScheduled,
)
from headway.core.plan import RequestOutput, StepPlan, StepResult
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.core.stats import SchedulerStats
from headway.errors import EngineDeadError, RequestError

if TYPE_CHECKING:
    from headway.executors.base import Executor

Listener = Callable[[Event], None]


class Engine:
    """One scheduler, one executor, one clock. Not thread-safe but for `check`: all else happens on one thread.

    Args:
        max_in_flight: steps submitted but not collected: 1 is synchronous, 2 asynchronous scheduling, or the number of
            pipeline stages.
        listeners: called with each event, on the engine's thread.
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
        self.scheduler = scheduler
        self.executor = executor
        self.clock = clock
        self.source = source
        self.listeners = list(listeners)
        self.num_steps = 0
        self._max_in_flight = max_in_flight
        self._in_flight: deque[tuple[StepPlan, Any, float]] = deque()
        self.num_stages = 1
        """Pipeline stages of the device: the next step may start when the first stage is free."""
        self._free_at = 0.0
        self._host_free_at = 0.0

    @property
    def stats(self) -> SchedulerStats:
        """Totals so far."""
        return self.scheduler.stats

    @property
    def has_work(self) -> bool:
        """Whether a request is queued or running, or a step is in flight."""
        return self.scheduler.has_requests or bool(self._in_flight)

    def check(self, request: Request) -> None:
        """Refuse a request that could never run; see `Scheduler.check`. Safe from any thread.

        Raises:
            RequestError: why, with the numbers.
        """
        self.scheduler.check(request)

    def step(self) -> list[RequestOutput]:
        """One iteration. Returns the outputs of the step that ended in it, if one did."""
        self._take(self.source.due(self.clock.now(), self.num_steps))
        return self._advance()

    def _advance(self) -> list[RequestOutput]:
        if self.scheduler.has_requests:
            self._submit()
        if len(self._in_flight) >= self._max_in_flight or (self._in_flight and not self.scheduler.has_requests):
            return self._collect()
        return []

    def run(self) -> Iterator[list[RequestOutput]]:
        """Step until the source is exhausted and everything has finished, idling between arrivals.

        Raises:
            EngineDeadError: requests wait, nothing runs, nothing will arrive, and the scheduler can admit none.
        """
        while True:
            if not self.has_work:
                items_due = self.source.next_at()
                if self.source.exhausted:
                    return
                self.clock.wait_until(items_due, self.source.wake)
            yield self.step()

    def _take(self, items: Iterable[Item]) -> None:
        for item in items:
            if isinstance(item, Arrival):
                self._admit(item)
            else:
                request = self.scheduler.finish(item.request_id, item.reason, item.stop_reason, self.clock.now())
                if request is not None:
                    self._tell(RequestEnded(self.clock.now(), request))

    def _admit(self, arrival: Arrival) -> None:
        """The engine's door. A request that could never run is turned away; one that could outgrow the pool ends there.

        vLLM lets both in, and waits for ever once no preemption can help.
        """
        request = arrival.request
        try:
            self.scheduler.check(request)
            request.max_total_tokens = min(request.max_total_tokens, self.scheduler.longest_sequence)
            self.scheduler.add(request)
        except RequestError as error:
            self._tell(RequestRefused(self.clock.now(), request, error))
            if arrival.on_refused is not None:
                arrival.on_refused(request, error)
        else:
            self._tell(RequestArrived(self.clock.now(), request))

    def _submit(self) -> None:
        now = self.clock.now()
        plan = self.scheduler.schedule(now)
        self.num_steps += 1
        self._tell(StepScheduled(now, plan))
        # A step that only preempts is progress (what it freed is given out next), and `released_ids` must not be lost.
        if plan.scheduled or plan.lockstep or plan.preempted or plan.released_ids or self._in_flight:
            self._in_flight.append((plan, self.executor.submit(plan), now))
        else:
            self._idle_or_stalled()

    def _idle_or_stalled(self) -> None:
        """Nothing could be scheduled and nothing is in flight: wait for a change from outside, or say it is over."""
        if self.source.exhausted:
            waiting = [request.request_id for request in self.scheduler.waiting]
            raise EngineDeadError(
                f"The engine is stalled: {len(waiting)} request(s) wait, none can be admitted and none runs "
                f"(first: {waiting[:3]})."
            )
        self.clock.wait_until(self.source.next_at(), self.source.wake)

    def _collect(self) -> list[RequestOutput]:
        plan, ticket, submitted_at = self._in_flight.popleft()
        result: StepResult = self.executor.collect(ticket)
        self._host_free_at = max(submitted_at, self._host_free_at) + result.host_s
        started_at = max(self._host_free_at, self._free_at)
        self._free_at = started_at + result.duration_s / self.num_stages
        self.clock.finish_step(started_at, result.duration_s)
        now = self.clock.now()
        outputs = self.scheduler.update(plan, result, now)
        if self.listeners:
            self._tell(StepFinished(now, plan, result, outputs))
        return outputs

    def _tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def close(self) -> None:
        """Release the executor."""
        self.executor.close()
