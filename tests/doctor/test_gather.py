"""Everything a user has becomes evidence; what cannot be used is told, and only a missing file stops it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.doctor.evidence import Evidence, Objective
from headway.doctor.gather import gather
from headway.errors import InputError
from tests.shared_data import shared_path

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
STATS = (
    "(APIServer pid=1) INFO 07-24 10:00:00 [loggers.py:271] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg "
    "generation throughput: 2.0 tokens/s, Running: 3 reqs, Waiting: 4 reqs, GPU KV cache usage: 50.0%, Prefix cache "
    "hit rate: 0.0%\n"
)
START = (
    "(APIServer pid=1) INFO 07-24 09:59:00 [utils.py:299] vLLM API server version 0.12.0\n"
    "(APIServer pid=1) INFO 07-24 09:59:00 [utils.py:233] non-default args: {'model': 'LLAMA', 'max_num_seqs': 48, "
    "'max_model_len': 4096}\n"
    "(EngineCore pid=2) INFO 07-24 09:59:30 [kv_cache_utils.py:1] GPU KV cache size: 80,000 tokens\n"
    "(EngineCore pid=2) INFO 07-24 09:59:30 [kv_cache_utils.py:2] Maximum concurrency for 4,096 tokens per request: "
    "19.53x\n"
).replace("LLAMA", LLAMA)


def value(evidence: Evidence, name: str) -> object:
    """A setting in effect."""
    assert evidence.effective is not None
    return evidence.effective.value(name)


def test_flags_as_words_with_and_without_their_command() -> None:
    for words in (f"vllm serve {LLAMA} --max-num-seqs 12", "--max-num-seqs 12"):
        evidence = gather(words, gpu="l40s", model=LLAMA, engine_version="0.12.0")
        assert value(evidence, "max_num_seqs") == 12 and evidence.effective is not None
        assert evidence.effective.version == (0, 12, 0) and evidence.plan is not None and not evidence.unusable


def test_a_deployment_file(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"#!/bin/sh\nvllm serve {LLAMA} --gpu-memory-utilization 0.8\n")
    assert value(gather(str(path)), "gpu_memory_utilization") == 0.8


def test_a_log_alone_tells_flags_version_pool_and_samples(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(START + STATS)
    evidence = gather(logs=[path], gpu="l40s")
    assert value(evidence, "max_num_seqs") == 48 and evidence.facts.version == "0.12.0"
    assert evidence.facts.kv_cache_tokens == 80_000 and evidence.startup is not None
    assert evidence.plan is not None and evidence.plan.kv_cache_tokens.likely == 80_000
    assert evidence.samples[0].num_running == 3 and not evidence.unusable


def test_what_the_engine_tells_outranks_its_flags(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(START + STATS)
    evidence = gather(f"vllm serve {LLAMA} --max-num-seqs 256 --max-model-len 8192", logs=[path])
    assert (value(evidence, "max_num_seqs"), value(evidence, "max_model_len")) == (48, 4096)
    assert evidence.effective is not None and evidence.effective.settings["max_model_len"].source == "observed"
    assert any("max_num_seqs 256, its log 48" in note for note in evidence.unusable)


def test_blocks_of_the_metrics_are_those_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "m.prom"
    path.write_text('vllm:cache_config_info{block_size="16",num_gpu_blocks="777",engine="0"} 1.0\n')
    evidence = gather(f"vllm serve {LLAMA}", metrics=[path], gpu="l40s")
    assert evidence.plan is not None and evidence.plan.num_gpu_blocks == 777


def test_bench_observed_and_words_of_the_load(tmp_path: Path) -> None:
    bench = tmp_path / "b.json"
    bench.write_text('{"mean_ttft_ms": 5, "output_throughput": 9}')
    evidence = gather(
        "guidellm concurrent 512, prompt 512, output 1024", benches=[bench], observed=["running=7,zeal=3"]
    )
    (load,) = evidence.loads
    assert (load.concurrency, load.mean_prompt_tokens, load.mean_output_tokens) == (512, 512.0, 1024.0)
    assert evidence.samples[0].num_running == 7 and evidence.stated == {"zeal": 3.0}


def test_the_load_alone_is_evidence() -> None:
    (load,) = gather("isl 6000, osl 2, 8 req/s").loads
    assert (load.requests_per_s, load.mean_prompt_tokens, load.mean_output_tokens) == (8.0, 6000.0, 2.0)


def test_unknown_names_are_told_and_do_not_stop_anything() -> None:
    evidence = gather("--max-num-seqs 4", model="nobody/knows", gpu="abacus", engine_version="0.10.x (V1)")
    assert value(evidence, "max_num_seqs") == 4 and evidence.plan is None
    assert [any(word in note for note in evidence.unusable) for word in ("nobody/knows", "abacus", "0.10")] == [
        True
    ] * 3


def test_flags_that_cannot_be_planned_are_told() -> None:
    evidence = gather(f"vllm serve {LLAMA} --tensor-parallel-size 7", gpu="l40s")
    assert evidence.plan is None and any("cannot be planned" in note for note in evidence.unusable)


def test_unreadable_pieces_are_told(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.log", "c.prom", "d.json"):
        (tmp_path / name).write_text("nothing: [of use\n")
    evidence = gather(
        tmp_path / "a.yaml", logs=[tmp_path / "b.log"], metrics=[tmp_path / "c.prom"], benches=[tmp_path / "d.json"]
    )
    assert evidence.effective is None and len(evidence.unusable) == 4


@pytest.mark.parametrize("role", ["deployment", "logs", "metrics", "benches", "observed", "trace"])
def test_a_file_that_does_not_exist_is_an_error(tmp_path: Path, role: str) -> None:
    path = tmp_path / "none.json"
    given: object = path if role in ("deployment", "trace") else [str(path)] if role == "observed" else [path]
    with pytest.raises(InputError, match=r"none\.json"):
        gather(**{role: given})  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["deployment", "logs", "metrics", "benches"])
def test_a_binary_file_is_an_error(tmp_path: Path, role: str) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\x7fELF\0\1")
    with pytest.raises(InputError, match="not text"):
        gather(**{role: path if role == "deployment" else [path]})  # type: ignore[arg-type]


def test_objective_and_trace_are_kept(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrival,prompt_tokens,output_tokens\n0,1,1\n")
    objective = Objective({"p99_ttft_ms": 500.0}, "throughput")
    evidence = gather(trace=trace, objective=objective)
    assert evidence.trace == trace and evidence.objective is objective


def test_names_in_evidence_are_never_opened_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A label such as `-` or a folder's name would otherwise be read as a model's configuration."""
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("-", "folder", "../x", "config.json", "/etc"):
        (tmp_path / "m.prom").write_text(f'vllm:num_requests_running{{model_name="{name}"}} 1.0\n')
        evidence = gather("vllm serve unknown/model", metrics=[tmp_path / "m.prom"])
        assert evidence.effective is not None and evidence.effective.model is None


