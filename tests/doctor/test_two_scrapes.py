"""Two scrapes of a queue: clients that keep it, requests that come by themselves, and what cannot be told."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.doctor.diagnosis import Fix, Predicted
from headway.doctor.evidence import Evidence, Objective
from headway.doctor.figures import figures_of
from headway.doctor.prediction.counterfactual import fit, predict_with
from headway.doctor.prediction.gauges import Gauges
from headway.doctor.prediction.oracle_fit import FittedModel
from headway.doctor.prediction.population import population_of
from tests.doctor.simulated_truth import Truth, chat

SEATS = 8
SETTINGS = {"max_model_len": 4096, "max_num_seqs": SEATS}
CLIENTS = Truth(SETTINGS, chat(900, None, 200, 30), concurrency=40)
FIX = Fix("max_num_seqs", SEATS, 16, reason="a candidate")


@cache
def seen(seconds: float) -> Evidence:
    return CLIENTS.two_scrapes(30.0, seconds, SEATS)


@cache
def model(seconds: float) -> FittedModel:
    return fit(seen(seconds), figures_of(seen(seconds)))


def predicted(seconds: float, metric: str) -> Predicted:
    (item,) = predict_with(model(seconds), [FIX], Objective())
    return next(found for found in item.predicted if found.metric == metric)


def measured(metric: str) -> float:
    found = CLIENTS.summary(max_num_seqs=16)[metric]
    assert found is not None
    return float(found)


def test_clients_that_refill_the_queue_are_seen_in_two_scrapes() -> None:
    """More seats shorten the wait by what they finish more, and do not end it."""
    workload = model(15.0).workload
    assert workload.concurrency == pytest.approx(40, abs=1) and not workload.is_ambiguous
    assert any("moved by" in text for text in workload.assumptions)
    for metric in ("median_ttft_ms", "p99_ttft_ms"):
        item = predicted(15.0, metric)
        assert item.low is not None and item.high is not None
        assert item.low <= measured(metric) <= item.high
        assert item.after == pytest.approx(measured(metric), rel=0.4)


def test_scrapes_too_close_to_tell_give_bars_that_reach_both_answers() -> None:
    fitted = model(3.0)
    assert fitted.workload.is_closed and fitted.workload.is_ambiguous and fitted.other is not None
    assert "samples over a longer time would tell" in fitted.check.note
    item = predicted(3.0, "median_ttft_ms")
    assert item.low is not None and item.high is not None
    assert item.low < item.after / 3, "independent arrivals find a free seat"
    assert item.low <= measured("median_ttft_ms") <= item.high


def gauges(first: int, last: int, waiting: int) -> Gauges:
    return Gauges(in_system=(float(first), float(last)), waiting=(float(waiting), float(waiting + last - first)))


@pytest.mark.parametrize(
    ("found", "finished", "expected"),
    [
        (gauges(40, 40, 32), 200.0, "held"),
        (gauges(40, 39, 32), 200.0, "held"),
        (gauges(40, 40, 32), 20.0, "likely held"),
        (gauges(40, 40, 32), None, "likely held"),
        (gauges(40, 40, 32), 1.0, "likely free"),
        (gauges(40, 44, 32), 200.0, "likely free"),
        (gauges(40, 60, 32), 200.0, "free"),
        (gauges(8, 8, 0), 200.0, "free"),
    ],
)
def test_how_far_the_number_in_the_system_moves_tells_how_requests_come(
    found: Gauges, finished: float | None, expected: str
) -> None:
    assert population_of(found, finished) == expected


@given(st.integers(1, 10_000))
def test_a_short_queue_in_balance_is_not_taken_for_clients_however_long_it_is_watched(finished: int) -> None:
    """One or two waiting cannot differ by much."""
    assert population_of(gauges(9, 9, 1), float(finished)) != "held"
