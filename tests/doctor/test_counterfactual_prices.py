"""Bringing the oracle in line with what was observed, and measuring a stretch of a run."""

from __future__ import annotations

import pytest

from headway.doctor.evidence import Evidence
from headway.doctor.figures import figures_of
from headway.doctor.prediction.deployment_fit import fit_deployment
from headway.doctor.prediction.gauges import gauges_of
from headway.doctor.prediction.model_check import Observed
from headway.doctor.prediction.oracle_fit import FittedModel, fit_model
from headway.doctor.prediction.windowed import Window, simulate_window
from headway.doctor.prediction.workload_fit import fit_workload
from headway.evidence.load import LoadResult
from headway.simulation.run import SimulatedWorkload, simulate
from headway.workload.trace import TraceRequest
from tests.doctor.simulated_truth import flags


def run(concurrency: int, **measured: float) -> LoadResult:
    return LoadResult("bench", concurrency, None, 256, 128, 8 * concurrency, measured=measured)


def fitted(*loads: LoadResult) -> FittedModel:
    evidence = Evidence(effective=flags("llama-3.1-8b", "L40S", max_model_len=8192), loads=loads)
    figures = figures_of(evidence)
    deployment = fit_deployment(evidence, figures)
    observed = [
        Observed(fit_workload(figures, load, gauges_of(figures), deployment), dict(load.measured)) for load in loads
    ]
    return fit_model(deployment, observed)


def measured(concurrency: int, scale: float, step_s: float) -> LoadResult:
    """What a client sees of a deployment with these prices."""
    model = fitted(run(concurrency, mean_tpot_ms=20.0))
    priced = model.deployment.priced_by(scale, step_s)
    summary = simulate(priced, model.workload.workload()).summary
    keys = ("mean_tpot_ms", "output_throughput", "mean_ttft_ms")
    return run(concurrency, **{key: float(summary[key] or 0.0) for key in keys})


def test_one_load_is_reproduced_whatever_the_split_between_kernels_and_host() -> None:
    model = fitted(measured(16, 1.2, 2e-3))
    assert model.check.accepted and model.check.residual is not None and model.check.residual < 0.04


def test_two_loads_tell_kernels_from_host() -> None:
    """Where the priors would have all of it come from kernels, or little from either."""
    model = fitted(measured(128, 1.0, 4e-3), measured(1, 1.0, 4e-3))
    assert model.prices.scale == pytest.approx(1.0, rel=0.03)
    assert model.prices.step_s == pytest.approx(4e-3, abs=8e-4)


def test_a_slow_step_is_put_down_to_the_host_and_a_small_difference_to_kernels() -> None:
    slow = fitted(run(1, mean_tpot_ms=80.0)).prices
    assert slow.step_s > 0.02
    near = fitted(run(1, mean_tpot_ms=24.0)).prices
    assert abs(near.step_s) < 1e-3 and near.scale == pytest.approx(1.05, abs=0.1)


def test_what_is_missed_by_half_is_not_predicted() -> None:
    honest = measured(16, 1.0, 0.0)
    odd = run(16, **{**honest.measured, "mean_ttft_ms": 9000.0})
    model = fitted(odd)
    assert "ttft_ms" in model.checked.withheld and "TTFT is not predicted" in model.check.note


def test_without_a_step_time_or_rate_there_is_nothing_to_check() -> None:
    assert not fitted(run(4, mean_ttft_ms=100.0)).check.accepted


# ------------------------------------------------------------------ windows


def clients(count: int) -> SimulatedWorkload:
    return SimulatedWorkload([TraceRequest(0.0, 256, 64 + index % 64) for index in range(count)], 16)


def test_a_window_leaves_the_first_wave_and_the_drain_out() -> None:
    deployment = fitted(run(16, mean_tpot_ms=22.0)).deployment.deployment
    whole = simulate_window(deployment, clients(96), None)
    within = simulate_window(deployment, clients(96), Window(16, 96))
    assert whole == simulate(deployment, clients(96)).summary
    assert within["mean_num_running"] == pytest.approx(16, abs=0.5)
    assert float(whole["mean_num_running"] or 0) < float(within["mean_num_running"] or 0)
    assert float(whole["output_throughput"] or 0) < float(within["output_throughput"] or 0)
    assert float(within["p99_ttft_ms"] or 0) < float(whole["p99_ttft_ms"] or 0), "nobody comes with fifteen others"


def test_a_window_that_sees_nothing_leaves_the_whole_run() -> None:
    deployment = fitted(run(16, mean_tpot_ms=22.0)).deployment.deployment
    assert simulate_window(deployment, clients(8), Window(8, 8)) == simulate(deployment, clients(8)).summary


def test_a_window_ends_at_an_instant() -> None:
    deployment = fitted(run(16, mean_tpot_ms=22.0)).deployment.deployment
    workload = SimulatedWorkload([TraceRequest(0.2 * index, 256, 64) for index in range(60)])
    early = simulate_window(deployment, workload, Window(0, 60, 1.0))
    late = simulate_window(deployment, workload, Window(0, 60, 12.0))
    assert float(early["mean_num_running"] or 0) < float(late["mean_num_running"] or 0)


def test_an_idle_engine_runs_nothing_within_a_window_either() -> None:
    """Little's law at a low load: requests under way are their rate × their latency, to a step."""
    deployment = fitted(run(16, mean_tpot_ms=22.0)).deployment.deployment
    workload = SimulatedWorkload([TraceRequest(20.0 * index, 256, 64) for index in range(20)])
    within = simulate_window(deployment, workload, Window(2, 20, 380.0))
    expected = float(within["mean_e2el_ms"] or 0) / 1e3 / 20.0
    assert 0.0 < expected < 0.2
    assert within["mean_num_running"] == pytest.approx(expected, rel=0.1)
