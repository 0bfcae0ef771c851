"""Typed events of an engine's life, for whoever listens: metrics, traces, step logs."""

from __future__ import annotations

from dataclasses import dataclass

from headway.core.plan import RequestOutput, StepPlan, StepResult, Stride
from headway.core.request import Request


@dataclass(frozen=True, slots=True)
class RequestArrived:
    """A request joined the waiting queue."""

    at: float
    request: Request


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request could never run and was turned away at the door."""

    at: float
    request: Request
    error: Exception


@dataclass(frozen=True, slots=True)
class StepScheduled:
    """A step was decided and handed to the executor. Admissions and preemptions are in the plan."""

    at: float
    plan: StepPlan


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step's results were taken in, at the end of the step."""

    at: float
    plan: StepPlan
    result: StepResult
    outputs: list[RequestOutput]


@dataclass(frozen=True, slots=True)
class StrideFinished:
    """Fast-forward took many like steps at once; no StepScheduled and StepFinished are told for them."""

    ends_at: list[float]
    """Instants at which a step ended: one for each that the stride took."""
    stride: Stride


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """A request was ended from outside: aborted, or stopped by its frontend."""

    at: float
    request: Request


Event = RequestArrived | RequestRefused | StepScheduled | StepFinished | StrideFinished | RequestEnded
