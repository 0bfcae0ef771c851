"""Replaying recorded runs: fit what tables leave out on the first requests, judge on the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, quantiles

from headway.accuracy.minimum import lowest, lowest_of_two
from headway.accuracy.recorded_runs import RecordedRequest, RecordedRun
from headway.catalog import find_accelerator, find_model
from headway.executors.simulated.oracle import LatencyOracle
from headway.executors.simulated.table import Collective, StepTable, TableOracle
from headway.executors.simulated.table_files import find_table, read_table
from headway.report.slo import RequestRecord
from headway.simulation.options import DeploymentOptions, ResolvedDeployment
from headway.simulation.run import SimulatedWorkload, simulate

NUM_FIT_REQUESTS = 100
_MAX_STEP_S = 0.02
_LINK_SHARE = (0.05, 1.0)
_START_STEP_S = 1.5e-3
_NUM_TURNS = 3
_METRICS = ("ttft", "tpot", "latency")


@dataclass(frozen=True, slots=True)
class Times:
    """What happened to one request, measured or predicted. Seconds."""

    ttft: float
    tpot: float | None
    latency: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of a run: predicted against measured, over the requests that were not fitted."""

    run: str
    metric: str
    measured: float
    predicted: float

    @property
    def error_pct(self) -> float:
        """Relative error in percent; 0 where both are 0."""
        if self.measured == self.predicted:
            return 0.0
        return (self.predicted / self.measured - 1.0) * 100.0 if self.measured else math.inf


@dataclass(frozen=True, slots=True)
class Validation:
    """A run's comparisons, and what they rest on, in words."""

    run: RecordedRun
    oracle: str
    num_blocks: int
    blocks_from: str
    fitted: Mapping[str, float]
    num_fit_requests: int
    comparisons: tuple[Comparison, ...]


def validate_run(
    run: RecordedRun,
    tables: Path | None,
    *,
    num_fit_requests: int = NUM_FIT_REQUESTS,
    num_gpu_blocks: int | None = None,
) -> Validation:
    """Replay a run.

    With tables of its model and GPU in `tables`, one scalar is fitted: the time of a step beyond its kernels; with
    tensor parallelism also the bandwidth of all-reduces. Without tables the roofline answers, as it is.

    Raises:
        ConfigError: the deployment is not one that can be simulated.
    """
    resolved = _resolve(run, num_gpu_blocks)
    files = find_table(tables, run.gpu, run.model, run.tensor_parallel_size) if tables is not None else None
    fitted: dict[str, float] = {}
    oracle: LatencyOracle = resolved.deployment.oracle
    if files is not None:
        table = read_table(files, find_model(run.model))
        oracle, fitted = _fit(run, resolved, table, num_fit_requests)
    times, hits = replay(run, resolved, oracle)
    first = num_fit_requests if files is not None else 0
    blocks = resolved.deployment.config.cache.num_blocks
    given = num_gpu_blocks or run.num_gpu_blocks
    return Validation(
        run=run,
        oracle=oracle.provenance,
        num_blocks=blocks,
        blocks_from="given" if given else "from the planner",
        fitted=fitted,
        num_fit_requests=first,
        comparisons=tuple(_compare(run, times, hits, first)),
    )


def replay(run: RecordedRun, resolved: ResolvedDeployment, oracle: LatencyOracle) -> tuple[list[Times], int]:
    """Predicted times in the requests' order, and prompt tokens found in the prefix cache."""
    deployment = replace(resolved.deployment, oracle=oracle)
    records: dict[str, RequestRecord] = {}
    result = simulate(
        deployment,
        SimulatedWorkload([item.request for item in run.requests]),
        on_record=lambda record, request: records.__setitem__(record.request_id, record),
    )
    times = [
        Times(record.ttft_s, record.tpot_s, record.e2el_s)
        for item in run.requests
        for record in (records[str(item.request.request_id)],)
    ]
    return times, int(result.summary["prefix_cache_hits"] or 0)


