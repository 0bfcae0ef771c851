"""docs/scheduler-vs-vllm.md and the data behind it: complete, and true as far as a test can tell."""

from __future__ import annotations

import ast
import csv
import functools
import importlib.util
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headway.core.profiles import SchedulerProfile
from tests.conformance.workloads import FAMILIES
from tests.shared_data import shared_path

ROOT = Path(__file__).resolve().parents[2]
MARKS = {"matched", "out_of_scope", "open"}


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    return content


CORE_TESTS = read("vllm_core_tests.json")
BEHAVIOURS = read("behaviours.json")


@functools.cache
def functions_in(path: str) -> frozenset[str]:
    """Names of the test functions at the top of a file, without running it."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_"))


def named_tests() -> Iterator[tuple[str, str]]:
    """(who names it, test id), for every pinning test that the data names."""
    for name, switch in BEHAVIOURS["switches"].items():
        yield from ((name, test) for test in switch["pinned_by"])
    for group in BEHAVIOURS["groups"]:
        for behaviour in group["behaviours"]:
            yield from ((behaviour["behaviour"], test) for test in behaviour["pinned_by"])
    for difference in BEHAVIOURS["differences"]:
        yield from ((difference["difference"], test) for test in difference["pinned_by"])
    for row in CORE_TESTS["tests"]:
        yield from ((row["test"], test) for test in row.get("pinned_by", ()))


def test_every_test_that_is_named_exists() -> None:
    """A pin that was renamed or removed pins nothing."""
    missing = [
        (who, test) for who, test in named_tests() if test.split("::")[1] not in functions_in(test.split("::")[0])
    ]
    assert not missing


def test_everything_that_is_claimed_is_pinned() -> None:
    """No switch, behaviour, difference or matched test without a test of ours."""
    claims = [*BEHAVIOURS["switches"].values(), *BEHAVIOURS["differences"]]
    claims += [behaviour for group in BEHAVIOURS["groups"] for behaviour in group["behaviours"]]
    claims += [row for row in CORE_TESTS["tests"] if row["mark"] == "matched"]
    assert all(claim["pinned_by"] for claim in claims)


def test_every_switch_has_its_pins_and_a_meaning() -> None:
    """And none is left of a switch that is gone."""
    names = {field.name for field in fields(SchedulerProfile)} - {"version"}
    assert BEHAVIOURS["switches"].keys() == names
    told = page_module().attribute_docstrings()
    assert all(BEHAVIOURS["switches"][name].get("meaning") or told.get(name) for name in names)


def test_fuzz_families_that_are_named_exist() -> None:
    """In the data and in the text."""
    named = {name for group in BEHAVIOURS["groups"] for behaviour in group["behaviours"] for name in behaviour["fuzz"]}
    assert named <= FAMILIES.keys()
    assert {"async", "async_abort", "window_async", "mixed"} <= FAMILIES.keys()


def test_core_tests_are_those_of_vllm() -> None:
    """All 601 of them, in the order of the list kept beside the checkout."""
    with shared_path("vllm032_core_tests.tsv").open(encoding="utf-8", newline="") as file:
        theirs = [(row["file"], row["test"]) for row in csv.DictReader(file, delimiter="\t")]
    assert [(row["file"], row["test"]) for row in CORE_TESTS["tests"]] == theirs
    assert len(theirs) == 601


def test_marks_are_valid_and_say_why() -> None:
    """Matched by a test, out of scope for a reason, or open with what is missing; each row once."""
    rows = CORE_TESTS["tests"]
    assert len({(row["file"], row["test"]) for row in rows}) == len(rows) == 601
    keys = {"matched": {"pinned_by"}, "out_of_scope": {"why"}, "open": {"note"}}
    for row in rows:
        assert row["mark"] in MARKS, row
        needed = {"file", "test", "mark"} | keys[row["mark"]]
        assert needed <= row.keys() <= needed | {"note"}, row
    used = {row["why"] for row in rows if row["mark"] == "out_of_scope"}
    assert used == CORE_TESTS["reasons"].keys()


@functools.cache
def page_module() -> ModuleType:
    return load("scheduler_page")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"headway_docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current() -> None:
    """Run `make docs` when this fails."""
    page = (ROOT / "docs" / "scheduler-vs-vllm.md").read_text(encoding="utf-8")
    assert page == load("generate").scheduler_page()


def test_the_page_tells_all() -> None:
    """Every switch, behaviour, reason, and every one of vLLM's tests is on it."""
    page = (ROOT / "docs" / "scheduler-vs-vllm.md").read_text(encoding="utf-8")
    for name in BEHAVIOURS["switches"]:
        assert f"| `{name}` |" in page
    for group in BEHAVIOURS["groups"]:
        assert all(behaviour["behaviour"] in page for behaviour in group["behaviours"])
    assert all(reason in page for reason in CORE_TESTS["reasons"].values())
    assert all(row["test"].removeprefix("test_") in page for row in CORE_TESTS["tests"])


@pytest.mark.parametrize(
    ("behaviour", "proof"),
    [
        (
            {"golden": True, "fuzz": ["async"], "pinned_by": ["tests/conformance/test_vectors_more.py::x"]},
            "golden, fuzz",
        ),
        ({"golden": False, "fuzz": [], "pinned_by": ["tests/conformance/test_vectors_more.py::x"]}, "vector"),
        ({"golden": False, "fuzz": [], "pinned_by": ["tests/core/test_engine.py::x"]}, "own"),
    ],
)
def test_only_tests_of_our_own_prove_nothing_about_vllm(behaviour: dict[str, Any], proof: str) -> None:
    """The weakest kind of proof is named where there is no other."""
    assert page_module().proofs_of(behaviour).startswith(proof)
