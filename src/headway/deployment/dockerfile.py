"""Reads Dockerfiles: the last ENTRYPOINT and CMD, in either form, with ENV and ARG."""

from __future__ import annotations

import json
import re

from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.shell import read_script
from headway.deployment.shell_expand import Variables
from headway.deployment.words import Word, words

_INSTRUCTION = re.compile(r"\s*(FROM|ENV|ARG|ENTRYPOINT|CMD)\s+(.*)", re.IGNORECASE | re.DOTALL)


def read_dockerfile(text: str) -> list[Invocation]:
    """The start that the image makes by itself, if that is vLLM's."""
    image, entry, command = "", "", ""
    variables = Variables()
    line = 0
    for instruction, number in _instructions(text):
        match = _INSTRUCTION.fullmatch(instruction)
        if match is None:
            continue
        name, value = match.group(1).upper(), match.group(2).strip()
        if name == "FROM":
            image, entry, command = value.split()[0], "", ""
        elif name in ("ENV", "ARG"):
            _set(value, variables, number)
        elif name == "ENTRYPOINT":
            entry, command, line = value, "", number
        else:
            command, line = value, line or number
    parts = [*_words(entry, variables, line), *_words(command, variables, line)]
    environment = {name: value[0] for name, value in variables.values.items() if value}
    found = find_start(parts, environment, source="Dockerfile", image_args=not entry) if parts else None
    if found is None:
        return []
    found.image, found.line = image, line
    return [found]


def _instructions(text: str) -> list[tuple[str, int]]:
    result: list[tuple[str, int]] = []
    buffer, start = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue
        start = start or number
        if line.rstrip().endswith("\\"):
            buffer += line.rstrip()[:-1] + " "
            continue
        result.append((buffer + line, start))
        buffer, start = "", 0
    return [*result, (buffer, start)] if buffer else result


def _set(value: str, variables: Variables, line: int) -> None:
    text = value if "=" in value.split()[0] else value.replace(" ", "=", 1)
    read_script(text, variables, line=line)


def _words(value: str, variables: Variables, line: int) -> list[Word]:
    """JSON form as it stands; shell form as the shell would split it."""
    if value.startswith("["):
        try:
            content = json.loads(value)
        except (ValueError, RecursionError):
            content = []
        return list(words((str(item) for item in content), line))
    commands = read_script(value, variables, line=line or 1).commands
    return commands[-1].words if commands else []
