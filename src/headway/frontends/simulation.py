"""Runs a workload through schedulers under a virtual clock, and measures what `vllm bench serve` would."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Event
from typing import Protocol

from headway.config import EngineConfig
from headway.core.arrivals import Arrival, ArrivalSource, Item
from headway.core.clock import VirtualClock
from headway.core.engine import Engine, Listener
from headway.core.fast_forward import FastForwardEngine
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import WorkloadError
from headway.executors.simulated.executor import SimulatedExecutor
from headway.executors.simulated.oracle import LatencyOracle
from headway.executors.simulated.speculation import SpeculationModel
from headway.frontends.measurement import Measurement
from headway.frontends.routing import Router, run_ranks
from headway.report.slo import RequestRecord, Slo
from headway.report.summary import ServingStats, Summary
from headway.workload import TraceRequest

OnRecord = Callable[[RequestRecord, Request], None]


class Observer(Protocol):
    """Follows a run from inside: a report, a trace, an explanation for each request."""

    def attach(self, rank: int, engine: Engine) -> Listener:
        """Called once for each rank before the run; returns a listener to the rank's engine."""


@dataclass(frozen=True, slots=True)
class SimulatedDeployment:
    """What is simulated: one engine, or several alike behind a router.

    Pipeline stages work on as many batches at once, one more under asynchronous scheduling; a step takes as long as on
    one GPU, but the next may start when the first stage is free.
    """

    config: EngineConfig
    oracle: LatencyOracle
    num_ranks: int = 1
    router: str = "least_loaded"
    speculation: SpeculationModel | None = None
    pipeline_stages: int = 1

    def make_engine(self, source: ArrivalSource, *, fast_forward: bool) -> Engine:
        """One rank's engine, under a clock of its own."""
        config = self.config
        depth = self.pipeline_stages + (1 if config.scheduler.async_scheduling else 0)
        scheduler = Scheduler(
            config.scheduler,
            config.cache,
            policy=config.policy,
            engine_version=config.engine_version,
            max_in_flight=depth,
        )
        executor = SimulatedExecutor(self.oracle, speculation=self.speculation)
        fast = fast_forward and self.speculation is None and scheduler.fast_forward()
        kind = FastForwardEngine if fast else Engine
        engine = kind(scheduler, executor, VirtualClock(), source, max_in_flight=depth)
        engine.num_stages = self.pipeline_stages
        return engine


