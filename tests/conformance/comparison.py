"""Comparing two step logs of one workload, and saying where they part."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

Record = Mapping[str, Any]
GOLDEN_FIELDS = ("step", "scheduled", "preempted", "admitted", "finished", "free_blocks")
"""What the shared goldens hold of a step."""


class Difference(NamedTuple):
    """The first point at which two logs of one workload differ."""

    where: str
    field: str
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"{self.where}: {self.field}\n    vLLM    {_short(self.expected)}\n    headway {_short(self.actual)}"


def first_difference(expected: Iterable[Record], actual: Iterable[Record]) -> Difference | None:
    """Compare every field of every record but the header; of a crash where it happens, not its words."""
    theirs, ours = _plain(expected), _plain(actual)
    for their, our in zip(theirs[1:], ours[1:], strict=False):
        where = f"{their['type']} {their.get('step', '')}".strip()
        for name in sorted(their.keys() | our.keys()):
            if their.get(name) != our.get(name):
                return Difference(where, name, their.get(name), our.get(name))
    if len(theirs) != len(ours):
        return Difference("the run", "number of records", len(theirs), len(ours))
    return None


def first_golden_difference(golden: Record, actual: Iterable[Record], *, ordered: bool) -> Difference | None:
    """Compare what a golden holds: some fields of the steps that scheduled something, and the totals.

    Args:
        golden: {"steps": […], "end": {…}}.
        ordered: whether the golden knows the order of preemptions.
    """
    ours = _plain(actual)
    if ours[-1]["type"] != "end":
        return Difference("the run", "outcome", golden["end"], ours[-1])
    steps = [record for record in ours if record["type"] == "step" and record["scheduled"]]
    for their, our in zip(golden["steps"], steps, strict=False):
        for name in their:
            expected, got = their[name], our[name]
            if name == "preempted" and not ordered:
                expected, got = sorted(expected), sorted(got)
            if expected != got:
                return Difference(f"step {their['step']}", name, expected, got)
    if len(golden["steps"]) != len(steps):
        return Difference("the run", "number of steps", len(golden["steps"]), len(steps))
    for name, total in golden["end"].items():
        if ours[-1][name] != total:
            return Difference("end", name, total, ours[-1][name])
    return None


def _plain(records: Iterable[Record]) -> list[dict[str, Any]]:
    """As JSON has it: tuples are lists, keys are text. The words of an error go."""
    plain: list[dict[str, Any]] = json.loads(json.dumps(list(records)))
    return [{"type": "error"} if record["type"] == "error" else record for record in plain]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else text[:300] + "…"
