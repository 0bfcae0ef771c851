"""Calibration finds the numbers that a deployment was made with, and says what it cannot find."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner

from headway.accuracy.calibration import calibrate
from headway.accuracy.observations import read_scrapes, workload_of
from headway.cli.calibrate import calibrate as command
from headway.errors import ConfigError, InputError
from headway.evidence.bench_results import read_guidellm, read_vllm_bench
from headway.evidence.load import LoadResult
from headway.executors.simulated.calibrated import CalibratedOracle
from headway.executors.simulated.oracle import Chunk, LatencyOracle, StepShape, decode_shape
from headway.simulation.options import DeploymentOptions
from headway.simulation.profile_file import Profile, read_profile
from headway.simulation.run import simulate

OPTIONS = DeploymentOptions(model="llama-3.1-8b", gpu="l40s", engine_version="0.12.0", max_model_len=4096)
TRUE_SCALE, TRUE_STEP_S = 1.15, 2.5e-3


def measure(concurrency: int) -> LoadResult:
    """What a deployment with the true numbers would measure in a closed loop."""
    deployment = OPTIONS.resolve().deployment
    true = replace(deployment, oracle=CalibratedOracle(deployment.oracle, TRUE_SCALE, TRUE_STEP_S))
    load = LoadResult(f"c{concurrency}", concurrency, lengths=((200, 40),) * (4 * concurrency))
    summary = simulate(true, workload_of(load)).summary
    keys = ("mean_tpot_ms", "mean_ttft_ms", "output_throughput")
    return replace(load, measured={key: float(summary[key] or math.nan) for key in keys})


class TestFit:
    """Host time and kernel scale."""

    @pytest.mark.slow
    def test_two_loads_tell_kernels_from_host(self) -> None:
        """Both numbers come back, and the error is small."""
        result = calibrate(OPTIONS.resolve().deployment, [measure(1), measure(64)], latency="roofline")
        assert result.profile.kernel_scale == pytest.approx(TRUE_SCALE, rel=0.02)
        assert result.profile.host_ms_per_step == pytest.approx(TRUE_STEP_S * 1e3, rel=0.1)
        assert result.profile.relative_error is not None and result.profile.relative_error < 0.01
        assert "kernel_scale" not in result.profile.not_identified

    def test_one_load_cannot_and_says_so(self) -> None:
        """The measurement is met all the same."""
        result = calibrate(OPTIONS.resolve().deployment, [measure(8)], latency="roofline")
        assert "kernel_scale" in result.profile.not_identified and result.profile.kernel_scale == 1.0
        (fit,) = result.fits
        assert fit.after["mean_tpot_ms"] == pytest.approx(fit.measured["mean_tpot_ms"], rel=0.02)
        assert abs(fit.before["mean_tpot_ms"] / fit.measured["mean_tpot_ms"] - 1) > 0.1

    def test_nothing_measured(self) -> None:
        """A log alone gives the blocks."""
        profile = calibrate(OPTIONS.resolve().deployment, [], latency="roofline", num_gpu_blocks=1234).profile
        assert profile.num_gpu_blocks == 1234
        assert set(profile.not_identified) == {"kernel_scale", "host_ms_per_step"}


class TestOracle:
    """Another oracle's prices, corrected."""

    def test_prices(self) -> None:
        """Times the factor, plus the step; host time as it was."""
        base: LatencyOracle = OPTIONS.resolve().deployment.oracle
        oracle = CalibratedOracle(base, 2.0, 1e-3)
        for shape in (decode_shape(8, 4000), StepShape((Chunk(300, 10),), 4, 4, 900, 5)):
            plain, corrected = base.step_time(shape), oracle.step_time(shape)
            assert corrected.device_s == pytest.approx(2 * plain.device_s + 1e-3)
            assert corrected.host_s == plain.host_s
            assert sum(part.seconds for part in oracle.explain(shape)) == pytest.approx(sum(corrected[:2]))
        assert oracle.decode_pricer(8)(4000) == oracle.step_time(decode_shape(8, 4000)).device_s
        assert oracle.error_bar() is None

    def test_a_step_never_takes_less_than_nothing(self) -> None:
        """However negative the correction."""
        base = OPTIONS.resolve().deployment.oracle
        assert CalibratedOracle(base, 1.0, -1.0).step_time(decode_shape(1, 10)).device_s == 0.0


