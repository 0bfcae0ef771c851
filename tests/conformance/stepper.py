"""A scheduler under test, driven one call at a time; its invariants are checked after every call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headway.config import CacheConfig, SchedulerConfig
from headway.core.plan import NOTHING, Emission, RequestOutput, ScheduledRequest, StepPlan, StepResult
from headway.core.request import FinishReason, Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler

EOS = 50_256


class Stepper:
    """A scheduler with roomy limits unless said otherwise: 16-token blocks, 10,000 of them, 16 seats, 8,192 tokens.

    Args:
        limits: fields of SchedulerConfig and CacheConfig.
    """

    def __init__(self, *, engine_version: str = "0.32.0", max_in_flight: int | None = None, **limits: Any) -> None:
        scheduler: dict[str, Any] = {"max_num_seqs": 16, "max_num_batched_tokens": 8192, "max_model_len": 8192}
        cache: dict[str, Any] = {"num_blocks": 10_000, "block_size": 16, "enable_prefix_caching": False}
        for name, value in limits.items():
            (cache if name in CacheConfig.__dataclass_fields__ else scheduler)[name] = value
        self.scheduler = Scheduler(
            SchedulerConfig(**scheduler),
            CacheConfig(**cache),
            engine_version=engine_version,
            max_in_flight=max_in_flight,
        )
        self.requests: dict[str, Request] = {}
        self.delivered: dict[str, list[int]] = {}

    def add(
        self,
        request_id: str,
        prompt: int | Sequence[int],
        max_tokens: int = 16,
        *,
        priority: int = 0,
        arrived_at: float | None = None,
        salt: str | None = None,
        **sampling: Any,
    ) -> Request:
        """Queue a request: its prompt is token ids, or a number of tokens that no other request has."""
        ids = (
            prompt
            if not isinstance(prompt, int)
            else range(1000 * len(self.requests), 1000 * len(self.requests) + prompt)
        )
        request = Request(
            request_id,
            TokenContent(list(ids), self.scheduler.kv.block_size, salt),
            len(ids),
            SamplingParams(max_tokens=max_tokens, **sampling),
            self.scheduler.config.max_model_len,
            eos_token_ids=frozenset({EOS}),
            arrived_at=float(len(self.requests)) if arrived_at is None else arrived_at,
            priority=priority,
        )
        self.requests[request_id] = request
        self.scheduler.add(request)
        return request

    def schedule(self) -> StepPlan:
        """Decide one step."""
        plan = self.scheduler.schedule(0.0)
        self.scheduler.check_integrity()
        return plan

    def update(
        self, plan: StepPlan, tokens: Mapping[str, Sequence[int]] | None = None, *, drafts: int = 0
    ) -> list[RequestOutput]:
        """Bring a step's outputs: the given tokens, or token 7 for everybody that samples.

        Args:
            drafts: tokens proposed for the next step to each request that got one.
        """
        emissions = [self._emission(item, tokens, drafts) for item in plan.scheduled]
        outputs = self.scheduler.update(plan, StepResult(plan.step_id, emissions, 0.0), 0.0)
        self.scheduler.check_integrity()
        for output in outputs:
            self.delivered.setdefault(output.request.request_id, []).extend(output.token_ids or ())
        return outputs

    def _emission(self, item: ScheduledRequest, tokens: Mapping[str, Sequence[int]] | None, drafts: int) -> Emission:
        if not item.samples:
            return NOTHING
        ids = [7] if tokens is None else list(tokens.get(item.request.request_id, ()))
        return Emission(len(ids), ids, num_next_draft_tokens=drafts if ids else 0)

    def step(self, tokens: Mapping[str, Sequence[int]] | None = None, *, drafts: int = 0) -> dict[str, int]:
        """Schedule and update. Returns how many tokens each request was given, in order."""
        plan = self.schedule()
        self.update(plan, tokens, drafts=drafts)
        return shares(plan)

    def abort(self, request_id: str) -> None:
        """End a request from outside."""
        self.scheduler.finish(request_id, FinishReason.ABORT)
        self.scheduler.check_integrity()

    @property
    def running(self) -> list[str]:
        """Ids of the running requests, in order."""
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        """Ids of the waiting requests, in order."""
        return [request.request_id for request in self.scheduler.waiting]

    @property
    def num_free_blocks(self) -> int:
        """Blocks that could be allocated now."""
        return self.scheduler.kv.pool.num_free_blocks

    @property
    def free_ids(self) -> list[int]:
        """Ids of the free blocks, the one to be reused first in front."""
        return [block.block_id for block in self.scheduler.kv.pool.free_queue]


def shares(plan: StepPlan) -> dict[str, int]:
    """Tokens by request id, in the plan's order."""
    return {item.request.request_id: item.num_tokens for item in plan.scheduled}


def ids_of(requests: Sequence[Request]) -> list[str]:
    """Their ids, in order."""
    return [request.request_id for request in requests]
