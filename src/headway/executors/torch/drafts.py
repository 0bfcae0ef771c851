"""Prompt lookup: a request's own tokens as a source of drafts, and when drafting is worth its rows.

Drafts are exact whatever they are: the step that verifies them samples every position as if it came alone, and keeps
what agrees.
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.config import Speculation, StepTime

_WEIGHT_OF_NEWS = 0.05
_FIRST_GUESS = 0.5
_STEPS_BETWEEN_PROBES = 32


class NgramIndex:
    """Where each short run of tokens was last followed by something, in one request's tokens."""

    __slots__ = ("_ends", "_longest", "_num_seen", "_shortest")

    def __init__(self, speculation: Speculation) -> None:
        self._shortest, self._longest = speculation.prompt_lookup_min, speculation.prompt_lookup_max
        self._ends: dict[tuple[int, ...], int] = {}
        self._num_seen = 0

    def propose(self, token_ids: Sequence[int], count: int) -> list[int]:
        """Up to `count` tokens that followed the last occurrence of the longest known ending of `token_ids`.

        Calls are for one growing sequence; what it had before is not looked at again.
        """
        for end in range(self._num_seen, len(token_ids)):
            for length in range(self._shortest, min(self._longest, end) + 1):
                self._ends[tuple(token_ids[end - length : end])] = end
        self._num_seen = len(token_ids)
        for length in range(min(self._longest, len(token_ids)), self._shortest - 1, -1):
            follower = self._ends.get(tuple(token_ids[len(token_ids) - length :]))
            if follower is not None:
                return list(token_ids[follower : follower + count])
        return []


class DraftGate:
    """Lets drafts through while they pay.

    A step takes fixed_s + per_token_s * rows. With every request bringing d drafts of which a share a is accepted, it
    does 1 + a * d times the work in (fixed_s + per_token_s * rows * (1 + d)): worth it if a is above the share of the
    step's time that grows with its rows. While it is not, a few steps still draft, to notice when that changes.
    """

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time
        self.acceptance = _FIRST_GUESS
        """Share of the drafts that were accepted lately."""
        self._num_steps = 0

    def learn(self, num_drafts: int, num_accepted: int) -> None:
        """Take in what became of one request's drafts."""
        self.acceptance += _WEIGHT_OF_NEWS * (num_accepted / num_drafts - self.acceptance)

    def opens(self, num_rows: int) -> bool:
        """Whether to draft after a step that had so many rows without its drafts."""
        self._num_steps += 1
        return self.pays(num_rows) or self._num_steps % _STEPS_BETWEEN_PROBES == 0

    def pays(self, num_rows: int) -> bool:
        """Whether drafts at the present acceptance bring more than they cost."""
        growing_s = self._step_time.per_token_s * num_rows
        return self.acceptance > growing_s / (self._step_time.fixed_s + growing_s)
