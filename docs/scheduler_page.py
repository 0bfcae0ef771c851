"""docs/scheduler-vs-vllm.md: what the scheduler has in common with vLLM's, what not, and what proves it.

Made from the switches of `headway.core.profiles`, from `behaviours.json` and `vllm_core_tests.json` of
`tests/conformance/`, and from the goldens that are recorded.
"""

from __future__ import annotations

import ast
import enum
import gzip
import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headway.config import REFERENCE_ENGINE_VERSION
from headway.core import profiles

CONFORMANCE = Path(__file__).resolve().parent.parent / "tests" / "conformance"
MARKS = {"matched": "matched", "open": "open", "out_of_scope": "out of scope"}


def scheduler_page(note: str) -> str:
    """The page, with `note` under its title."""
    behaviours = _read_json("behaviours.json")
    core_tests = _read_json("vllm_core_tests.json")
    parts = [
        "# The scheduler and vLLM's",
        note,
        *_INTRODUCTION,
        *_switches(behaviours["switches"]),
        *_matched(behaviours["groups"]),
        *_proved(),
        *_differences(behaviours["differences"]),
        *_out_of_scope(core_tests),
        *_core_tests(core_tests),
    ]
    return "\n".join(parts)


_INTRODUCTION = (
    "Given the same requests and limits, this scheduler takes the decisions of vLLM V1's, step for step, for releases "
    f"0.8 to 0.33 (`--engine-version`; {REFERENCE_ENGINE_VERSION} unless said otherwise). This page says what that "
    "covers and what proves it. There are four kinds of proof, the strongest first:",
    "",
    "- **golden**: step logs of vLLM's own classes, recorded once, replayed by every test run "
    "(`tests/conformance/test_goldens.py`);",
    "- **fuzz**: random workloads through vLLM's own scheduler and ours at once, every field of every record compared "
    f"(`make conformance`). In brackets are the workload families. Live against {REFERENCE_ENGINE_VERSION}, or against "
    "another release whose sources are at hand;",
    "- **vector**: an example of vLLM's own tests in our words, with its numbers, or one worked out from a release's "
    "sources;",
    "- **own**: a test or property of this project alone; no vLLM code has confirmed it.",
    "",
)


