"""Arguments as container formats give them: lists or strings, with the format's own expansions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headway.deployment.shell import read_script
from headway.deployment.words import Word
from headway.deployment.yaml_text import Text

_KUBERNETES = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
COMPOSE = re.compile(r"\$\$|\$([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)(?:(:?[-?+])((?:[^{}]|\$\{[^{}]*\})*))?\}", re.DOTALL)


def text_of(value: Any) -> str:
    """A YAML scalar as the container would see it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def line_of(value: Any) -> int:
    """The line of a YAML string; 0 where it is not known."""
    return value.line if isinstance(value, Text) else 0


def kubernetes_word(value: Any, environment: Mapping[str, Word]) -> Word:
    """One item of `args` or `command`: `$(VAR)` comes from the container's environment, `{{…}}` stays unresolved."""
    unresolved: list[str] = []
    defaults: list[str] = []

    def expand(found: re.Match[str]) -> str:
        name = found.group(1)
        if name is None:
            return "$"
        if (known := environment.get(name)) is not None:
            unresolved.extend(known.unresolved)
            defaults.extend(known.defaults)
            return known.text
        unresolved.append(found.group())
        return found.group()

    text = _KUBERNETES.sub(expand, text_of(value))
    return Word(text, (*unresolved, *_TEMPLATE.findall(text)), tuple(defaults), line_of(value))


def compose_word(value: Any, variables: Mapping[str, str], depth: int = 0) -> Word:
    """A compose string with `${X:-d}` filled in: from `.env` beside the file, else the default, else unresolved."""
    unresolved: list[str] = []
    defaults: list[str] = []

    def expand(found: re.Match[str]) -> str:
        name = found.group(1) or found.group(2)
        if name is None:
            return "$"
        action, argument = found.group(3) or "", found.group(4) or ""
        known = variables.get(name)
        if known is not None and not (action.startswith(":") and known == ""):
            return compose_word(argument, variables, depth + 1).text if action.endswith("+") else known
        if action.endswith("-") and depth < 8:
            inner = compose_word(argument, variables, depth + 1)
            unresolved.extend(inner.unresolved)
            defaults.extend((name, *inner.defaults))
            return inner.text
        if action.endswith("+"):
            defaults.append(name)
            return ""
        unresolved.append(found.group())
        return found.group()

    text = COMPOSE.sub(expand, text_of(value))
    return Word(text, tuple(unresolved), tuple(defaults), line_of(value))


def split_words(text: str, expand: Callable[[str], Word], expressions: re.Pattern[str], line: int = 0) -> list[Word]:
    """Split a string into words as a shell would, expanding only what `expressions` finds, by `expand`."""
    found = [match.group() for match in expressions.finditer(text)]
    marks = iter(range(len(found)))
    marked = expressions.sub(lambda match: f"\ue000{next(marks)}\ue001", text.replace("\ue000", ""))
    script = read_script("first " + _ESCAPED.sub(r"\\\g<0>", marked.replace("\n", " ")), line=line or 1)
    result: list[Word] = []
    for command in script.commands:
        for part in command.words[1:]:
            raw = _MARK.sub(lambda match: found[int(match.group(1))], part.text)
            word = replace(expand(raw), line=line)
            if _MARK.fullmatch(part.text):
                word = replace(word, is_open=bool(word.unresolved) and word.text == word.unresolved[0])
                if not word.is_open and len(pieces := word.text.split()) != 1:
                    result += [word.with_text(piece) for piece in pieces]
                    continue
            result.append(word)
    return result


_MARK = re.compile("\ue000(\\d+)\ue001")
_ESCAPED = re.compile(r"[$`;&|<>()#]")


def environment_of(value: Any) -> dict[str, Word]:
    """`env` of a container: a list of name and value, `NAME=value` strings, or a mapping."""
    environment: dict[str, Word] = {}
    if isinstance(value, Mapping):
        return {str(name): Word(text_of(item), line=line_of(item)) for name, item in value.items()}
    for item in value if isinstance(value, list) else []:
        if isinstance(item, Mapping) and isinstance(item.get("name"), str):
            name = str(item["name"])
            if "value" in item:
                environment[name] = kubernetes_word(item["value"], environment)
            else:
                environment[name] = Word(f"$({name})", (f"$({name})",))
        elif isinstance(item, str):
            name, equals, text = item.partition("=")
            environment[name] = Word(text, line=line_of(item)) if equals else Word(f"${name}", (f"${name}",))
    return environment
