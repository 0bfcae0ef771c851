"""The executor that runs no model: it prices each step with an oracle and hands out tokens of known number."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from headway.core.plan import NOTHING, ONE_TOKEN, Emission, ScheduledRequest, StepPlan, StepResult
from headway.executors.base import SynchronousExecutor
from headway.executors.simulated.oracle import DecodePricer, LatencyOracle, decode_shape
from headway.executors.simulated.shape import shape_of
from headway.executors.simulated.speculation import SpeculationModel


class SimulatedExecutor(SynchronousExecutor):
    """Carries out plans on paper. It never sleeps: `StepResult.duration_s` and `host_s` tell the clock.

    Requests end at their `max_tokens`, or earlier where `known_ends` says so, as a request that meets its
    end-of-sequence token does: nobody knew in advance.

    Args:
        oracle: prices steps.
        speculation: acceptance model; the scheduler must be configured with the same number of drafts.
        known_ends: number of output tokens after which a request stops by itself, by request id.
        filler_token_id: if given, outputs carry this id, for frontends that make text of them.
    """

    def __init__(
        self,
        oracle: LatencyOracle,
        *,
        speculation: SpeculationModel | None = None,
        known_ends: Mapping[str, int] | None = None,
        filler_token_id: int | None = None,
    ) -> None:
        self.oracle = oracle
        self.speculation = speculation
        self._known_ends = known_ends or {}
        self._num_emitted: dict[str, int] = {}
        self._dice: dict[str, Random] = {}
        self._filler = filler_token_id
        self._one_token = ONE_TOKEN if filler_token_id is None else Emission(1, (filler_token_id,))
        self._is_plain = speculation is None and not self._known_ends

    def execute(self, plan: StepPlan) -> StepResult:
        """Price the plan and emit its tokens. A step without tokens costs nothing."""
        if not self._is_plain:
            for request_id in plan.released_ids:
                self._num_emitted.pop(request_id, None)
                self._dice.pop(request_id, None)
        if not plan.num_tokens:
            return StepResult(plan.step_id, [NOTHING] * len(plan.scheduled), 0.0, self.oracle.provenance)
        price = self.oracle.step_time(shape_of(plan))
        one = self._one_token
        if self._is_plain:
            emissions = [one if item.samples else NOTHING for item in plan.scheduled]
        else:
            emissions = [self._emit(item) if item.samples else NOTHING for item in plan.scheduled]
        return StepResult(plan.step_id, emissions, self._with_drafts(price.device_s), price.provenance, price.host_s)

    def price_decodes(self, num_requests: int, num_padding_tokens: int) -> tuple[DecodePricer, float]:
        """See `headway.core.fast_forward.StridePricer`."""
        oracle = self.oracle
        host_s = oracle.host_time(num_requests + num_padding_tokens, num_requests)
        if not num_padding_tokens:
            return oracle.decode_pricer(num_requests), host_s
        shape = decode_shape(num_requests, 0)._replace(num_decode_tokens=num_requests + num_padding_tokens)
        return lambda context: oracle.step_time(shape._replace(num_context_tokens=context)).device_s, host_s

    def _with_drafts(self, device_s: float) -> float:
        if self.speculation is None:
            return device_s
        return device_s * (1.0 + self.speculation.num_speculative_tokens * self.speculation.draft_cost)

    def _emit(self, item: ScheduledRequest) -> Emission:
        request_id = item.request.request_id
        num_tokens = 1
        num_drafts = 0
        if self.speculation is not None:
            num_drafts = self.speculation.num_speculative_tokens
            if item.num_draft_tokens:
                if request_id not in self._dice:
                    self._dice[request_id] = self.speculation.rng(request_id)
                num_tokens += self.speculation.num_accepted(self._dice[request_id], item.num_draft_tokens)
        stop = False
        end = self._known_ends.get(request_id)
        if end is not None:
            before = self._num_emitted.get(request_id, 0)
            num_tokens = max(1, min(num_tokens, end - before))
            self._num_emitted[request_id] = before + num_tokens
            stop = before + num_tokens >= end
        token_ids = None if self._filler is None else (self._filler,) * num_tokens
        return Emission(num_tokens, token_ids, stop, None, num_drafts)
