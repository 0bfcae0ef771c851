"""Our reading of a command line equals that of vLLM 0.32.0's own parser and config classes, as recorded."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from headway.catalog.flags import flags_of
from headway.compat import judge
from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.invocation import Invocation
from headway.deployment.words import words
from tests.deployment.record_goldens import TINY

_PATH = Path(__file__).parent / "goldens_0.32.0.jsonl.gz"


def _goldens() -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(_PATH.read_bytes()).decode().splitlines()]


GOLDENS = _goldens()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the small Llama that the goldens were recorded with."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    return str(folder)


def _effective(golden: dict[str, Any], model: str | None = None) -> Effective:
    invocation = Invocation("serve", "golden", words=list(words(golden["argv"])))
    if "config_file" in golden:
        invocation.config_files["CONFIG.yaml"] = json.dumps(yaml.safe_load(golden["config_file"]))
    return resolve_effective(invocation, engine_version="0.32.0", accelerator="cpu", model=model)


def _same(ours: Any, theirs: Any) -> bool:
    """Objects of vLLM were recorded by the fields that differ from their defaults."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_same(ours.get(key), value) for key, value in theirs.items())
    return bool(ours == theirs) or str(ours) == str(theirs)


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda golden: " ".join(golden["argv"])[:70])
def test_arguments_equal_those_of_the_parser(golden: dict[str, Any]) -> None:
    """The same values where the parser accepts, a problem where it refuses."""
    effective = _effective(golden)
    if "error" in golden:
        assert effective.problems, f"the parser says: {golden['error']}"
        return
    assert not effective.problems
    known = flags_of((0, 32, 0))
    ours = {name: written.value for name, written in effective.parsed.settings.items() if name != "config"}
    theirs = golden["args"]
    assert set(theirs) - {"model"} <= set(ours)
    assert {name: ours.get(name) for name, value in theirs.items() if not _same(ours.get(name), value)} == {}
    for name in set(ours) - set(theirs):
        assert ours[name] in (known[name].default((0, 32, 0)), False, None) or isinstance(ours[name], dict), name


def test_the_goldens_are_enough() -> None:
    """At least 300 command lines, most of them accepted, some refused, and many taken through the config classes."""
    assert len(GOLDENS) >= 300
    assert sum("args" in golden for golden in GOLDENS) >= 250
    assert sum("error" in golden for golden in GOLDENS) >= 100
    assert sum("config" in golden for golden in GOLDENS) >= 100


@pytest.mark.parametrize(
    "golden", [golden for golden in GOLDENS if "config" in golden], ids=lambda golden: " ".join(golden["argv"])[:70]
)
def test_effective_values_equal_those_of_the_config_classes(golden: dict[str, Any], model: str) -> None:
    """Defaults and forced values on the CPU build, for a Llama with 8192 positions."""
    effective = _effective(golden, model)
    assert effective.engine == "V1"
    theirs = dict(golden["config"])
    if effective.settings["max_model_len"].written == -1:
        theirs.pop("max_model_len")
    assert {name: effective.value(name) for name in theirs} == theirs


def test_nothing_that_the_config_classes_accept_is_called_rejected(model: str) -> None:
    """No false alarm among the recorded command lines that vLLM takes."""
    wrong = [
        (golden["argv"], judgement.findings[0].message)
        for golden in GOLDENS
        if "config" in golden and (judgement := judge(_effective(golden, model))).verdict in _STOPS
    ]
    assert wrong == []


_STOPS = ("unknown_flag", "rejected", "runtime_crash", "wrong_output")


def test_what_the_config_classes_refuse_is_called_rejected(model: str) -> None:
    """Refusals that depend on flags, model and platform; those for want of files or of a tokenizer are left out."""
    found = 0
    for golden in GOLDENS:
        if any(part in golden.get("config_error", "") for part in _FROM_FLAGS):
            found += 1
            assert judge(_effective(golden, model)).verdict == "rejected", golden["config_error"]
    assert found >= 60


_FROM_FLAGS = (
    "Sleep mode is not supported",
    "Number of experts",
    "num_speculative_tokens was provided but without",
    "num_speculative_tokens must be provided",
    "is smaller than max_model_len",
    "is greater than the derived max_model_len",
)
