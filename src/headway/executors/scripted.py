"""A test double: replays given tokens, at a given price per step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headway.core.plan import NOTHING, Emission, ScheduledRequest, StepPlan, StepResult
from headway.executors.base import SynchronousExecutor


class ScriptedExecutor(SynchronousExecutor):
    """Emits, for each request, the next tokens of its script.

    Args:
        scripts: output token ids by request id. A request without one repeats `filler`; ids past the end of a script
            are `filler` too.
        step_duration_s: price of a step: seconds, or a function of the plan.
    """

    def __init__(
        self,
        scripts: Mapping[str, Sequence[int]] | None = None,
        *,
        filler: int = 0,
        step_duration_s: float | Callable[[StepPlan], float] = 0.0,
    ) -> None:
        self.scripts = dict(scripts or {})
        self._filler = filler
        self._price = step_duration_s
        self._num_emitted: dict[str, int] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """One token for each request that samples. Drafts are always rejected."""
        for request_id in plan.released_ids:
            self._num_emitted.pop(request_id, None)
        emissions = [self._emit(item) if item.samples else NOTHING for item in plan.scheduled]
        duration_s = self._price(plan) if callable(self._price) else self._price
        return StepResult(plan.step_id, emissions, duration_s, "scripted")

    def _emit(self, item: ScheduledRequest) -> Emission:
        request_id = item.request.request_id
        index = self._num_emitted.get(request_id, 0)
        self._num_emitted[request_id] = index + 1
        script = self.scripts.get(request_id, ())
        return Emission(1, (script[index] if index < len(script) else self._filler,))
