"""A step while it is being decided; the finished decision is a `StepPlan`."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.core.plan import ScheduledRequest
from headway.core.request import Request


@dataclass(slots=True)
class StepDraft:
    """What has been given out so far, and what is left to give."""

    token_budget: int
    """Input rows left: tokens, and the rows that a drafter needs beside them."""
    threshold: int
    """Most tokens that one prompt may take; 0 is no limit."""
    scheduled: list[ScheduledRequest] = field(default_factory=list)
    new: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    preempted: list[Request] = field(default_factory=list)
    carries_prefill: bool = False
    """Whether a running request goes on with its prefill in this step."""

    def share_of(self, request: Request) -> ScheduledRequest | None:
        """What the step has given this request already, if anything."""
        return next((item for item in self.scheduled if item.request is request), None)

    def num_tokens_given(self, max_tokens: int, num_draft_slots: int) -> int:
        """Tokens of all shares, given what the step could have given in all."""
        return max_tokens - self.token_budget - num_draft_slots * len(self.scheduled)

    def take_back(self, item: ScheduledRequest, num_draft_slots: int) -> None:
        """Undo a share: its request leaves the step and its tokens can be given to others."""
        self.scheduled.remove(item)
        self.token_budget += item.num_tokens + num_draft_slots
        item.request.num_in_flight_tokens -= item.num_tokens

    def keep_without_blocks(self, item: ScheduledRequest) -> None:
        """Leave a preempted request in the step: it then counts as computed what it no longer has blocks for."""
        victim, num_tokens = item.request, item.num_tokens
        victim.num_computed_tokens = num_tokens
        position = self.scheduled.index(item)
        self.scheduled[position] = item._replace(num_computed_tokens=0, samples=num_tokens >= victim.num_tokens)
