"""A deployment is judged in one exact version, and compared between two."""

from __future__ import annotations

import pytest

from headway.compat import diff_versions, feature_matrix, judge
from headway.compat.judge import Judgement
from headway.deployment.effective import resolve_effective
from headway.deployment.read import read_text

_MTP = """--speculative-config '{"method":"mtp","num_speculative_tokens":3}'"""


def _judge(command: str, version: str, gpu: str | None = None) -> Judgement:
    invocation = read_text(command, "start.sh")[0]
    return judge(resolve_effective(invocation, engine_version=version, accelerator=gpu))


@pytest.mark.parametrize(
    ("flags", "version", "verdict", "part"),
    [
        (
            "--speculative_model x --speculative_draft_tensor_parallel_size 4 --num_speculative_tokens 5 -tp 4 "
            "--enable-chunked-prefill",
            "0.6.4",
            "rejected",
            "draft runs on one GPU",
        ),
        ("-tp 8 -pp 2 --num-speculative-tokens 1", "0.7.3", "rejected", "PP>1"),
        (f"-pp 4 {_MTP}", "0.26.1rc1.dev693", "rejected", "SupportsPP"),
        (f"-pp 2 {_MTP}", "0.25.0", "runtime_crash", "one token a request"),
        (f"-pp 2 {_MTP} --no-async-scheduling", "0.25.0", "wrong_output", "stages disagree"),
        (
            "--no-enable-chunked-prefill --max-num-batched-tokens 65536 --max-model-len 4096",
            "0.9.2",
            "ignored",
            "keeps",
        ),
        ("--no-enable-chunked-prefill --max-num-batched-tokens 2048 --max-model-len 4096", "0.18.0", "rejected", ""),
        ("--enable-lora --enable-batch-sharded-sampling", "0.29.0", "runtime_crash", "first sampling step"),
        ("--swap-space 8", "0.10.0", "silent_noop", "never swaps"),
        ("--swap-space 8", "0.18.0", "unknown_flag", "removed in 0.18.0"),
        ("--max-num-seqs 512 --max-num-batched-tokens 256", "0.18.0", "rejected", "max_num_seqs"),
        ("--max-num-partial-prefills 4 --enable-chunked-prefill", "0.10.0", "fallback", "V0"),
        ("--max-num-partial-prefills 4", "0.18.0", "rejected", "NotImplementedError"),
        ("--kv-cache-memory-bytes 1g --gpu-memory-utilization 0.9", "0.18.0", "ignored", "no longer decides"),
        ("--max-num-seqs 64", "0.18.0", "ok", ""),
        ("--max-num-seqs many", "0.18.0", "rejected", "invalid int value"),
    ],
)
def test_verdicts(flags: str, version: str, verdict: str, part: str) -> None:
    judgement = _judge(f"vllm serve org/m {flags}", version)
    assert judgement.verdict == verdict
    assert not part or any(part in finding.message for finding in judgement.findings)
    assert all(finding.source for finding in judgement.findings)


def test_old_hardware_limits_version_and_engine_at_once() -> None:
    """Volta: 0.8.5 with V0 in float16 runs; V1 and later releases do not; bfloat16 never."""
    start = "VLLM_USE_V1=0 vllm serve org/m --dtype half"
    assert _judge(start, "0.8.5", "v100-sxm2-16gb").verdict in ("ok", "fallback")
    assert _judge("vllm serve org/m --dtype half", "0.8.5", "v100-sxm2-16gb").verdict in ("fallback", "unsupported")
    assert _judge(start, "0.9.0", "v100-sxm2-16gb").verdict == "unsupported"
    assert _judge("VLLM_USE_V1=0 vllm serve org/m --dtype bfloat16", "0.8.5", "v100-sxm2-16gb").verdict == "rejected"


