"""What users already have about a running deployment, as loads that a simulation can repeat.

The readers are those of `headway.evidence`; here their results become workloads, and only the figures stay that a
recorded run can be priced for.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headway.errors import InputError
from headway.evidence.load import LoadResult
from headway.evidence.scrapes import read_metrics
from headway.simulation.run import SimulatedWorkload
from headway.workload.trace import TraceRequest

MEASURED = ("mean_tpot_ms", "mean_ttft_ms", "output_throughput")
"""Summary keys that calibration compares."""


def workload_of(load: LoadResult) -> SimulatedWorkload:
    """The load as a simulation takes it; arrivals at a rate are evenly spaced."""
    gap = 0.0 if load.requests_per_s is None else 1.0 / load.requests_per_s
    requests = [TraceRequest(index * gap, *lengths) for index, lengths in enumerate(load.lengths)]
    return SimulatedWorkload(requests, load.concurrency, is_paced=load.concurrency is not None and gap > 0.0)


def for_calibration(load: LoadResult) -> LoadResult:
    """The load with those of its figures that calibration compares.

    Raises:
        InputError: it tells no lengths of requests, or none of the figures.
    """
    measured = {key: load.measured[key] for key in MEASURED if key in load.measured}
    if not measured or not load.lengths:
        raise InputError(f"{load.source} holds no latencies or no completed requests.")
    return replace(load, measured=measured)


def read_scrapes(before: Path, after: Path) -> tuple[list[LoadResult], int | None]:
    """Two scrapes of /metrics: the mean load between them, and the number of KV blocks if a label says it.

    The batch is output tokens a step, lengths are tokens a request; TPOT is the mean time between tokens.

    Raises:
        InputError: a file cannot be read, or the two are not of one running engine.
    """
    metrics = read_metrics((before, after))
    if metrics.totals is None or metrics.facts.engine != "vllm":
        raise InputError(f"{before} and {after} hold no vLLM metrics.", hint="Save the answer of GET /metrics.")
    if any(event.kind == "restart" for event in metrics.events):
        raise InputError(f"Counters fall from {before} to {after}.", hint="Give the earlier scrape first.")
    counters, gaps = metrics.totals.counters, metrics.totals.histograms.get("itl_s")
    requests, output = counters.get("requests", 0.0), counters.get("generation_tokens", 0.0)
    if metrics.num_scrapes < 2 or requests < 1 or gaps is None or gaps.mean is None:
        return [], metrics.facts.num_gpu_blocks
    running = [sample.num_running or 0.0 for sample in metrics.samples]
    steps = counters.get("steps", 0.0)
    batch = max(1, round(output / steps if steps else sum(running) / len(running)))
    lengths = (max(1, round(counters.get("prompt_tokens", 0.0) / requests)), max(2, round(output / requests)))
    load = LoadResult(
        f"{before.name} to {after.name}",
        concurrency=batch,
        lengths=(lengths,) * max(20, 8 * batch),
        measured={"mean_tpot_ms": gaps.mean * 1e3},
    )
    return [load], metrics.facts.num_gpu_blocks
