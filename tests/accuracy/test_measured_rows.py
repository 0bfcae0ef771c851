"""Measured rows: the predicate, what is assumed where a row says nothing, and the promised errors."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from headway.accuracy.measured_rows import MeasuredRow, by_source, select_rows
from headway.accuracy.row_errors import row_errors
from headway.accuracy.row_simulation import prepare
from headway.accuracy.step_recording import merge, record
from headway.errors import InputError
from tests.shared_data import shared_path

PLAIN = {
    "row_id": "r1",
    "grade": "A",
    "source_id": "someone",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "quant": "bf16",
    "gpu": "L40S-48GB",
    "num_gpus": "1",
    "tp": "1",
    "engine": "vllm",
    "engine_version": "0.12.0",
    "dataset": "random",
    "isl": "200",
    "osl": "50",
    "len_kind": "mean",
    "concurrency": "4",
    "request_rate": "inf",
    "num_prompts": "16",
    "tpot_mean_ms": "25",
    "output_tok_s": "150",
}
SILENT = (
    *("kv_cache_dtype", "pp", "dp", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"),
    *("max_model_len", "chunked_prefill", "prefix_caching", "spec_decode", "other_flags"),
    *("ttft_mean_ms", "ttft_p50_ms", "tpot_p50_ms", "date"),
)


def write(path: Path, *changes: dict[str, str]) -> Path:
    """A file of rows, each the plain one with changes."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*PLAIN, *SILENT], restval="")
        writer.writeheader()
        writer.writerows(PLAIN | change for change in changes)
    return path


def one(path: Path, **changes: str) -> MeasuredRow:
    """The row of a file of one."""
    (row,) = select_rows(write(path, changes)).rows
    return row


class TestPredicate:
    """Which rows can be judged."""

    @pytest.mark.parametrize(
        ("change", "gate"),
        [
            ({"engine": "sglang"}, "another engine"),
            ({"grade": "C"}, "grade below B"),
            ({"osl": ""}, "no lengths"),
            ({"concurrency": "", "request_rate": ""}, "no load"),
            ({"tpot_mean_ms": ""}, "no TPOT"),
            ({"spec_decode": "eagle3"}, "speculation"),
            ({"model": "nobody/nothing-7b"}, "model not in the catalogue"),
            ({"gpu": "abacus"}, "GPU not in the catalogue"),
            ({"model": "openai/gpt-oss-20b"}, "not dense"),
            ({"num_gpus": "4"}, "GPUs do not match the parallel sizes"),
            ({"engine_version": "main, before PR"}, "an unreleased development state"),
        ],
    )
    def test_each_gate_is_counted_by_name(self, tmp_path: Path, change: dict[str, str], gate: str) -> None:
        """The plain row passes."""
        selection = select_rows(write(tmp_path / "rows.csv", {}, change))
        assert selection.num_read == 2 and len(selection.rows) == 1
        assert dict(selection.dropped) == {gate: 1}

    @pytest.mark.slow
    def test_the_open_rows(self) -> None:
        """The counts that docs/accuracy.md gives."""
        selection = select_rows(shared_path("measured_serving_open.csv"))
        assert selection.num_read == 5064
        assert len(selection.rows) == 345 and len(by_source(selection.rows)) == 10

    def test_a_file_without_the_columns(self, tmp_path: Path) -> None:
        """Named."""
        (tmp_path / "x.csv").write_text("row_id,grade\n1,A\n")
        with pytest.raises(InputError, match="engine"):
            select_rows(tmp_path / "x.csv")


