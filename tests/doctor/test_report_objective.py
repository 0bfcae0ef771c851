"""Objectives as people write them, and the mistakes that must not pass."""

from __future__ import annotations

import pytest

from headway.doctor.objective import parse_objective
from headway.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("ttft_p99=2s,itl_p99=100ms", {"p99_ttft_ms": 2000.0, "p99_itl_ms": 100.0}),
        ("p99_ttft_ms=2000 mean_tpot=30", {"p99_ttft_ms": 2000.0, "mean_tpot_ms": 30.0}),
        ("ttft:500", {"p99_ttft_ms": 500.0}),
        ("median_e2el_s=12.5", {"median_e2el_ms": 12500.0}),
        ("", {}),
    ],
)
def test_bounds_are_kept_by_summary_key(text: str, bounds: dict[str, float]) -> None:
    assert parse_objective(text).bounds == bounds


@pytest.mark.parametrize(
    "text", ["ttft_p99", "p99=5", "speed=3", "ttft_p99=-1", "ttft_p99=1..2", "ttft_itl=5", "ttft_p42=9"]
)
def test_what_is_no_objective_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an objective"):
        parse_objective(text)


@pytest.mark.parametrize("text", ["ttft_p99=2", "itl_p99=0.1"])
def test_seconds_without_a_unit_are_not_taken_for_milliseconds(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be meant"):
        parse_objective(text)
