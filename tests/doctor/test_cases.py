"""Real users' situations: from what they had in hand to the bottleneck that was accepted, and what to try first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doctor.case_support import answer_to, differences, evidence_of, load_cases

SITUATIONS = {
    "A14": "a request longer than the pool blocks the queue",
    "A22": "a budget as large as max_model_len eats the pool",
    "B01": "chunks stall decodes on a slow device",
    "B04": "long prompts hold up short ones in SGLang",
    "B08": "throughput is flat from four streams on",
    "B10": "chunked prefill slows an offline run",
    "B18": "the engine stands still with an empty pool",
    "B19": "one output token in a closed loop",
    "B21": "flags that change nothing",
    "C05": "all seats taken with a fifth of the pool",
    "C06": "prompts beyond what a GPU can prefill",
    "C08": "preemption without a warning",
    "C09": "a preemption warning of V0",
    "C12": "few run and many wait with a low pool",
    "C14": "one request owns the pool",
    "C15": "a leak or runaway outputs",
    "F07": "usage of short requests one after another",
    "F09": "a pool about to be full",
    "F11": "drafts of a tiny model",
    "F12": "a measured table of two settings",
}
KINDS = ("diagnose", "diagnose_config", "forecast", "rank_knobs", "explain")
ABOUT_MEMORY = frozenset(("bytes_per_token_about", "kv_bytes_per_token_per_gpu"))
"""Explanations of start-up logs; the planner gives them (tests/planner/test_startup_log.py)."""
PARSED = [case for case in load_cases("parse_log") if "bottleneck" in case["expect"]]
CASES = [case for case in load_cases(*KINDS) if not ABOUT_MEMORY & case["expect"].keys()] + PARSED


def _parameters() -> list[Any]:
    """One test a case, named after its situation; weak cases are reported, not gated."""
    marks = {"weak": [pytest.mark.xfail(strict=False, reason="a weak case: what is true was never settled")]}
    return [
        pytest.param(
            case, id=SITUATIONS.get(case["id"], case["id"]).replace(" ", "_"), marks=marks.get(case["strength"], [])
        )
        for case in CASES
    ]


@pytest.mark.parametrize("case", _parameters())
def test_a_situation_is_judged_as_it_was(case: dict[str, Any]) -> None:
    answer = answer_to(evidence_of(case))
    assert not differences(case, answer)


@pytest.mark.parametrize("case", _parameters())
def test_no_advice_contradicts_a_warning(case: dict[str, Any]) -> None:
    answer = answer_to(evidence_of(case))
    warned = {item.setting for item in answer.must_not}
    assert not warned & {fix.setting for fix in answer.fixes}


def test_the_open_cases_are_all_here() -> None:
    """A case that comes in gets a name for its situation."""
    if not CASES:
        pytest.skip("needs the cases beside the checkout")
    assert {case["id"] for case in CASES} <= SITUATIONS.keys()
