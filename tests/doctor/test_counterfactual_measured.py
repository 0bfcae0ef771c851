"""Predicted against measured effects: a cheap part of what bench/doctor_pairs.py judges."""

from __future__ import annotations

from functools import cache

import pytest

from bench.measured_pairs import (
    Effect,
    MeasuredRun,
    Pair,
    evidence_of,
    find_pairs,
    judge,
    read_runs,
    spearman,
)
from headway.doctor.figures import figures_of
from headway.doctor.prediction.counterfactual import fit
from tests.shared_data import shared_path


@cache
def runs(source: str) -> tuple[MeasuredRun, ...]:
    conditions = {"max_model_len": 8192, "num_speculative_tokens": 3} if "l40s" in source else {}
    return tuple(read_runs(shared_path("measured_serving_open.csv"), source, conditions))


def pairs() -> list[Pair]:
    return find_pairs(runs("vedanti-l40s-ofat"))


def test_pairs_differ_in_one_setting_and_nothing_else() -> None:
    found = pairs()
    assert len(found) >= 15
    for pair in found:
        assert pair.before.load == pair.after.load and pair.before.deployment == pair.after.deployment
        names = {*pair.before.settings, *pair.after.settings}
        differing = {name for name in names if pair.before.settings.get(name) != pair.after.settings.get(name)}
        assert differing == {pair.setting}
        assert pair.setting != "speculative_config" or pair.before.settings.get("speculative_config")


def test_changes_on_an_l40s_go_the_way_and_as_far_as_predicted() -> None:
    """One pair of each kind of change. All of them: docs/doctor-accuracy.md."""
    chosen: dict[str, Pair] = {}
    for pair in pairs():
        chosen.setdefault(pair.setting, pair)
    judged = [judge(pair) for pair in chosen.values()]
    effects = [item.effects["output_throughput"] for item in judged]
    assert len(effects) >= 5
    assert sum(not effect.is_direction_right for effect in effects) <= 1
    assert all(effect.is_after_close for effect in effects)
    assert sum(effect.is_covered for effect in effects) >= len(effects) - 1


@pytest.mark.slow
def test_configurations_of_an_a10g_rank_by_throughput_as_predicted() -> None:
    """Every fourth run of the study, by a model fitted to one of the others."""
    every = runs("akamas-a10g-study")
    base, chosen = every[10], every[::4]
    evidence = evidence_of(base)
    model = fit(evidence, figures_of(evidence))
    predicted = []
    for run in chosen:
        changes = {name: value for name, value in run.settings.items() if name != "model"}
        predicted.append(
            float(model.simulate(model.deployment.changed(changes, must_start=False))["output_throughput"] or 0)
        )
    assert spearman(predicted, [run.measured["output_throughput"] for run in chosen]) >= 0.6


@pytest.mark.parametrize(
    ("measured", "predicted", "is_right", "is_close"),
    [
        (1.02, 0.98, True, True),
        (1.30, 1.27, True, True),
        (1.30, 1.20, True, False),
        (1.30, 0.90, False, False),
        (1.00, 1.10, False, False),
    ],
)
def test_an_effect_is_judged_by_direction_and_size(
    measured: float, predicted: float, is_right: bool, is_close: bool
) -> None:
    effect = Effect("output_throughput", measured, predicted, None, None)
    assert (effect.is_direction_right, effect.is_size_close) == (is_right, is_close)


def test_rank_correlation_counts_order_alone() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 1000]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 2, 3], [1, 2, 2, 3]) == pytest.approx(1.0)
