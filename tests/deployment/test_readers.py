"""Each form in which people write a deployment, read to the same settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.lints import lints_of
from headway.deployment.read import read_file, read_text
from headway.errors import InputError

WANTED = {"model": "org/m", "max_model_len": 8192, "max_num_seqs": 64, "tensor_parallel_size": 2}

FORMS = {
    "serve.sh": "vllm serve org/m --max-model-len 8K --max_num_seqs=64 -tp 2\n",
    "module.sh": "exec python3 -u -m vllm.entrypoints.openai.api_server --model org/m --max-model-len 8192 \\\n"
    "  --max-num-seqs 64 --tensor-parallel-size=2 2>&1 | tee log\n",
    "wrappers.sh": "sudo -u svc env A=1 nohup timeout -k 5 600 numactl -N 0 uv run --with x vllm serve org/m "
    "--max-model-len 8192 --max-num-seqs 64 -tp 2 > log &\n",
    "docker.sh": "docker run --rm -it --gpus '\"device=0,1\"' -e X=1 --entrypoint vllm vllm/vllm-openai:v0.32.0 serve org/m "
    "--max-model-len 8192 --max-num-seqs 64 -tp 2\n",
    "image.sh": "podman run --device nvidia.com/gpu=all vllm/vllm-openai:v0.9.2 --model org/m --max-model-len 8192 "
    "--max-num-seqs 64 --tensor-parallel-size 2\n",
    "nested.sh": "bash -lc 'source /venv/bin/activate && vllm serve org/m --max-model-len 8192 --max-num-seqs 64 -tp 2'\n",
    "heredoc.sh": "cat > run.sh <<'EOF'\nvllm serve org/m --max-model-len 8192 --max-num-seqs 64 -tp 2\nEOF\n",
    "array.sh": 'ARGS=(--max-model-len "${LEN:-8192}")\nARGS+=(--max-num-seqs 64)\nvllm serve org/m "${ARGS[@]}" -tp 2\n',
    "list.yaml": "services:\n  v:\n    image: vllm/vllm-openai\n    command:\n      - --model\n      - org/m\n"
    "      - --max-model-len\n      - '8192'\n      - --max-num-seqs=64\n      - -tp=2\n",
    "string.yaml": "services:\n  v:\n    image: vllm/vllm-openai\n    entrypoint: vllm serve\n    command: org/m "
    "--max-model-len ${LEN:-8192} --max-num-seqs 64 -tp ${TP-2}\n",
    "folded.yml": "services:\n  v:\n    image: vllm/vllm-openai\n    command: >-\n      org/m\n      --max-model-len 8192\n"
    "      --max-num-seqs 64\n      --tensor-parallel-size 2\n",
    "pod.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n  - name: vllm\n    image: vllm/v\n"
    "    env: [{name: TP, value: '2'}]\n    command: [vllm, serve]\n    args: [org/m, --max-model-len, '8192', "
    "--max-num-seqs, '64', -tp, $(TP)]\n",
    "deploy.yaml": "apiVersion: apps/v1\nkind: Deployment\nspec:\n  template:\n    spec:\n      containers:\n      - name: c\n"
    "        image: x\n        command: [/bin/sh, -c]\n        args:\n        - |\n          export TP=2\n"
    "          vllm serve org/m --max-model-len 8192 \\\n            --max-num-seqs 64 -tp $TP\n",
    "kserve.yaml": "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nspec:\n  predictor:\n    model:\n"
    "      modelFormat: {name: vLLM}\n      args: [--model=org/m, --max-model-len=8192, --max-num-seqs=64, "
    "--tensor-parallel-size=2]\n",
    "values.yaml": "servingEngineSpec:\n  modelSpec:\n  - name: m\n    repository: vllm/vllm-openai\n    tag: v0.32.0\n"
    "    modelURL: org/m\n    vllmConfig:\n      tensorParallelSize: 2\n      maxModelLen: 8192\n      maxNumSeqs: 64\n",
    "llmd.yaml": "modelArtifacts: {uri: 'hf://org/m'}\ndecode:\n  parallelism: {tensor: 2}\n  containers:\n  - name: vllm\n"
    "    image: ghcr.io/llm-d/llm-d\n    modelCommand: vllmServe\n    args: [--max-model-len, '8192', --max-num-seqs, '64']\n",
    "ray.yaml": "applications:\n- name: a\n  args:\n    llm_configs:\n    - model_loading_config: {model_id: m, "
    "model_source: org/m}\n      engine_kwargs: {max_model_len: 8192, max_num_seqs: 64, tensor_parallel_size: 2}\n",
    "unit.service": "[Service]\nEnvironment=TP=2 'LEN=8192'\nExecStart=\nExecStart=/usr/bin/env vllm serve org/m \\\n"
    "  # a comment\n  --max-model-len ${LEN} --max-num-seqs 64 -tp $TP\n",
    "Makefile": "MODEL ?= org/m\nFLAGS = --max-num-seqs 64\nserve:\n\t@vllm serve $(MODEL) \\\n\t  --max-model-len 8192 $(FLAGS) "
    "-tp 2\n",
    "start.ps1": "$model = 'org/m'\r\n$extra = @('--max-num-seqs', '64')\r\nvllm serve $model `\r\n  --max-model-len 8192 @extra "
    '-tp "2"\r\n',
    "config.yaml": "model: org/m\nmax-model-len: 8192\nmax_num_seqs: 64\ntensor-parallel-size: 2\n",
    "offline.py": "from vllm import LLM\nTP = 2\nllm = LLM('org/m', max_model_len=8 * 1024, **dict(max_num_seqs=64), "
    "tensor_parallel_size=TP)\n",
    "engine.py": "from vllm import AsyncEngineArgs\nargs = AsyncEngineArgs(model='org/m', max_model_len=8192, max_num_seqs=64,\n"
    "    tensor_parallel_size=2)\n",
    "popen.py": "import subprocess\nsubprocess.Popen(['vllm', 'serve', 'org/m', '--max-model-len', str(8192),\n"
    "    '--max-num-seqs', '64', '-tp', f'{2}'])\n",
    "shell.py": "import os\nos.system('vllm serve org/m --max-model-len 8192 --max-num-seqs 64 -tp 2')\n",
    "args.json": '{"vllm": {"model": "org/m", "max_model_len": 8192, "max_num_seqs": 64, "tensor_parallel_size": 2}}',
    "args.toml": '[engine]\nmodel = "org/m"\nmax_model_len = 8192\nmax-num-seqs = 64\ntensor_parallel_size = 2\n',
    "server.log": "INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version 0.18.0\nINFO 01-01 00:00:00 [utils.py:2] "
    "non-default args: {'model_tag': 'org/m', 'max_model_len': 8192, 'max_num_seqs': 64, 'tensor_parallel_size': 2}\n",
}  # fmt: skip


def _one(text: str, name: str) -> Effective:
    found = read_text(text, name)
    assert len(found) == 1
    return resolve_effective(found[0])


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_read_to_the_same_settings(name: str) -> None:
    effective = _one(FORMS[name], name)
    assert {key: effective.value(key) for key in WANTED} == WANTED
    assert not [problem for problem in effective.problems if problem.kind != "config"]


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
    """`python -m …api_server --config` turns false into --no-…; `vllm serve --config` drops it, and so did both before."""
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
    with pytest.raises(InputError, match="No start of vLLM|Not"):
        read_text(text, "x")


def test_an_unknown_flag_names_the_nearest() -> None:
    lints = lints_of(_one("vllm serve m --max_batched_tokens 4096", "a.sh"))
    assert "did you mean --max-num-batched-tokens" in lints[0].message


def test_lost_flags_after_a_comment_are_told() -> None:
    lints = lints_of(_one("vllm serve m \\\n  --port 1 \\\n  # --host x \\\n  --max-num-seqs 4\n", "a.sh"))
    lost = next(lint for lint in lints if lint.rule == "comment-ends-command")
    assert "--max-num-seqs" in lost.message and lost.line == 3
