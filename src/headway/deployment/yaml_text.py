"""Loads YAML as plain values in bounded time and memory: no tags, no objects, no bombs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from headway.errors import InputError

MAX_BYTES = 2_000_000
MAX_NODES = 200_000
MAX_DEPTH = 80
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Text(str):
    """A string of a YAML file, with its line."""

    line: int

    def __new__(cls, text: str, line: int) -> Text:
        made = super().__new__(cls, text)
        made.line = line
        return made


def load_documents(text: str) -> list[Any]:
    """Every document of a YAML text; strings are `Text`. Aliases count as often as they are used.

    Raises:
        InputError: not YAML, or more than MAX_NODES values, MAX_DEPTH levels or MAX_BYTES bytes.
    """
    if len(text) > MAX_BYTES:
        raise InputError(f"The YAML text has {len(text)} characters; at most {MAX_BYTES} are read.")
    try:
        return list(_Composer(text).documents())
    except yaml.YAMLError as error:
        raise InputError(f"Not YAML: {_describe(error)}.", hint=_hint(text)) from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise InputError(f"Not YAML: {error}.") from None


def _describe(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    return f"{problem} (line {mark.line + 1})" if mark is not None else problem


def _hint(text: str) -> str | None:
    return "It looks like a template; render it first, for example with helm template." if "{{" in text else None


class _Composer:
    """Builds values from parser events, counting every node."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = iter(yaml.parse(text, Loader=_LOADER))
        self._scalars = yaml.SafeLoader("")
        self._anchors: dict[str, Any] = {}
        self._sizes: dict[str, int] = {}
        self._nodes = 0

    def documents(self) -> Iterator[Any]:
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors.clear()
                yield self._value(next(self._events), 0)

    def _count(self, nodes: int = 1) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise InputError(f"The YAML text unfolds to more than {MAX_NODES} values.")

    def _value(self, event: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise InputError(f"The YAML text is nested more than {MAX_DEPTH} levels deep.")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise InputError(f"The YAML alias *{event.anchor} has no anchor (line {event.start_mark.line + 1}).")
            self._count(self._sizes[event.anchor])
            return self._anchors[event.anchor]
        before = self._nodes
        self._count()
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(depth)
        else:
            value = self._mapping(depth)
        if event.anchor is not None:
            self._anchors[event.anchor] = value
            self._sizes[event.anchor] = self._nodes - before
        return value

    def _sequence(self, depth: int) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[Any, Any]:
        content: dict[Any, Any] = {}
        merged: dict[Any, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._value(event, depth + 1)
            value = self._value(next(self._events), depth + 1)
            if key == "<<" and isinstance(value, dict | list):
                for part in value if isinstance(value, list) else [value]:
                    merged = (part if isinstance(part, dict) else {}) | merged
            else:
                content[key if isinstance(key, str | int | float | bool) else str(key)] = value
        return merged | content

    def _scalar(self, event: Any) -> Any:
        line = event.start_mark.line + 1
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._scalars.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in _CONVERTED and len(event.value) < 400:
            return self._scalars.construct_object(yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark))
        return Text(event.value, line)


_CONVERTED = frozenset(f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null"))
