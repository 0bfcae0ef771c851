"""Runs a workload through schedulers under a virtual clock, and measures what `vllm bench serve` would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headway.config import EngineConfig
from headway.core.arrivals import ArrivalSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine, Listener
from headway.core.fast_forward import FastForwardEngine
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.executors.simulated.executor import SimulatedExecutor
from headway.executors.simulated.oracle import LatencyOracle
from headway.executors.simulated.speculation import SpeculationModel
from headway.report.slo import RequestRecord, Slo
from headway.report.summary import ServingStats, Summary
from headway.simulation.measurement import Measurement
from headway.simulation.routing import Router, run_ranks
from headway.simulation.sources import (
    ClientGroup,
    ClientLoops,
    ConversationLoops,
    RequestMaker,
    RequestSource,
    StreamSource,
)
from headway.workload import TraceRequest

OnRecord = Callable[[RequestRecord, Request], None]


class Observer(Protocol):
    """Follows a run from inside: a report, a trace, an explanation for each request."""

    def attach(self, rank: int, engine: Engine) -> Listener:
        """Called once for each rank before the run; returns a listener to the rank's engine."""


@dataclass(frozen=True, slots=True)
class SimulatedDeployment:
    """What is simulated: one engine, or several alike behind a router.

    Pipeline stages work on as many batches at once; a step takes as long as on one GPU, but the next may start when the
    first stage is free. A request is in one batch at a time, since its next token needs the last: over a pipeline
    asynchronous scheduling is `prepares_ahead`, where the host's work on a batch is done while others are under way.
    """

    config: EngineConfig
    oracle: LatencyOracle
    num_ranks: int = 1
    router: str = "least_loaded"
    speculation: SpeculationModel | None = None
    pipeline_stages: int = 1
    prepares_ahead: bool = False

    @property
    def depth(self) -> int:
        """Steps in flight."""
        return self.pipeline_stages + (1 if self.config.scheduler.async_scheduling else 0)

    def make_engine(self, source: ArrivalSource, *, fast_forward: bool) -> Engine:
        """One rank's engine, under a clock of its own."""
        depth = self.depth
        scheduler = Scheduler.of(self.config, max_in_flight=depth)
        executor = SimulatedExecutor(self.oracle, speculation=self.speculation, prepares_ahead=self.prepares_ahead)
        fast = fast_forward and self.speculation is None and scheduler.fast_forward()
        kind = FastForwardEngine if fast else Engine
        engine = kind(scheduler, executor, VirtualClock(), source, max_in_flight=depth)
        engine.num_stages = self.pipeline_stages
        return engine


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """Requests in order of arrival, and how they are offered.

    Open loop: at their own instants. Closed loop: by `concurrency` clients, each of which sends its next when its last
    one has ended; arrivals are then ignored. With `groups` the clients send requests of their own kinds until
    `num_requests` have been sent in all, and `requests` is ignored; with `conversations` each of `concurrency` clients
    holds one after the other, likewise.
    """

    requests: Iterable[TraceRequest] = ()
    concurrency: int | None = None
    groups: Sequence[ClientGroup] = ()
    conversations: Callable[[], Iterator[Iterator[TraceRequest]]] | None = None
    """Each call begins anew: the turns of one conversation after another."""
    num_requests: int = 0
    skip_too_long: bool = False
    """Leave out requests that the deployment could never hold, instead of refusing the workload."""
    is_paced: bool = False
    """Closed loop: a request also waits for its own instant, as `vllm bench serve` does with a rate and a limit."""
    seed: int = 0

    @property
    def is_closed(self) -> bool:
        """Whether requests come when others end."""
        return self.concurrency is not None or bool(self.groups)

    def source(self, config: EngineConfig) -> RequestSource:
        """The requests, as the deployment's engines take them."""
        make = RequestMaker(config, skip_too_long=self.skip_too_long)
        if self.groups:
            return ClientLoops(make, self.groups, self.num_requests, self.seed)
        if self.conversations is not None:
            assert self.concurrency is not None, "conversations are held by clients"
            return ConversationLoops(make, self.conversations(), self.concurrency, self.num_requests)
        return StreamSource(make, self.requests, self.concurrency, is_paced=self.is_paced)


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a simulation saw.

    `summary` has the keys of `bench`; `mean_kv_usage` and `peak_kv_usage` (0 to 1); mean and peak of `num_waiting` and
    `num_running`, means over time; `saturation`, the share of time in which anybody waited; `num_skipped`.
    """

    summary: Summary
    records: Sequence[RequestRecord] = field(default=())
    groups: Mapping[str, Summary] = field(default_factory=dict)
    """For workloads with groups of clients: a summary of each group's requests, without ITL."""


