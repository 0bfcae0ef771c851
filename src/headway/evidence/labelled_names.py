"""Figures whose names begin with what they are of: `eager_tok_s`, `tp2_tok_s`, or whose unit stands beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headway.evidence.figure_names import figure_of
from headway.evidence.quantities import quantity
from headway.evidence.run_labels import are_runs

_UNITS = ("unit", "units", "metric", "measured_in")
_MEASURED = ("latency", "rate")


def with_tables(node: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The same figures, with those of one kind that differ in their label as a table: `{"tok_s": {"tp2": 17, …}}`."""
    return _by_unit(_by_prefix(node))


def _by_prefix(node: Mapping[Any, Any]) -> Mapping[Any, Any]:
    tables: dict[str, dict[str, Any]] = {}
    keys: dict[str, tuple[str, str]] = {}
    for raw, value in node.items():
        split = _split(str(raw)[:200]) if quantity(value) is not None else None
        if split is not None:
            keys[str(raw)] = split
            tables.setdefault(split[1], {})[split[0]] = value
    tables = {name: labels for name, labels in tables.items() if len(labels) > 1 and name not in node}
    if not tables:
        return node
    return {key: value for key, value in node.items() if keys.get(str(key), ("", ""))[1] not in tables} | tables


def _split(name: str) -> tuple[str, str] | None:
    """(label, figure) of a name that is no figure's own."""
    if figure_of(name) is not None:
        return None
    words = [word for word in re.split(r"[_\s]+", name.strip()) if word]
    for count in range(1, len(words)):
        label, rest = " ".join(words[:count]), "_".join(words[count:])
        figure = figure_of(rest)
        if figure is not None and figure.kind in _MEASURED and are_runs([label]):
            return label, rest
    return None


def _by_unit(node: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Tables of bare numbers by run take the unit that stands beside them for their name."""
    unit = next((str(node[name]) for name in _UNITS if isinstance(node.get(name), str)), None)
    figure = figure_of(unit) if unit is not None else None
    if unit is None or figure is None or figure.kind not in _MEASURED:
        return node
    return {
        key: {unit: value} if _is_anonymous(str(key), value) else value
        for key, value in node.items()
        if key not in _UNITS
    }


def _is_anonymous(name: str, value: Any) -> bool:
    if not isinstance(value, Mapping) or not value or figure_of(name) is not None:
        return False
    return all(quantity(item) is not None for item in value.values()) and are_runs(map(str, value))
