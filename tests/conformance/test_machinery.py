"""The conformance machinery itself: it must be able to fail, and to shrink what failed."""

from __future__ import annotations

from typing import Any

import pytest

from headway.frontends.steplog import run_workload
from tests.conformance.comparison import first_difference, first_golden_difference
from tests.conformance.fuzz import measure
from tests.conformance.shrinking import shrink
from tests.conformance.workloads import FAMILIES, Workload, generate


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_seed_always_gives_the_same_workload(family: str) -> None:
    """Seeds that are printed must mean something tomorrow."""
    assert generate(family, 3) == generate(family, 3) != generate(family, 4)


@pytest.mark.parametrize(
    ("family", "shows"),
    [
        ("tight", "preemptions"),
        ("priority", "preemptions"),
        ("prefix", "prefix_hits"),
        ("salt", "prefix_hits"),
        ("abort", "aborts"),
        ("async_abort", "aborts"),
    ],
)
def test_families_exercise_what_they_are_named_for(family: str, shows: str) -> None:
    """Over ten seeds."""
    logs = [list(run_workload(generate(family, seed))) for seed in range(10)]
    assert sum(measure(log)[shows] for log in logs) >= 10


def test_a_changed_record_is_a_difference() -> None:
    """Any field of any kind of record, a missing field, and a missing record."""
    log = list(run_workload(generate("abort", 1)))
    assert first_difference(log, log) is None
    kinds = {tuple(record): i for i, record in enumerate(log) if i}
    assert len(kinds) >= 3
    for i in kinds.values():
        for name in log[i]:
            changed = [dict(other) for other in log]
            changed[i][name] = "something else"
            difference = first_difference(log, changed)
            assert difference is not None and difference.field == name
            if name != "type":
                del changed[i][name]
                assert first_difference(log, changed) is not None
    assert first_difference(log, log[:-1]) is not None


def test_preemption_order_counts_only_where_it_is_known() -> None:
    """Goldens of releases before 0.12.0 have the right set in an order of their own."""
    log = next(log for log in map(_log_with_two_preemptions, range(1000)) if log)
    golden = {"steps": [dict(record) for record in log if record["type"] == "step" and record["scheduled"]], "end": {}}
    for step in golden["steps"]:
        step["preempted"] = step["preempted"][::-1]
    assert first_golden_difference(golden, log, ordered=False) is None
    assert first_golden_difference(golden, log, ordered=True) is not None


def _log_with_two_preemptions(seed: int) -> list[dict[str, Any]]:
    log = list(run_workload(generate("tight", seed)))
    return log if any(record["type"] == "step" and len(record["preempted"]) > 1 for record in log) else []


def test_shrinking_keeps_the_failure_and_little_else() -> None:
    """A workload that differs between 0.18.0 and 0.19.0 shrinks to the few requests that show it."""

    def differs(workload: Workload) -> bool:
        return first_difference(run_workload(workload, "0.18.0"), run_workload(workload, "0.19.0")) is not None

    workload = next(w for w in (generate("long", seed) for seed in range(100)) if differs(w))
    minimal = shrink(workload, differs)
    assert differs(minimal)
    assert len(minimal["requests"]) < len(workload["requests"]) / 2
    total = sum(len(row["prompt_token_ids"]) for row in workload["requests"])
    assert sum(len(row["prompt_token_ids"]) for row in minimal["requests"]) < total / 2
