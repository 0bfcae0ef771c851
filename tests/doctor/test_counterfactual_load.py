"""The load that the evidence shows: lengths, how requests come, and how many are simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.doctor.evidence import Evidence
from headway.doctor.figures import figures_of
from headway.doctor.prediction.deployment_fit import NotSimulatedError, fit_deployment
from headway.doctor.prediction.gauges import Gauges, gauges_of
from headway.doctor.prediction.lengths_fit import draw_histogram
from headway.doctor.prediction.workload_fit import FittedWorkload, fit_workload
from headway.evidence.engine import EngineSample, EngineTotals, Histogram
from headway.evidence.load import LoadResult
from tests.doctor.simulated_truth import flags, histogram

BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def samples(in_system: Sequence[tuple[float, float]], rate: float, usage: float = 0.2) -> tuple[EngineSample, ...]:
    """Ten seconds apart: running and waiting, the same tokens/s, three prompt tokens for two generated."""
    return tuple(
        EngineSample(10.0 * index, "0", running, waiting, None, usage, 1.5 * rate, rate, source="log")
        for index, (running, waiting) in enumerate(in_system)
    )


def fitted(load: LoadResult | None = None, **parts: object) -> FittedWorkload:
    """The workload of an 8B on an L40S with this evidence."""
    loads = () if load is None else (load,)
    evidence = Evidence(effective=flags("llama-3.1-8b", "L40S", max_model_len=8192), loads=loads, **parts)  # type: ignore[arg-type]
    figures = figures_of(evidence)
    return fit_workload(figures, load, gauges_of(figures), fit_deployment(evidence, figures))


def means(workload: FittedWorkload) -> tuple[float, float]:
    requests = workload.requests
    prompts, outputs = ([item.num_prompt_tokens for item in requests], [item.num_output_tokens for item in requests])
    return sum(prompts) / len(requests), sum(outputs) / len(requests)


# ------------------------------------------------------------------ lengths


@given(st.lists(st.integers(1, 5000), min_size=40, max_size=200), st.integers(0, 9))
def test_lengths_drawn_from_a_histogram_have_its_mean_and_its_range(lengths: list[int], seed: int) -> None:
    drawn = draw_histogram(histogram(lengths, BOUNDS), 400, 8192, Random(seed))
    assert len(drawn) == 400 and min(drawn) >= 1 and max(drawn) <= 8192
    mean = sum(lengths) / len(lengths)
    assert abs(sum(drawn) / 400 - mean) <= 0.1 * mean + 1.0


def test_a_histogram_cut_short_still_gives_lengths() -> None:
    cut = Histogram((100.0, 200.0), (5.0, 10.0), None, None)
    assert set(draw_histogram(cut, 100, 4096, Random(0))) <= set(range(1, 201))


def test_lengths_told_one_by_one_are_taken_as_they_are() -> None:
    load = LoadResult("bench", 2, None, lengths=((10, 20), (30, 40), (50, 60)), measured={"mean_tpot_ms": 20.0})
    assert {(item.num_prompt_tokens, item.num_output_tokens) for item in fitted(load).requests} == {
        (10, 20), (30, 40), (50, 60),
    }  # fmt: skip


def test_gauges_alone_tell_lengths_by_little_s_law() -> None:
    """Ten requests hold a fifth of the pool; three prompt tokens come for two generated."""
    workload = fitted(samples=samples([(10, 0)] * 6, 300.0))
    prompt, output = means(workload)
    figures = figures_of(Evidence(effective=flags("llama-3.1-8b", "L40S", max_model_len=8192)))
    config = fit_deployment(figures.evidence, figures).deployment.config.cache
    context = 0.2 * config.num_blocks * config.block_size / 10
    assert prompt / output == pytest.approx(1.5, rel=0.25)
    assert prompt + output / 2 == pytest.approx(context, rel=0.25)
    assert any("Little's law" in text for text in workload.assumptions)


def test_the_prefix_cache_s_hit_rate_becomes_a_shared_beginning() -> None:
    totals = EngineTotals(
        60.0,
        {"prompt_tokens": 4e4, "generation_tokens": 4e3, "prefix_cache_queries": 100.0, "prefix_cache_hits": 60.0},
        {"stop": 40.0},
    )
    workload = fitted(totals=totals)
    item = max(workload.requests, key=lambda request: request.num_prompt_tokens)
    shared = len(item.block_keys) * item.block_key_tokens
    assert shared == pytest.approx(0.6 * item.num_prompt_tokens, abs=16)
    others = {key for request in workload.requests for key in request.block_keys}
    assert others == set(item.block_keys)


# ------------------------------------------------------------------ arrivals


def test_a_number_in_the_system_that_does_not_move_is_a_closed_loop() -> None:
    workload = fitted(samples=samples([(16, 48), (15, 49), (16, 48), (16, 47), (16, 48)], 400.0))
    assert workload.concurrency == 64 and workload.window is not None


def test_one_that_moves_is_an_open_loop_whose_arrivals_follow_it() -> None:
    """Requests of a known length: what was generated and what is held tells how many came."""
    totals = EngineTotals(
        50.0, {"prompt_tokens": 15_000.0, "generation_tokens": 10_000.0}, {"stop": 100.0}, is_since_start=False
    )
    rising = [(4, 0), (9, 0), (16, 4), (16, 30), (16, 44), (16, 70)]
    workload = fitted(samples=samples(rising, 200.0), totals=totals)
    assert not workload.is_closed and workload.is_estimated
    later = [item for item in workload.requests if item.arrival_s > 0]
    assert len(workload.requests) - len(later) == 4
    assert len(later) == pytest.approx(100 + 86 - 4, abs=2), "finished, and what the system grew by"
    first_half = sum(item.arrival_s < 25 for item in later)
    assert first_half < len(later) / 2, "the queue grows faster in the second half"


def test_two_scrapes_tell_a_rate() -> None:
    totals = EngineTotals(100.0, {"prompt_tokens": 1e5, "generation_tokens": 2e4}, {"stop": 200.0})
    workload = fitted(totals=totals)
    assert not workload.is_closed
    assert workload.requests[-1].arrival_s == pytest.approx(len(workload.requests) / 2.0, rel=0.01)


def test_a_client_s_load_is_taken_as_it_says() -> None:
    closed = fitted(LoadResult("bench", 8, None, 100, 50, 40))
    assert (closed.concurrency, closed.is_paced, len(closed.requests), closed.window) == (8, False, 40, None)
    paced = fitted(LoadResult("bench", 8, 2.0, 100, 50, 40))
    assert paced.concurrency == 8 and paced.is_paced
    opened = fitted(LoadResult("bench", None, 2.0, 100, 50, 40))
    assert opened.concurrency is None and opened.requests[-1].arrival_s == pytest.approx(20.0)
    at_once = fitted(LoadResult("bench", None, None, 100, 50, 40))
    assert at_once.concurrency is None and at_once.requests[-1].arrival_s == 0.0


def test_little_s_law_finds_the_clients_of_a_load_that_names_none() -> None:
    measured = {"output_throughput": 1280.0, "mean_e2el_ms": 30_000.0}
    assert fitted(LoadResult("bench", None, None, 512, 128, None, measured=measured)).concurrency == 300


def test_nothing_that_tells_the_load_is_said() -> None:
    with pytest.raises(NotSimulatedError, match="lengths"):
        fitted()


def test_many_requests_are_cut_to_what_can_be_simulated_and_that_is_said() -> None:
    workload = fitted(LoadResult("bench", 32, None, 1000, 500, 100_000))
    assert 64 <= len(workload.requests) <= 1500
    assert any("100,000" in text for text in workload.assumptions)


def test_a_trace_is_used_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0,100,10\n1.5,200,20\n2.5,300,30\n")
    workload = fitted(trace=path)
    assert [(item.arrival_s, item.num_prompt_tokens) for item in workload.requests] == [
        (0, 100),
        (1.5, 200),
        (2.5, 300),
    ]
    assert not workload.is_closed and "trace.csv" in workload.assumptions[0]


# ------------------------------------------------------------------ gauges


@given(st.floats(2.0, 200.0), st.integers(0, 1000))
def test_independent_arrivals_are_rarely_taken_for_clients(mean: float, seed: int) -> None:
    """Poisson counts of forty samples: a fixed number of clients would not move like that."""
    rng = Random(seed)
    counts = tuple(float(sum(rng.random() < mean / 400 for _ in range(400))) for _ in range(40))
    assert not Gauges(in_system=counts).is_steady


def test_gauges_of_several_engines_are_added_up() -> None:
    both = tuple(
        EngineSample(10.0 * index, engine, 4.0, 1.0, None, 0.5, 10.0, 20.0, source="metrics")
        for engine in ("0", "1")
        for index in range(4)
    )
    gauges = gauges_of(figures_of(Evidence(samples=both)))
    assert (gauges.num_running, gauges.num_waiting, gauges.kv_usage) == (8.0, 2.0, 0.5)
    assert gauges.generation_tokens_per_s == 40.0 and len(gauges.moments) == 4
