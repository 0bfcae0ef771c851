"""Run-length coded samples give the statistics of the plain ones, as numpy computes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.report import LatencyAccumulator
from headway.report import latency as latency_module

np = pytest.importorskip("numpy")

PAIRS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.001, 0.25, 1 / 3, 7.5]) | st.floats(0, 100), st.integers(1, 50)),
    min_size=1,
    max_size=40,
)


@given(pairs=PAIRS, percent=st.sampled_from([0, 1, 50, 90, 95, 99, 99.9, 100]) | st.floats(0, 100))
def test_statistics_equal_those_of_numpy(pairs: list[tuple[float, int]], percent: float) -> None:
    samples = LatencyAccumulator()
    for value, count in pairs:
        samples.add(value, count)
    plain = np.repeat([value for value, _ in pairs], [count for _, count in pairs])
    assert len(samples) == len(plain)
    assert samples.mean_s == pytest.approx(plain.mean(), rel=1e-12, abs=1e-15)
    assert samples.std_s == pytest.approx(plain.std(), rel=1e-9, abs=1e-12)
    assert samples.percentile(percent) == pytest.approx(np.percentile(plain, percent), rel=1e-12, abs=1e-15)


def test_percentiles_may_be_asked_between_additions() -> None:
    """Sorting for a percentile must not lose what is added after it."""
    samples = LatencyAccumulator()
    samples.add(3.0)
    assert samples.percentile(50) == 3.0
    samples.add(1.0, 2)
    assert samples.percentile(50) == 1.0
    samples.add(9.0, 10)
    assert samples.percentile(50) == 9.0 and len(samples) == 13


def test_equal_samples_give_exactly_that_sample() -> None:
    samples = LatencyAccumulator()
    samples.add(0.1, 1_000_003)
    assert {samples.percentile(p) for p in (0, 33.3, 50, 99, 99.99, 100)} == {0.1}
    assert samples.std_s == 0.0


def test_no_samples_have_no_statistics() -> None:
    samples = LatencyAccumulator()
    samples.add(1.0, 0)
    assert (len(samples), samples.mean_s, samples.std_s, samples.percentile(99)) == (0, None, None, None)


def test_a_hundred_million_samples_are_a_few_pairs() -> None:
    samples = LatencyAccumulator()
    for step in range(1000):
        samples.add(0.01 + step % 10 * 0.001, 100_000)
    assert len(samples) == 100_000_000
    assert samples.percentile(50) == pytest.approx(0.0145)
    assert samples.num_pairs == 10


def test_pairs_are_merged_as_their_number_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that come in turns never meet their equal at the end, and must not grow without end."""
    monkeypatch.setattr(latency_module, "_COMPACT_AT", 64)
    samples = LatencyAccumulator()
    for i in range(10_000):
        samples.add(float(i % 5))
    assert samples.num_pairs < 64
    assert len(samples) == 10_000 and samples.mean_s == pytest.approx(2.0)


def test_ever_new_values_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are rounded once they are too many, and the statistics stay within the rounding."""
    monkeypatch.setattr(latency_module, "_COMPACT_AT", 1 << 12)
    rng = np.random.default_rng(0)
    plain = rng.lognormal(-3.0, 0.3, 40_000)
    samples = LatencyAccumulator()
    for value in plain:
        samples.add(float(value))
        assert samples.num_pairs <= 1 << 12
    assert len(samples) == len(plain)
    assert samples.mean_s == pytest.approx(plain.mean(), rel=1e-3)
    for percent in (1, 50, 99):
        assert samples.percentile(percent) == pytest.approx(np.percentile(plain, percent), rel=5e-3)
