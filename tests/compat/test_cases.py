"""Combinations that real users met, by exact version: the verdict that they ran into."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from headway.catalog.compatibility import Verdict
from headway.compat import query
from headway.compat.hybrid import largest_hit_ratio
from tests.shared_data import shared_path


def _cases(kind: str) -> list[dict[str, Any]]:
    try:
        path = shared_path("cases/cases.jsonl")
    except pytest.skip.Exception:
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row["group"] == "D" and row["expect"]["kind"] == kind]


def _ask(features: list[str], where: str) -> Verdict:
    """`where`: a version and what else is said of it, as in `0.8.5-V1 sm70`, `0.7.2-rocm-rdna3`, `0.19-0.28`."""
    numbers = re.findall(r"\d+\.\d+(?:\.\d+)?", where)
    engine = re.search(r"\bV[01]\b", where)
    platform = re.search("rdna3", where) or re.search(r"sm\d\d|rocm|cpu", where)
    answers = {
        query(
            features, number, engine=engine.group() if engine else None, platform=platform.group() if platform else None
        ).verdict
        for number in numbers
    }
    assert len(answers) == 1, (features, where, answers)
    return answers.pop()


@pytest.mark.parametrize("case", _cases("compat"), ids=lambda case: case["id"])
def test_combinations(case: dict[str, Any]) -> None:
    expect = case["expect"]
    assert _ask(expect["combo"], expect["version"]) == expect["verdict"]
    for prompt, block, ratio in expect.get("hit_ratio", []):
        assert largest_hit_ratio(prompt, block) == pytest.approx(ratio, abs=0.001)
    if about := expect.get("message_about"):
        answer = query(expect["combo"], re.findall(r"\d+\.\d+(?:\.\d+)?", expect["version"])[0])
        assert all(word in answer.message for word in about.split())


@pytest.mark.parametrize("case", _cases("compat_table"), ids=lambda case: case["id"])
def test_tables(case: dict[str, Any]) -> None:
    for where, features, verdict in case["expect"]["rows"]:
        wanted = ["float16"] if features == "any" else [features]
        found = _ask(wanted, where)
        assert found in verdict.split("_or_") or found == verdict, (where, features)


def test_a_known_page_is_got_right() -> None:
    """0.18.0: the matrix marks speculation with chunked prefill and prefix caching as working; its own page lists two
    incompatibilities, pipeline parallelism through 0.15.0 and draft models through 0.10.0."""
    assert query(["spec_decode", "chunked_prefill"], "0.18.0").verdict == "ok"
    assert query(["spec_decode", "prefix_caching"], "0.18.0").verdict == "ok"
    assert query(["spec_decode", "pipeline_parallel"], "0.15.0").verdict == "unsupported"
    assert query(["spec_decode", "pipeline_parallel"], "0.18.0").verdict != "unsupported"
    assert query(["spec_decode", "draft_model"], "0.10.0").verdict == "rejected"
    page = query(["spec_decode:draft_model"], "0.10.0").documented
    assert [row.verdict for row in page] == ["unsupported"]
    assert query(["spec_decode:draft_model"], "0.18.0").verdict == "ok"


def test_documentation_and_code_are_kept_apart() -> None:
    """LoRA with speculation works since 0.11 although the documentation still says no: both are reported."""
    answer = query(["spec_decode", "lora"], "0.18.0")
    assert answer.verdict == "ok" and answer.rows[0].basis == "code"
    assert [row.verdict for row in answer.documented] == ["unsupported"]


@pytest.mark.parametrize(("prompt", "hits"), [(3784, 0), (7542, 4288), (11292, 8576), (15019, 12864), (18770, 15008)])
def test_speculation_costs_one_more_block_of_a_hybrid_cache(prompt: int, hits: int) -> None:
    """Hits that a user measured on a hybrid model with blocks of 2144 tokens."""
    assert largest_hit_ratio(prompt, 2144, speculative=True) * prompt == pytest.approx(hits)
