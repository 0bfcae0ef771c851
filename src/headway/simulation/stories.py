"""Follows requests through an engine and tells why each took as long as it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headway.core.engine import Engine, Listener
from headway.core.events import Event, RequestArrived, RequestEnded, StepFinished, StepScheduled, StrideFinished
from headway.core.plan import StepPlan
from headway.core.request import FinishReason, Request
from headway.executors.simulated.oracle import LatencyOracle, decode_shape
from headway.executors.simulated.shape import shape_of
from headway.report.explain import RequestStory


class _Clockwork(NamedTuple):
    """Running totals at one instant; differences of two of them are what happened in between."""

    stalled_s: float
    seats_s: float
    blocks_s: float
    budget_s: float


class _Life:
    """What is kept of a request under way."""

    __slots__ = (
        "at_arrival",
        "at_first_token",
        "at_start",
        "num_ahead",
        "num_running",
        "preempted_at",
        "preempted_s",
        "stalled_before_s",
    )

    def __init__(self, at_arrival: _Clockwork, num_ahead: int, num_running: int) -> None:
        self.at_arrival = at_arrival
        self.num_ahead = num_ahead
        self.num_running = num_running
        self.at_start: _Clockwork | None = None
        self.at_first_token: _Clockwork | None = None
        self.preempted_at: float | None = None
        self.preempted_s = 0.0
        self.stalled_before_s = 0.0
        """Stalled time before the last preemption."""


class StoryTeller:
    """An observer of a simulation: hands out a `RequestStory` for each request that ran to its end.

    What others' prompts add to a step is its time less that of its decodes alone.
    """

    def __init__(self, oracle: LatencyOracle, tell: Callable[[RequestStory], None]) -> None:
        self._oracle = oracle
        self._tell = tell

    def attach(self, rank: int, engine: Engine) -> Listener:
        """See `headway.simulation.run.Observer`."""
        return _RankStories(rank, engine, self._oracle, self._tell)


class _RankStories:
    """One engine's requests. Every event costs O(requests that it changes)."""

    def __init__(self, rank: int, engine: Engine, oracle: LatencyOracle, tell: Callable[[RequestStory], None]) -> None:
        self._rank = rank
        self._scheduler = engine.scheduler
        self._oracle = oracle
        self._tell = tell
        self._lives: dict[str, _Life] = {}
        self._totals = _Clockwork(0.0, 0.0, 0.0, 0.0)
        self._updated_at = 0.0
        self._lacked: str | None = None

    def __call__(self, event: Event) -> None:
        """See `headway.core.engine.Listener`."""
        if isinstance(event, StepFinished):
            self._finished(event)
        elif isinstance(event, StepScheduled):
            self._scheduled(event)
        elif isinstance(event, StrideFinished):
            self._pass(event.ends_at[-1], 0.0)
        elif isinstance(event, RequestArrived):
            num_ahead = len(self._scheduler.waiting) - 1
            self._lives[event.request.request_id] = _Life(self._totals, num_ahead, len(self._scheduler.running))
        elif isinstance(event, RequestEnded):
            self._lives.pop(event.request.request_id, None)

    def _scheduled(self, event: StepScheduled) -> None:
        self._lacked = self._scheduler.waits_for
        for request in event.plan.new:
            self._lives[request.request_id].at_start = self._totals
        for request in event.plan.preempted:
            life = self._lives[request.request_id]
            if life.at_first_token is not None and life.preempted_at is None:
                life.preempted_at = self._updated_at
                life.stalled_before_s += self._totals.stalled_s - life.at_first_token.stalled_s

    def _finished(self, event: StepFinished) -> None:
        self._pass(event.at, self._stall(event.plan, event.result.duration_s))
        for output in event.outputs:
            request = output.request
            life = self._lives.get(request.request_id)
            if life is None:
                continue
            if life.at_first_token is None:
                life.at_first_token = self._totals
            elif life.preempted_at is not None:
                life.preempted_s += event.at - life.preempted_at
                life.preempted_at = None
                life.at_first_token = self._totals
            if output.finish_reason in (FinishReason.LENGTH, FinishReason.STOP):
                self._tell(self._story(request, self._lives.pop(request.request_id)))

    def _pass(self, now: float, stalled_s: float) -> None:
        """Time has passed until `now`, with the queue's head lacking what it lacked."""
        elapsed_s = now - self._updated_at
        self._updated_at = now
        stalled, seats, blocks, budget = self._totals
        self._totals = _Clockwork(
            stalled + min(stalled_s, elapsed_s),
            seats + (elapsed_s if self._lacked == "seats" else 0.0),
            blocks + (elapsed_s if self._lacked == "blocks" else 0.0),
            budget + (elapsed_s if self._lacked == "budget" else 0.0),
        )

    def _stall(self, plan: StepPlan, duration_s: float) -> float:
        """What the step's prompts added to its decodes."""
        shape = shape_of(plan)
        if not shape.chunks or not shape.num_decodes:
            return 0.0
        alone = self._oracle.step_time(decode_shape(shape.num_decodes, shape.num_context_tokens)).device_s
        return max(0.0, duration_s - alone)

    def _story(self, request: Request, life: _Life) -> RequestStory:
        assert request.first_token_at is not None and request.last_token_at is not None
        assert life.at_first_token is not None and request.first_scheduled_at is not None
        start = life.at_start or life.at_arrival
        stalled_s = life.stalled_before_s + self._totals.stalled_s - life.at_first_token.stalled_s
        queued_s = request.first_scheduled_at - request.arrived_at
        decoding_s = request.last_token_at - request.first_token_at - life.preempted_s
        stalled_s = min(stalled_s, max(0.0, decoding_s))
        return RequestStory(
            request_id=request.request_id,
            rank=self._rank,
            arrived_at=request.arrived_at,
            num_prompt_tokens=request.num_prompt_tokens,
            num_cached_tokens=request.num_cached_tokens,
            num_output_tokens=request.num_output_tokens,
            num_ahead=life.num_ahead,
            num_running=life.num_running,
            queued_s=queued_s,
            queued_for_seats_s=min(queued_s, start.seats_s - life.at_arrival.seats_s),
            queued_for_blocks_s=min(queued_s, start.blocks_s - life.at_arrival.blocks_s),
            queued_for_budget_s=min(queued_s, start.budget_s - life.at_arrival.budget_s),
            prefill_s=request.first_token_at - request.first_scheduled_at,
            decode_s=decoding_s - stalled_s,
            stalled_s=stalled_s,
            preempted_s=life.preempted_s,
            num_preemptions=request.num_preemptions,
            ttft_s=request.first_token_at - request.arrived_at,
            e2el_s=request.last_token_at - request.arrived_at,
        )