def test_users_cases_come_together() -> None:
    """Flags, log and what the reporter states, of the deadlock of a request that can never run."""
    evidence = gather(
        "vllm serve google/gemma-4-31B-it --tensor-parallel-size 2",
        logs=[shared_path("cases/files/logs/a14_gemma_deadlock.log")],
        gpu="h100",
        observed=["request_tokens=100000"],
    )
    assert evidence.facts.kv_cache_tokens == 76640 and value(evidence, "max_model_len") == 262144
    assert evidence.plan is not None and evidence.plan.kv_cache_tokens.likely == 76640
    assert [sample.num_waiting for sample in evidence.samples] == [1, 2, 3, 4]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.integers(0, 900), st.text(max_size=80))
def test_nothing_but_a_missing_or_binary_file_stops_it(tmp_path: Path, patch: bytes, cut: int, words: str) -> None:
    log, prom, script = tmp_path / "x.log", tmp_path / "x.prom", tmp_path / "x.sh"
    text = (START + STATS).encode()
    log.write_bytes(text[:cut] + patch.replace(b"\0", b"") + text[cut:])
    prom.write_bytes(b'vllm:cache_config_info{num_gpu_blocks="9"} 1\n' + patch.replace(b"\0", b""))
    script.write_bytes(b"vllm serve x --max-num-seqs 3 " + patch.replace(b"\0", b""))
    for deployment in (script, f"--{words}"):
        try:
            evidence = gather(deployment, logs=[log], metrics=[prom], model=LLAMA, gpu="l40s")
        except InputError as error:
            assert "Cannot read" in str(error) or "not text" in str(error), error
        else:
            assert isinstance(evidence, Evidence)


def test_alternatives_of_a_flag_name_what_the_runs_vary() -> None:
    stated = '{"rate": 16, "itl_ms": {"16": 8.2, "32": 9.4}}'
    evidence = gather("--max-num-seqs 16|32 --max-model-len 4096", observed=[stated])
    assert [run.settings for run in evidence.loads] == [{"max_num_seqs": 16}, {"max_num_seqs": 32}]
    unnamed = gather("--max-model-len 4096", observed=[stated])
    assert [run.settings for run in unnamed.loads] == [{"variant": 16}, {"variant": 32}]


def test_changes_in_the_flags_name_what_is_before_and_after() -> None:
    evidence = gather(
        "--gpu-memory-utilization 0.80 -> 0.85 --max-num-seqs 16 (new)",
        observed=['{"before": {"c1_tg": 44.6}, "after": {"c1_tg": 44.0}}'],
    )
    assert [run.settings for run in evidence.loads] == [
        {"gpu_memory_utilization": 0.8, "max_num_seqs": None},
        {"gpu_memory_utilization": 0.85, "max_num_seqs": 16},
    ]


def test_an_image_alone_tells_the_version() -> None:
    evidence = gather("vllm/vllm-openai:v0.10.2")
    assert evidence.effective is not None and evidence.effective.version == (0, 10, 2)
