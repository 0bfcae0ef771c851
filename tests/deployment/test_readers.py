"""Each form in which people write a deployment, read to the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.lints import lints_of
from headway.deployment.read import read_file, read_text
from headway.errors import InputError

WANTED = {"model": "org/m", "max_model_len": 8192, "max_num_seqs": 64, "tensor_parallel_size": 2}

FORMS = Path(__file__).parent / "forms"
"""The same deployment written in each form; start.ps1 has Windows line ends."""


def _one(text: str, name: str) -> Effective:
    found = read_text(text, name)
    assert len(found) == 1
    return resolve_effective(found[0])


PROGRAMS = {
    "offline": """
from vllm import LLM
TP = 2
llm = LLM('org/m', max_model_len=8 * 1024, **dict(max_num_seqs=64), tensor_parallel_size=TP)
""",
    "engine": """
from vllm import AsyncEngineArgs
args = AsyncEngineArgs(model='org/m', max_model_len=8192, max_num_seqs=64, tensor_parallel_size=2)
""",
    "list": """
import subprocess
subprocess.Popen(['vllm', 'serve', 'org/m', '--max-model-len', str(8192), '--max-num-seqs', '64', '-tp', f'{2}'])
""",
    "string": """
import os
os.system('vllm serve org/m --max-model-len 8192 --max-num-seqs 64 -tp 2')
""",
    "environment": """
import os
from vllm import LLM
llm = LLM(model=os.environ.get('MODEL', 'org/m'), max_model_len=int(os.getenv('LEN', '8192')), max_num_seqs=64,
          tensor_parallel_size=2)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_read_by_their_syntax(name: str) -> None:
    effective = _one(PROGRAMS[name], f"{name}.py")
    assert {key: effective.value(key) for key in WANTED} == WANTED
    given = [lint.rule for lint in lints_of(effective) if lint.rule == "values-from-defaults"]
    assert given == (["values-from-defaults"] if name == "environment" else [])


@pytest.mark.parametrize("path", sorted(FORMS.iterdir()), ids=lambda path: path.name)
def test_every_form_is_read_to_the_same_settings(path: Path) -> None:
    found = read_file(path)
    assert len(found) == 1
    effective = resolve_effective(found[0])
    assert {key: effective.value(key) for key in WANTED} == WANTED
    assert effective.problems == []


