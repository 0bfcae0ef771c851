"""Real users' cases: what they had in hand, and a comparison of the answer with what was accepted as true."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headway.catalog.accelerators import find_accelerator
from headway.catalog.models import find_model
from headway.deployment.lints import lints_of
from headway.doctor.diagnosis import Fix, MustNot
from headway.doctor.evidence import Evidence, Objective
from headway.doctor.figures import figures_of
from headway.doctor.fixes.candidates import candidates, must_not
from headway.doctor.gather import gather
from headway.doctor.rules import Findings, find_bottlenecks
from headway.doctor.rules.base import case_of
from headway.doctor.rules.healthy import no_effect_settings
from headway.errors import ConfigError
from tests.shared_data import shared_path

_PROSE = frozenset((
    "kind", "tolerance", "engine_must", "goal", "fields", "wrong_answer", "fp8_applied", "cause", "confidence", "value",
))  # fmt: skip
"""Keys of an expectation that are compared with others, or speak of something else than a diagnosis."""


def load_cases(*kinds: str) -> list[dict[str, Any]]:
    """The cases of these kinds; none where the shared folder is absent."""
    try:
        path = shared_path("cases/cases.jsonl")
    except pytest.skip.Exception:
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["expect"]["kind"] in kinds]


def evidence_of(case: Mapping[str, Any]) -> Evidence:
    """What its user could hand over: flags, files, and the figures they state."""
    files = [shared_path(f"cases/files/{name}") for name in case.get("files", ())]
    kinds: dict[str, list[Path]] = {"configs": [], "logs": [], "metrics": []}
    for path in files:
        kinds[path.parent.name].append(path)
    return gather(
        kinds["configs"][0] if kinds["configs"] else _words(case),
        logs=kinds["logs"],
        metrics=kinds["metrics"],
        observed=[json.dumps(case["observed"])],
        engine_version=_version(str(case["engine_version"])),
        gpu=_gpu(str(case["hardware"])),
        model=_model(str(case["model"])),
        objective=Objective(goal=case["expect"].get("goal", "latency")),
    )


def _words(case: Mapping[str, Any]) -> str | None:
    written = [text for text in case["config"] if text not in ("-", "not in excerpt")]
    engine = "python -m sglang.launch_server " if case.get("engine") == "sglang" else ""
    return engine + "\n".join(written) + "\n" if written else None


def _version(text: str) -> str | None:
    match = re.search(r"(?<![\d.])\d\.\d{1,2}(\.\d+)?", text)
    return match.group() if match else None


def _gpu(text: str) -> str | None:
    """The first stretch of words that the catalogue knows as a card."""
    words = re.split(r"[\s,;()/]+", text)
    for length in (4, 3, 2, 1):
        for start in range(len(words) - length + 1):
            with contextlib.suppress(ConfigError):
                return find_accelerator(" ".join(words[start : start + length])).id
    return None


def _model(text: str) -> str | None:
    name = re.split(r"[\s(;]", text)[0]
    with contextlib.suppress(ConfigError):
        return find_model(name).id
    return None


@dataclass(frozen=True, slots=True)
class Answer:
    """What the rules say of a case."""

    evidence: Evidence
    findings: Findings
    fixes: list[Fix]
    must_not: list[MustNot]

    @property
    def figures(self) -> dict[str, float | str | bool]:
        """Figures of all findings, the first finding's first, over those read from the evidence."""
        found: dict[str, float | str | bool] = dict(figures_of(self.evidence).as_mapping())
        for item in reversed(self.findings.bottlenecks):
            found |= item.figures
        return found


def answer_to(evidence: Evidence) -> Answer:
    """Run the rules."""
    findings = find_bottlenecks(evidence)
    return Answer(evidence, findings, candidates(evidence, findings), must_not(evidence, findings))


def differences(case: Mapping[str, Any], answer: Answer) -> list[str]:
    """Where an answer differs from what is expected; empty if nowhere."""
    expect = case["expect"]
    return [
        text for key, wanted in expect.items() if key not in _PROSE for text in _compare(key, wanted, expect, answer)
    ]


def _compare(key: str, wanted: Any, expect: Mapping[str, Any], answer: Answer) -> Iterator[str]:
    kinds = [item.kind for item in answer.findings.bottlenecks]
    settings = [fix.setting for fix in answer.fixes]
    first = answer.fixes[0] if answer.fixes else None
    to_value = first.to_value if first is not None else None
    comparisons: dict[str, Callable[[], bool]] = {
        "bottleneck": lambda: kinds[:1] == [wanted],
        "bottleneck_any_of": lambda: bool(kinds) and kinds[0] in wanted,
        "first_knob": lambda: settings[:1] == [wanted] and ("value" not in expect or to_value == expect["value"]),
        "first_knob_any_of": lambda: bool(settings) and settings[0] in wanted,
        "direction": lambda: first is not None and _direction(first) == wanted,
        "value_at_most": lambda: first is not None and to_value <= wanted,
        "must_not_first": lambda: not {*settings[:1]} & {*wanted},
        "ruled_out": lambda: {*wanted} <= {*answer.findings.ruled_out},
        "must_ask": lambda: any(_speaks(wanted, item.figure) for item in answer.findings.missing),
        "order": lambda: [name for name in settings if name in wanted] == wanted and settings[: len(wanted)] == wanted,
        "no_effect_knobs": lambda: {*wanted} <= {*no_effect_settings(case_of(answer.evidence))},
        "lint": lambda: all(_is_linted(text, answer) for text in wanted),
        "discriminate": lambda: bool(kinds) and _discriminates(wanted, answer),
        "kv_usage_below": lambda: float(answer.figures["expected_kv_usage"]) < wanted,
    }  # fmt: skip
    if key in comparisons:
        if not comparisons[key]():
            yield f"{key}: expected {wanted}; found {kinds}, fixes {settings}, figures {answer.figures}"
    elif not _is_close(answer.figures.get(key), wanted, expect.get("tolerance", 0.02)):
        yield f"{key}: expected {wanted}; found {answer.figures.get(key)}"


def _direction(fix: Fix) -> str:
    before = fix.from_value if isinstance(fix.from_value, int | float) else 0
    return "up" if fix.to_value > before else "down"


def _is_close(value: Any, wanted: Any, tolerance: float) -> bool:
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and abs(value - wanted) <= tolerance * abs(wanted)
    return bool(value == wanted)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower())


def _speaks(wanted: str, text: str) -> bool:
    return {*_plain(wanted).split()} <= {*_plain(text).split()}


def _discriminates(wanted: list[str], answer: Answer) -> bool:
    """Each hypothesis is named, and so is what tells them apart."""
    told = _plain(" ".join(answer.findings.bottlenecks[0].discriminate))
    return all({*_plain(text).split()} - {"kv", "0"} <= {*told.split()} for text in wanted)


_LINT_RULES = {"missing space": "missing-space", "abbreviated": "abbreviated-flag", "unknown flag": "unknown-flag"}


def _is_linted(wanted: str, answer: Answer) -> bool:
    """A lint of the rule that is meant, which names the flags that are meant."""
    rule = next((name for words, name in _LINT_RULES.items() if wanted.startswith(words)), "")
    options = [option.replace("_", "-") for option in re.findall(r"--[\w-]+", wanted)]
    lints = lints_of(answer.evidence.effective) if answer.evidence.effective is not None else []
    near = [lint for lint in lints if lint.rule == rule]
    return any(_names(options, rule, lint.message) for lint in near)


def _names(options: list[str], rule: str, message: str) -> bool:
    """The flag before a missing space is only known by its value."""
    return rule == "missing-space" or all(option in message for option in options)
