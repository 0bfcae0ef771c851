"""What the doctor simulates is bounded, whatever the evidence; and long outputs in coarse steps are as in fine ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.engine import Engine
from headway.core.events import Event, StepScheduled
from headway.doctor.diagnosis import Fix
from headway.doctor.evidence import Evidence, Objective
from headway.doctor.figures import figures_of
from headway.doctor.prediction.counterfactual import fit, predict, predict_with
from headway.doctor.prediction.grain import coarse_request, steps_of
from headway.doctor.prediction.oracle_fit import FittedModel
from headway.doctor.prediction.running import TooMuchWorkError, simulate_fitted
from headway.doctor.prediction.workload_fit import FittedWorkload
from headway.evidence.engine import EngineSample
from headway.evidence.load import LoadResult
from headway.executors.simulated.oracle import Chunk, StepShape, decode_shape
from headway.report.summary import Summary
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedDeployment
from headway.workload.trace import TraceRequest
from tests.doctor.simulated_truth import flags

# ------------------------------------------------------------------ bounds


def full_cache(num_requests: int, running: int, tokens_per_s: float) -> tuple[EngineSample, ...]:
    """A pool that is full with so few running that each must be tens of thousands of tokens long."""
    return tuple(
        EngineSample(
            5.0 * index, "0", running - 3.0 * index, num_requests - running + 3.0 * index, None, 1.0, 0.0, tokens_per_s
        )
        for index in range(5)
    )


CANDIDATES = [
    *(Fix("max_num_seqs", 256, seats, reason="a candidate") for seats in (64, 128, 192, 512, 1024)),
    *(Fix("gpu_memory_utilization", 0.9, share, reason="a candidate") for share in (0.85, 0.93, 0.95)),
    Fix("kv_cache_dtype", "auto", "fp8", reason="a candidate"),
    Fix("replicas", 1, 2, reason="a candidate"),
]
HEAVY = {
    "outputs of 16,000 tokens": Evidence(
        effective=flags("qwen2.5-0.5b", "H100", "0.6.3"), samples=full_cache(987, 240, 2100.0)
    ),
    "outputs of 16,000 tokens, V1": Evidence(
        effective=flags("qwen2.5-0.5b", "H100"), samples=full_cache(987, 240, 2100.0)
    ),
    "thousands of clients": Evidence(
        effective=flags("llama-3.1-8b", "H100"),
        loads=(LoadResult("bench", 20_000, None, 500, 300, 60_000, measured={"mean_tpot_ms": 30.0}),),
    ),
    "speculation with long outputs": Evidence(
        effective=flags("llama-3.1-8b", "H100", speculative_config={"method": "ngram", "num_speculative_tokens": 4}),
        loads=(LoadResult("bench", 200, None, 500, 8000, 2000, measured={"mean_tpot_ms": 15.0, "mean_itl_ms": 25.0}),),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_ten_fixes_take_a_bounded_number_of_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fit and fixes together; counted in steps and in requests that are scheduled one by one in them."""
    counted = [0, 0]
    tell = Engine._tell

    def counting(self: Engine, event: Event) -> None:
        if isinstance(event, StepScheduled):
            counted[0] += 1
            counted[1] += len(event.plan.scheduled)
        tell(self, event)

    monkeypatch.setattr(Engine, "_tell", counting)
    check, fixes = predict(HEAVY[name], CANDIDATES)
    assert check is not None and check.accepted, check
    assert sum(bool(fix.predicted) for fix in fixes) >= 2
    assert counted[0] < 150_000 and counted[1] < 6_000_000


def test_fixes_that_are_all_too_much_work_are_not_all_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    evidence = Evidence(
        effective=flags("llama-3.1-8b", "L40S", max_model_len=8192),
        loads=(LoadResult("bench", 8, None, 256, 64, 64, measured={"mean_tpot_ms": 25.0}),),
    )
    model, tried = fit(evidence, figures_of(evidence)), list[str]()

    def too_much(self: FittedModel, *given: object, **options: object) -> tuple[Summary, float]:
        tried.append("one")
        raise TooMuchWorkError(0.1)

    monkeypatch.setattr(FittedModel, "run", too_much)
    fixes = [Fix("max_num_seqs", 256, seats, reason="a candidate") for seats in range(16, 56)]
    answers = predict_with(model, fixes, Objective())
    assert len(answers) == len(fixes) and not any(fix.predicted for fix in answers)
    assert 2 <= len(tried) < 8


