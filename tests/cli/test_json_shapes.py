"""`--json` prints what docs/commands.md says, and nothing else on standard output."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from headway.cli import cli
from headway.frontends import steplog_input
from tests.docs_text import ROOT, generator

SHAPES: dict[str, tuple[str, str]] = generator()._neighbour("commands_page").JSON_SHAPES
START = "vllm serve llama-3.1-8b --max-num-seqs 64 --max-model-len 4096"
TOY = (
    *("simulate", "--latency", "constant:prefill_us=30,decode_ms=12", "--num-gpu-blocks-override", "1800"),
    *("--max-model-len", "4096", "--num-prompts", "10", "--prompt-tokens", "100", "--output-tokens", "10", "--json"),
)
WORKLOAD = """{"config": {"num_blocks": 100}, "requests": [{"id": "r", "prompt_token_ids": [1], "max_tokens": 2}]}"""
LINES: dict[str, tuple[tuple[str, ...], str]] = {
    "simulate": (TOY, ""),
    "steplog": (("steplog", "-"), WORKLOAD),
    "plan": (("plan", "llama-3.1-8b", "--gpu", "l40s", "--json"), ""),
    "fragmentation": (("fragmentation", "--num-prompts", "20", "--json"), ""),
    "doctor": (("doctor", START, "--observed", "running=64,waiting=9,kv=20%", "--json"), ""),
    "config": (("config", START, "--json"), ""),
    "compat": (("compat", START, "--json"), ""),
}
ELSEWHERE = {"bench", "validate"}
"""Tested with their runs: tests/cli/test_bench.py, tests/accuracy/test_validation.py."""


def test_every_documented_shape_is_tested() -> None:
    assert set(SHAPES) == set(LINES) | ELSEWHERE


@pytest.mark.parametrize("name", LINES)
def test_the_shape_is_the_documented_one(name: str) -> None:
    line, stdin = LINES[name]
    output = CliRunner().invoke(cli, line, input=stdin).stdout
    shape, words = SHAPES[name]
    document: Any = [json.loads(row) for row in output.splitlines()] if shape == "lines" else json.loads(output)
    assert isinstance(document, dict if shape == "object" else list) and document
    keys = re.findall(r"`(\w+)`", words.partition("; with `--")[0]) if shape == "object" else []
    assert all(key in document for key in keys), (keys, list(document))


def test_where_one_thing_is_asked_the_lists_repeat_its_keys() -> None:
    """`config` and `compat`: a reader of one deployment need not go into the list."""
    for name, key in (("config", "invocations"), ("compat", "deployments")):
        document = json.loads(CliRunner().invoke(cli, LINES[name][0]).stdout)
        (first,) = document[key]
        assert {field: value for field, value in document.items() if field != key} == first


def _named_on(page: str) -> set[str]:
    """Words in code on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {word for span in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", span)}


def test_keys_of_a_plan_are_documented() -> None:
    """With lengths, for a model that fits; `fixes` and `gains` have the same keys."""
    line = ("plan", "llama-3.1-8b", "--gpu", "l40s", "--lengths", "512/256", "--tpot-ms", "60", "--json")
    document = json.loads(CliRunner().invoke(cli, line).stdout)
    keys = {*document, *document["terms"][0], *document["ranks"][0], *document["gains"][0]}
    assert keys - _named_on("docs/planner.md") == set()


def test_keys_of_a_simulation_are_documented() -> None:
    """Those of `bench` in bench/README.md, the others in docs/commands.md."""
    (row,) = json.loads(CliRunner().invoke(cli, TOY).stdout)
    statistic = re.compile(r"(mean|median|std|p\d\d)_(ttft|tpot|itl|e2el)_ms")
    documented = _named_on("bench/README.md") | _named_on("docs/commands.md")
    assert {key for key in row if not statistic.fullmatch(key)} - documented == set()


def test_settings_of_a_step_log_are_documented() -> None:
    assert set(steplog_input._CONFIG) - _named_on("docs/step-logs.md") == set()
