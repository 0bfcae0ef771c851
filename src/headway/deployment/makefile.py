"""Reads Makefiles: recipes are shell lines after make's own variables are filled in."""

from __future__ import annotations

import re

from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.shell import read_script

_ASSIGNMENT = re.compile(r"(?:export\s+|override\s+)?([A-Za-z_][\w.-]*)\s*(\+=|[:?]?:?=)\s*(.*)")
_REFERENCE = re.compile(r"\$\$|\$\(([\w.-]+)\)|\$\{([\w.-]+)\}|\$([@<^])")
_TARGET = re.compile(r"([^\s:#=][^:#=]*)::?(?!=)")


def read_makefile(text: str) -> list[Invocation]:
    """The vLLM starts in the recipes, each named by its target."""
    variables: dict[str, str] = {}
    soft: set[str] = set()
    target, found = "", []
    for line, start in _logical_lines(text):
        if line.startswith("\t"):
            found += _recipe(line, start, target, variables, soft)
        elif match := _ASSIGNMENT.fullmatch(line.strip()):
            name, action, value = match.groups()
            value = re.sub(r"\s+#.*", "", value)
            if action == "+=":
                variables[name] = f"{variables.get(name, '')} {value}".strip()
            elif action != "?=" or name not in variables:
                variables[name] = value
                if action == "?=":
                    soft.add(name)
        elif match := _TARGET.match(line):
            target = match.group(1).strip()
    return found


def _logical_lines(text: str) -> list[tuple[str, int]]:
    """Lines with continuations joined: kept for recipes, where the shell joins them, else a blank."""
    result: list[tuple[str, int]] = []
    buffer, start = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        start = start or number
        if line.endswith("\\"):
            buffer += line + "\n" if (buffer or line).startswith("\t") else line[:-1] + " "
            continue
        result.append((buffer + line, start))
        buffer, start = "", 0
    if buffer:
        result.append((buffer, start))
    return result


def _recipe(line: str, start: int, target: str, variables: dict[str, str], soft: set[str]) -> list[Invocation]:
    used: set[str] = set()
    text = _expand(line.replace("\n\t", "\n").lstrip("\t@-+ "), variables, used)
    found: list[Invocation] = []
    for command in read_script(text, line=start).commands:
        invocation = find_start(command.words, command.environment, source="Makefile recipe")
        if invocation is not None:
            invocation.name = target
            overridable = sorted(used & soft)
            if overridable:
                message = f"Set with ?=, so the environment may override: {', '.join(overridable)}."
                invocation.lint("values-from-defaults", "note", message, start)
            found.append(invocation)
    return found


def _expand(text: str, variables: dict[str, str], used: set[str], depth: int = 0) -> str:
    def known(match: re.Match[str]) -> str:
        if match.group() == "$$":
            return "$"
        name = match.group(1) or match.group(2)
        if name in variables and depth < 16:
            used.add(name)
            return _expand(variables[name], variables, used, depth + 1)
        return f"${{{name}}}" if name else match.group()

    expanded = _REFERENCE.sub(known, text)
    return expanded if len(expanded) < 200_000 else text
