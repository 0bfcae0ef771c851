"""A deployment that is simulated with prices the doctor does not know, and the evidence that its operator has."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from headway.deployment.arguments import Written
from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.invocation import Invocation
from headway.doctor.evidence import Evidence
from headway.evidence.engine import EngineSample, EngineTotals, Histogram
from headway.executors.simulated.calibrated import CalibratedOracle
from headway.report.slo import RequestRecord
from headway.report.summary import Summary
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedWorkload, SimulationResult, simulate
from headway.simulation.timeline import Timeline
from headway.workload.generators import arrival_times
from headway.workload.trace import TraceRequest

VERSION = "0.24.0"
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)
_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)


def flags(model: str, gpu: str | None, version: str = VERSION, **settings: Any) -> Effective:
    """Effective settings of a start that writes these."""
    written = {name: Written(name, value, name, str(value)) for name, value in {"model": model, **settings}.items()}
    return resolve_effective(
        Invocation("settings", "a test", settings=written), engine_version=version, accelerator=gpu
    )


def chat(count: int, requests_per_s: float | None, prompt: float, output: float) -> list[TraceRequest]:
    """Log-normal lengths of these medians; Poisson arrivals, or all at once."""
    rng = Random(1)
    at: Sequence[float] = [0.0] * count
    if requests_per_s is not None:
        at = arrival_times(count, requests_per_s, burstiness=1.0, rng=Random(3))
    return [
        TraceRequest(
            at[index],
            min(6000, max(1, int(rng.lognormvariate(math.log(prompt), 0.8)))),
            min(2000, max(1, int(rng.lognormvariate(math.log(output), 0.7)))),
        )
        for index in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Truth:
    """A deployment whose kernels are slower than the roofline says and whose host takes longer, under a load."""

    settings: Mapping[str, Any]
    requests: Sequence[TraceRequest]
    concurrency: int | None = None
    scale: float = 1.15
    step_s: float = 1e-3
    model: str = "llama-3.1-8b"
    gpu: str = "L40S"

    def run(self, **changes: Any) -> tuple[SimulationResult, Timeline]:
        """What happens, with some settings changed."""
        options = DeploymentOptions(
            model=self.model, gpu=self.gpu, engine_version=VERSION, **{**self.settings, **changes}
        )
        deployment = options.resolve().deployment
        deployment = replace(deployment, oracle=CalibratedOracle(deployment.oracle, self.scale, self.step_s))
        timeline = Timeline()
        workload = SimulatedWorkload(self.requests, self.concurrency)
        return simulate(deployment, workload, observers=[timeline], keep_records=True), timeline

    def summary(self, **changes: Any) -> Summary:
        """Its summary."""
        return self.run(**changes)[0].summary

    def evidence(self, *, with_histograms: bool = True, num_samples: int = 40) -> Evidence:
        """Flags, totals and gauges of the run; no client."""
        result, timeline = self.run()
        return Evidence(
            effective=flags(self.model, self.gpu, **self.settings),
            totals=_totals(result.records, float(result.summary["duration"] or 0.0)) if with_histograms else None,
            samples=_samples(result, timeline, num_samples),
        )

    def two_scrapes(self, first_s: float, seconds: float, seats: int) -> Evidence:
        """Flags, and what two scrapes show that are so many seconds apart: gauges at both, totals between them.

        `seats` run whenever as many are in the system.
        """
        result, _ = self.run()
        instants = (first_s, first_s + seconds)
        done = [item for item in result.records if instants[0] < item.last_token_at <= instants[1]]
        totals = _totals(done, seconds)
        samples: list[EngineSample] = []
        for at_s in instants:
            held = sum(item.sent_at <= at_s < item.last_token_at for item in result.records)
            running = float(min(seats, held))
            rate = totals.counters["generation_tokens"] / seconds if samples else None
            samples.append(
                EngineSample(
                    at_s - first_s, "0", running, held - running, generation_tokens_per_s=rate, source="metrics"
                )
            )
        return Evidence(effective=flags(self.model, self.gpu, **self.settings), totals=totals, samples=tuple(samples))


def _totals(records: Sequence[RequestRecord], duration_s: float) -> EngineTotals:
    counters = {
        "prompt_tokens": float(sum(item.num_prompt_tokens for item in records)),
        "generation_tokens": float(sum(item.num_output_tokens for item in records)),
    }
    histograms = {
        "ttft_s": histogram([item.ttft_s for item in records], _SECONDS),
        "e2el_s": histogram([item.e2el_s for item in records], _SECONDS),
        "itl_s": histogram([item.tpot_s for item in records if item.tpot_s is not None], _SECONDS),
        "prompt_tokens": histogram([item.num_prompt_tokens for item in records], _TOKENS),
        "generation_tokens": histogram([item.num_output_tokens for item in records], _TOKENS),
    }
    return EngineTotals(duration_s, counters, {"length": float(len(records))}, histograms, is_since_start=False)


def histogram(values: Sequence[float], bounds: Sequence[float]) -> Histogram:
    """A cumulative histogram of values."""
    counts = tuple(float(sum(value <= bound for value in values)) for bound in bounds)
    return Histogram(tuple(map(float, bounds)), counts, float(len(values)), float(sum(values)))


def _samples(result: SimulationResult, timeline: Timeline, count: int) -> tuple[EngineSample, ...]:
    """Gauges at even steps, and the rates between them."""
    seen = timeline.ranks[0]
    chosen = seen[:: max(1, len(seen) // count)]
    prompts = sum(item.num_prompt_tokens for item in result.records)
    outputs = sum(item.num_output_tokens for item in result.records)
    found = []
    for before, after in pairwise(chosen):
        rate = (after.num_tokens - before.num_tokens) / (after.at - before.at)
        found.append(
            EngineSample(
                at_s=after.at,
                num_running=after.num_running,
                num_waiting=after.num_waiting,
                kv_usage=after.kv_usage,
                prompt_tokens_per_s=rate * prompts / outputs,
                generation_tokens_per_s=rate,
                source="metrics",
            )
        )
    return tuple(found)
