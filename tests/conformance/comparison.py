"""Comparing two step logs of one workload, and saying where they part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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


def first_difference(expected: Sequence[Record], actual: Sequence[Record]) -> Difference | None:
    """Compare every field of every record but the header; of a crash only that it happens."""
    theirs, ours = _plain(expected), _plain(actual)
    if "error" in (theirs[0].get("type"), ours[0].get("type")):
        both = theirs[0]["type"] == ours[0]["type"]
        return None if both else Difference("the run", "outcome", theirs[0], ours[0])
    for their, our in zip(theirs[1:], ours[1:], strict=False):
        where = f"{their['type']} {their.get('step', '')}".strip()
        for name in sorted(their.keys() | our.keys()):
            if their.get(name) != our.get(name):
                return Difference(where, name, their.get(name), our.get(name))
    if len(theirs) != len(ours):
        return Difference("the run", "number of records", len(theirs), len(ours))
    return None


def first_golden_difference(golden: Record, actual: Sequence[Record], *, ordered: bool) -> Difference | None:
    """Compare what a golden holds: some fields of the steps that scheduled something, and the totals.

    Args:
        golden: {"steps": […], "end": {…}} or {"error": …}.
        ordered: whether the golden knows the order of preemptions.
    """
    ours = _plain(actual)
    if "error" in golden or ours[0].get("type") == "error":
        both = "error" in golden and ours[0].get("type") == "error"
        return None if both else Difference("the run", "outcome", golden.get("error"), ours[0])
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


def _plain(records: Sequence[Record]) -> list[dict[str, Any]]:
    """As JSON has it: tuples are lists, keys are text."""
    plain: list[dict[str, Any]] = json.loads(json.dumps(records))
    return plain


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 300 else text[:300] + "…"
