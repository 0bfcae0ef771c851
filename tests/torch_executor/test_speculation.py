"""Drafts by prompt lookup: what is proposed, that they change no token, and when they stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headway.config import (
    REFERENCE_ENGINE_VERSION,
    CacheConfig,
    EngineOptions,
    ModelFacts,
    SchedulerConfig,
    Speculation,
    StepTime,
    parse_speculation,
    resolve,
)
from headway.core.arrivals import Arrival, TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import ConfigError
from headway.executors.torch import LoadedModel, TorchExecutor
from headway.executors.torch.drafts import DraftGate, NgramIndex
from tests.torch_executor.support import output_ids, random_ids
from tests.torch_executor.tiny_models import VOCAB_SIZE

LOOKUP = Speculation(num_speculative_tokens=4, prompt_lookup_max=3, prompt_lookup_min=2)


def test_drafts_follow_the_last_occurrence_of_the_longest_ending() -> None:
    """Three tokens before two; the later place before the earlier; none without a match."""
    assert NgramIndex(LOOKUP).propose([1, 2, 3, 9, 9, 2, 3, 7, 1, 2, 3], 2) == [9, 9]
    assert NgramIndex(LOOKUP).propose([2, 3, 7, 5, 2, 3, 8, 6, 2, 3], 4) == [8, 6, 2, 3]
    assert NgramIndex(LOOKUP).propose([1, 2, 3, 4], 4) == []
    assert NgramIndex(LOOKUP).propose([5], 4) == []
    index = NgramIndex(LOOKUP)
    assert index.propose([1, 2, 3, 4], 4) == []
    assert index.propose([1, 2, 3, 4, 1, 2], 4) == [3, 4, 1, 2], "it grew with the sequence"


def _serve(
    model: LoadedModel, prompts: list[list[int]], sampling: list[SamplingParams], speculation: Speculation | None
) -> tuple[list[list[int]], Engine]:
    count = speculation.num_speculative_tokens if speculation is not None else 0
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=8, max_num_batched_tokens=64, max_model_len=400, num_speculative_tokens=count),
        CacheConfig(num_blocks=60, block_size=16),
        engine_version=REFERENCE_ENGINE_VERSION,
    )
    requests = [
        Request(f"r{i}", TokenContent(prompt, 16), len(prompt), params, 400)
        for i, (prompt, params) in enumerate(zip(prompts, sampling, strict=True))
    ]
    executor = TorchExecutor(model, 60, 16, speculation=speculation)
    engine = Engine(scheduler, executor, VirtualClock(), TraceSource([(0.0, Arrival(r)) for r in requests]))
    for _ in engine.run():
        scheduler.check_integrity()
    return [output_ids(request) for request in requests], engine


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_drafts_change_no_token(temperature: float, loaded: Callable[[str], LoadedModel]) -> None:
    """Repetitive prompts and random ones, greedy and drawn, some alike so that prefixes are cached: fewer steps."""
    pattern = random_ids(6, VOCAB_SIZE)
    prompts = [pattern * 8, random_ids(50, VOCAB_SIZE, seed=1), pattern * 8, pattern * 3 + random_ids(7, VOCAB_SIZE)]
    # The bias makes the model repeat itself, as real ones do.
    sampling = [
        SamplingParams(temperature=temperature, seed=i, max_tokens=60, logit_bias=dict.fromkeys(pattern, 6.0))
        for i in range(4)
    ]
    plain, plain_engine = _serve(loaded("llama"), prompts, sampling, None)
    drafted, engine = _serve(loaded("llama"), prompts, sampling, LOOKUP)
    assert drafted == plain
    assert engine.stats.num_accepted_tokens > 0 and engine.num_steps < plain_engine.num_steps


def test_the_gate_closes_where_drafts_cost_more_than_they_bring() -> None:
    """Worth it at any acceptance where rows are free; above the growing share of a step where they are not."""
    gate = DraftGate(StepTime(fixed_s=0.01, per_token_s=0.001))
    assert gate.pays(1)
    for _ in range(100):
        gate.learn(4, 0)
    assert not gate.pays(1) and gate.acceptance < 0.05
    assert sum(gate.opens(1) for _ in range(64)) == 2, "it probes now and then"
    for _ in range(100):
        gate.learn(4, 3)
    assert gate.pays(1) and gate.pays(25) and not gate.pays(60), "break-even at 3/4 is 30 rows"


def test_the_config_reads_vllms_json() -> None:
    """Defaults, and every mistake with its reason."""
    assert parse_speculation('{"method": "ngram"}') == Speculation(4, 4, 2)
    text = '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 1}'
    assert parse_speculation(text) == Speculation(5, 1, 1)
    for text, match in (
        ("{", "not JSON"),
        ('{"method": "eagle"}', "ngram alone"),
        ('{"method": "ngram", "model": "x"}', "no 'model'"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', "at least 1"),
        ('{"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 3}', "above"),
    ):
        with pytest.raises(ConfigError, match=match):
            parse_speculation(text)


def _resolved(step_time: StepTime | None, **options: Any) -> tuple[int, str | None]:
    config = resolve(EngineOptions(num_blocks=100, **options), ModelFacts(2048, 1000), step_time=step_time)
    return config.scheduler.max_num_batched_tokens, config.reasons.get("max_num_batched_tokens")


def test_the_token_budget_follows_from_the_measured_step_time() -> None:
    """(target - fixed) / per token, in whole thirty-twos, between the seats and 2048; a given budget stands."""
    time = StepTime(fixed_s=0.02, per_token_s=0.0005)
    budget, reason = _resolved(time)
    assert budget == 352 and reason is not None and "196 ms" in reason and "200 ms" in reason
    assert _resolved(time, tpot_target_ms=400)[0] == 736
    assert _resolved(time, tpot_target_ms=10, max_num_seqs=48)[0] == 48
    assert _resolved(StepTime(0.0, 1e-6))[0] == 2048
    assert _resolved(None)[0] == 256
    assert _resolved(time, max_num_batched_tokens=100) == (100, None)


def test_drafts_and_asynchronous_scheduling_exclude_each_other() -> None:
    """The next step is planned before its drafts could be known."""
    with pytest.raises(ConfigError, match="asynchronous"):
        _resolved(None, async_scheduling=True, speculative_config='{"method": "ngram"}')
