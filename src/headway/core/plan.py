"""The wire between scheduler and executors: what one iteration does, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headway.core.request import FinishReason, Request


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
    """Sum of num_tokens over `scheduled`, padding excluded."""


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


@dataclass(frozen=True, slots=True)
class StepResult:
    """Outcome of a step; `emissions` is aligned with `plan.scheduled`."""

    step_id: int
    emissions: Sequence[Emission]
    duration_s: float
    """Measured, or predicted by a latency oracle."""
    provenance: str = "measured"


class RequestOutput(NamedTuple):
    """What a frontend learns about one request from one step."""

    request: Request
    num_tokens: int
    token_ids: Sequence[int] | None
    logprobs: Any
    finish_reason: FinishReason | None