@dataclass(frozen=True, slots=True)
class SimulatedWorkload:
    """Requests in order of arrival, and how they are offered.

    Open loop: at their own instants. Closed loop: by `concurrency` clients, each of which sends its next when its last
    one has ended; arrivals are then ignored.
    """

    requests: Iterable[TraceRequest]
    concurrency: int | None = None
    skip_too_long: bool = False
    """Leave out requests that the deployment could never hold, instead of refusing the workload."""
    is_paced: bool = False
    """Closed loop: a request also waits for its own instant, as `vllm bench serve` does with a rate and a limit."""


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What a simulation saw.

    `summary` has the keys of `bench`; `mean_kv_usage` and `peak_kv_usage` (0 to 1); mean and peak of `num_waiting` and
    `num_running`, means over time; `saturation`, the share of time in which anybody waited; `num_skipped`.
    """

    summary: Summary
    records: Sequence[RequestRecord] = field(default=())


class _Requests:
    """The workload as an arrival source: requests are made when they are due, and forgotten by it then."""

    wake: Event | None = None

    def __init__(self, make: RequestMaker, workload: SimulatedWorkload) -> None:
        self._make = make
        self._pending: Iterator[TraceRequest] = iter(workload.requests)
        self._next = next(self._pending, None)
        self._num_free = workload.concurrency
        self._skip = workload.skip_too_long
        self._is_paced = workload.is_paced
        self._index = 0
        self.num_sent = 0
        self.num_skipped = 0
        self.first_at: float | None = None

    def release(self, num_ended: int) -> None:
        """Closed loop: that many clients are free again."""
        if self._num_free is not None:
            self._num_free += num_ended

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`."""
        item = self._next
        if item is None or not self._is_due(item, now):
            return ()
        items: list[Item] = []
        while item is not None and self._is_due(item, now):
            request = self._request(item, item.arrival_s if self._num_free is None else now)
            if request is not None:
                items.append(Arrival(request))
                if self._num_free is not None:
                    self._num_free -= 1
            item = self._next = next(self._pending, None)
        return items

    def _is_due(self, item: TraceRequest, now: float) -> bool:
        if self._num_free is None:
            return item.arrival_s <= now
        return self._num_free > 0 and (not self._is_paced or item.arrival_s <= now)

    def _request(self, item: TraceRequest, at: float) -> Request | None:
        self._index += 1
        problem = self._make.problem(item)
        if problem is not None:
            if self._skip:
                self.num_skipped += 1
                return None
            where = f"Row {item.row}" if item.row else f"Request {self._index}"
            raise WorkloadError(
                f"{where} of the workload: {problem}",
                hint="Shorten it with --length-divisor, raise --max-model-len or the blocks, or --skip-too-long.",
            )
        self.num_sent += 1
        if self.first_at is None:
            self.first_at = at
        return self._make.request(item, self._index - 1, at)

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`."""
        if self._next is None:
            return None
        if self._num_free is None:
            return self._next.arrival_s
        if not self._num_free:
            return None
        return self._next.arrival_s if self._is_paced else 0.0

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return self._next is None


class RequestMaker:
    """Makes requests of lengths and block identities, which end at exactly their output length."""

    def __init__(self, config: EngineConfig) -> None:
        self._max_model_len = config.scheduler.max_model_len
        self._block_size = config.cache.block_size
        self._pool_tokens = (config.cache.num_blocks - 1) * config.cache.block_size

    def problem(self, item: TraceRequest) -> str | None:
        """Why the deployment could never hold this request; None if it could."""
        num_tokens = item.num_prompt_tokens + item.num_output_tokens
        limit = min(self._max_model_len, self._pool_tokens)
        if num_tokens <= limit:
            return None
        holder = "max_model_len" if limit == self._max_model_len else "the KV cache"
        return (
            f"num_prompt_tokens {item.num_prompt_tokens} + num_output_tokens {item.num_output_tokens} = {num_tokens} "
            f"tokens, more than {holder} of {limit}."
        )

    def request(self, item: TraceRequest, index: int, at: float) -> Request:
        """A request that arrives at that instant."""
        request_id = item.request_id or f"request-{index}"
        keys = item.keys_at(self._block_size) if item.block_keys else ()
        return Request(
            request_id,
            SyntheticContent(request_id, keys),
            item.num_prompt_tokens,
            _sampling(item.num_output_tokens),
            self._max_model_len,
            arrived_at=at,
        )


@lru_cache(maxsize=65536)
def _sampling(num_output_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=num_output_tokens)


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
    source = _Requests(RequestMaker(deployment.config), workload)
    stats = ServingStats(source.next_at() or 0.0, slo)
    router = Router(source, deployment.num_ranks, deployment.router, is_closed=workload.concurrency is not None)

    def finished(record: RequestRecord, request: Request) -> None:
        if keep_records:
            records.append(record)
        if on_record is not None:
            on_record(record, request)

    ranks: list[tuple[Engine, Measurement]] = []
    for index, rank_source in enumerate(router.sources):
        engine = deployment.make_engine(rank_source, fast_forward=fast_forward)
        if isinstance(engine, FastForwardEngine):
            # Of several ranks one may end a request, and so free a client, while another is within a stride.
            engine.may_stride = may_stride and (deployment.num_ranks == 1 or workload.concurrency is None)
        measurement = Measurement(engine, stats, on_record=finished, on_ended=source.release)
        engine.listeners.append(measurement)
        engine.listeners += [observer.attach(index, engine) for observer in observers]
        ranks.append((engine, measurement))
    run_ranks([engine for engine, _ in ranks], router)
    return SimulationResult(_summary(stats, ranks, source), records)


def _summary(stats: ServingStats, ranks: Sequence[tuple[Engine, Measurement]], source: _Requests) -> Summary:
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