def test_an_env_file_beside_a_compose_file_is_used(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("LEN=16k\n# LEN=1\nexport TP='4'\n", encoding="utf-8")
    path = tmp_path / "compose.yaml"
    path.write_text(
        "services:\n  v:\n    image: vllm/v\n    command: org/m --max-model-len ${LEN:-1} -tp ${TP} --port ${NO}\n"
    )
    effective = resolve_effective(read_file(path)[0])
    assert (effective.value("max_model_len"), effective.value("tensor_parallel_size")) == (16000, 4)
    assert effective.unresolved == {"port": ("${NO}",)}


def test_a_config_file_beside_is_read_and_the_command_line_wins(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("max-num-seqs: 8\nport: 9000\n", encoding="utf-8")
    path = tmp_path / "start.sh"
    path.write_text("vllm serve org/m --port 8001 --config c.yaml\n", encoding="utf-8")
    effective = resolve_effective(read_file(path)[0])
    assert (effective.value("max_num_seqs"), effective.value("port")) == (8, 8001)


def test_a_false_in_a_config_file_counts_for_the_module_from_0_28() -> None:
    """`python -m …api_server --config` turns false into --no-…; `vllm serve --config` drops it, as both did before."""
    invocation = read_text("python -m vllm.entrypoints.openai.api_server --config c.yaml --model m", "a.sh")[0]
    invocation.config_files["c.yaml"] = '{"enable-chunked-prefill": false}'
    new = resolve_effective(invocation, engine_version="0.28.0")
    old = resolve_effective(invocation, engine_version="0.27.1")
    assert new.value("enable_chunked_prefill") is False
    assert old.value("enable_chunked_prefill") is True
    assert "config-false-dropped" in {lint.rule for lint in lints_of(old)}


def test_config_with_an_equals_sign_is_not_read() -> None:
    rules = {lint.rule for lint in lints_of(_one("vllm serve --config=c.yaml", "a.sh"))}
    assert "config-with-equals" in rules


@pytest.mark.parametrize(
    ("version", "problems"),
    [("0.8.5", ["refused"]), ("0.11.0", ["refused"]), ("0.11.1", []), ("0.32.0", [])],
)
def test_model_as_a_flag_of_serve_depends_on_the_version(version: str, problems: list[str]) -> None:
    effective = resolve_effective(read_text("vllm serve --model org/m", "a.sh")[0], engine_version=version)
    assert [problem.kind for problem in effective.problems] == problems
    assert effective.value("model") == "org/m"


@pytest.mark.parametrize(
    ("flag", "version", "value"),
    [
        ("--max-model-len 8k", "0.8.5", 8000),
        ("--max-model-len 8k", "0.8.4", None),
        ("--max-num-batched-tokens 8K", "0.9.1", 8192),
        ("--max-num-batched-tokens 8K", "0.9.0", None),
        ("--max-model-len 25.6k", "0.32.0", 25600),
        ("--max-model-len 2.5K", "0.32.0", None),
    ],
)
def test_sizes_by_version(flag: str, version: str, value: int | None) -> None:
    effective = resolve_effective(read_text(f"vllm serve m {flag}", "a.sh")[0], engine_version=version)
    name = flag.split()[0][2:].replace("-", "_")
    assert effective.parsed.value(name) == value
    assert bool(effective.problems) == (value is None)


def test_lists_of_starts_keep_their_order() -> None:
    found = read_text("for p in 1 2; do\n vllm serve a --port $p &\ndone\nvllm serve b\n", "a.sh")
    assert [resolve_effective(item).value("model") for item in found] == ["a", "b"]
    assert found[0].words[-1].unresolved == ("$p",)


def test_a_metric_line_is_read() -> None:
    text = 'vllm:cache_config_info{block_size="16",cache_dtype="fp8",engine="0",gpu_memory_utilization="0.9"} 1.0\n'
    effective = resolve_effective(read_text(text, "m.prom")[0])
    assert (effective.value("block_size"), effective.value("kv_cache_dtype")) == (16, "fp8")


def test_sampling_of_a_program_is_known() -> None:
    """Request parameters of the same program are judged too."""
    from headway.compat import judge

    text = "from vllm import *\nllm = LLM('m')\np = SamplingParams(use_beam_search=True, best_of=4)\n"
    judgement = judge(resolve_effective(read_text(text, "a.py")[0], engine_version="0.13.0"))
    assert judgement.verdict == "rejected"
    assert {"beam_search", "best_of"} <= {name for finding in judgement.findings for name in finding.features}


@pytest.mark.parametrize("text", ["", "echo hello", "{}", "a: 1", "FROM python:3.11", "<xml/>", "services: {}"])
def test_files_without_a_start_are_told_apart(text: str) -> None:
    with pytest.raises(InputError, match=r"No start of vLLM|Not"):
        read_text(text, "x")


def test_an_unknown_flag_names_the_nearest() -> None:
    lints = lints_of(_one("vllm serve m --max_batched_tokens 4096", "a.sh"))
    assert "did you mean --max-num-batched-tokens" in lints[0].message


def test_lost_flags_after_a_comment_are_told() -> None:
    lints = lints_of(_one("vllm serve m \\\n  --port 1 \\\n  # --host x \\\n  --max-num-seqs 4\n", "a.sh"))
    lost = next(lint for lint in lints if lint.rule == "comment-ends-command")
    assert "--max-num-seqs" in lost.message and lost.line == 3
