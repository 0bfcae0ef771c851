"""`headway simulate` from flags to table, JSON, report, trace and rows."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headway.cli.simulate import simulate
from headway.errors import ConfigError, HeadwayError, WorkloadError

TOY = (
    *("--latency", "constant:prefill_us=30,decode_ms=12,decode_token_us=50,host_ms=1"),
    *("--num-gpu-blocks-override", "1800", "--max-model-len", "4096", "--max-num-batched-tokens", "512"),
    *("--num-prompts", "40", "--request-rate", "20", "--prompt-tokens", "64-1500", "--output-tokens", "10-60"),
)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, arguments, catch_exceptions=False, env={"COLUMNS": "120"})


def _json(*arguments: str) -> list[dict[str, Any]]:
    result = _run(*arguments, "--json", "-")
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def test_a_table_with_an_error_bar_for_each_metric() -> None:
    """An oracle that nobody judged has none, and that is said."""
    result = _run(*TOY)
    assert result.exit_code == 0
    for label in ("TTFT, ms", "TPOT, ms", "ITL, ms", "E2EL, ms", "Output tok/s", "KV usage mean", "Preemptions"):
        assert label in result.output
    assert "never judged on measurements" in result.output and "unknown" in result.output
    assert "open loop, 20 requests/s" in result.output


def test_json_has_the_keys_of_vllm_bench() -> None:
    """One object a policy, and what was resolved."""
    (row,) = _json(*TOY, "--slo", "ttft_ms=500")
    for name in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "std", "p50", "p90", "p95", "p99"):
            assert row[f"{statistic}_{name}_ms"] > 0 or statistic == "std"
    assert row["completed"] == 40 and 0 < row["request_goodput"] <= row["request_throughput"]
    assert (row["loop"], row["max_concurrency"], row["provenance"]) == ("open", None, "constant")
    assert row["error_bars"]["mean_ttft_ms"] is None


def test_the_same_arguments_give_the_same_result() -> None:
    """With fast-forward and without, but for the clock on the wall."""
    ways = [_json(*TOY, flag)[0] for flag in ("--fast-forward", "--fast-forward", "--no-fast-forward")]
    for way in ways:
        del way["simulation_wall_s"], way["date"]
    assert ways[0] == ways[1]
    for key, value in ways[0].items():
        assert value == ways[2][key] or value == pytest.approx(ways[2][key], rel=1e-9), key


def test_policies_side_by_side() -> None:
    """Continuous batching beats one at a time under a sound latency model; chunks protect the tail."""
    rows = {row["policy"]: row for row in _json(*TOY, "--compare-policies")}
    assert list(rows) == ["naive", "static", "continuous", "chunked"]
    assert rows["chunked"]["output_throughput"] > 2 * rows["naive"]["output_throughput"]
    assert rows["chunked"]["p99_itl_ms"] < rows["continuous"]["p99_itl_ms"]


def test_files(tmp_path: Path) -> None:
    """A report without scripts or links, a trace that is one JSON document, a row for each request."""
    html, trace, rows = tmp_path / "report.html", tmp_path / "trace.json.gz", tmp_path / "rows.csv"
    result = _run(*TOY, "--html", str(html), "--perfetto", str(trace), "--requests-out", str(rows))
    assert result.exit_code == 0
    page = html.read_text()
    assert page.count("<svg") >= 5 and "<script" not in page and "The slowest requests" in page
    assert not re.search(r'(src|href)="?https?:', page)
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    kinds = {event["ph"] for event in events}
    assert kinds == {"M", "X", "C", "b", "e"}
    steps = sorted((event["ts"], event["dur"]) for event in events if event["ph"] == "X")
    assert all(start + long <= after + 1 for (start, long), (after, _) in itertools.pairwise(steps))
    table = list(csv.DictReader(rows.read_text().splitlines()))
    assert len(table) == 40 and all(row["why"] for row in table)


def test_a_catalogue_deployment() -> None:
    """KV blocks from the planner, defaults from the version, clients in a closed loop."""
    arguments = ("--model", "llama-3.1-8b", "--gpu", "a100", "--max-model-len", "8192", "--num-prompts", "30")
    (row,) = _json(*arguments, "--concurrency", "8", "--engine-version", "0.9.2")
    assert (row["max_num_batched_tokens"], row["max_num_seqs"], row["async_scheduling"]) == (2048, 256, False)
    assert row["num_blocks"] > 20_000 and row["loop"] == "closed" and row["peak_num_running"] == 8
    (row,) = _json(*arguments, "--concurrency", "8", "--data-parallel-size", "2")
    assert row["num_gpus"] == 2 and row["async_scheduling"] is True and row["peak_num_running"] <= 8


def test_speculation_raises_tokens_a_step() -> None:
    """An acceptance model with its K + 1 rows."""
    alone, drafted = (
        _json(*TOY, *extra)[0]
        for extra in ((), ("--speculative-config", '{"num_speculative_tokens": 3}', "--acceptance-rate", "0.8"))
    )
    assert drafted["mean_tpot_ms"] < 0.6 * alone["mean_tpot_ms"]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ((*TOY, "--latency", "magic"), ConfigError, "magic"),
        ((*TOY, "--latency", "constant:prefill=3"), ConfigError, "prefill_us"),
        (("--latency", "constant:prefill_us=3"), ConfigError, "--model"),
        (("--model", "llama-3.1-8b", "--gpu", "b9000"), ConfigError, "b9000"),
        (
            ("--model", "llama-3.3-70b", "--gpu", "l4"),
            ConfigError,
            "does not fit .*`headway plan llama-3.3-70b --gpu l4`",
        ),
        ((*TOY, "--json", "/no/such/folder/x.json"), ConfigError, "--json"),
        ((*TOY, "--requests-out", "rows.txt"), ConfigError, r"\.csv"),
        ((*TOY, "--trace", "nowhere.csv"), WorkloadError, "nowhere.csv"),
        ((*TOY, "--speculative-config", "{}"), ConfigError, "num_speculative_tokens"),
        ((*TOY, "--concurrency", "2", "--ramp", "1-2"), ConfigError, "different ways"),
    ],
)
def test_mistakes_are_told(arguments: tuple[str, ...], error: type[HeadwayError], said: str) -> None:
    """In one line that names the flag or the file."""
    with pytest.raises(error, match=said):
        _run(*arguments)