class TestAssumptions:
    """What is taken where a row is silent."""

    @pytest.mark.parametrize(
        ("version", "date", "expected", "assumed"),
        [
            ("0.12.0", "", "0.12.0", False),
            ("", "2025-10-29", "0.11.0", True),
            ("~0.7/0.8 (2025-03; not recorded)", "", "0.7", True),
            ("2026-02 (not recorded)", "", "0.15.1", True),
            ("", "20260613-132101", "0.22.1", True),
            ("", "", "0.11.0", True),
        ],
    )
    def test_versions(self, tmp_path: Path, version: str, date: str, expected: str, assumed: bool) -> None:
        """The release current at the date."""
        row = one(tmp_path / "rows.csv", engine_version=version, date=date)
        assert (row.engine_version, row.assumed_version) == (expected, assumed)

    @pytest.mark.parametrize(
        ("quant", "expected"),
        [("bf16?", None), ("fp8-static", "fp8"), ("fp4", "nvfp4"), ("awq-int4 (awq_marlin)", "awq"), ("int4", "w4a16")],
    )
    def test_weight_formats(self, tmp_path: Path, quant: str, expected: str | None) -> None:
        """As collectors write them."""
        row = one(tmp_path / "rows.csv", quant=quant)
        assert row.quantization == expected or (expected is None and row.quantization == "none")

    def test_eager(self, tmp_path: Path) -> None:
        """Either spelling, and its denial."""
        flags = ("--enforce-eager --dtype float16", "enforce_eager=true", "enforce_eager=false", "")
        assert [one(tmp_path / "r.csv", other_flags=text).enforce_eager for text in flags] == [True, True, False, False]

    def test_held_out(self, tmp_path: Path) -> None:
        """Every 70B on two H100, whoever measured it."""
        name = "neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8"
        assert one(tmp_path / "r.csv", model=name, gpu="H100-80GB", tp="2", num_gpus="2").is_held_out
        assert not one(tmp_path / "r.csv", model=name, gpu="H100-80GB", tp="4", num_gpus="4").is_held_out


class TestPrediction:
    """From a row to numbers."""

    def test_a_recording_prices_a_closed_loop_as_a_simulation_does(self, tmp_path: Path) -> None:
        """Also with coefficients that the recording was not made with: the schedule does not depend on them."""
        row = one(tmp_path / "r.csv", num_prompts="40", concurrency="8")
        simulation = prepare(row)
        recording, summary = record(simulation.deployment, simulation.workload)
        again = prepare(MeasuredRow(**{name: getattr(row, name) for name in row.__slots__} | {"enforce_eager": True}))
        for run in (simulation, again):
            priced = recording.price(run.deployment.oracle)
            exact = run.predict()
            for key, value in priced.items():
                assert value == pytest.approx(exact[key], rel=1e-6)
        assert summary["completed"] == 40

    def test_a_merged_recording_is_exact_where_it_was_made(self, tmp_path: Path) -> None:
        """And has fewer steps."""
        varied = {"dataset": "random (range-ratio 0.8)", "len_kind": "nominal"}
        simulation = prepare(one(tmp_path / "r.csv", num_prompts="40", concurrency="8", **varied))
        recording, _ = record(simulation.deployment, simulation.workload)
        merged, factors = merge(recording, simulation.deployment.oracle)
        assert len(merged.steps) < len(recording.steps)
        exact, rough = (run.price(simulation.deployment.oracle) for run in (recording, merged))
        for key, value in exact.items():
            assert rough[key] * factors[key] == pytest.approx(value)
            assert factors[key] == pytest.approx(1.0, abs=0.1)

    def test_the_engine_before_v1_keeps_its_defaults(self, tmp_path: Path) -> None:
        """On the oldest scheduler there is."""
        config = prepare(one(tmp_path / "r.csv", engine_version="0.7.3", max_model_len="8192")).deployment.config
        assert config.scheduler.max_num_seqs == 256 and not config.cache.enable_prefix_caching
        assert config.policy == "continuous"

    @pytest.mark.slow
    @pytest.mark.parametrize("row_id", ["ms05259", "ms05260", "ms05261", "ms05262"])
    def test_70b_on_two_h100_within_10_percent(self, row_id: str) -> None:
        """1,024 in and out, 4 to 64 at once; no row of this model on two H100 was fitted."""
        rows = select_rows(shared_path("measured_serving_open.csv")).rows
        row = next(row for row in rows if row.row_id == row_id)
        assert row.is_held_out
        tpot = next(error for error in row_errors(row, prepare(row).predict()) if error.metric == "tpot")
        assert abs(tpot.error) < 0.10
