"""Another oracle's prices, brought in line with one deployment: times a factor, plus a time each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.executors.simulated.oracle import DecodePricer, ErrorBar, LatencyOracle, Part, StepShape, StepTime


@dataclass(frozen=True, slots=True)
class CalibratedOracle:
    """See `LatencyOracle`.

    Args:
        base: what is calibrated.
        scale: factor on the device's time: kernels that are slower or faster than the base says.
        step_s: more time each step than the base says; not hidden behind the device. May be negative.
        error: how far off it was on what it was fitted to.
    """

    base: LatencyOracle
    scale: float = 1.0
    step_s: float = 0.0
    error: ErrorBar | None = None

    @property
    def provenance(self) -> str:
        """See `LatencyOracle`."""
        return f"calibrated {self.base.provenance}"

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        time = self.base.step_time(shape)
        return StepTime(self._device(time.device_s), time.host_s, self.provenance)

    def _device(self, device_s: float) -> float:
        return max(0.0, device_s * self.scale + self.step_s)

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """See `LatencyOracle`."""
        price, device = self.base.decode_pricer(num_decodes), self._device
        return lambda context: device(price(context))

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """See `LatencyOracle`."""
        return self.base.host_time(num_tokens, num_requests)

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """See `LatencyOracle`."""
        parts = [
            part if part.name == "host" else part._replace(seconds=part.seconds * self.scale)
            for part in self.base.explain(shape)
        ]
        return [*parts, Part("step", self.step_s, self.provenance)] if self.step_s else parts

    def error_bar(self) -> ErrorBar | None:
        """See `LatencyOracle`: its own, since the base's was of other deployments."""
        return self.error
