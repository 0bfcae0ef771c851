"""What the doctor predicts of a fix, against what the fix does to the deployment that the evidence came from."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from headway.doctor.diagnosis import Fix, Predicted
from headway.doctor.evidence import Evidence, Objective
from headway.doctor.figures import figures_of
from headway.doctor.prediction.counterfactual import MOST_SIMULATED, fit, predict, predict_with
from headway.doctor.prediction.oracle_fit import FittedModel
from headway.evidence.engine import EngineFacts, EngineSample
from headway.evidence.load import LoadResult
from headway.report.summary import Summary
from tests.doctor.simulated_truth import Truth, chat, flags

SEATS = Truth({"max_model_len": 8192, "max_num_seqs": 16}, chat(400, 2.0, 400, 200))
CACHE = Truth({"max_model_len": 8192, "gpu_memory_utilization": 0.5}, chat(300, 2.0, 1000, 400))
CLIENTS = Truth({"max_model_len": 8192, "max_num_seqs": 32}, chat(600, None, 300, 150), concurrency=96)
TRUTHS = {"seats": SEATS, "cache": CACHE, "clients": CLIENTS}


@cache
def evidence(name: str, *, with_histograms: bool = True) -> Evidence:
    """Evidence of one of them."""
    return TRUTHS[name].evidence(with_histograms=with_histograms)


@cache
def model(name: str, *, with_histograms: bool = True) -> FittedModel:
    """The model fitted to it."""
    seen = evidence(name, with_histograms=with_histograms)
    return fit(seen, figures_of(seen))


def predicted(name: str, *fixes: Fix, objective: Objective | None = None) -> list[Fix]:
    return predict_with(model(name), fixes, objective or Objective())


def fix(setting: str, old: object, new: object) -> Fix:
    return Fix(setting, old, new, reason="a candidate")


def effect(item: Fix, metric: str) -> Predicted:
    return next(found for found in item.predicted if found.metric == metric)


def value(summary: Summary, metric: str) -> float:
    found = summary[metric]
    assert found is not None
    return float(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUTHS)
@pytest.mark.parametrize("with_histograms", [True, False])
def test_the_fitted_model_reproduces_what_was_observed(name: str, with_histograms: bool) -> None:
    """Also from gauges alone, by Little's law."""
    check = model(name, with_histograms=with_histograms).check
    assert check.accepted and check.residual is not None
    assert check.residual < 0.15
    assert set(check.simulated) == set(check.observed)


@pytest.mark.parametrize(
    ("name", "setting", "old", "new"),
    [
        ("seats", "max_num_seqs", 16, 64),
        ("cache", "gpu_memory_utilization", 0.5, 0.9),
        ("cache", "kv_cache_dtype", "auto", "fp8"),
        ("clients", "max_num_seqs", 32, 96),
        ("clients", "enforce_eager", False, True),
    ],
)
def test_a_fix_does_what_was_predicted(name: str, setting: str, old: object, new: object) -> None:
    """Step times within the error bar and a few percent, for the window is not the run; TTFT in its magnitude."""
    (item,) = predicted(name, fix(setting, old, new))
    after = TRUTHS[name].summary(**{setting: new})
    tpot, ttft = effect(item, "mean_tpot_ms"), effect(item, "median_ttft_ms")
    assert tpot.low is not None and tpot.high is not None
    assert 0.92 * tpot.low <= value(after, "mean_tpot_ms") <= 1.08 * tpot.high
    measured = value(after, "median_ttft_ms")
    assert abs(math.log((ttft.after + 100) / (measured + 100))) < math.log(1.6)


def test_the_smallest_change_that_brings_enough_comes_first_and_useless_ones_last() -> None:
    candidates = [fix("max_num_seqs", 16, seats) for seats in (17, 48, 256)]
    candidates.append(fix("gpu_memory_utilization", 0.92, 0.95))
    ranked = predicted("seats", *candidates)
    assert [item.to_value for item in ranked] == [48, 256, 17, 0.95]
    assert ranked[-1].helps is False and "does not help" in ranked[-1].note


def test_an_objective_decides_what_is_enough() -> None:
    """One seat more is the smallest change, and already meets a bound that is nearly met."""
    lenient = Objective({"median_ttft_ms": 60_000.0})
    ranked = predicted("seats", fix("max_num_seqs", 16, 18), fix("max_num_seqs", 16, 64), objective=lenient)
    assert [item.to_value for item in ranked] == [18, 64]


def test_what_gets_worse_is_a_side_effect() -> None:
    (item,) = predicted("clients", fix("max_num_seqs", 32, 96))
    assert any("TPOT" in text and "→" in text for text in item.side_effects)


