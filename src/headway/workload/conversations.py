"""Conversations and ramps: workloads whose requests depend on those before them, or whose rate changes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from random import Random

from headway.errors import WorkloadError
from headway.workload.generators import Generated
from headway.workload.trace import TraceRequest

_KEY_TOKENS = 16


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """Conversations of several turns: each prompt holds all prompts and answers before it, and a new part.

    An answer is in the prefix cache when it is repeated, as any block that was computed. `requests` gives turns at
    instants of their own (open loop), exponentially distributed think time apart, whether or not the turn before has
    been answered; `conversations` is for clients that wait for the answer.

    Args:
        opening: the first turns, one request a conversation; its lengths are also those of the new parts.
        num_turns: turns of a conversation.
        think_time_s: mean time from one turn to the next.
    """

    opening: Generated
    num_turns: int
    think_time_s: float

    def __post_init__(self) -> None:
        if self.num_turns < 1 or not self.think_time_s > 0:
            raise WorkloadError(
                f"A conversation needs at least 1 turn and a positive think time, not {self.num_turns} and "
                f"{self.think_time_s:g}."
            )

    def requests(self) -> Iterator[TraceRequest]:
        """All turns of all conversations, in order of arrival."""
        seed = self.opening.seed
        waiting: list[tuple[float, int, _Conversation]] = []
        for number, first in enumerate(self.opening.requests()):
            while waiting and waiting[0][0] <= first.arrival_s:
                yield from self._next_turn(waiting)
            heapq.heappush(waiting, (first.arrival_s, number, _Conversation(number, first, seed)))
        while waiting:
            yield from self._next_turn(waiting)

    def conversations(self) -> Iterator[Iterator[TraceRequest]]:
        """The turns of each conversation, all at the arrival of its first."""
        for number, first in enumerate(self.opening.requests()):
            yield self._turns(_Conversation(number, first, self.opening.seed), first.arrival_s)

    def _turns(self, conversation: _Conversation, at: float) -> Iterator[TraceRequest]:
        for _ in range(self.num_turns):
            yield conversation.turn(at, self.opening)

    def _next_turn(self, waiting: list[tuple[float, int, _Conversation]]) -> Iterator[TraceRequest]:
        at, number, conversation = heapq.heappop(waiting)
        yield conversation.turn(at, self.opening)
        if conversation.num_turns < self.num_turns:
            later = at + conversation.thinks.expovariate(1.0 / self.think_time_s)
            heapq.heappush(waiting, (later, number, conversation))


class _Conversation:
    """What has been said so far, as a number of tokens with keys of 16 each."""

    def __init__(self, number: int, first: TraceRequest, seed: int) -> None:
        self.thinks = Random(f"{seed}/thinks/{number}")
        self._lengths = Random(f"{seed}/conversation/{number}")
        self.num_turns = 0
        self._number = number
        self._first = first
        self._num_tokens = 0

    def turn(self, at: float, opening: Generated) -> TraceRequest:
        """The next prompt: all of the conversation so far, and a new part."""
        first = self._first
        if self.num_turns == 0:
            num_prompt, num_output = first.num_prompt_tokens, first.num_output_tokens
        else:
            num_prompt = self._num_tokens + opening.prompt.draw(self._lengths)
            num_output = opening.output.draw(self._lengths)
        self.num_turns += 1
        self._num_tokens = num_prompt + num_output
        return TraceRequest(
            arrival_s=at,
            num_prompt_tokens=num_prompt,
            num_output_tokens=num_output,
            block_keys=self._keys(self._num_tokens),
            block_key_tokens=_KEY_TOKENS,
            keys_cover_output=True,
        )

    def _keys(self, num_tokens: int) -> tuple[Hashable, ...]:
        first = self._first
        shared = first.block_key_tokens // _KEY_TOKENS if first.block_keys else 0
        keys: list[Hashable] = [(*first.block_keys, i) for i in range(shared)]
        keys += [("conversation", self._number, i) for i in range(shared, -(-num_tokens // _KEY_TOKENS))]
        return tuple(keys)


@dataclass(frozen=True, slots=True)
class Ramp:
    """Arrivals whose rate grows, or falls, from `start` to `end` requests/s over the requests.

    As `vllm bench serve --ramp-up-strategy`: linear adds the same to the rate from one request to the next, exponential
    multiplies it by the same.
    """

    start: float
    end: float
    exponential: bool = False

    @classmethod
    def parse(cls, text: str) -> Ramp:
        """Read `1-10` or `1-10:exponential`.

        Raises:
            WorkloadError: not a ramp.
        """
        rates, _, strategy = text.partition(":")
        start, _, end = rates.partition("-")
        try:
            ramp = cls(float(start), float(end), strategy == "exponential")
        except ValueError:
            ramp = cls(0.0, 0.0)
        if (
            strategy not in ("", "linear", "exponential")
            or not 0 < ramp.start < math.inf
            or not 0 < ramp.end < math.inf
        ):
            raise WorkloadError(f"{text!r} is not a ramp.", hint="Examples: 1-10, 0.5-20:exponential.")
        return ramp

    def rate_at(self, share: float) -> float:
        """The rate once that share of the requests has come, 0 to 1."""
        if self.exponential:
            return float(self.start * (self.end / self.start) ** share)
        return self.start + (self.end - self.start) * share

    def apply(self, spec: Generated) -> Iterator[TraceRequest]:
        """The requests of `spec` at these arrivals, with gamma-distributed gaps of its burstiness."""
        rng = Random(f"{spec.seed}/ramp")
        at = 0.0
        for index, request in enumerate(spec.requests()):
            gap_s = 1.0 / self.rate_at(index / spec.num_requests)
            if not math.isinf(spec.burstiness):
                gap_s *= rng.gammavariate(spec.burstiness, 1.0 / spec.burstiness)
            at += gap_s
            yield request.arriving_at(at)