class TestInputs:
    """What users already have."""

    BENCH: ClassVar[dict[str, object]] = {
        "completed": 10,
        "total_input_tokens": 1000,
        "total_output_tokens": 500,
        "request_rate": "inf",
        "max_concurrency": 4,
        "mean_tpot_ms": 20.0,
        "mean_ttft_ms": 50.0,
        "output_throughput": 180.0,
    }

    def test_vllm_bench(self, tmp_path: Path) -> None:
        """Means stand in for lengths that were not saved; one object, or one a line."""
        path = tmp_path / "r.json"
        path.write_text(
            json.dumps(self.BENCH) + "\n" + json.dumps(self.BENCH | {"max_concurrency": None, "request_rate": 2})
        )
        closed, opened = read_vllm_bench(path)
        assert closed.concurrency == 4 and closed.requests_per_s is None and closed.lengths == ((100, 50),) * 10
        assert opened.concurrency is None and opened.requests_per_s == 2.0
        assert [request.arrival_s for request in workload_of(opened).requests][:3] == [0.0, 0.5, 1.0]

    def test_lengths_that_were_saved(self, tmp_path: Path) -> None:
        """--save-detailed keeps each request's."""
        path = tmp_path / "r.json"
        path.write_text(json.dumps(self.BENCH | {"input_lens": [10, 20, 5], "output_lens": [3, 4, 0]}))
        assert read_vllm_bench(path)[0].lengths == ((10, 3), (20, 4))

    def test_guidellm(self, tmp_path: Path) -> None:
        """One observation a benchmark; a strategy of streams is a closed loop, one of a rate an open one."""
        metrics = {
            name: {"successful": {"mean": value}}
            for name, value in {
                "prompt_token_count": 256.0,
                "output_token_count": 128.0,
                "inter_token_latency_ms": 12.0,
                "time_to_first_token_ms": 40.0,
                "request_concurrency": 7.9,
                "requests_per_second": 4.0,
                "output_tokens_per_second": 500.0,
            }.items()
        }
        strategies = [{"type_": "concurrent", "streams": 8}, {"type_": "constant", "rate": 3.0}]
        path = tmp_path / "g.json"
        path.write_text(
            json.dumps({"benchmarks": [{"args": {"strategy": item}, "metrics": metrics} for item in strategies]})
        )
        closed, opened = read_guidellm(path)
        assert closed.concurrency == 8 and closed.measured["mean_tpot_ms"] == 12.0
        assert opened.concurrency is None and opened.requests_per_s == 3.0

    def scrape(self, path: Path, factor: int, extra: str = "") -> Path:
        """Counters after `factor` rounds."""
        path.write_text(
            f'vllm:request_success_total{{finished_reason="stop"}} {6 * factor}\n'
            f'vllm:request_success_total{{finished_reason="length"}} {4 * factor}\n'
            f"vllm:prompt_tokens_total {2000 * factor}\n"
            f"vllm:generation_tokens_total {1000 * factor}\n"
            f"vllm:iteration_tokens_total_count {125 * factor}\n"
            f"vllm:inter_token_latency_seconds_sum {19.8 * factor}\n"
            f"vllm:inter_token_latency_seconds_count {990 * factor}\n"
            f"vllm:num_requests_running 8\n{extra}"
        )
        return path

    def test_scrapes(self, tmp_path: Path) -> None:
        """Differences of counters: 8 tokens a step, 20 ms apart, prompts of 200 and outputs of 100."""
        label = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="4321"} 1.0\n'
        before, after = self.scrape(tmp_path / "a", 1), self.scrape(tmp_path / "b", 3, label)
        (found,), blocks = read_scrapes(before, after)
        assert blocks == 4321
        assert found.concurrency == 8 and found.lengths[0] == (200, 100)
        assert found.measured == {"mean_tpot_ms": pytest.approx(20.0)}
        with pytest.raises(InputError, match="earlier scrape first"):
            read_scrapes(after, before)

    def test_files_that_are_none(self, tmp_path: Path) -> None:
        """Each reader names the file."""
        path = tmp_path / "x"
        path.write_text("{}")
        with pytest.raises(InputError, match="x, result 1"):
            read_vllm_bench(path)
        with pytest.raises(InputError, match="GuideLLM"):
            read_guidellm(path)
        with pytest.raises(InputError, match="no vLLM metrics"):
            read_scrapes(path, path)
        path.write_text("not json")
        with pytest.raises(InputError, match="not JSON"):
            read_vllm_bench(path)


