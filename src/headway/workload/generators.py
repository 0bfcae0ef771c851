"""Workloads made from a seed: arrival processes, lengths and shared prefixes."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from headway.errors import WorkloadError
from headway.workload.lengths import FixedLength, Length
from headway.workload.trace import TraceRequest

_PROMPT = FixedLength(512)
_OUTPUT = FixedLength(128)


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Each prompt begins with one of `num_groups` prefixes of `num_tokens` tokens, all equally likely."""

    num_tokens: int
    num_groups: int = 1

    def __post_init__(self) -> None:
        if self.num_tokens < 1 or self.num_groups < 1:
            raise WorkloadError(
                f"A shared prefix needs at least 1 token and 1 group, not {self.num_tokens} and {self.num_groups}."
            )


@dataclass(frozen=True, slots=True)
class Generated:
    """A workload by description. Equal descriptions give equal requests.

    Args:
        num_requests: how many.
        requests_per_s: mean arrival rate; infinity sends all at once.
        burstiness: shape of the gamma-distributed gaps: 1 is Poisson, below 1 comes in bursts, above 1 is
            steadier, infinity is constant gaps.
        prompt: length of the prompt, of its unshared part if there is a shared prefix.
        output: tokens to generate.
        prefix: shared prefix, if any.

    Raises:
        WorkloadError: a value out of its range.
    """

    num_requests: int
    requests_per_s: float = float("inf")
    burstiness: float = 1.0
    prompt: Length = _PROMPT
    output: Length = _OUTPUT
    prefix: SharedPrefix | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_requests < 1:
            raise WorkloadError(f"A workload needs at least 1 request, not {self.num_requests}.")
        if not self.requests_per_s > 0:
            raise WorkloadError(f"A request rate must be positive, not {self.requests_per_s:g}.")
        if not self.burstiness > 0:
            raise WorkloadError(f"Burstiness must be positive, not {self.burstiness:g}.", hint="1 is Poisson.")

    def requests(self) -> Iterator[TraceRequest]:
        """The requests in order of arrival; the memory is 8 bytes a request, for the arrivals."""
        # One generator each: asking for other lengths must not move the arrivals.
        prompts, outputs, groups = (Random(f"{self.seed}/{name}") for name in ("prompts", "outputs", "groups"))
        for arrival_s in self._arrivals():
            num_prompt_tokens = self.prompt.draw(prompts)
            keys: tuple[tuple[str, int], ...] = ()
            if self.prefix is not None:
                keys = (("prefix", groups.randrange(self.prefix.num_groups)),)
                num_prompt_tokens += self.prefix.num_tokens
            yield TraceRequest(
                arrival_s=arrival_s,
                num_prompt_tokens=num_prompt_tokens,
                num_output_tokens=self.output.draw(outputs),
                block_keys=keys,
                block_key_tokens=self.prefix.num_tokens if self.prefix is not None else 0,
            )

    def _arrivals(self) -> array[float]:
        return arrival_times(
            self.num_requests,
            self.requests_per_s,
            burstiness=self.burstiness,
            rng=Random(f"{self.seed}/arrivals"),
        )


def arrival_times(num_requests: int, requests_per_s: float, *, burstiness: float, rng: Random) -> array[float]:
    """Arrival instants in seconds, as `vllm bench serve` draws them.

    Gaps are Gamma(shape=burstiness, scale=1 / (rate * burstiness)), summed up, then scaled so that the last
    arrival falls at num_requests / rate. Infinite burstiness gives constant gaps, an infinite rate all zeros.
    """
    if requests_per_s == float("inf"):
        return array("d", bytes(8 * num_requests))
    if burstiness == float("inf"):
        return array("d", ((i + 1) / requests_per_s for i in range(num_requests)))
    scale = 1 / (requests_per_s * burstiness)
    times = array("d", itertools.accumulate(rng.gammavariate(burstiness, scale) for _ in range(num_requests)))
    stretch = num_requests / requests_per_s / times[-1]
    return array("d", (instant * stretch for instant in times))
