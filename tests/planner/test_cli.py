"""`headway plan` and `headway fragmentation` from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run headway in a process of its own."""
    command = [sys.executable, "-c", "from headway.cli import main; main()", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def as_json(*arguments: str, stdin: str = "") -> dict[str, Any]:
    """The JSON that a command prints."""
    document: dict[str, Any] = json.loads(run(*arguments, "--json", stdin=stdin).stdout)
    return document


def test_the_json_has_the_documented_keys() -> None:
    """Stable names for scripts."""
    document = as_json("plan", "llama-3.3-70b", "--gpu", "h100", "--quantization", "fp8", "--max-model-len", "8192")
    assert document["schema"] == "headway.plan/1" and document["fits"] is False
    for key in ("kv_bytes_per_token", "available_kv_cache_bytes", "num_gpu_blocks", "max_concurrency"):
        assert isinstance(document[key], int | float)
    tokens = document["kv_cache_tokens"]
    assert tokens["low"] <= tokens["value"] <= tokens["high"]
    assert {"name", "bytes", "source"} <= set(document["terms"][0])
    assert {"setting", "from", "to", "order"} <= set(document["fixes"][0])


def test_the_exit_code_says_whether_it_fits() -> None:
    """0 if it does, 2 if not."""
    assert run("plan", "qwen3-8b", "--gpu", "h100").returncode == 0
    assert run("plan", "llama-3.1-70b", "--gpu", "h100").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("qwen3-8bx", "--gpu", "h100"), "Qwen/Qwen3-8B"),
        (("qwen3-8b", "--gpu", "h1000"), "H100-SXM5-80GB"),
        (("qwen3-8b",), "No GPU"),
        (("--gpu", "h100"), "No model"),
        (("qwen3-8b", "--gpu", "h100", "--tp", "3"), "does not divide"),
        (("qwen3-8b", "--gpu", "h100", "--gpu-memory-utilization", "1.5"), "at most 1"),
        (("qwen3-8b", "--gpu", "h100", "--max-model-len", "99999999"), "longer than"),
        (("qwen3-8b", "--gpu", "h100", "--max-num-batched-tokens", "8", "--max-num-seqs", "16"), "below max_num_seqs"),
        (("qwen3-8b", "--gpu", "h100", "--lengths", "512"), "PROMPT/OUTPUT"),
        (("qwen3-8b", "--gpu", "h100", "--log", "missing.log"), "Cannot read"),
        (("qwen3-8b", "--gpu", "h100", "--pp-layer-partition", "a,b"), "not a layer partition"),
    ],
)
def test_bad_input_ends_with_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    """No traceback, and what is wrong is named."""
    done = run("plan", *arguments)
    assert done.returncode == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_a_utilization_at_the_ceiling_is_said_to_be_exhausted() -> None:
    """The message names the ceiling; the exit code is 2."""
    done = run("plan", "llama-3.1-70b", "--gpu", "h100", "--gpu-memory-utilization", "0.95")
    assert done.returncode == 2 and "already at 0.95" in done.stdout


def test_a_config_on_stdin_is_planned_like_the_catalogues_model() -> None:
    """--hf-config - reads config.json from stdin."""
    given = as_json("plan", "--hf-config", "-", "--gpu", "h100", stdin=json.dumps(CONFIG))
    known = as_json("plan", "llama-3-8b", "--gpu", "h100")
    assert given["num_gpu_blocks"] == known["num_gpu_blocks"]


def test_lengths_give_a_recommended_budget_with_its_curve() -> None:
    """The curve shows what a bigger or a smaller chunk would cost."""
    document = as_json("plan", "qwen3-8b", "--gpu", "l40s", "--lengths", "512/256", "--tpot-ms", "60")
    budget = document["budget"]
    assert budget["recommended"] in budget["curve"] and len(budget["curve"]) > 3
    assert budget["recommended"]["tpot_ms"] <= 60
    assert document["at_lengths"]["by_blocks"] > document["max_concurrency"]


def test_a_log_alone_is_explained(tmp_path: Path) -> None:
    """No model, no GPU: what the log says."""
    path = tmp_path / "vllm.log"
    path.write_text("# GPU blocks: 378, # CPU blocks: 10\nmax seq len (8192) is larger than the KV cache (6048)\n")
    assert "short by 134" in run("plan", "--log", str(path)).stdout
    (log,) = as_json("plan", "--log", "-", stdin=path.read_text())["log"]
    assert (log["fits"], log["blocks_needed"], log["blocks_have"]) == (False, 512, 378)


def test_the_catalogue_can_be_listed() -> None:
    """One name a line."""
    assert len(run("plan", "--list-models").stdout.splitlines()) >= 150
    assert len(run("plan", "--list-gpus").stdout.splitlines()) >= 40


def test_fragmentation_prints_every_policy() -> None:
    """Reservation, paging at each block size, and sharing where there is something to share."""
    document = as_json(
        "fragmentation",
        "--prompt-tokens",
        "100",
        "--output-tokens",
        "50-150",
        "--num-prompts",
        "100",
        "--shared-prefix-tokens",
        "256",
        "--block-sizes",
        "16,64",
    )
    names = [row["policy"] for row in document["policies"]]
    assert names[:3] == ["contiguous, max", "contiguous, pow2", "contiguous, oracle"]
    assert "paged, block 16" in names and "paged, block 64, shared prefixes" in names
    bad = run("fragmentation", "--block-sizes", "0")
    assert bad.returncode == 2 and "block sizes" in bad.stderr


def test_two_logs_are_compared_in_the_json_too(tmp_path: Path) -> None:
    """One comparison for each pair of start-ups that follow each other."""
    path = tmp_path / "two.log"
    first = "Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens\n"
    second = "KV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB\n"
    path.write_text(first + second)
    document = as_json("plan", "--log", str(path))
    assert len(document["log"]) == 2
    ((same, *_),) = document["comparisons"]
    assert "not the cause" in same
