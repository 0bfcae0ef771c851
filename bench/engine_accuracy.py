"""How well `headway simulate` predicts the real engine on this machine.

    python bench/engine_accuracy.py [--quantization int8] [--rounds 3] [--trace FILE] [--load 0.6] [--json FILE]

Each round times a reference step, profiles the engine as `headway profile` does, times the reference step again,
replays the trace on the real engine, and times the reference step once more. The trace (generated, or a file with its
lengths divided by four) is none that the profile has seen. Each profile predicts the replay; medians over the rounds
are compared. What the unchanged reference step moved meanwhile is how far the machine itself may be trusted.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headway.accuracy.step_profile import ProfileLimits, StepPoint, grid, host_seconds, time_steps, write_steps
from headway.config import EngineConfig, EngineOptions
from headway.core.arrivals import ArrivalSource, TraceSource
from headway.core.clock import WallClock
from headway.core.engine import Engine
from headway.executors.base import Executor
from headway.factory import Model, build_engine, load_model
from headway.frontends.bench_options import BenchOptions
from headway.frontends.comparison import PromptSource, measure_capacity, offer, run_policy
from headway.simulation.oracles import make_oracle
from headway.simulation.run import SimulatedDeployment, SimulatedWorkload, simulate
from headway.workload import Workload

_METRICS = {
    "mean_ttft_ms": 5.0,
    "p99_ttft_ms": 10.0,
    "mean_tpot_ms": 5.0,
    "p99_tpot_ms": 10.0,
    "mean_itl_ms": 5.0,
    "p99_itl_ms": 10.0,
    "output_throughput": 5.0,
}
"""Percent within which each is meant to be."""
_REFERENCE_DECODES, _REFERENCE_CHUNK, _REFERENCE_REPEATS = 8, 128, 30


@dataclass
class Rounds:
    """Figures of all rounds."""

    reference_ms: list[list[float]] = field(default_factory=list)
    measured: list[Mapping[str, float | None]] = field(default_factory=list)
    predicted: list[Mapping[str, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Subject:
    """The engine that is profiled, replayed and predicted."""

    model: Model
    options: EngineOptions
    config: EngineConfig

    def engine(self, policy: str = "chunked", source: ArrivalSource | None = None) -> Engine:
        """A fresh engine, once the KV pool of the one before is gone."""
        gc.collect()
        return build_engine(self.model, self.options, source or TraceSource([]), WallClock())[0]

    @property
    def limits(self) -> ProfileLimits:
        """How large a step of it may be."""
        scheduler, cache = self.config.scheduler, self.config.cache
        return ProfileLimits(
            scheduler.max_num_batched_tokens,
            scheduler.max_num_seqs,
            scheduler.max_model_len,
            cache.num_blocks,
            cache.block_size,
        )


def main() -> None:
    """Measure, predict, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quantization", default="int8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trace", help="default: a generated workload")
    parser.add_argument("--num-prompts", type=int, default=150)
    parser.add_argument("--load", type=float, default=0.6, help="share of the capacity measured first")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    subject = _subject(arguments.quantization)
    bench = BenchOptions(trace=arguments.trace, num_prompts=arguments.num_prompts, seed=7)
    prompts = PromptSource(range(1000, subject.model.vocab_size - 1000), 7)
    workload = bench.workload()
    capacity = measure_capacity(subject.engine, workload, prompts).summary["request_throughput"]
    assert capacity is not None
    workload = offer(workload, arguments.load * capacity)
    rounds = Rounds()
    for number in range(arguments.rounds):
        _round(subject, workload, prompts, rounds)
        print(
            f"round {number + 1}: reference {', '.join(f'{ms:.2f}' for ms in rounds.reference_ms[-1])} ms", flush=True
        )
    print(
        _report(rounds, f"{bench.workload_name()}, {arguments.load * capacity:.2f} requests/s", arguments.quantization)
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rounds.__dict__, indent=1))


def _subject(quantization: str) -> Subject:
    options = EngineOptions(
        quantization=quantization, max_num_batched_tokens=256, max_num_seqs=32, max_model_len=2048, num_blocks=1024
    )
    model = load_model(None, options)
    engine, config = build_engine(model, options, TraceSource([]), WallClock())
    engine.close()
    return Subject(model, options, config)


def _round(subject: Subject, workload: Workload, prompts: PromptSource, rounds: Rounds) -> None:
    engine = subject.engine()
    reference = [_reference_ms(engine.executor, subject)]
    steps = time_steps(engine.executor, grid(subject.limits), subject.limits, vocab_size=subject.model.vocab_size)
    reference.append(_reference_ms(engine.executor, subject))
    engine.close()
    host_s = host_seconds(
        lambda source: subject.engine(source=source),
        subject.model.vocab_size,
        subject.config.cache.block_size,
    )
    rounds.measured.append(run_policy(subject.engine, "chunked", workload, prompts).summary)
    engine = subject.engine()
    reference.append(_reference_ms(engine.executor, subject))
    engine.close()
    rounds.reference_ms.append(reference)
    with tempfile.TemporaryDirectory() as folder:
        write_steps(Path(folder), steps, {"host_us": host_s * 1e6})
        deployment = SimulatedDeployment(subject.config, make_oracle(f"table:{folder}", None))
    rounds.predicted.append(simulate(deployment, SimulatedWorkload(workload.requests)).summary)


def _reference_ms(executor: Executor, subject: Subject) -> float:
    point = StepPoint(_REFERENCE_CHUNK, 0, _REFERENCE_DECODES, 128)
    times = time_steps(
        executor, [point], subject.limits, vocab_size=subject.model.vocab_size, repeats=_REFERENCE_REPEATS
    )
    return times[point] * 1e3


def _report(rounds: Rounds, load: str, quantization: str) -> str:
    every = [ms for three in rounds.reference_ms for ms in three]
    middle = statistics.median(every)
    drift = 100.0 * max(max(every) / middle - 1.0, 1.0 - min(every) / middle)
    lines = [
        f"Python {platform.python_version()}, {quantization}, {load}; "
        f"reference step {middle:.2f} ms, drift up to {drift:.1f} %",
        "",
        "| metric | measured | predicted | error | meant to be within |",
        "|---|---|---|---|---|",
    ]
    for key, bound in _METRICS.items():
        measured, predicted = _median(rounds.measured, key), _median(rounds.predicted, key)
        error = 100.0 * (predicted / measured - 1.0)
        lines.append(f"| {key} | {measured:.1f} | {predicted:.1f} | {error:+.1f} % | {bound:g} % |")
    return "\n".join(lines)


def _median(summaries: Sequence[Mapping[str, float | None]], key: str) -> float:
    return float(statistics.median(summary[key] or 0.0 for summary in summaries))


if __name__ == "__main__":
    main()
