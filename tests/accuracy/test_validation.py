"""Replays of recorded runs: what was promised, and the forms in which runs come."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from headway.accuracy.minimum import lowest, lowest_of_two
from headway.accuracy.recorded_runs import RecordedRun, read_runs
from headway.accuracy.validation import Validation, validate_run
from headway.cli.validate import validate
from headway.errors import InputError
from tests.shared_data import shared_path

pytestmark = pytest.mark.slow

RECORD: dict[str, object] = {
    "input_toks": 100,
    "output_toks": 11,
    "queued_ts": 5.0,
    "first_token_ts": 5.2,
    "last_token_ts": 5.5,
}
META: dict[str, object] = {
    "vllm_version": "0.19.0",
    "engine_kwargs": {"model": "meta-llama/Llama-3.1-8B", "max_num_seqs": 8},
}


def recorded(name: str) -> RecordedRun:
    """A run of the reference data."""
    return next(run for run in read_runs(shared_path("groundtruth")) if name in run.name)


def errors(result: Validation) -> dict[str, float]:
    """Percent by metric."""
    return {row.metric: row.error_pct for row in result.comparisons}


class TestReplays:
    """Real vLLM 0.19 on RTX PRO 6000; fitted on the first 100 requests, judged on the other 200."""

    def test_llama_8b(self) -> None:
        """Mean TPOT and latency within 1.5 %, mean TTFT within 4 %, prefix hits to the token."""
        result = validate_run(recorded("Llama-3.1-8B"), shared_path("kernel"))
        found = errors(result)
        assert abs(found["mean_tpot_ms"]) < 1.5
        assert abs(found["mean_latency_ms"]) < 1.5
        assert abs(found["mean_ttft_ms"]) < 4.0
        hits = next(row for row in result.comparisons if row.metric == "prefix_hit_tokens")
        assert hits.predicted == hits.measured == 19520
        assert 1.0 < result.fitted["host_ms_per_step"] < 2.5
        assert result.num_fit_requests == 100 and result.blocks_from == "from the planner"

    @pytest.mark.slow
    def test_qwen_32b_on_two(self) -> None:
        """TPOT and latency within 5 %; two numbers fitted."""
        result = validate_run(recorded("Qwen3-32B"), shared_path("kernel"))
        found = errors(result)
        assert abs(found["mean_tpot_ms"]) < 5.0
        assert abs(found["mean_latency_ms"]) < 5.0
        assert found["prefix_hit_tokens"] == 0.0
        assert set(result.fitted) == {"host_ms_per_step", "all_reduce_gb_per_s"}

    def test_without_tables_the_roofline_answers(self) -> None:
        """Nothing is fitted, all requests are judged."""
        result = validate_run(recorded("Llama-3.1-8B"), None)
        assert result.oracle == "roofline" and result.fitted == {} and result.num_fit_requests == 0
        assert abs(errors(result)["mean_tpot_ms"]) < 30.0

    def test_given_blocks_win(self) -> None:
        """A pool too small for 128 seats makes requests wait longer."""
        run = recorded("Llama-3.1-8B")
        small = validate_run(run, None, num_gpu_blocks=2588)
        assert small.blocks_from == "given" and small.num_blocks == 2588
        assert errors(small)["mean_ttft_ms"] > errors(validate_run(run, None))["mean_ttft_ms"] + 20.0


class TestFiles:
    """The forms of a run."""

    def write(self, folder: Path, meta: dict[str, object], records: list[dict[str, object]]) -> None:
        """One run by timestamps."""
        (folder / "L40S_test.meta.json").write_text(json.dumps(meta))
        with gzip.open(folder / "L40S_test.requests.jsonl.gz", "wt") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def test_timestamps(self, tmp_path: Path) -> None:
        """TTFT and latency count from queueing; arrivals from the first request."""
        later = RECORD | {"queued_ts": 6.0, "first_token_ts": 6.1, "last_token_ts": 6.1, "output_toks": 1}
        self.write(tmp_path, META, [later, RECORD])
        (run,) = read_runs(tmp_path)
        assert run.gpu == "L40S-48GB" and run.flags == {"max_num_seqs": 8} and run.num_gpu_blocks is None
        first, second = run.requests
        assert first.request.arrival_s == 0.0 and second.request.arrival_s == pytest.approx(1.0)
        assert first.ttft_s == pytest.approx(0.2) and first.tpot_s == pytest.approx(0.03)
        assert second.tpot_s is None

    @pytest.mark.parametrize(
        "change",
        [
            {"num_gpu_blocks": 2588},
            {"engine_kwargs": META["engine_kwargs"] | {"num_gpu_blocks_override": 2588}},  # type: ignore[operator]
            {"kv_cache": {"num_gpu_blocks": 2588, "block_size": 16}},
        ],
    )
    def test_blocks_wherever_they_stand(self, tmp_path: Path, change: dict[str, object]) -> None:
        """Recorders put them in different places."""
        self.write(tmp_path, META | change, [RECORD])
        assert read_runs(tmp_path)[0].num_gpu_blocks == 2588

    def test_a_table_completes_a_run_with_prefix_blocks(self) -> None:
        """The same requests, told apart by model, parallel size and lengths."""
        run = recorded("Llama-3.1-8B")
        assert run.name == "RTXPRO6000_Llama-3.1-8B"
        assert len(run.requests) == 300 and len(run.requests[0].request.block_keys) == 147

    def test_errors_name_the_file(self, tmp_path: Path) -> None:
        """A folder without runs, a run without requests, a request without times, a GPU nobody knows."""
        with pytest.raises(InputError, match="no recorded run"):
            read_runs(tmp_path)
        (tmp_path / "L40S_x.meta.json").write_text(json.dumps(META))
        with pytest.raises(InputError, match=r"L40S_x\.requests"):
            read_runs(tmp_path)
        (tmp_path / "L40S_x.requests.jsonl").write_text(json.dumps({"input_toks": 1}) + "\n")
        with pytest.raises(InputError, match="queued_ts"):
            read_runs(tmp_path)
        (tmp_path / "L40S_x.meta.json").rename(tmp_path / "mystery_x.meta.json")
        (tmp_path / "L40S_x.requests.jsonl").rename(tmp_path / "mystery_x.requests.jsonl")
        (tmp_path / "mystery_x.requests.jsonl").write_text(json.dumps(RECORD) + "\n")
        with pytest.raises(InputError, match="known GPU"):
            read_runs(tmp_path)


def test_json_is_one_row_a_metric(tmp_path: Path) -> None:
    """With what every row must have, and what it rests on."""
    TestFiles().write(tmp_path, META, [RECORD | {"queued_ts": 5.0 + index, "first_token_ts": 5.3 + index,
                                                 "last_token_ts": 5.6 + index} for index in range(4)])  # fmt: skip
    result = CliRunner().invoke(validate, [str(tmp_path), "--json"], catch_exceptions=False)
    rows = [json.loads(line) for line in result.output.splitlines()]
    assert {"run", "metric", "measured", "predicted", "error_pct"} <= set(rows[0])
    assert {row["metric"] for row in rows} >= {"mean_ttft_ms", "p99_tpot_ms", "mean_latency_ms", "prefix_hit_tokens"}
    for row in rows:
        if row["measured"]:
            assert row["error_pct"] == pytest.approx((row["predicted"] / row["measured"] - 1) * 100)


class TestMinimum:
    """The searches that fits rest on."""

    def test_one_number(self) -> None:
        """A valley off the middle."""
        assert lowest(lambda x: (x - 0.3) ** 4, -1.0, 5.0, within=1e-4) == pytest.approx(0.3, abs=1e-2)

    def test_two_numbers_that_pull_at_each_other(self) -> None:
        """By turns, to the common minimum."""
        x, y = lowest_of_two(
            lambda x, y: (x + y - 3) ** 2 + (x - y + 1) ** 2, (-9, 9, 1e-6), (-9, 9, 1e-6), start=0.0, num_turns=20
        )
        assert (x, y) == pytest.approx((1.0, 2.0), abs=1e-3)
