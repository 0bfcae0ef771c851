"""Simulating a stretch of an engine's life: what comes before it and the drain after it are run, but not measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.engine import Engine, Listener
from headway.core.events import Event, RequestArrived, StepFinished, StrideFinished
from headway.report.latency import LatencyAccumulator
from headway.report.slo import RequestRecord
from headway.report.summary import DEFAULT_PERCENTILES, ServingStats, Summary, latency_keys
from headway.simulation.measurement import Measurement
from headway.simulation.run import Observer, SimulatedDeployment, SimulatedWorkload, simulate

_LEAST_SAMPLES = 5


@dataclass(frozen=True, slots=True)
class Window:
    """What of a run is measured: from the arrival after the first `num_before` until `until_s`, or, where that is None,
    until the last of `num_requests` has arrived."""

    num_before: int
    num_requests: int
    until_s: float | None = None


def simulate_window(
    deployment: SimulatedDeployment,
    workload: SimulatedWorkload,
    window: Window | None,
    *,
    observers: Sequence[Observer] = (),
) -> Summary:
    """The summary of a simulation, its latencies, rates and gauges within a window; of all where there is none.

    Counts of preemptions and steps stay those of the whole run.
    """
    if window is None:
        return simulate(deployment, workload, observers=observers).summary
    observer = _WindowObserver(window)
    whole = simulate(deployment, workload, observers=[observer, *observers]).summary
    return whole | observer.summary()


class _Gate:
    """Whether the window is open."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._num_arrived = 0
        self.opened_at: float | None = None
        self.closed_at: float | None = None

    @property
    def is_open(self) -> bool:
        return self.opened_at is not None and self.closed_at is None

    def arrived(self, at: float) -> None:
        self._num_arrived += 1
        if self._num_arrived > self._window.num_before and self.opened_at is None:
            self.opened_at = at
        if self._window.until_s is None and self._num_arrived >= self._window.num_requests and self.is_open:
            self.closed_at = at

    def counts(self, sent_at: float) -> bool:
        """Whether a request that ends now is measured. Where the window ends with the last arrival, those that came in
        it are, however late they end: they have only earlier ones ahead of them."""
        if self.opened_at is None or sent_at < self.opened_at:
            return False
        if self._window.until_s is not None:
            return self.is_open
        return self.closed_at is None or sent_at <= self.closed_at

    def passed(self, now: float) -> None:
        until_s = self._window.until_s
        if until_s is not None and now > until_s and self.is_open:
            self.closed_at = until_s


class _GatedStats(ServingStats):
    """Takes in what happens while the gate is open.

    Waiting is measured of requests that arrived while it was, and step times of those that end while it is: the drain
    has few running, and would make them look quick.
    """

    def __init__(self, gate: _Gate) -> None:
        super().__init__(0.0)
        self._gate = gate
        self.num_tokens = 0
        self.num_ended = 0
        self._within = {name: LatencyAccumulator() for name in ("ttft", "tpot", "itl", "e2el")}

    def add_gap(self, gap_s: float, count: int = 1) -> None:
        if self._gate.is_open:
            self._within["itl"].add(gap_s, count)

    def add_tokens(self, at: float, num_tokens: int) -> None:
        if self._gate.is_open:
            self.num_tokens += num_tokens

    def add_request(self, record: RequestRecord) -> None:
        if self._gate.is_open:
            self.num_ended += 1
            if record.tpot_s is not None:
                self._within["tpot"].add(record.tpot_s)
        if self._gate.counts(record.sent_at):
            self._within["ttft"].add(record.ttft_s)
            self._within["e2el"].add(record.e2el_s)

    def latencies(self) -> Summary:
        """Statistics of what enough was seen of."""
        found: Summary = {}
        for name, samples in self._within.items():
            if len(samples) >= _LEAST_SAMPLES:
                found |= latency_keys(name, samples, DEFAULT_PERCENTILES)
        return found


class _WindowObserver:
    """See `headway.simulation.run.Observer`."""

    def __init__(self, window: Window) -> None:
        self._gate = _Gate(window)
        self._stats = _GatedStats(self._gate)
        self._ranks: list[_Rank] = []

    def attach(self, rank: int, engine: Engine) -> Listener:
        found = _Rank(engine, self._gate, self._stats)
        self._ranks.append(found)
        return found

    def summary(self) -> Summary:
        """What was measured; empty if too little happened in the window."""
        measured_s = max((rank.measured_s for rank in self._ranks), default=0.0)
        if measured_s <= 0.0 or not self._stats.num_tokens:
            return {}
        found: Summary = {
            "output_throughput": self._stats.num_tokens / measured_s,
            "request_throughput": self._stats.num_ended / measured_s,
            "mean_num_running": sum(rank.running_s for rank in self._ranks) / measured_s,
            "mean_num_waiting": sum(rank.waiting_s for rank in self._ranks) / measured_s,
            "saturation": min(1.0, sum(rank.queued_s for rank in self._ranks) / measured_s / len(self._ranks)),
        }
        busy_s = sum(rank.busy_s for rank in self._ranks)
        if busy_s > 0.0:
            found["mean_kv_usage"] = sum(rank.kv_s for rank in self._ranks) / busy_s
        return found | self._stats.latencies()


class _Rank:
    """Listens to one engine. Gauges are weighed by time."""

    def __init__(self, engine: Engine, gate: _Gate, stats: _GatedStats) -> None:
        self._scheduler = engine.scheduler
        self._gate = gate
        self._measurement = Measurement(
            engine, stats, on_record=lambda record, request: None, on_ended=lambda ended: None
        )
        self._updated_at = 0.0
        self.measured_s = self.running_s = self.waiting_s = self.queued_s = self.busy_s = self.kv_s = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestArrived):
            if not self._scheduler.running and len(self._scheduler.waiting) == 1:
                self._stand_idle(event.at)
            self._gate.arrived(event.at)
        elif isinstance(event, StepFinished):
            self._add(event.at)
        elif isinstance(event, StrideFinished):
            self._add(event.ends_at[-1])
        self._measurement(event)

    def _stand_idle(self, now: float) -> None:
        """Until then nothing ran and nothing waited."""
        if self._gate.is_open:
            self.measured_s += self._elapsed_s(now)
        self._gate.passed(now)
        self._updated_at = now

    def _elapsed_s(self, now: float) -> float:
        """Seconds within the window since the last update."""
        opened_at = self._gate.opened_at
        return max(0.0, now - (self._updated_at if opened_at is None else max(self._updated_at, opened_at)))

    def _add(self, now: float) -> None:
        if self._gate.is_open:
            scheduler, elapsed_s = self._scheduler, self._elapsed_s(now)
            num_running, num_waiting = len(scheduler.running), len(scheduler.waiting)
            self.measured_s += elapsed_s
            self.running_s += elapsed_s * num_running
            self.waiting_s += elapsed_s * num_waiting
            if num_waiting:
                self.queued_s += elapsed_s
            if num_running:
                self.busy_s += elapsed_s
                self.kv_s += elapsed_s * scheduler.kv.pool.usage
        self._gate.passed(now)
        self._updated_at = now
