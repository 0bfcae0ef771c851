"""The wire between scheduler and executors: what one iteration does, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.core.request import FinishReason, Request

if TYPE_CHECKING:
    from headway.core.blocks import Block


class ScheduledRequest(NamedTuple):
    """One request's share of a step.

    The step computes tokens [num_computed_tokens, num_computed_tokens + num_tokens). The last num_draft_tokens of them
    are unverified drafts. If `samples`, the range reaches the last known token and the step emits at least one token.
    """

    request: Request
    num_tokens: int
    num_computed_tokens: int
    """Before this step."""
    num_draft_tokens: int
    num_padding_tokens: int
    """Extra rows that the policy asks for; executed into the null block, or priced."""
    new_block_ids: Sequence[int]
    """Blocks appended to the table in this step; the whole table for requests in `new` and `resumed`."""
    samples: bool


AddedBlocks = tuple[int, Request, "Sequence[Block]"]
"""(step_id, request, blocks appended to its table in that step)."""


class LockstepRun:
    """Fast-forward: the requests that decode one token each in this step, as a group (see `headway.core.stride`)."""

    __slots__ = ("added", "items", "num_context_tokens", "num_padding_tokens", "num_requests", "step_id")

    def __init__(self, step_id: int, num_requests: int, num_context_tokens: int, added: Sequence[AddedBlocks]) -> None:
        self.step_id = step_id
        self.num_requests = num_requests
        self.num_context_tokens = num_context_tokens
        """Tokens attended to, the new ones included, summed over the requests."""
        self.added = added
        self.num_padding_tokens = 0
        """Extra rows that the policy asks for."""
        self.items: list[ScheduledRequest] | None = None
        """The same as ordinary items, if the group was dissolved while the step was in flight."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one iteration runs. `scheduled` is in vLLM's order: running requests first, then admitted ones."""

    step_id: int
    scheduled: Sequence[ScheduledRequest]
    new: Sequence[Request]
    """Admitted for the first time."""
    resumed: Sequence[Request]
    """Admitted again after a preemption; their KV is recomputed."""
    preempted: Sequence[Request]
    """In order of preemption; they lost their blocks."""
    released_ids: Sequence[str]
    """Requests that finished since the last plan; executors drop their state."""
    num_tokens: int
    """Sum of num_tokens over `scheduled` and `lockstep`, padding excluded."""
    lockstep: LockstepRun | None = None
    """Fast-forward only: requests ahead of `scheduled` that decode one token each, as a group."""


class Emission(NamedTuple):
    """What one scheduled request got out of a step. Nothing (num_tokens 0) unless it samples."""

    num_tokens: int
    token_ids: Sequence[int] | None = None
    """None in simulation."""
    stop: bool = False
    """In simulation: the workload says that the request ends here."""
    logprobs: Any = None
    """Opaque to the core: passed from the sampler to the frontend."""
    num_next_draft_tokens: int = 0
    """Speculation: drafts proposed for the next step."""
    next_draft_token_ids: Sequence[int] | None = None


NOTHING = Emission(0)
ONE_TOKEN = Emission(1)
"""In simulation: one token, and not the end as far as the workload knows."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcome of a step; `emissions` is aligned with `plan.scheduled`."""

    step_id: int
    emissions: Sequence[Emission]
    duration_s: float
    """Measured, or predicted by a latency oracle."""
    provenance: str = "measured"
    host_s: float = 0.0
    """Predicted host time ahead of `duration_s`, where that is the device's alone; overlaps the step before it when
    steps are submitted ahead of time."""


class RequestOutput(NamedTuple):
    """What a frontend learns about one request from one step."""

    request: Request
    num_tokens: int
    token_ids: Sequence[int] | None
    logprobs: Any
    finish_reason: FinishReason | None
    previous_token_at: float | None = None
    """When the request's output before this one came; None for the first."""
    in_lockstep: bool = False
    """Fast-forward: told for the last token alone, of a request whose tokens count in `StepPlan.lockstep`."""


class Stride(NamedTuple):
    """Steps taken at once: `num_steps` consecutive plans that hold a lockstep run and nothing else."""

    first_step_id: int
    num_steps: int
    num_requests: int
    num_context_tokens: int
    """Of the first step; it grows by num_requests a step."""
    added: Sequence[AddedBlocks]
    """Blocks appended to tables, with their step."""
    released_ids: Sequence[str]
    """Of the first step."""
