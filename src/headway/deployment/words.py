"""The words of a command line, each with what is known of where it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Word:
    """One argument after quoting and expansion.

    `unresolved` are the expansions left in `text` as they were written (`$1`, `$(date)`, `{{.Name}}`). `defaults` are
    the variables whose value is a default written beside them (`${X:-8}`): the environment may override it. `is_open`:
    an unquoted expansion that may turn out as no word, one, or several.
    """

    text: str
    unresolved: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    line: int = 0
    is_open: bool = False

    def with_text(self, text: str) -> Word:
        """The same word with another text; an expansion that is no longer in it is not unresolved any more."""
        return replace(self, text=text, unresolved=tuple(part for part in self.unresolved if part in text))

    def partition(self, separator: str) -> tuple[Word, Word | None]:
        """Split at the first separator; the second part is None where there is none."""
        left, found, right = self.text.partition(separator)
        if not found:
            return self, None
        return self.with_text(left), self.with_text(right)


def words(texts: Iterable[str], line: int = 0) -> tuple[Word, ...]:
    """Plain words without expansions."""
    return tuple(Word(text, line=line) for text in texts)


def join(parts: Iterable[Word], separator: str = "") -> Word:
    """One word from several, in order."""
    found = list(parts)
    return Word(
        separator.join(part.text for part in found),
        tuple(dict.fromkeys(name for part in found for name in part.unresolved)),
        tuple(dict.fromkeys(name for part in found for name in part.defaults)),
        found[0].line if found else 0,
    )
