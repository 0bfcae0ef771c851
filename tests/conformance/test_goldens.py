"""Step logs recorded from real vLLM releases, replayed through our scheduler without vLLM."""

from __future__ import annotations

import gzip
import itertools
import json
from typing import Any

import pytest

from headway.frontends.steplog import run_workload
from tests.conformance.comparison import first_golden_difference
from tests.conformance.golden import VERSIONS, condense, load
from tests.shared_data import shared_path

SYNC_VERSIONS = ("0.8.5", "0.10.2", "0.11.2", "0.12.0", "0.18.0", "0.23.0", "0.30.0", "0.32.0", "0.33.0")
ASYNC_VERSIONS = ("0.18.0", "0.23.0", "0.32.0", "0.33.0")
KNOWN_TO_DECIDE_ALIKE = [
    ("0.8.0", "0.8.1"),
    ("0.8.1", "0.8.2"),
    ("0.8.3", "0.8.4"),
    ("0.9.2", "0.10.0"),
    ("0.10.2", "0.11.0"),
    ("0.12.0", "0.18.0"),
    ("0.31.0", "0.32.0"),
]
"""Neighbours of which no recorded workload that both can run shows a difference."""
SHARED = [("sync", version) for version in SYNC_VERSIONS] + [("async", version) for version in ASYNC_VERSIONS]


def read_lines(name: str) -> list[dict[str, Any]]:
    with gzip.open(shared_path(f"oracle/golden/{name}.jsonl.gz"), "rt") as file:
        return [json.loads(line) for line in file]


@pytest.fixture(scope="module")
def own_goldens() -> list[dict[str, Any]]:
    return load()


@pytest.mark.parametrize(("kind", "version"), SHARED)
def test_shared_golden_replays_without_difference(kind: str, version: str) -> None:
    """Fields and steps that the shared golden holds; before 0.12.0 it does not know the order of preemptions."""
    workloads = {line["name"]: line["workload"] for line in read_lines(f"workloads_{kind}")}
    goldens = read_lines(f"{kind}_{version}")
    assert len(goldens) == len(workloads)
    ordered = tuple(int(part) for part in version.split(".")) >= (0, 12)
    for golden in goldens:
        records = run_workload(workloads[golden["name"]], version)
        difference = first_golden_difference(golden, records, ordered=ordered)
        assert difference is None, f"{golden['name']} under {version}: {difference}"


@pytest.mark.parametrize("version", VERSIONS)
def test_own_golden_replays_without_difference(version: str, own_goldens: list[dict[str, Any]]) -> None:
    """Every step, in the fields kept, in order; a crash of that release is a crash here."""
    num_compared = 0
    for line in own_goldens:
        for log in line["logs"]:
            if version in log["versions"]:
                ours = condense(run_workload(line["workload"], version))
                expected = {name: value for name, value in log.items() if name != "versions"}
                assert ours == expected, f"{line['name']} under {version}"
                num_compared += 1
    assert num_compared >= 30, f"only {num_compared} logs of {version}"


def test_own_goldens_tell_releases_apart(own_goldens: list[dict[str, Any]]) -> None:
    """A golden proves a profile only if those of the neighbouring releases would not replay it."""
    alike = []
    for earlier, later in itertools.pairwise(VERSIONS):
        logs = [log["versions"] for line in own_goldens for log in line["logs"] if earlier in log["versions"]]
        if all(later in versions for versions in logs):
            alike.append((earlier, later))
    assert alike == KNOWN_TO_DECIDE_ALIKE
