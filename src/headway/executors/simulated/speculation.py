"""Speculative decoding as an acceptance model: how many of k drafts a step accepts, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from headway.errors import ConfigError
from headway.executors.simulated.oracle import LatencyOracle, StepShape, decode_shape


@dataclass(frozen=True, slots=True)
class SpeculationModel:
    """Each draft is accepted with a fixed probability, as long as all before it were.

    Every step verifies 1 + k rows a request. Draws are seeded by request, so that a request's luck does not depend on
    its neighbours.

    Args:
        num_speculative_tokens: k, drafts a step.
        acceptance_rate: probability for each draft, 0 to 1.
        draft_cost: device time of a drafter's pass, as a share of the model's own over the same rows.
        draft_s: fixed time of a pass: kernels that are launched one by one.

    Raises:
        ConfigError: a value out of its range.
    """

    num_speculative_tokens: int
    acceptance_rate: float
    draft_cost: float = 0.0
    seed: int = 0
    draft_s: float = 0.0

    def __post_init__(self) -> None:
        if self.num_speculative_tokens < 1:
            raise ConfigError(f"num_speculative_tokens must be at least 1, not {self.num_speculative_tokens}.")
        if not 0.0 <= self.acceptance_rate <= 1.0:
            raise ConfigError(f"The acceptance rate must be between 0 and 1, not {self.acceptance_rate:g}.")
        if self.draft_cost < 0.0 or self.draft_s < 0.0:
            raise ConfigError(f"The cost of a draft must not be negative, not {min(self.draft_cost, self.draft_s):g}.")

    def rng(self, request_id: str) -> Random:
        """The dice of one request."""
        return Random(f"{self.seed}/{request_id}")

    def num_accepted(self, rng: Random, num_drafts: int) -> int:
        """How many of the drafts are accepted."""
        count = 0
        while count < num_drafts and rng.random() < self.acceptance_rate:
            count += 1
        return count

    def drafting_s(self, oracle: LatencyOracle, shape: StepShape, device_s: float) -> float:
        """Device seconds of a step's drafts, beside the `device_s` of the step itself.

        The drafter passes over the rows of the step once, prompts too, and k - 1 times over a row for each sequence
        that goes on. A step that ends no prompt and decodes nothing has the first pass alone.
        """
        if not self.draft_cost and not self.draft_s:
            return 0.0
        num_more = self.num_speculative_tokens - 1 if shape.num_sampled else 0
        passes_s = device_s
        if num_more and self.draft_cost:
            context = shape.num_context_tokens + sum(chunk.num_tokens + chunk.num_past_tokens for chunk in shape.chunks)
            passes_s += num_more * oracle.step_time(decode_shape(shape.num_sampled, context)).device_s
        return self.draft_cost * passes_s + self.draft_s * (1 + num_more)

    @property
    def mean_tokens_per_step(self) -> float:
        """Tokens that a decode step brings on average: (1 - p^(k+1)) / (1 - p)."""
        p, k = self.acceptance_rate, self.num_speculative_tokens
        return k + 1.0 if p == 1.0 else (1.0 - p ** (k + 1)) / (1.0 - p)
