"""The executor that runs no model: it prices each step with an oracle and hands out tokens of known number."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from headway.core.plan import NOTHING, ONE_TOKEN, Emission, ScheduledRequest, StepPlan, StepResult
from headway.core.request import Request
from headway.executors.base import SynchronousExecutor
from headway.executors.simulated.oracle import DecodePricer, LatencyOracle, decode_shape
from headway.executors.simulated.shape import shape_of
from headway.executors.simulated.speculation import SpeculationModel


class SimulatedExecutor(SynchronousExecutor):
    """Carries out plans on paper. It never sleeps: `StepResult.duration_s` and `host_s` tell the clock.

    Requests end at their `max_tokens`, or earlier where `ends_after` says so, as a request that meets its
    end-of-sequence token does: the scheduler does not know in advance.

    Args:
        oracle: prices steps.
        speculation: acceptance model; the scheduler must be configured with the same number of drafts.
        ends_after: number of output tokens after which a request stops by itself; None lets it go on.
        filler_token_id: if given, outputs carry this id, for frontends that make text of them.
        end_token_id: the id that then ends a request which stops by itself.
        prepares_ahead: the host prepares a batch while the stages of a pipeline work on others and on its last step.
    """

    def __init__(
        self,
        oracle: LatencyOracle,
        *,
        speculation: SpeculationModel | None = None,
        ends_after: Callable[[Request], int | None] | None = None,
        filler_token_id: int | None = None,
        end_token_id: int | None = None,
        prepares_ahead: bool = False,
    ) -> None:
        self.oracle = oracle
        self._prepares_ahead = prepares_ahead
        self.speculation = speculation
        self._ends_after = ends_after
        self._ends: dict[str, int | None] = {}
        self._num_emitted: dict[str, int] = {}
        self._dice: dict[str, Random] = {}
        self._filler = filler_token_id
        self._end_token_id = end_token_id
        self._one_token = ONE_TOKEN if filler_token_id is None else Emission(1, (filler_token_id,))
        self._is_plain = speculation is None and ends_after is None

    def execute(self, plan: StepPlan) -> StepResult:
        """Price the plan and emit its tokens. A step without tokens costs nothing."""
        if not self._is_plain:
            for request_id in plan.released_ids:
                self._num_emitted.pop(request_id, None)
                self._ends.pop(request_id, None)
                self._dice.pop(request_id, None)
        if not plan.num_tokens:
            return StepResult(plan.step_id, [NOTHING] * len(plan.scheduled), 0.0, self.oracle.provenance)
        shape = shape_of(plan)
        price = self.oracle.step_time(shape)
        one = self._one_token
        if self._is_plain:
            emissions = [one if item.samples else NOTHING for item in plan.scheduled]
        else:
            emissions = [self._emit(item) if item.samples else NOTHING for item in plan.scheduled]
        device_s = price.device_s
        if self.speculation is not None:
            device_s += self.speculation.drafting_s(self.oracle, shape, device_s)
        host_s = price.host_s
        if self._prepares_ahead:
            device_s, host_s = max(device_s, host_s), 0.0
        return StepResult(plan.step_id, emissions, device_s, price.provenance, host_s)

    def price_decodes(self, num_requests: int, num_padding_tokens: int) -> tuple[DecodePricer, float]:
        """See `headway.core.fast_forward.StridePricer`."""
        oracle = self.oracle
        host_s = oracle.host_time(num_requests + num_padding_tokens, num_requests)
        if not num_padding_tokens:
            return oracle.decode_pricer(num_requests), host_s
        shape = decode_shape(num_requests, 0)._replace(num_decode_tokens=num_requests + num_padding_tokens)
        return lambda context: oracle.step_time(shape._replace(num_context_tokens=context)).device_s, host_s

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
        end = self._end_of(item.request)
        if end is not None:
            before = self._num_emitted.get(request_id, 0)
            num_tokens = max(1, min(num_tokens, end - before))
            self._num_emitted[request_id] = before + num_tokens
            stop = before + num_tokens >= end
        return Emission(num_tokens, self._token_ids(num_tokens, stop), stop, None, num_drafts)

    def _end_of(self, request: Request) -> int | None:
        if self._ends_after is None:
            return None
        if request.request_id not in self._ends:
            self._ends[request.request_id] = self._ends_after(request)
        return self._ends[request.request_id]

    def _token_ids(self, num_tokens: int, stop: bool) -> tuple[int, ...] | None:
        if self._filler is None:
            return None
        if stop and self._end_token_id is not None:
            return (self._filler,) * (num_tokens - 1) + (self._end_token_id,)
        return (self._filler,) * num_tokens