def _resolve(run: RecordedRun, num_gpu_blocks: int | None) -> ResolvedDeployment:
    return DeploymentOptions(
        model=run.model,
        gpu=run.gpu,
        engine_version=run.engine_version,
        tensor_parallel_size=run.tensor_parallel_size,
        data_parallel_size=run.data_parallel_size,
        num_gpu_blocks_override=num_gpu_blocks or run.num_gpu_blocks,
        **run.flags,
    ).resolve()


def _fit(
    run: RecordedRun, resolved: ResolvedDeployment, table: StepTable, num_fit: int
) -> tuple[TableOracle, dict[str, float]]:
    assert resolved.plan is not None
    sizes = resolved.plan.resolved.defaults.cuda_graph_sizes
    model, tp = find_model(run.model), run.tensor_parallel_size
    card = find_accelerator(run.gpu)
    link = (card.link_gbps if card.link_gbps and tp <= card.link_world else card.pcie_gbps or 32.0) * 1e9

    def make(step_s: float, share: float) -> TableOracle:
        collective = None
        if tp > 1:
            row_bytes = model.hidden_size * 2.0 * 2 * (tp - 1) / tp
            collective = Collective(2 * model.num_layers, row_bytes, 0.0, link * share)
        return TableOracle(table, step_s=step_s, graph_sizes=sizes, collective=collective)

    measured = [_times(item) for item in run.requests[:num_fit]]
    metrics = ("tpot", "latency", "ttft") if tp > 1 else ("tpot", "latency")

    def loss(step_s: float, share: float) -> float:
        predicted = replay(run, resolved, make(step_s, share))[0][:num_fit]
        return sum(math.log(_mean(predicted, name) / _mean(measured, name)) ** 2 for name in metrics)

    steps = (0.0, _MAX_STEP_S, 2e-5)
    if tp == 1:
        step_s = lowest(lambda value: loss(value, 1.0), *steps[:2], within=steps[2])
        return make(step_s, 1.0), {"host_ms_per_step": step_s * 1e3}
    log_share, step_s = lowest_of_two(
        lambda log_share, step_s: loss(step_s, math.exp(log_share)),
        (math.log(_LINK_SHARE[0]), math.log(_LINK_SHARE[1]), 5e-3),
        steps,
        start=_START_STEP_S,
        num_turns=_NUM_TURNS,
    )
    share = math.exp(log_share)
    return make(step_s, share), {"host_ms_per_step": step_s * 1e3, "all_reduce_gb_per_s": link * share / 1e9}


def _times(item: RecordedRequest) -> Times:
    return Times(item.ttft_s, item.tpot_s, item.latency_s)


def _values(times: Sequence[Times], metric: str) -> list[float]:
    return [value for item in times if (value := getattr(item, metric)) is not None]


def _mean(times: Sequence[Times], metric: str) -> float:
    return mean(_values(times, metric))


def _compare(run: RecordedRun, predicted: Sequence[Times], hits: int, first: int) -> Iterable[Comparison]:
    measured = [_times(item) for item in run.requests]
    for metric in _METRICS:
        ours, theirs = _values(predicted[first:], metric), _values(measured[first:], metric)
        yield Comparison(run.name, f"mean_{metric}_ms", mean(theirs) * 1e3, mean(ours) * 1e3)
        for name, index in (("median", 49), ("p90", 89), ("p99", 98)):
            values = [quantiles(numbers, n=100, method="inclusive")[index] * 1e3 for numbers in (theirs, ours)]
            yield Comparison(run.name, f"{name}_{metric}_ms", *values)
    spans = [_span(run, times) for times in (measured, predicted)]
    tokens = sum(item.request.num_output_tokens for item in run.requests)
    yield Comparison(run.name, "output_throughput", tokens / spans[0], tokens / spans[1])
    yield Comparison(run.name, "prefix_hit_tokens", float(run.expected_prefix_hit_tokens), float(hits))


def _span(run: RecordedRun, times: Sequence[Times]) -> float:
    return max(item.request.arrival_s + time.latency for item, time in zip(run.requests, times, strict=True))
