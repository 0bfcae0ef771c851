"""Which token budget: the curve, the targets, the recommendation."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headway.catalog import find_accelerator, find_model
from headway.errors import ConfigError
from headway.executors.simulated.constant import parse_constants
from headway.planner.deployment import Deployment
from headway.planner.lengths import LengthStats
from headway.planner.token_budget import Targets, advise_budget

CHAT = LengthStats(1000, 512, 256, 768, 1000)
TWO_H100 = Deployment(
    find_model("llama-3.3-70b"),
    find_accelerator("h100"),
    tensor_parallel_size=2,
    quantization="fp8",
    kv_cache_dtype="fp8",
    max_model_len=8192,
)


def test_larger_budgets_make_longer_gaps() -> None:
    """The step with a full chunk grows along the curve; a step of decodes only does not follow the budget."""
    advice = advise_budget(TWO_H100, CHAT, Targets(), concurrency=64)
    gaps = [point.chunk_step_ms for point in advice.points]
    assert all(a < b for a, b in pairwise(gaps))
    steps = [point.step_ms for point in advice.points]
    assert max(steps) < 1.1 * min(steps)


def test_the_recommendation_meets_the_targets_and_its_neighbours_show_the_price() -> None:
    """A gap limit rules out the large chunks; the curve still shows them."""
    advice = advise_budget(TWO_H100, CHAT, Targets(itl_ms=60.0))
    assert advice.recommended.meets_targets
    assert advice.recommended.chunk_step_ms <= 60.0
    assert len(advice.points) > 3 and advice.recommended in advice.points
    assert "targets" in advice.reason


def test_blocks_limit_how_many_run_on_one_h100() -> None:
    """One card has room for a few dozen chats; seats above that would only preempt."""
    one = Deployment(
        TWO_H100.model,
        TWO_H100.accelerator,
        quantization="fp8",
        kv_cache_dtype="fp8",
        max_model_len=4096,
        gpu_memory_utilization=0.95,
    )
    advice = advise_budget(one, CHAT, Targets())
    chosen = advice.recommended
    assert chosen.limited_by == "KV blocks"
    assert 20 < chosen.num_running < 60
    assert chosen.num_running * 48 <= chosen.num_gpu_blocks < (chosen.num_running + 1) * 48
    tokens = [point.num_gpu_blocks for point in advice.points]
    assert all(a >= b for a, b in pairwise(tokens))


def test_targets_that_nothing_meets_are_said_to_be_missed() -> None:
    """The closest point is given, and named as that."""
    advice = advise_budget(TWO_H100, CHAT, Targets(tpot_ms=1.0))
    assert not advice.recommended.meets_targets and "No budget meets" in advice.reason


def test_any_oracle_can_price_the_steps() -> None:
    """With a constant price there is no knee: the provenance says whose numbers these are."""
    oracle = parse_constants("step_ms=10")
    advice = advise_budget(TWO_H100, CHAT, Targets(), concurrency=32, oracle_for=lambda plan: oracle)
    assert advice.provenance == oracle.provenance
    assert {round(point.step_ms, 6) for point in advice.points} == {10.0}


def test_requests_longer_than_the_pool_have_no_budget() -> None:
    """The message leads to the plan."""
    with pytest.raises(ConfigError, match="No token budget"):
        advise_budget(
            Deployment(TWO_H100.model, TWO_H100.accelerator, quantization="fp8", max_model_len=8192),
            LengthStats(1, 60000, 1000, 61000, 61000),
            Targets(),
        )
