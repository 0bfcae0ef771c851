"""The deployment that is simulated: the blocks that the engine reports, and what one changed setting does to it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from headway.doctor.evidence import Evidence
from headway.doctor.figures import figures_of
from headway.doctor.prediction.deployment_fit import FittedDeployment, NotSimulatedError, changes_prices, fit_deployment
from headway.doctor.prediction.speculation_fit import acceptance_for, fit_speculation
from headway.evidence.engine import EngineEvent, EngineFacts, EngineTotals
from headway.executors.simulated.oracle import decode_shape
from headway.executors.simulated.speculation import SpeculationModel
from headway.simulation.options import DeploymentOptions
from tests.doctor.simulated_truth import VERSION, flags


def fitted(version: str = "0.24.0", facts: EngineFacts | None = None, **settings: Any) -> FittedDeployment:
    evidence = Evidence(
        effective=flags("llama-3.1-8b", "L40S", version, **{"max_model_len": 8192, **settings}),
        facts=facts or EngineFacts(),
    )
    return fit_deployment(evidence, figures_of(evidence))


def blocks(deployment: FittedDeployment) -> int:
    return deployment.deployment.config.cache.num_blocks


def test_blocks_are_those_that_the_engine_reports() -> None:
    planned = blocks(fitted())
    reported = fitted(facts=EngineFacts(num_gpu_blocks=planned - 321, block_size=16))
    assert blocks(reported) == planned - 321 and reported.kv_source == "reported"


def test_what_the_planner_missed_is_carried_to_other_settings() -> None:
    planned = fitted()
    reported = fitted(facts=EngineFacts(num_gpu_blocks=blocks(planned) - 321, block_size=16))
    change = {"gpu_memory_utilization": 0.8}
    missed = blocks(planned.changed(change)) - blocks(reported.changed(change))
    assert missed == pytest.approx(321, abs=1)
    halved = {"kv_cache_dtype": "fp8"}
    assert blocks(reported.changed(halved)) == pytest.approx(2 * blocks(reported), abs=2)


def test_a_change_moves_the_defaults_that_depend_on_it() -> None:
    """Without chunking, the budget grows to hold a whole prompt; with drafts looked up, scheduling is synchronous."""
    config = fitted().changed({"enable_chunked_prefill": False}).deployment.config.scheduler
    assert not config.enable_chunked_prefill and config.max_num_batched_tokens >= 8192
    drafting = fitted(speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert not drafting.deployment.config.scheduler.async_scheduling
    assert drafting.changed({"speculative_config": None}).deployment.config.scheduler.async_scheduling


def test_the_scheduler_that_the_engine_reports_wins_over_its_flags() -> None:
    assert fitted(facts=EngineFacts(max_num_seqs=48)).deployment.config.scheduler.max_num_seqs == 48


def test_before_v1_the_oldest_scheduler_stands_in_with_that_engine_s_defaults() -> None:
    old = fitted("0.6.3", max_model_len=4096)
    config = old.deployment.config
    assert config.policy == "continuous" and config.engine_version == "0.8.0"
    assert not config.cache.enable_prefix_caching
    shape = decode_shape(8, 4096)
    assert old.deployment.oracle.step_time(shape).host_s > fitted().deployment.oracle.step_time(shape).host_s


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"max_loras": 4}, "not part of the simulation"),
        ({"max_num_seqs": "many"}, "not a single number"),
        ({"max_model_len": 131_073}, "would not start"),
        ({"tensor_parallel_size": 3}, "would not start"),
        ({"gpu_memory_utilization": 0.35}, "would not start"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(NotSimulatedError, match=reason):
        fitted().changed(change)


def test_a_setting_that_the_release_lacks_is_refused() -> None:
    with pytest.raises(NotSimulatedError, match="has no setting async_scheduling"):
        fitted("0.9.0").changed({"async_scheduling": True})


def test_settings_that_price_steps_anew_are_told_from_those_that_choose_steps() -> None:
    assert changes_prices("kv_cache_dtype") and not changes_prices("max_num_seqs")


# ------------------------------------------------------------------ speculation


@pytest.mark.parametrize("drafts", [1, 3, 7])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.95])
def test_the_acceptance_rate_is_found_from_tokens_a_step(drafts: int, rate: float) -> None:
    mean = SpeculationModel(drafts, rate).mean_tokens_per_step
    assert acceptance_for(mean, drafts) == pytest.approx(rate, abs=1e-3)


def _speculating(**parts: Any) -> Evidence:
    config = {"method": "eagle3", "model": "some/head", "num_speculative_tokens": 2}
    return Evidence(effective=flags("llama-3.1-8b", "L40S", speculative_config=config), **parts)


def test_acceptance_comes_from_counters_or_log_lines() -> None:
    counted = _speculating(totals=EngineTotals(60.0, {"drafts": 100.0, "draft_tokens": 200.0, "accepted_tokens": 90.0}))
    logged = _speculating(events=(EngineEvent("spec_decode", 0.0, 1, "", {"mean_acceptance_length": 1.9}),))
    for evidence in (counted, logged):
        found = fit_speculation(evidence, figures_of(evidence))
        assert found is not None and found.num_drafts == 2
        model = fit_deployment(evidence, figures_of(evidence)).deployment.speculation
        assert model is not None and model.mean_tokens_per_step == pytest.approx(1.9, abs=0.01)
        assert 0.02 < model.draft_cost < 0.3, "a layer and the head of a model of 32 layers"


@pytest.mark.parametrize(
    ("model", "config"),
    [
        ("llama-3.1-8b", {"method": "ngram"}),
        ("llama-3.1-8b", {"method": "eagle3", "model": "some/head"}),
        ("llama-3.1-8b", {"method": "draft_model", "model": "llama-3.2-1b"}),
        ("llama-3.1-8b", {"model": "some/eagle-head"}),
        ("gpt-oss-20b", {"method": "eagle3", "model": "some/head"}),
    ],
)
def test_drafts_are_priced_and_scheduled_as_headway_simulate_does(model: str, config: dict[str, Any]) -> None:
    """All but the acceptance, which is the evidence's."""
    config = {**config, "num_speculative_tokens": 3}
    totals = EngineTotals(60.0, {"drafts": 100.0, "draft_tokens": 300.0, "accepted_tokens": 90.0})
    evidence = Evidence(effective=flags(model, "H100", max_model_len=8192, speculative_config=config), totals=totals)
    found = fit_deployment(evidence, figures_of(evidence)).deployment
    options = DeploymentOptions(
        model=model, gpu="h100", max_model_len=8192, engine_version=VERSION, speculative_config=json.dumps(config)
    )
    wanted = options.resolve().deployment
    assert found.speculation is not None and wanted.speculation is not None
    assert found.speculation == replace(wanted.speculation, acceptance_rate=found.speculation.acceptance_rate)
    assert found.speculation.mean_tokens_per_step == pytest.approx(1.9, abs=0.01)
    for name in ("num_speculative_tokens", "num_lookahead_tokens"):
        assert getattr(found.config.scheduler, name) == getattr(wanted.config.scheduler, name), name
    assert found.config.cache.drops_last_hit_block == wanted.config.cache.drops_last_hit_block
    assert found.config.scheduler.async_scheduling == wanted.config.scheduler.async_scheduling


