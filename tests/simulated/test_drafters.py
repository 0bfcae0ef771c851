"""What drafts cost: passes of a drafter, by its weights and its launches."""

from __future__ import annotations

import json

import pytest

from headway.catalog import find_accelerator, find_model
from headway.errors import ConfigError
from headway.executors.simulated.coefficients import fitted_coefficients
from headway.executors.simulated.drafters import draft_share, pass_overhead_s
from headway.executors.simulated.oracle import Chunk, StepShape, decode_shape
from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup
from headway.executors.simulated.speculation import SpeculationModel
from headway.simulation.drafts import parse_drafts
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import simulate
from headway.simulation.workload_options import WorkloadOptions

LLAMA = find_model("llama-3.1-8b")
ORACLE = RooflineOracle(RooflineSetup(LLAMA, find_accelerator("h100")))


class TestShares:
    """A drafter's pass over the model's, by weights that are read."""

    def test_looking_up_costs_nothing(self) -> None:
        assert draft_share("ngram", LLAMA) == 0.0
        assert pass_overhead_s("suffix", fitted_coefficients().coefficients) == 0.0

    def test_a_head_is_a_layer_and_the_output_head(self) -> None:
        """218 M of a layer and 525 M of the head, of 7.5 billion."""
        assert draft_share("eagle3", LLAMA) == pytest.approx(0.099, abs=0.002)
        assert draft_share("medusa", LLAMA) == pytest.approx(0.070, abs=0.002)

    def test_a_draft_model_counts_by_its_weights(self) -> None:
        small = find_model("llama-3.2-1b")
        assert draft_share("draft_model", LLAMA, small) == pytest.approx(1.24 / 7.5, rel=0.05)
        assert draft_share("draft_model", LLAMA) == draft_share("draft_model", None) == 0.1

    def test_a_head_of_a_mixture_is_read_by_itself(self) -> None:
        """gpt-oss 120B on an H200: 1.4 GB in 16 bits and a layer's launches, however many experts a step reaches."""
        options = DeploymentOptions(
            model="gpt-oss-120b",
            gpu="h200",
            max_model_len=4096,
            speculative_config='{"method": "eagle3", "num_speculative_tokens": 2}',
        )
        model = options.resolve().deployment.speculation
        assert model is not None and model.draft_cost == 0.0
        fitted = fitted_coefficients().coefficients
        read_s = 1.38e9 / (4.8e12 * fitted.memory)
        assert model.draft_s == pytest.approx(read_s + fitted.eager_layer_s + fitted.layer_s, rel=0.03)


class TestPasses:
    """One pass over all rows of a step, k - 1 over one row for each sequence."""

    def test_a_decode_step(self) -> None:
        model = SpeculationModel(4, 0.7, draft_cost=0.1, draft_s=1e-3)
        shape = StepShape((), 8, 40, 8 * 500, 8)
        step_s = ORACLE.step_time(shape).device_s
        single_s = ORACLE.step_time(decode_shape(8, 8 * 500)).device_s
        assert model.drafting_s(ORACLE, shape, step_s) == pytest.approx(0.1 * (step_s + 3 * single_s) + 4e-3)

    def test_a_prompt_passes_once(self) -> None:
        """However many drafts follow: a chunk without a token has none."""
        shape = StepShape((Chunk(4096, 0),), 0, 0, 0, 0)
        step_s = ORACLE.step_time(shape).device_s
        costs = [SpeculationModel(k, 0.7, draft_cost=0.1).drafting_s(ORACLE, shape, step_s) for k in (1, 5)]
        assert costs == pytest.approx([0.1 * step_s] * 2)

    def test_free_drafts_are_free(self) -> None:
        shape = decode_shape(8, 4000)
        assert SpeculationModel(4, 0.7).drafting_s(ORACLE, shape, 1.0) == 0.0

    def test_a_negative_cost_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="negative"):
            SpeculationModel(4, 0.7, draft_s=-1.0)


class TestConfiguration:
    """vLLM's JSON."""

    @pytest.mark.parametrize(
        ("text", "method"),
        [
            ('{"num_speculative_tokens": 3}', ""),
            ('{"method": "ngram", "num_speculative_tokens": 3}', "ngram"),
            ('{"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}', "eagle3"),
            ('{"model": "meta-llama/Llama-3.2-1B", "num_speculative_tokens": 3}', "draft_model"),
        ],
    )
    def test_methods(self, text: str, method: str) -> None:
        drafts = parse_drafts(text)
        assert (drafts.count, drafts.method) == (3, method)

    def test_looked_up_drafts_forbid_asynchronous_scheduling_and_slots_ahead(self) -> None:
        """As vLLM turns it off; heads leave the last block of a prefix hit out."""
        found = {}
        for method in ("ngram", "eagle3"):
            config = json.dumps({"method": method, "num_speculative_tokens": 3})
            options = DeploymentOptions(
                model="llama-3.1-8b", gpu="h100", max_model_len=4096, speculative_config=config
            ).resolve()
            engine = options.deployment.config
            found[method] = (
                engine.scheduler.async_scheduling,
                engine.scheduler.num_lookahead_tokens,
                engine.cache.drops_last_hit_block,
            )
        assert found == {"ngram": (False, 0, False), "eagle3": (True, 3, True)}

    def test_a_given_cost_is_all_there_is(self) -> None:
        options = DeploymentOptions(
            model="llama-3.1-8b",
            gpu="h100",
            max_model_len=4096,
            speculative_config='{"method": "eagle", "num_speculative_tokens": 3}',
            draft_cost=0.0,
        )
        assert options.resolve().deployment.speculation == SpeculationModel(3, 0.7)


def _speed_ups(method: str, counts: tuple[int, ...], concurrency: int, **settings: float) -> list[float]:
    workload, _ = WorkloadOptions(
        num_prompts=max(8, 2 * concurrency), concurrency=concurrency, prompt_tokens="100", output_tokens="300"
    ).open()

    def rate(config: str | None) -> float:
        options = DeploymentOptions(
            model="llama-3.1-8b",
            gpu="h100",
            max_model_len=4096,
            engine_version="0.9.0",
            speculative_config=config,
            **settings,  # type: ignore[arg-type]
        )
        return float(simulate(options.resolve().deployment, workload).summary["output_throughput"] or 0.0)

    plain = rate(None)
    return [rate(json.dumps({"method": method, "num_speculative_tokens": count})) / plain for count in counts]


def test_more_drafts_than_a_few_are_worth_less() -> None:
    """vLLM pull request 16937, EAGLE on Llama 3.1 8B and an H100, one client: 1.51, 1.48 and 1.27 at 2, 4 and 7."""
    assert _speed_ups("eagle", (2, 4, 7), 1) == pytest.approx([1.51, 1.48, 1.27], rel=0.12)


def test_a_crowd_has_less_use_for_drafts() -> None:
    """Rows that are verified are free only while a step waits for its weights."""
    (alone,), (crowded,) = (_speed_ups("eagle", (4,), clients) for clients in (1, 200))
    assert crowded < 0.8 * alone
