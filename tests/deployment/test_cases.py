"""Real users' deployments, rewritten with names replaced, read as their authors' engines read them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.lints import lints_of
from headway.deployment.read import read_file
from tests.shared_data import shared_path

FILES = [
    "b01_flags.txt",
    "c12_k8s_args.yaml",
    "e01_docker_run_mtp_offload.sh",
    "e03_bash_array_defaults.sh",
    "e05_export_comment_line.sh",
    "e07_powershell_crlf.ps1",
    "e08_compose_folded_defaults.yaml",
    "e09_compose_plain_scalar.yaml",
    "e11_kserve_runtime.yaml",
    "e12b_prodstack_tp_in_extraargs.yaml",
    "e15_ray_serve_llm.py",
    "e17_vllm_config.yaml",
    "e18_systemd_docker.service",
    "e20_sizes_upper_lower.txt",
    "e21_python_arg_list.py",
    "e27_engine_args.json",
    "e29_positional_params.sh",
    "e_kimi_linear.sh",
    "e_prodstack_v100.yaml",
]

LINTS: dict[str, dict[str, list[tuple[str, str]]]] = {
    "E01": {"e01": [("slow-combination", "speculative decoding + CPU offload + eager"), ("container-options", "-v")]},
    "E03": {"e03": [("values-from-defaults", "MAX_LEN, GPU_UTIL, CPU_OFFLOAD_GB, MAX_SEQS, MAX_BATCHED, KV_DTYPE")]},
    "E05": {"e05": []},
    "E07": {"e07": [("commented-flag", "--model org/other-model is not read")]},
    "E08": {
        "e08": [
            ("gpus-idle", "8 GPUs are reserved"),
            ("device-ids-in-one-string", "0,1,2,3,4,5,6,7"),
            ("model-flag", "deprecated"),
            ("unknown-flag", "--disable-log-requests is not a flag of vLLM 0.32.0"),
        ]
    },
    "E09": {"e09": [("gpu-memory-utilization-full", "leaves no room")]},
    "E11": {"e11": [("unresolved", "{{.Name}} is a template")]},
    "E13": {
        "e_prodstack": [],
        "e12b": [("parallelism-in-extra-args", "only in extraArgs"), ("gpus-idle", "does not fit 16 GB")],
    },
    "E16": {"e15": [("ray-batch-default", "128 rather than the server's 256 or 1024")]},
    "E18": {
        "e17": [
            ("config-false-dropped", "enable-chunked-prefill: false is silently dropped"),
            ("check-version", "pipeline parallelism"),
            ("config-with-equals", "--config=FILE"),
        ]
    },
    "E19": {"e18": [("unset-variable", "$VLLM_API_KEY")]},
    "E21": {
        "e20": [
            ("size-suffix", "128K is 131072; 128k would be 128000"),
            ("context-parallel", "of the same 16 GPUs"),
            ("size-suffix", "Releases before 0.9.1 refuse a suffix here"),
        ]
    },
    "E22": {"e21": [("size-suffix", "128k is 128000; 128K would be 131072")]},
    "E25": {
        "e_kimi": [
            ("missing-space", "between 8111 and --gpu-memory-utilization"),
            ("space-after-backslash", "the shell ends the command there"),
            ("abbreviated-flag", "--tensor-parallel is an abbreviation"),
        ]
    },
    "E28": {"e27": [("tokens-not-characters", "characters are not tokens")]},
    "E30": {
        "e29": [
            ("unresolved", "$1"),
            ("unresolved", "$2"),
            ("unresolved", "$3"),
            ("max-model-len-typo", "2084 looks like a typo of 2048"),
        ]
    },
}
"""What a reader must remark on, by case and file: rule, and a part of the message."""


def _cases() -> dict[str, dict[str, Any]]:
    path = shared_path("cases/cases.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row for row in rows if row["group"] == "E"}


def _read(name: str) -> list[Effective]:
    path = shared_path("cases/files/configs") / name
    return [resolve_effective(invocation) for invocation in read_file(Path(path))]


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_read(name: str) -> None:
    """All 19 files hold at least one start, with settings, and nothing in them is run."""
    found = _read(name)
    assert found and all(effective.parsed.settings for effective in found)


@pytest.mark.parametrize("case_id", sorted(LINTS))
def test_effective_arguments_are_those_expected(case_id: str) -> None:
    """Every setting that the case states, with its value; unresolved ones as they are written."""
    case = _cases()[case_id]
    expected = case["expect"]["effective"]
    found = [effective for name in case["files"] for effective in _read(Path(name).name)]
    parts = list(expected.values()) if all(isinstance(value, dict) for value in expected.values()) else [expected]
    assert len(found) == len(parts)
    for effective, wanted in zip(found, parts, strict=True):
        _check(effective, wanted)


def _check(effective: Effective, wanted: dict[str, Any]) -> None:
    for name, value in wanted.items():
        if name == "engine":
            assert effective.engine == value
        elif name == "accelerator":
            assert effective.invocation.facts["accelerator"] == value
        else:
            assert effective.value(name) == value, name


@pytest.mark.parametrize("case_id", sorted(LINTS))
def test_every_expected_lint_is_given(case_id: str) -> None:
    case = _cases()[case_id]
    for start, wanted in LINTS[case_id].items():
        name = next(Path(path).name for path in case["files"] if Path(path).name.startswith(start))
        given = [(lint.rule, lint.message) for effective in _read(name) for lint in lints_of(effective)]
        for rule, text in wanted:
            assert any(rule == found and text in message for found, message in given), (rule, given)
        if not wanted:
            assert [rule for rule, _ in given if rule not in ("container-options", "size-suffix")] == []


def test_the_lints_of_every_open_case_are_listed() -> None:
    """A case that is added must say which rules answer it."""
    assert set(LINTS) == {case_id for case_id, case in _cases().items() if case["expect"]["kind"] == "read_config"}


def test_a_dropped_value_is_not_effective() -> None:
    """`enable-chunked-prefill: false` in a config file leaves chunked prefill on."""
    effective = _read("e17_vllm_config.yaml")[0]
    assert effective.value("enable_chunked_prefill") is True
    assert not effective.settings["enable_chunked_prefill"].is_written
