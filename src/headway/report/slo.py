"""Service-level objectives of one request, and the record they are judged on."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

from headway.errors import ConfigError


class RequestRecord(NamedTuple):
    """What happened to one request that ran to its end. Instants in seconds on one clock."""

    request_id: str
    sent_at: float
    first_token_at: float
    last_token_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    max_itl_s: float = 0.0
    """Longest gap between two of its outputs; 0 if there was only one."""
    num_preemptions: int = 0

    @property
    def ttft_s(self) -> float:
        """Time to first token."""
        return self.first_token_at - self.sent_at

    @property
    def e2el_s(self) -> float:
        """End-to-end latency: from sending to the last token."""
        return self.last_token_at - self.sent_at

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None for a single token."""
        if self.num_output_tokens <= 1:
            return None
        return (self.e2el_s - self.ttft_s) / (self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds in milliseconds; a request is good if it meets every one that is given.

    `ttft_ms`, `tpot_ms` and `e2el_ms` are those of `vllm bench serve --goodput`, where a single-token request
    has a TPOT of 0. `itl_ms` bounds the longest gap between two outputs of the request: no stall longer than
    this.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    e2el_ms: float | None = None

    def __bool__(self) -> bool:
        """Whether any bound is given."""
        return any(getattr(self, field.name) is not None for field in fields(self))

    def met_by(self, record: RequestRecord) -> bool:
        """Whether the request meets every bound."""
        measured = (
            (self.ttft_ms, record.ttft_s),
            (self.tpot_ms, record.tpot_s or 0.0),
            (self.itl_ms, record.max_itl_s),
            (self.e2el_ms, record.e2el_s),
        )
        return all(bound is None or seconds * 1e3 <= bound for bound, seconds in measured)

    def __str__(self) -> str:
        bounds = ((field.name.removesuffix("_ms").upper(), getattr(self, field.name)) for field in fields(self))
        return ", ".join(f"{name} ≤ {bound:g} ms" for name, bound in bounds if bound is not None)


def parse_slo(text: str) -> Slo:
    """Read `ttft_ms=500,itl_ms=100`; vLLM's `ttft:500` is understood too.

    Raises:
        ConfigError: an unknown metric, or a bound that is not a positive number.
    """
    known = [field.name for field in fields(Slo)]
    bounds: dict[str, float] = {}
    for part in text.replace(",", " ").split():
        name, _, value = part.replace(":", "=").partition("=")
        name = name if name.endswith("_ms") else f"{name}_ms"
        try:
            bound = float(value)
        except ValueError:
            bound = 0.0
        if name not in known or not bound > 0:
            raise ConfigError(
                f"{part!r} is not an objective.",
                hint=f"Use {', '.join(known)} with a bound, as in ttft_ms=500,itl_ms=100.",
            )
        bounds[name] = bound
    return Slo(**bounds)
