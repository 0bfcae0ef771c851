"""Finding stop strings in text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    """A completed stop string: `end` characters into the text just fed, which string it was."""

    end: int
    stop: str


class StopMatcher:
    """Watches a stream of text for several stop strings at once (Knuth, Morris and Pratt, one automaton a string).

    Costs a constant number of steps a character and string, amortised, however the text is cut into pieces.
    """

    __slots__ = ("_automata",)

    def __init__(self, stops: Sequence[str]) -> None:
        # Longest first: of two that complete at the same character, the one that started earlier wins.
        self._automata = [_Automaton(stop) for stop in sorted(set(stops), key=len, reverse=True)]

    @property
    def num_pending(self) -> int:
        """Length of the longest tail of the text so far that could still become a stop string."""
        return max((automaton.state for automaton in self._automata), default=0)

    def feed(self, text: str, *, armed: bool = True) -> StopMatch | None:
        """Take more text; return the first stop string to complete in it. Text after the match is not looked at.

        Args:
            text: what follows the text fed so far.
            armed: False lets stop strings that complete in this text pass.
        """
        for index, char in enumerate(text):
            completed = [automaton.stop for automaton in self._automata if automaton.advance(char)]
            if completed and armed:
                return StopMatch(index + 1, completed[0])
        return None


class _Automaton:
    """`state` is the length of the longest proper prefix of `stop` that the text ends with."""

    __slots__ = ("_fallback", "state", "stop")

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.state = 0
        self._fallback = [0] * (len(stop) + 1)
        length = 0
        for index in range(1, len(stop)):
            while length and stop[index] != stop[length]:
                length = self._fallback[length]
            length += stop[index] == stop[length]
            self._fallback[index + 1] = length

    def advance(self, char: str) -> bool:
        """Take one character; whether it completes the stop string."""
        stop, state = self.stop, self.state
        while state and stop[state] != char:
            state = self._fallback[state]
        state += stop[state] == char
        completed = state == len(stop)
        self.state = self._fallback[state] if completed else state
        return completed
