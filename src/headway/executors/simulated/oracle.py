"""The seam between the simulated executor and whatever knows how long a step takes.

An oracle sees the *shape* of a step, never its requests: sums over the batch and the list of prefill chunks. That is
what rooflines, measured tables, constants and aiconfigurator all need, and a step then costs microseconds to price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable


class Chunk(NamedTuple):
    """A stretch of one prompt that is computed in a step; also the recomputation after a preemption."""

    num_tokens: int
    """Tokens computed, padding rows of a static batch included."""
    num_past_tokens: int
    """Tokens of the same sequence whose KV is there already."""


class StepShape(NamedTuple):
    """What a step asks of the device, summed over its requests.

    Derived: `num_tokens` rows go through every linear layer; attention is asked for each chunk and for the decodes;
    `num_sampled` rows reach the head and the sampler.
    """

    chunks: tuple[Chunk, ...] = ()
    num_decodes: int = 0
    """Sequences that decode. Under speculation each may bring several tokens."""
    num_decode_tokens: int = 0
    """Rows that those sequences compute: one each, 1 + k with k drafts to verify, and padding rows of finished ones."""
    num_context_tokens: int = 0
    """Sum over the decodes of the tokens whose KV is read, the new ones included."""
    num_sampled: int = 0
    """Sequences that get at least one token out of the step."""

    @property
    def num_prefill_tokens(self) -> int:
        """Rows of all chunks."""
        return sum(chunk.num_tokens for chunk in self.chunks)

    @property
    def num_tokens(self) -> int:
        """Rows that go through the linear layers."""
        return self.num_prefill_tokens + self.num_decode_tokens


class StepTime(NamedTuple):
    """The price of a step.

    `device_s` starts when the device is free and the step is ready; `host_s` comes before it, and overlaps the step
    before under asynchronous scheduling.
    """

    device_s: float
    host_s: float
    provenance: str
    """Where the number comes from: `roofline`, `table`, `aiconfigurator`, `constant`, with a detail after a colon."""


class Part(NamedTuple):
    """One term of a step's price, for `--explain` and for tests."""

    name: str
    """`linear`, `attention_prefill`, `attention_decode`, `head`, `all_reduce`, `pipeline`, `host`, …"""
    seconds: float
    provenance: str


class ErrorBar(NamedTuple):
    """Relative error of an oracle's step times, as found on measurements it was not fitted to."""

    relative: float
    """Typical absolute error, 0.08 for 8 %."""
    source: str
    """How it is known."""


DecodePricer = Callable[[int], float]
"""Device seconds of a step of nothing but decodes, given the sum of their contexts (see `StepShape`)."""


@runtime_checkable
class LatencyOracle(Protocol):
    """Prices steps. Answers are deterministic and depend on the shape alone; caching by shape is up to the oracle."""

    @property
    def provenance(self) -> str:
        """Default provenance of its answers."""

    def step_time(self, shape: StepShape) -> StepTime:
        """The price of one step. A step of decodes only costs what `decode_pricer` says, to the last bit."""

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """The price of steps in which `num_decodes` sequences decode one token each and nothing else happens.

        Fast-forward asks for it once a stride and calls it once a step, so it should look nothing up by shape.
        """

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """Host seconds of one step: scheduling, launch, sampling, detokenising. The `host_s` of `step_time`."""

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """The terms of a step's price; they add up to device_s + host_s unless the oracle overlaps terms."""

    def error_bar(self) -> ErrorBar | None:
        """The oracle's own residual, if it was ever judged on measurements."""


def decode_shape(num_decodes: int, num_context_tokens: int) -> StepShape:
    """The shape of a step of nothing but one-token decodes."""
    return StepShape((), num_decodes, num_decodes, num_context_tokens, num_decodes)