def test_the_effective_value_is_judged_not_the_written_one() -> None:
    """Asynchronous scheduling is on although nobody asked, and off where something turns it off."""
    on = _judge("vllm serve org/m", "0.18.0").effective
    off = _judge("""vllm serve org/m --speculative-config '{"method":"ngram","num_speculative_tokens":2}'""", "0.18.0")
    assert on.value("async_scheduling") is True
    assert off.effective.value("async_scheduling") is False
    assert off.effective.settings["async_scheduling"].source == "forced"


def test_a_fallback_engine_changes_the_defaults() -> None:
    """Priority scheduling makes 0.9.1 fall back to V0, where chunked prefill is off by default; V1=1 would refuse."""
    effective = _judge("vllm serve org/m --scheduling-policy priority --max-model-len 4096", "0.9.1").effective
    assert effective.engine == "V0" and effective.value("enable_chunked_prefill") is False


def test_a_version_diff_says_what_vanishes_and_what_changes() -> None:
    """0.18.0 to 0.33.0 on an H100: a flag is gone, the memory share and the capture of graphs changed the KV cache."""
    command = "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-num-partial-prefills 1 --max-model-len 8192"
    diff = diff_versions(read_text(command, "x.sh")[0], "0.18.0", "0.33.0", accelerator="h100")
    assert [(flag.name, flag.removed_in) for flag in diff.lost] == [("max_num_partial_prefills", "0.27.0")]
    changed = {value.name: (value.before, value.after) for value in diff.changed}
    assert changed["gpu_memory_utilization"] == (0.9, 0.92)
    before, after = diff.memory
    assert before.fits and after.fits and before.kv_cache_tokens != after.kv_cache_tokens
    assert diff.is_breaking and any(finding.verdict == "unknown_flag" for finding in diff.appeared)


def test_a_rename_is_named() -> None:
    command = "vllm serve org/m --guided-decoding-backend xgrammar --task generate"
    diff = diff_versions(read_text(command, "x.sh")[0], "0.10.2", "0.33.0")
    renamed = {flag.name: flag.replaced_by for flag in diff.lost}
    assert renamed == {"guided_decoding_backend": "--structured-outputs-config.backend", "task": "--runner"}
    assert "not in the catalogue" in diff.memory[0].reason


def test_batch_defaults_change_between_versions() -> None:
    """On a device of 160 GiB and more, `vllm serve` takes twice the tokens a step from 0.28.0."""
    diff = diff_versions(read_text("vllm serve org/m", "x.sh")[0], "0.27.0", "0.28.0", accelerator="b200")
    changed = {value.name: (value.before, value.after) for value in diff.changed}
    assert changed["max_num_batched_tokens"] == (8192, 16384)


def test_nothing_changes_between_a_version_and_itself() -> None:
    diff = diff_versions(read_text("vllm serve org/m --max-num-seqs 8", "x.sh")[0], "0.32.0", "0.32.0")
    assert not (diff.lost or diff.changed or diff.appeared or diff.gone or diff.is_breaking)


def test_the_matrix_marks_where_code_and_documentation_part() -> None:
    matrix = feature_matrix("0.18.0")
    assert [cell.symbol for cell in (matrix.cell("spec_decode", "chunked_prefill"),) if cell] == ["y"]
    assert [cell.symbol for cell in (matrix.cell("lora", "spec_decode"),) if cell] == ["y*"]
    assert [cell.symbol for cell in (matrix.cell("encoder_decoder", "prefix_caching"),) if cell] == ["N"]


@pytest.mark.parametrize(("length", "part"), [(1024, "can ever hit"), (8192, "prompts below that never hit")])
def test_prefix_caching_of_a_hybrid_model_says_how_large_its_blocks_are(length: int, part: str) -> None:
    command = f"vllm serve Qwen/Qwen3.5-35B-A3B --enable-prefix-caching --max-model-len {length}"
    judgement = _judge(command, "0.19.1", "h100")
    found = next(finding for finding in judgement.findings if finding.verdict == "silent_noop")
    assert part in found.message and "a block is planned to hold" in found.message
