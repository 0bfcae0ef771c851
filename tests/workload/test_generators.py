"""Generated workloads: reproducible, and with the statistics that were asked for."""

from __future__ import annotations

import itertools
import statistics
from random import Random

import pytest

from headway.errors import WorkloadError
from headway.workload import (
    FixedLength,
    Generated,
    Length,
    LogNormalLength,
    SharedPrefix,
    UniformLength,
    arrival_times,
    draw_prompt,
    parse_length,
)


def gap_variation(burstiness: float) -> float:
    times = arrival_times(20_000, 4.0, burstiness=burstiness, rng=Random(1))
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def test_burstiness_is_the_shape_of_the_gaps() -> None:
    """The coefficient of variation of gamma gaps is 1 / sqrt(shape); 1 is Poisson."""
    for burstiness in (0.25, 1.0, 4.0):
        assert gap_variation(burstiness) == pytest.approx(burstiness**-0.5, rel=0.03)
    assert gap_variation(float("inf")) == pytest.approx(0.0, abs=1e-9)


def test_the_last_arrival_falls_at_n_over_rate() -> None:
    for burstiness in (0.5, 1.0, float("inf")):
        times = arrival_times(300, 2.5, burstiness=burstiness, rng=Random(3))
        assert times[-1] == pytest.approx(120.0)
        assert list(times) == sorted(times) and times[0] > 0


def test_an_infinite_rate_sends_all_at_zero() -> None:
    assert set(arrival_times(50, float("inf"), burstiness=1.0, rng=Random(0))) == {0.0}


def test_equal_descriptions_give_equal_requests_and_other_seeds_others() -> None:
    spec = Generated(40, 2.0, prompt=UniformLength(1, 999), output=UniformLength(1, 999), seed=5)
    again = Generated(40, 2.0, prompt=UniformLength(1, 999), output=UniformLength(1, 999), seed=5)
    other = Generated(40, 2.0, prompt=UniformLength(1, 999), output=UniformLength(1, 999), seed=6)
    assert list(spec.requests()) == list(again.requests())
    assert list(spec.requests()) != list(other.requests())


def test_asking_for_other_lengths_does_not_move_the_arrivals() -> None:
    short = Generated(40, 2.0, prompt=FixedLength(1), seed=5).requests()
    long = Generated(40, 2.0, prompt=UniformLength(5, 50), output=UniformLength(1, 9), seed=5).requests()
    assert [r.arrival_s for r in short] == [r.arrival_s for r in long]


def test_lengths_follow_their_distribution() -> None:
    rng = Random(7)
    assert {FixedLength(9).draw(rng) for _ in range(10)} == {9}
    uniform = [UniformLength(10, 20).draw(rng) for _ in range(5000)]
    assert (min(uniform), max(uniform)) == (10, 20) and statistics.fmean(uniform) == pytest.approx(15, abs=0.2)
    lognormal = [LogNormalLength(200, 0.8, 2000).draw(rng) for _ in range(5000)]
    assert statistics.median(lognormal) == pytest.approx(200, rel=0.05) and max(lognormal) == 2000
    assert min(LogNormalLength(1, 3.0).draw(rng) for _ in range(100)) == 1


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("512", FixedLength(512)),
        ("100-900", UniformLength(100, 900)),
        ("lognormal:median=200,sigma=0.8", LogNormalLength(200, 0.8)),
        ("lognormal:median=200,sigma=0.8,max=2000", LogNormalLength(200, 0.8, 2000)),
    ],
)
def test_lengths_as_text(text: str, length: Length) -> None:
    assert parse_length(text) == length


@pytest.mark.parametrize(
    "text", ["", "0", "-5", "9-3", "many", "1-2-3", "lognormal:median=9", "lognormal:median=9,sigma=1,mean=3"]
)
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(WorkloadError):
        parse_length(text)


@pytest.mark.parametrize(
    "bad",
    [{"num_requests": 0}, {"requests_per_s": 0.0}, {"burstiness": 0.0}, {"burstiness": float("nan")}],
)
def test_bad_descriptions_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(WorkloadError):
        Generated(**({"num_requests": 1} | bad))  # type: ignore[arg-type]
    with pytest.raises(WorkloadError, match="shared prefix"):
        SharedPrefix(0)


def test_prompts_of_a_group_share_the_prefix_and_nothing_more() -> None:
    spec = Generated(30, prompt=FixedLength(40), prefix=SharedPrefix(100, num_groups=3), seed=2)
    requests = list(spec.requests())
    prompts = [draw_prompt(request, i, range(1000), seed=2) for i, request in enumerate(requests)]
    assert {len(prompt) for prompt in prompts} == {140}
    prefixes = {(request.block_keys, tuple(prompt[:100])) for request, prompt in zip(requests, prompts, strict=True)}
    assert len(prefixes) == 3
    assert len({tuple(prompt[100:]) for prompt in prompts}) == 30
    assert len(requests[0].keys_at(16)) == 6


def test_prompts_depend_on_seed_and_place_alone() -> None:
    request = next(Generated(1).requests())
    ids = draw_prompt(request, 0, range(100, 200), seed=1)
    assert len(ids) == request.num_prompt_tokens and set(ids) <= set(range(100, 200))
    assert ids == draw_prompt(request, 0, range(100, 200), seed=1)
    assert ids != draw_prompt(request, 1, range(100, 200), seed=1)
    assert ids != draw_prompt(request, 0, range(100, 200), seed=2)
