"""Reads Windows batch files: `^` continues a line, `%NAME%` is a variable, `set NAME=value` sets one."""

from __future__ import annotations

import re

from headway.deployment.container_args import split_words
from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.words import Word

_VARIABLE = re.compile(r"%(\w+)%|%~?\d|%\*")
_SET = re.compile(r'@?set\s+(?:"(\w+)=([^"]*)"|(\w+)=(.*))', re.IGNORECASE)


def read_batch(text: str) -> list[Invocation]:
    """The vLLM starts of a batch file."""
    variables: dict[str, str] = {}
    found: list[Invocation] = []

    def expand(raw: str) -> Word:
        unresolved: list[str] = []

        def known(match: re.Match[str]) -> str:
            value = variables.get((match.group(1) or "").lower())
            if value is None:
                unresolved.append(match.group())
                return match.group()
            return value

        return Word(_VARIABLE.sub(known, raw), tuple(unresolved))

    for line, start in _lines(text):
        if match := _SET.fullmatch(line):
            name, value = match.group(1) or match.group(3), match.group(2) if match.group(1) else match.group(4)
            variables[name.lower()] = value.strip()
        elif not re.match(r"@?(rem\b|::|echo\b)", line, re.IGNORECASE):
            words = split_words(line.lstrip("@").replace("\\", "\\\\"), expand, _VARIABLE, start)
            if (invocation := find_start(words, source="batch file")) is not None:
                invocation.line = start
                found.append(invocation)
    return found


def _lines(text: str) -> list[tuple[str, int]]:
    """Lines with continuations joined, and the number of the first."""
    result: list[tuple[str, int]] = []
    buffer, start = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        start = start or number
        stripped = line.rstrip()
        if stripped.endswith("^"):
            buffer += stripped[:-1] + " "
            continue
        result.append(((buffer + stripped).strip(), start))
        buffer, start = "", 0
    return [*result, (buffer.strip(), start)] if buffer else result
