"""The seam between the scheduler and whatever carries its plans out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from headway.core.plan import StepPlan, StepResult


class Executor(Protocol):
    """Carries out step plans, in the order submitted.

    `submit` starts a step and returns a ticket; `collect` waits for that step. An executor need not overlap steps: it
    may do all the work in either call. State that it keeps for a request is dropped when the id is in `released_ids`.
    """

    def submit(self, plan: StepPlan) -> Any:
        """Start a step. Everything the step needs is read from the plan and its requests before this returns."""

    def collect(self, ticket: Any) -> StepResult:
        """Wait for a submitted step and return its result."""

    def close(self) -> None:
        """Release threads and memory. The executor cannot be used afterwards."""


class SynchronousExecutor(ABC):
    """Base of executors that finish each step inside `submit`: subclasses define `execute`."""

    @abstractmethod
    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one step."""

    def submit(self, plan: StepPlan) -> StepResult:
        """Carry out the step at once; the ticket is its result."""
        return self.execute(plan)

    def collect(self, ticket: StepResult) -> StepResult:
        """Return the result that `submit` computed."""
        return ticket

    def close(self) -> None:  # noqa: B027 - most have nothing to release
        """Nothing to release, unless a subclass says otherwise."""