def test_a_simulation_beyond_its_bound_is_given_up_and_says_how_far_it_got() -> None:
    with pytest.raises(TooMuchWorkError) as given_up:
        simulate_fitted(deployment(), workload(2000), 20_000)
    assert 0.0 < given_up.value.share < 1.0


def test_a_workload_is_made_cheaper_by_coarser_steps_first_and_then_by_fewer_requests() -> None:
    long = workload(4000).cheaper(0.3)
    assert long is not None and long.grain == 4 and len(long.requests) == len(workload(4000).requests)
    assert any("4 at a time" in text for text in long.explained())
    short = replace(workload(60), concurrency=16).cheaper(0.5)
    assert short is not None and short.grain == 1 and len(short.requests) == len(workload(60).requests) // 2
    assert any("simulated" in text for text in short.explained())


def test_work_is_counted_without_a_bound() -> None:
    _, work = simulate_fitted(deployment(), workload(500))
    assert work > 200 * len(workload(500).requests)


# ------------------------------------------------------------------ coarse steps


def deployment(**settings: object) -> SimulatedDeployment:
    """An 8B whose pool is full."""
    options = DeploymentOptions(
        model="llama-3.1-8b",
        gpu="L40S",
        max_model_len=16384,
        num_gpu_blocks_override=3000,
        **settings,  # type: ignore[arg-type]
    )
    return options.resolve().deployment


def workload(num_output_tokens: int, grain: int = 1) -> FittedWorkload:
    """Sixty-four clients; outputs of half to one and a half times that."""
    requests = tuple(
        TraceRequest(0.0, 200 + 37 * index % 800, num_output_tokens // 2 + (num_output_tokens * (index % 33)) // 32)
        for index in range(192)
    )
    return FittedWorkload(requests, 64, False, "a test", grain=grain)


def value(summary: Summary, key: str) -> float:
    return float(summary[key] or 0.0)


@pytest.mark.parametrize("chunked", [True, False])
def test_coarse_steps_show_what_fine_ones_do(chunked: bool) -> None:
    """Under starvation: as many run and wait, as long, and as many are preempted."""
    here = deployment(enable_chunked_prefill=chunked)
    (fine, work), (coarse, less) = simulate_fitted(here, workload(2000)), simulate_fitted(here, workload(2000, 8))
    assert less < work / 2
    for key in ("output_throughput", "mean_tpot_ms", "mean_num_running", "mean_kv_usage", "mean_ttft_ms", "duration"):
        assert value(coarse, key) == pytest.approx(value(fine, key), rel=0.08), key
    assert value(fine, "num_preemptions") > 20
    assert value(coarse, "num_preemptions") == pytest.approx(value(fine, "num_preemptions"), rel=0.25)


chunks = st.lists(st.builds(Chunk, st.integers(1, 3000), st.integers(0, 5000)), max_size=3).map(tuple)


@given(chunks, st.integers(0, 300), st.integers(1, 64), st.integers(512, 8192))
def test_a_coarse_step_stands_for_its_prompts_and_for_all_its_decodes(
    parts: tuple[Chunk, ...], decodes: int, grain: int, budget: int
) -> None:
    shape = StepShape(parts, decodes, decodes, 700 * decodes, decodes)
    steps = steps_of(shape, grain, budget)
    computed = sum(count * one.num_prefill_tokens for count, one in steps)
    wanted = grain * shape.num_prefill_tokens
    assert wanted <= computed <= wanted + grain * len(parts)
    if decodes:
        assert sum(count for count, _ in steps) == grain
    assert all(one.num_context_tokens == grain * shape.num_context_tokens for _, one in steps)


@given(chunks, st.integers(0, 300))
def test_a_grain_of_one_changes_nothing(parts: tuple[Chunk, ...], decodes: int) -> None:
    shape = StepShape(parts, decodes, decodes, 700 * decodes, decodes)
    assert steps_of(shape, 1, 2048) == [(1, shape)]
    assert steps_of(decode_shape(8, 900), 1, 2048) == [(1, decode_shape(8, 900))]


def test_what_requests_share_stays_the_same_part_of_them() -> None:
    keys = tuple(("shared", index) for index in range(64))
    for key_tokens in (16, 512):
        request = TraceRequest(1.0, 4 * 64 * key_tokens, 640, block_keys=keys, block_key_tokens=key_tokens)
        coarse = coarse_request(request, 32)
        shared = len(coarse.block_keys) * coarse.block_key_tokens
        assert shared / coarse.num_prompt_tokens == pytest.approx(0.25, rel=0.02)
        assert (coarse.arrival_s, coarse.num_output_tokens) == (1.0, 20)
