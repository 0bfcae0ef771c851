"""Prices from a handful of constants: for teaching, for tests, and where nothing else is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from headway.errors import ConfigError
from headway.executors.simulated.oracle import DecodePricer, ErrorBar, Part, StepShape, StepTime


@dataclass(frozen=True, slots=True)
class ConstantOracle:
    """A step costs the sum of its terms; each is 0 unless given.

    Args:
        step_ms: every step.
        prefill_us: each prompt token.
        decode_ms: a step in which anything decodes, whatever the number: reading the weights once.
        decode_token_us: each decoding row; charging rows alone is what makes batching look useless.
        context_ns: each token of KV that a decode reads.
        host_ms: host time of every step; overlaps the step before under asynchronous scheduling.

    Raises:
        ConfigError: a negative constant.
    """

    step_ms: float = 0.0
    prefill_us: float = 0.0
    decode_ms: float = 0.0
    decode_token_us: float = 0.0
    context_ns: float = 0.0
    host_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in _names():
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"The constant {name} must not be negative, not {getattr(self, name):g}.")

    @property
    def provenance(self) -> str:
        """See `LatencyOracle`."""
        return "constant"

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        device_s = shape.num_prefill_tokens * self.prefill_us * 1e-6 + self.step_ms * 1e-3
        if shape.num_decodes:
            device_s = shape.num_prefill_tokens * self.prefill_us * 1e-6 + self._decodes(
                shape.num_decode_tokens, shape.num_context_tokens
            )
        return StepTime(device_s, self.host_ms * 1e-3, self.provenance)

    def _decodes(self, num_rows: int, num_context_tokens: int) -> float:
        fixed_s = (self.step_ms + self.decode_ms) * 1e-3 + num_rows * self.decode_token_us * 1e-6
        return fixed_s + num_context_tokens * self.context_ns * 1e-9

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """See `LatencyOracle`."""
        fixed_s = (self.step_ms + self.decode_ms) * 1e-3 + num_decodes * self.decode_token_us * 1e-6
        context_ns = self.context_ns

        def price(num_context_tokens: int) -> float:
            # 0.0 is the prefill term of `step_time`: equal to the last bit.
            return 0.0 + (fixed_s + num_context_tokens * context_ns * 1e-9)

        return price

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """See `LatencyOracle`."""
        return self.host_ms * 1e-3

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """See `LatencyOracle`."""
        seconds = {
            "step": self.step_ms * 1e-3,
            "prefill": shape.num_prefill_tokens * self.prefill_us * 1e-6,
            "decode": (self.decode_ms * 1e-3 + shape.num_decode_tokens * self.decode_token_us * 1e-6)
            if shape.num_decodes
            else 0.0,
            "attention_decode": shape.num_context_tokens * self.context_ns * 1e-9,
            "host": self.host_ms * 1e-3,
        }
        return [Part(name, value, self.provenance) for name, value in seconds.items() if value]

    def error_bar(self) -> ErrorBar | None:
        """None: constants were never judged on anything."""
        return None


def parse_constants(text: str) -> ConstantOracle:
    """Read `prefill_us=30,decode_ms=12`.

    Raises:
        ConfigError: an unknown name, or a value that is not a number of at least 0.
    """
    given: dict[str, float] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        name, _, value = part.partition("=")
        try:
            given[name] = float(value)
        except ValueError:
            given[name] = -1.0
        if name not in _names() or not given[name] >= 0.0 or given[name] == float("inf"):
            raise ConfigError(
                f"{part!r} is not a latency constant.",
                hint=f"Use {', '.join(_names())} with a number, as in constant:prefill_us=30,decode_ms=12.",
            )
    if not any(given.values()):
        raise ConfigError("Latency constants of zero alone describe no machine.", hint="Give at least one above 0.")
    return ConstantOracle(**given)


def _names() -> list[str]:
    return [field.name for field in fields(ConstantOracle)]