def test_two_replicas_share_the_load() -> None:
    (item,) = predicted("cache", fix("replicas", 1, 2))
    assert effect(item, "mean_kv_usage").after < 0.7 * effect(item, "mean_kv_usage").before
    assert effect(item, "p99_ttft_ms").after < 0.5 * effect(item, "p99_ttft_ms").before


def test_shorter_answers_take_less_of_the_cache() -> None:
    (item,) = predicted("cache", fix("max_tokens", None, 64))
    assert effect(item, "mean_kv_usage").after < effect(item, "mean_kv_usage").before


@pytest.mark.parametrize(
    ("setting", "new", "reason"),
    [
        ("client", "several processes", "client"),
        ("attention_backend", "FLASHINFER", "not part of the simulation"),
        ("enable_prefix_caching", True, "shared"),
        ("speculative_config", {"method": "eagle3", "num_speculative_tokens": 3}, "accepted"),
        ("max_num_seqs", "256 or more", "single number"),
        ("max_model_len", 400_000, "would not start"),
        ("request_rate", "half", "not a number"),
    ],
)
def test_what_cannot_be_simulated_says_why(setting: str, new: object, reason: str) -> None:
    (item,) = predicted("seats", fix(setting, 1, new))
    assert not item.predicted and item.helps is None
    assert reason in item.note


def test_a_fix_that_is_not_simulated_keeps_its_place_before_all_others() -> None:
    order = [fix("client", None, "several"), fix("max_num_seqs", 16, 64), fix("max_loras", 1, 4)]
    ranked = predicted("seats", *order)
    assert [item.setting for item in ranked] == ["client", "max_num_seqs", "max_loras"]


def test_no_more_than_a_dozen_fixes_are_simulated() -> None:
    run = LoadResult("bench", 4, None, 64, 16, 16, measured={"mean_tpot_ms": 22.0})
    short = Evidence(effective=flags("llama-3.1-8b", "L40S", max_model_len=4096), loads=(run,))
    _, ranked = predict(short, [fix("max_num_seqs", 256, 100 + index) for index in range(MOST_SIMULATED + 2)])
    assert sum(bool(item.predicted) for item in ranked) == MOST_SIMULATED


def _known(gpu: str | None = "L40S", **parts: object) -> Evidence:
    base = Evidence(effective=flags("llama-3.1-8b", gpu, max_model_len=8192))
    return replace(base, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (Evidence(), "model is not known"),
        (Evidence(effective=flags("nobody/knows-this-one", "L40S")), "not in the catalogue"),
        (_known(None), "GPU is not known"),
        (_known(facts=EngineFacts(engine="sglang")), "SGLang"),
        (_known(), "load cannot be told"),
        (_known(loads=(LoadResult("bench", 4, None, 100, 100, 16),)), "cannot be checked"),
        (_known(loads=(LoadResult("bench", mean_prompt_tokens=9, mean_output_tokens=9),)), "neither a rate"),
    ],
)
def test_without_what_a_simulation_needs_nothing_is_predicted(seen: Evidence, reason: str) -> None:
    check, (item,) = predict(seen, [fix("max_num_seqs", 256, 512)])
    assert check is not None and not check.accepted and reason in check.note
    assert not item.predicted and item.note


def test_a_model_that_misses_what_was_observed_predicts_nothing() -> None:
    """Six seconds a token at one request are no roofline's error."""
    run = LoadResult("bench", 1, None, 100, 100, 8, measured={"mean_tpot_ms": 6000.0, "output_throughput": 40.0})
    check, (item,) = predict(_known(loads=(run,)), [fix("max_num_seqs", 256, 512)])
    assert check is not None and not check.accepted and check.residual is not None and check.residual > 0.35
    assert "35 %" in check.note.replace("35%", "35 %") and not item.predicted


def test_hostile_figures_do_not_break_it() -> None:
    samples = tuple(
        EngineSample(at, num_running=running, num_waiting=waiting, kv_usage=usage, generation_tokens_per_s=rate)
        for at, running, waiting, usage, rate in [
            (0.0, 3.0, 0.0, 0.1, 100.0),
            (0.0, math.nan, 1.0, -1.0, 1e12),
            (-5.0, 1e9, -4.0, 2.0, -3.0),
            (9.0, 4.0, 0.0, 0.1, 0.0),
        ]
    )
    check, ranked = predict(_known(samples=samples), [fix("max_num_seqs", 256, 512)])
    assert check is not None and len(ranked) == 1