def simulate(
    deployment: SimulatedDeployment,
    workload: SimulatedWorkload,
    *,
    slo: Slo | None = None,
    observers: Sequence[Observer] = (),
    on_record: OnRecord | None = None,
    keep_records: bool = False,
    fast_forward: bool = True,
    may_stride: bool = True,
) -> SimulationResult:
    """Predict what the deployment does with the workload.

    Args:
        on_record: called with each request that ran to its end, at its end.
        keep_records: return those records too; 300 bytes each.
        fast_forward: take like steps together; the result is the same, sooner.
        may_stride: with fast-forward, take several steps at once.

    Raises:
        WorkloadError: a request that the deployment could never hold.
        EngineDeadError: requests wait and none can ever be admitted.
    """
    records: list[RequestRecord] = []
    source = workload.source(deployment.config)
    stats = ServingStats(source.next_at() or 0.0, slo)
    router = Router(source, deployment.num_ranks, deployment.router, is_closed=workload.is_closed)

    groups = {group.name: ServingStats(0.0, slo) for group in workload.groups}

    def finished(record: RequestRecord, request: Request) -> None:
        if groups:
            groups[record.request_id.rpartition("#")[0]].add_request(record)
        if keep_records:
            records.append(record)
        if on_record is not None:
            on_record(record, request)

    ranks: list[tuple[Engine, Measurement]] = []
    for index, rank_source in enumerate(router.sources):
        engine = deployment.make_engine(rank_source, fast_forward=fast_forward)
        if isinstance(engine, FastForwardEngine):
            # Of several ranks one may end a request, and so free a client, while another is within a stride.
            engine.may_stride = may_stride and (deployment.num_ranks == 1 or not workload.is_closed)
        measurement = Measurement(engine, stats, on_record=finished, on_ended=source.release)
        engine.listeners.append(measurement)
        engine.listeners += [observer.attach(index, engine) for observer in observers]
        ranks.append((engine, measurement))
    run_ranks([engine for engine, _ in ranks], router)
    summaries = {name: group.summary() for name, group in groups.items()}
    return SimulationResult(_summary(stats, ranks, source), records, summaries)


def _summary(stats: ServingStats, ranks: Sequence[tuple[Engine, Measurement]], source: RequestSource) -> Summary:
    summary = stats.summary()
    duration_s = summary["duration"] or 0.0
    summary |= {
        "num_unfinished": 0,
        "num_skipped": source.num_skipped,
        "num_preemptions": sum(engine.stats.num_preemptions for engine, _ in ranks),
        "num_steps": sum(engine.num_steps for engine, _ in ranks),
        "prefix_cache_queries": sum(engine.stats.prefix_cache_queries for engine, _ in ranks),
        "prefix_cache_hits": sum(engine.stats.prefix_cache_hits for engine, _ in ranks),
    }
    for key in ("mean_kv_waste", "peak_kv_waste", "mean_kv_usage", "peak_kv_usage"):
        values = [measurement.kv_summary()[key] for _, measurement in ranks]
        summary[key] = max(values) if key.startswith("peak") else sum(values) / len(values)
    waiting = sum(measurement.waiting_s for _, measurement in ranks)
    running = sum(measurement.running_s for _, measurement in ranks)
    summary["mean_num_waiting"] = waiting / duration_s if duration_s else None
    summary["peak_num_waiting"] = sum(measurement.peak_waiting for _, measurement in ranks)
    summary["mean_num_running"] = running / duration_s if duration_s else None
    queued = sum(measurement.queued_s for _, measurement in ranks) / len(ranks)
    summary["saturation"] = min(1.0, queued / duration_s) if duration_s else None
    summary["peak_num_running"] = max(measurement.peak_running for _, measurement in ranks)
    return summary
