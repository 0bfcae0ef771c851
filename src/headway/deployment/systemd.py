"""Reads systemd units: the last `ExecStart=`, with `Environment=` and the unit's own continuation rules.

Podman's quadlets are read by `Image=` and `Exec=`.
"""

from __future__ import annotations

import re

from headway.deployment.container_args import split_words
from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.words import Word

_VARIABLE = re.compile(r"\$\$|\$\{(\w+)\}|\$(\w+)|%[A-Za-z%]")


def read_unit(text: str) -> list[Invocation]:
    """The vLLM start of a unit. An empty assignment clears the list before it, as systemd has it."""
    environment: dict[str, Word] = {}
    starts: list[tuple[str, int]] = []
    image = "unknown"
    files: list[str] = []
    for key, value, line in _assignments(text):
        if key == "Environment":
            environment = environment if value else {}
            for word in split_words(value, Word, _NOTHING, line):
                name, equals, rest = word.text.partition("=")
                if equals:
                    environment[name] = Word(rest, line=line)
        elif key == "EnvironmentFile" and value:
            files.append(value.lstrip("-"))
        elif key == "ExecStart":
            starts = [*starts, (value, line)] if value else []
        elif key == "Image":
            image = value
        elif key == "Exec":
            starts = [(f"podman run {image} {value}", line)]
    found: list[Invocation] = []
    for value, line in starts:
        invocation = _start(value, line, environment, files)
        if invocation is not None:
            found.append(invocation)
    return found


_NOTHING = re.compile(r"(?!)")


def _assignments(text: str) -> list[tuple[str, str, int]]:
    """`Key=value` pairs with lines joined; a comment inside a continuation is skipped, as systemd does."""
    found: list[tuple[str, str, int]] = []
    key, parts, start = "", [""], 0
    is_open = False
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith(("#", ";")):
            continue
        if not is_open:
            name, equals, value = line.partition("=")
            if not equals or not re.fullmatch(r"\s*[A-Za-z]\w*\s*", name):
                continue
            key, parts, start = name.strip(), [], number
            stripped = value.strip()
        is_open = stripped.endswith("\\")
        parts.append(stripped[:-1].strip() if is_open else stripped)
        if not is_open:
            found.append((key, " ".join(parts).strip(), start))
    if is_open:
        found.append((key, " ".join(parts).strip(), start))
    return found


def _start(value: str, line: int, environment: dict[str, Word], files: list[str]) -> Invocation | None:
    command = value.lstrip("-@:+!|")
    missing: list[str] = []

    def expand(raw: str) -> Word:
        unresolved: list[str] = []

        def known(match: re.Match[str]) -> str:
            name = match.group(1) or match.group(2)
            if match.group() == "$$":
                return "$"
            if match.group() == "%%":
                return "%"
            if name is not None and name in environment:
                return environment[name].text
            unresolved.append(match.group())
            if name is not None:
                missing.append(name)
            return match.group()

        text = _VARIABLE.sub(known, raw)
        return Word(text, tuple(unresolved))

    words = split_words(command, expand, _VARIABLE, line)
    found = find_start(words, dict(environment), source="systemd unit")
    if found is None:
        return None
    found.line = line
    for name in dict.fromkeys(missing):
        where = f" or in {', '.join(files)}" if files else ""
        message = f"${name} is not set by Environment={where}: systemd replaces it by nothing if it is not set there."
        found.lint("unset-variable", "warning", message, line)
    return found
