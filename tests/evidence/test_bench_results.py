"""Results of benchmarks of every form, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InputError
from headway.evidence.bench_results import read_bench
from headway.evidence.load import LoadResult
from tests.shared_data import shared_path

VLLM: dict[str, Any] = {
    "completed": 10,
    "total_input_tokens": 1000,
    "total_output_tokens": 500,
    "request_rate": "inf",
    "max_concurrency": 4,
    "mean_tpot_ms": 20.0,
    "p99_itl_ms": 60.0,
    "median_ttft_ms": 50.0,
    "output_throughput": 180.0,
    "tokenizer_id": "x",
}


def runs(tmp_path: Path, text: str, name: str = "r.json") -> tuple[list[LoadResult], list[str]]:
    """What a file with this text holds."""
    path = tmp_path / name
    path.write_text(text)
    return read_bench(path)


def test_vllm_as_one_object_or_one_a_line(tmp_path: Path) -> None:
    text = json.dumps(VLLM) + "\n" + json.dumps(VLLM | {"max_concurrency": None, "request_rate": 2})
    (closed, opened), notes = runs(tmp_path, text, "r.jsonl")
    assert (closed.concurrency, closed.requests_per_s, closed.num_requests) == (4, None, 10)
    assert (closed.mean_prompt_tokens, closed.mean_output_tokens) == (100.0, 50.0)
    assert closed.measured == {
        "mean_tpot_ms": 20.0,
        "p99_itl_ms": 60.0,
        "median_ttft_ms": 50.0,
        "output_throughput": 180.0,
    }
    assert (opened.concurrency, opened.requests_per_s) == (None, 2.0) and not notes


def test_what_headway_itself_writes(tmp_path: Path) -> None:
    """With the deployment's settings beside the figures."""
    row = VLLM | {"policy": "chunked", "gpu": "l40s", "max_num_seqs": 64, "loop": "closed", "error_bars": {"x": 1}}
    (run,), _ = runs(tmp_path, json.dumps([row]))
    assert run.settings["max_num_seqs"] == 64 and run.concurrency == 4


def test_guidellm_with_percentiles(tmp_path: Path) -> None:
    def part(mean: float, **percentiles: float) -> dict[str, Any]:
        return {"successful": {"mean": mean, "median": mean, "percentiles": percentiles}}

    metrics = {
        "prompt_token_count": part(256),
        "output_token_count": part(128),
        "inter_token_latency_ms": part(12, p99=30),
        "time_to_first_token_ms": part(40, p90=70, p99=90),
        "request_latency": part(1.5),
        "requests_per_second": part(4),
        "output_tokens_per_second": part(500),
        "request_concurrency": part(7.9),
    }
    strategies = [{"type_": "concurrent", "streams": 8}, {"type_": "poisson", "rate": 3.0}]
    items = [{"args": {"strategy": item}, "metrics": metrics} for item in strategies]
    (closed, opened), _ = runs(tmp_path, json.dumps({"benchmarks": items}))
    assert closed.concurrency == 8 and closed.requests_per_s is None and opened.requests_per_s == 3.0
    assert closed.measured["p99_itl_ms"] == 30.0 and closed.measured["mean_e2el_ms"] == 1500.0
    assert closed.measured["request_throughput"] == 4.0 and closed.mean_prompt_tokens == 256.0


def test_the_table_that_is_printed(tmp_path: Path) -> None:
    text = """
Traffic request rate: inf
Maximum request concurrency: 32
============ Serving Benchmark Result ============
Successful requests:                     32
Benchmark duration (s):                  16.0
Total input tokens:                      65536
Total generated tokens:                  6400
Request throughput (req/s):              2.00
Output token throughput (tok/s):         434.40
Total Token throughput (tok/s):          868.80
---------------Time to First Token----------------
Mean TTFT (ms):                          7279.56
P99 TTFT (ms):                           10999.46
-----Time per Output Token (excl. 1st token)------
Median TPOT (ms):                        70.23
---------------Inter-token Latency----------------
P99 ITL (ms):                            72.47
==================================================
"""
    (run, again), notes = runs(tmp_path, text * 2, "out.txt")
    assert run.measured == again.measured and not notes
    assert run.measured == {
        "request_throughput": 2.0,
        "output_throughput": 434.4,
        "total_token_throughput": 868.8,
        "mean_ttft_ms": 7279.56,
        "p99_ttft_ms": 10999.46,
        "median_tpot_ms": 70.23,
        "p99_itl_ms": 72.47,
    }
    assert (run.concurrency, run.num_requests) == (32, 32)
    assert (run.mean_prompt_tokens, run.mean_output_tokens) == (2048.0, 200.0)


def test_a_table_of_runs(tmp_path: Path) -> None:
    text = "seats,concurrency,isl,osl,ttft_p99_ms,itl_mean_ms,out_tok_s,comment\n"
    text += "16,64,512,128,900,20,800,x\n32,64,512,128,500,24,900,\n"
    (first, second), notes = runs(tmp_path, text, "t.csv")
    assert (first.settings, second.settings) == ({"max_num_seqs": 16}, {"max_num_seqs": 32})
    assert first.measured == {"p99_ttft_ms": 900.0, "mean_itl_ms": 20.0, "output_throughput": 800.0}
    assert (first.concurrency, first.mean_prompt_tokens, first.mean_output_tokens) == (64, 512.0, 128.0)
    assert "comment" in notes[0]


def test_a_table_decides_units_as_a_whole(tmp_path: Path) -> None:
    text = "concurrency;ttft_p50;tpot\n1;0.4;0.02\n64;51.6;0.05\n"
    (first, second), notes = runs(tmp_path, text, "t.csv")
    assert (first.measured["p50_ttft_ms"], second.measured["p50_ttft_ms"]) == (400.0, 51600.0)
    assert second.measured["mean_tpot_ms"] == 50.0 and "no unit is given" in notes[0]


def test_measured_rows_are_read_with_their_settings() -> None:
    found, _ = read_bench(shared_path("measured_serving_open.csv"))
    assert len(found) > 4000
    assert any("max_num_seqs" in run.settings for run in found) and all(run.measured for run in found)


@pytest.mark.parametrize("text", ["", "hello", "{}", "[]", "[1, 2]", '{"a": 1}', "a,b\n1,2\n", "[" * 100_000])
def test_files_that_hold_no_result(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        runs(tmp_path, text)


def test_a_broken_result_beside_a_good_one_is_told(tmp_path: Path) -> None:
    found, notes = runs(tmp_path, json.dumps([VLLM, VLLM | {"completed": "many"}]))
    assert len(found) == 1 and "result 2" in notes[0]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*VLLM, "metrics", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(_JSON, st.sampled_from(list(VLLM)), _JSON)
def test_nothing_that_is_read_stops_the_reader(
    tmp_path_factory: pytest.TempPathFactory, a: Any, key: str, b: Any
) -> None:
    """Whatever stands where a result's figures are expected."""
    folder = tmp_path_factory.mktemp("bench")
    for document in (a, [a, VLLM | {key: b}], {"benchmarks": [a, {"metrics": b}]}):
        try:
            found, _ = runs(folder, json.dumps(document))
        except InputError:
            continue
        assert all(run.measured for run in found)
