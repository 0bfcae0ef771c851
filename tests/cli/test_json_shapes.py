"""`--json` prints what docs/commands.md says, and nothing else on standard output."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from click.testing import CliRunner

from headway.cli import cli
from tests.docs_text import generator

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