def test_another_drafter_has_its_own_price_and_number_of_drafts() -> None:
    evidence = _speculating(
        totals=EngineTotals(60.0, {"drafts": 100.0, "draft_tokens": 200.0, "accepted_tokens": 90.0})
    )
    heads = fit_deployment(evidence, figures_of(evidence))
    looked_up = heads.changed({"speculative_config": {"method": "ngram", "num_speculative_tokens": 4}}).deployment
    before = heads.deployment.speculation
    assert before is not None and before.draft_s > 0.0
    assert looked_up.speculation == SpeculationModel(4, before.acceptance_rate)
    assert looked_up.config.scheduler.num_lookahead_tokens == 0 and not looked_up.config.cache.drops_last_hit_block


def test_drafts_that_only_a_log_shows_stay_when_another_setting_changes() -> None:
    line = EngineEvent("spec_decode", 0.0, 1, "", {"mean_acceptance_length": 1.9})
    evidence = Evidence(effective=flags("llama-3.1-8b", "L40S", max_model_len=8192), events=(line,))
    seen = fit_deployment(evidence, figures_of(evidence))
    assert seen.deployment.speculation is not None
    assert seen.changed({"max_num_seqs": 32}).deployment.speculation == seen.deployment.speculation
    assert seen.changed({"speculative_config": None}).deployment.speculation is None


def test_nothing_speculates_unless_something_shows_it() -> None:
    evidence = Evidence(effective=flags("llama-3.1-8b", "L40S"))
    assert fit_speculation(evidence, figures_of(evidence)) is None