def _read_json(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((CONFORMANCE / name).read_text(encoding="utf-8"))
    return content


# ---------------------------------------------------------------------------------------------- switches


def _switches(pins: Mapping[str, Mapping[str, Any]]) -> list[str]:
    default = profiles.SchedulerProfile()
    told = attribute_docstrings()
    rows = []
    for field in fields(profiles.SchedulerProfile):
        if field.name == "version":
            continue
        values = [(default.version, getattr(default, field.name))]
        values += [(since, changes[field.name]) for since, changes in profiles._CHANGES if field.name in changes]
        history = "; ".join(f"{since}: {_value(value)}" for since, value in values)
        pin = pins[field.name]
        rows.append([f"`{field.name}`", pin.get("meaning") or told[field.name], history, _tests(pin["pinned_by"])])
    return [
        "## What changed from release to release",
        "",
        "Each row is a switch of `headway.core.profiles`. A patch release behaves as the last change before it.",
        "",
        *_table(("switch", "meaning", "value from release on", "pinned by"), rows),
        "",
    ]


def _value(value: object) -> str:
    if isinstance(value, enum.Enum):
        return str(value.value)
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def attribute_docstrings() -> dict[str, str]:
    """Docstrings under the fields of SchedulerProfile, and those of the enumerations for fields without one."""
    tree = ast.parse(inspect.getsource(profiles.SchedulerProfile)).body[0]
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        kind = getattr(profiles, ast.unparse(statement.annotation), None)
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            found[name] = inspect.cleandoc(str(following.value.value))
        elif isinstance(kind, type) and issubclass(kind, enum.Enum):
            found[name] = inspect.getdoc(kind) or ""
    return found


# ---------------------------------------------------------------------------------------------- behaviours


def _matched(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    parts = ["## Behaviours matched", ""]
    for group in groups:
        rows = [[b["behaviour"], proofs_of(b), _tests(b["pinned_by"])] for b in group["behaviours"]]
        parts += [f"### {group['name']}", "", *_table(("behaviour", "proved by", "pinned by"), rows), ""]
    return parts


def proofs_of(behaviour: Mapping[str, Any]) -> str:
    """Kinds of proof of one behaviour, the strongest first."""
    files = [test.split("::")[0] for test in behaviour["pinned_by"]]
    is_vector = any(Path(file).name.startswith("test_vectors_") for file in files)
    kinds = ["golden"] if behaviour["golden"] else []
    if behaviour["fuzz"]:
        kinds.append("fuzz (" + ", ".join(f"`{name}`" for name in behaviour["fuzz"]) + ")")
    if is_vector:
        kinds.append("vector")
    return ", ".join(kinds) or "own"


def _differences(differences: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [[d["difference"], d["reason"], _tests(d["pinned_by"])] for d in differences]
    return ["## Deliberate differences", "", *_table(("difference", "reason", "pinned by"), rows), ""]


# ---------------------------------------------------------------------------------------------- goldens


def _proved() -> list[str]:
    shared_sync, shared_async = (literal("test_goldens.py", name) for name in ("SYNC_VERSIONS", "ASYNC_VERSIONS"))
    own = own_golden_versions()
    recorded = sorted({*shared_sync, *shared_async, *own}, key=_number)
    starts = ["0.8.0", *(since for since, _ in profiles._CHANGES)]
    rows = []
    for start, end in zip(starts, [*starts[1:], "0.34.0"], strict=True):
        flipped = ", ".join(f"`{name}`" for name in dict(profiles._CHANGES).get(start, {}))
        inside = ", ".join(version for version in recorded if _number(start) <= _number(version) < _number(end))
        rows.append([f"{start} up to {end}", flipped or "–", inside or "**unproved**: no golden of these releases"])
    return [
        "## Which releases are proved",
        "",
        "A profile is proved where a golden of one of its releases replays without a difference. Reference goldens, "
        f"kept beside the checkout: synchronous {', '.join(shared_sync)}; asynchronous {', '.join(shared_async)}. "
        + _own_golden_words(own),
        "",
        *_table(("releases", "switches that flip", "goldens of"), rows),
        "",
        *_ASYNC_AND_SPECULATION,
    ]


_ASYNC_AND_SPECULATION = (
    "**Asynchronous scheduling** is proved by the asynchronous goldens and by the fuzz families `async`, "
    "`async_abort`, `window_async` and `mixed`; its corners (outputs of preempted requests, no wasted steps) also by "
    "vectors. Before 0.10.0 there is no asynchronous scheduler to compare with.",
    "",
    "**Speculation** is not driven by the recorder: no golden and no fuzz family proposes drafts. It rests on vectors "
    "of vLLM's own tests and on this project's state machine, also where a golden exists of the release in which "
    "`pads_first_decodes` flips. What is known to be missing is marked open below.",
    "",
    "**Sliding windows** are compared for models in which every layer has the same window, from 0.10.0 on.",
    "",
    "**Not matched**, and kept out of fuzz and goldens: a window of one token, for which vLLM from 0.23 on caches "
    "nothing and ours does; before 0.10.0, several steps in flight (`batch_queue` above 1), where vLLM drops the token "
    "in flight of a preempted request and ours appends it; asynchronous scheduling before 0.27.0 with more than two "
    "steps in flight. Sliding windows before 0.10.0 are treated as full attention.",
    "",
)


def _own_golden_words(own: Mapping[str, int]) -> str:
    if not own:
        return "No goldens of the project's own are recorded."
    return (
        f"The project's own, committed with the tests, hold {sum(own.values())} logs of {len(own)} releases: "
        f"{', '.join(own)}."
    )


def own_golden_versions() -> dict[str, int]:
    """Logs in `golden/logs.jsonl.gz` by release, oldest first; empty if it is not there."""
    path = CONFORMANCE / "golden" / "logs.jsonl.gz"
    if not path.exists():
        return {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        counts = Counter(v for line in file for log in json.loads(line)["logs"] for v in log["versions"])
    return {version: counts[version] for version in sorted(counts, key=_number)}


def literal(file: str, name: str) -> tuple[str, ...]:
    """The literal tuple assigned to a name in a file of tests/conformance."""
    for statement in ast.parse((CONFORMANCE / file).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == name:
            return tuple(ast.literal_eval(statement.value))
    raise KeyError(f"{file} assigns no {name}")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


# ---------------------------------------------------------------------------------------------- vLLM's own tests


def _out_of_scope(core_tests: Mapping[str, Any]) -> list[str]:
    counts = Counter(test["why"] for test in core_tests["tests"] if test["mark"] == "out_of_scope")
    rows = [[reason, str(counts[key])] for key, reason in core_tests["reasons"].items()]
    return [
        "## Out of scope",
        "",
        "With the number of vLLM's own core tests that are about it.",
        "",
        *_table(("what, and why", "tests"), rows),
        "",
    ]


def _core_tests(core_tests: Mapping[str, Any]) -> list[str]:
    tests = core_tests["tests"]
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    for test in tests:
        by_file[test["file"]][test["mark"]] += 1
    by_file["all"] = Counter(test["mark"] for test in tests)
    rows = [
        [f"`{file}`", *(str(counts[mark]) for mark in MARKS), str(counts.total())] for file, counts in by_file.items()
    ]
    matched = [[_theirs(t), _tests(t["pinned_by"]), t.get("note", "")] for t in _marked(tests, "matched")]
    return [
        "## vLLM's own core tests",
        "",
        f"All {len(tests)} test functions of vLLM's `tests/v1/core` at 0.32.0, marked one by one in "
        "`tests/conformance/vllm_core_tests.json`.",
        "",
        *_table(("file", *MARKS.values(), "all"), rows),
        "",
        "### Open",
        "",
        "What should be matched and is not, or is pinned by nothing.",
        "",
        *_table(("vLLM's test", "what is missing"), [[_theirs(t), t["note"]] for t in _marked(tests, "open")]),
        "",
        "### Matched",
        "",
        *_table(("vLLM's test", "pinned by", "note"), matched),
        "",
        "### Out of scope, by reason",
        "",
        *_scope_lists(core_tests),
    ]


def _scope_lists(core_tests: Mapping[str, Any]) -> Iterator[str]:
    for key, reason in core_tests["reasons"].items():
        names: dict[str, list[str]] = defaultdict(list)
        for test in _marked(core_tests["tests"], "out_of_scope"):
            if test["why"] == key:
                names[test["file"]].append(test["test"].removeprefix("test_"))
        yield f"**{reason}**"
        yield ""
        for file, tests in names.items():
            yield f"- `{file}`: {', '.join(tests)}"
        yield ""


def _marked(tests: Iterable[Mapping[str, Any]], mark: str) -> Iterator[Mapping[str, Any]]:
    return (test for test in tests if test["mark"] == mark)


def _theirs(test: Mapping[str, Any]) -> str:
    return f"`{test['file']}` {test['test']}"


# ---------------------------------------------------------------------------------------------- tables


def _tests(ids: Sequence[str]) -> str:
    links = (tuple(test.split("::")) for test in ids)
    return "<br>".join(f"[{name}](../{path})" for path, name in links)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + [
        "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) + " |" for row in rows
    ]
