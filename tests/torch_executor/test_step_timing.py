"""The time of a step is measured once a day, and a broken memory of it is no harm."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.config import StepTime
from headway.executors.torch import LoadedModel, step_time
from headway.executors.torch.step_timing import measure


def test_a_longer_step_takes_longer(loaded: Callable[[str], LoadedModel]) -> None:
    """Both parts are sane, and the line goes up."""
    time = measure(loaded("llama"), 16, repeats=1)
    assert time.fixed_s >= 0 and time.of(1000) > time.of(10) > 0


def test_it_is_remembered_for_a_day(
    loaded: Callable[[str], LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second look finds what the first measured; an old or damaged file is measured again."""
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path))
    calls = []

    def fake(*_args: object) -> StepTime:
        calls.append(1)
        return StepTime(0.5, 0.25)

    monkeypatch.setattr("headway.executors.torch.step_timing.measure", fake)
    model = loaded("llama")
    assert step_time(model, 16) == step_time(model, 16) == StepTime(0.5, 0.25)
    assert len(calls) == 1
    (file,) = tmp_path.rglob("*.json")
    os.utime(file, (0, 0))
    step_time(model, 16)
    assert len(calls) == 2
    file.write_text("{")
    step_time(model, 16)
    assert len(calls) == 3
    step_time(loaded("qwen3"), 16)
    assert len(calls) == 4, "another model"