class TestProfileFile:
    """What is saved is what is applied."""

    def test_round_trip_into_a_simulation(self, tmp_path: Path) -> None:
        """Blocks and prices reach the deployment; blocks that are given win."""
        path = tmp_path / "p.json"
        Profile("roofline", 1.2, 0.5, 1111, 0.03, 2, {}, {}).write(path)
        deployment = replace(OPTIONS, profile=str(path)).resolve().deployment
        assert deployment.config.cache.num_blocks == 1111
        assert deployment.oracle.provenance == "calibrated roofline"
        bar = deployment.oracle.error_bar()
        assert bar is not None and bar.relative == 0.03
        given = replace(OPTIONS, profile=str(path), num_gpu_blocks_override=999).resolve().deployment
        assert given.config.cache.num_blocks == 999

    def test_bad_files(self, tmp_path: Path) -> None:
        """Missing, not JSON, not a profile, with unknown entries."""
        path = tmp_path / "p.json"
        with pytest.raises(ConfigError, match="cannot be read"):
            read_profile(path)
        path.write_text("[]")
        with pytest.raises(ConfigError, match="not a profile"):
            read_profile(path)
        path.write_text('{"format": "headway-profile-1", "latency": "roofline", "speed": 3}')
        with pytest.raises(ConfigError, match="unknown or missing"):
            read_profile(path)

    def test_the_command(self, tmp_path: Path) -> None:
        """From files to a profile; says what is missing."""
        bench, out = tmp_path / "b.json", tmp_path / "p.json"
        bench.write_text(json.dumps(TestInputs.BENCH))
        arguments = ["--model", "llama-3.1-8b", "--gpu", "l40s", "--bench", str(bench), "--out", str(out)]
        result = CliRunner().invoke(command, arguments, catch_exceptions=False)
        assert "Not identified: kernel_scale" in result.output and "num_gpu_blocks" in result.output
        assert read_profile(out).num_measurements == 1
        with pytest.raises(ConfigError, match="Nothing to calibrate on"):
            CliRunner().invoke(command, ["--model", "llama-3.1-8b", "--gpu", "l40s"], catch_exceptions=False)

    def test_what_the_fit_misses_is_named(self, tmp_path: Path) -> None:
        """Beyond a quarter, with the metric and by how much; a profile that was there is called replaced."""
        bench, out = tmp_path / "b.json", tmp_path / "p.json"
        arguments = ["--model", "llama-3.1-8b", "--gpu", "l40s", "--bench", str(bench), "--out", str(out)]
        bench.write_text(json.dumps(TestInputs.BENCH | {"mean_ttft_ms": 5000.0}))
        first = CliRunner().invoke(command, arguments, catch_exceptions=False).output
        (told,) = [line for line in first.splitlines() if line.startswith("Warning:")]
        assert re.search(r"misses .*mean_ttft_ms by -9\d%", told) and "replaced" not in first
        met = {
            key: value for key, value in TestInputs.BENCH.items() if key not in ("mean_ttft_ms", "output_throughput")
        }
        bench.write_text(json.dumps(met))
        second = CliRunner().invoke(command, arguments, catch_exceptions=False).output
        assert "Warning:" not in second and "which is replaced" in second
