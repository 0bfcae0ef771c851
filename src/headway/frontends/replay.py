"""Replays a workload through an engine, on whichever clock it has, and measures every request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING

from headway.core.arrivals import Arrival, ArrivalSource, Item, TraceSource
from headway.core.engine import Engine
from headway.core.plan import RequestOutput
from headway.core.request import FinishReason, Request
from headway.report.slo import RequestRecord, Slo
from headway.report.summary import ServingStats, Summary
from headway.report.words import counted

if TYPE_CHECKING:
    from rich.console import Console

OnProgress = Callable[[int, int], None]
"""Told after each step: requests ended so far, output tokens so far."""

_PROGRESS_INTERVAL_S = 10.0

OnRefused = Callable[[Request, Exception], None]


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay saw."""

    summary: Summary
    """`ServingStats.summary`, and beside it: `num_unfinished` (requests not ended when a replay was
    interrupted), `num_preemptions`, `num_steps`, `mean_kv_waste` and `peak_kv_waste` (0 to 1, see
    `SchedulerStats`), `prefix_cache_queries` and `prefix_cache_hits` (tokens)."""
    records: Sequence[RequestRecord]
    """One for each request that ran to its end, in that order."""
    interrupted: bool
    """Whether Ctrl-C ended the replay early."""


class ClosedLoopSource:
    """`concurrency` clients, each of which sends its next request when its last one has ended.

    The instant of sending is when the engine next looks for arrivals; `request.arrived_at` is set to it.
    """

    wake: Event | None = None

    def __init__(self, requests: Sequence[Request], concurrency: int, on_refused: OnRefused) -> None:
        self._pending = deque(requests)
        self._num_free = concurrency
        self._on_refused = on_refused

    def release(self, num_ended: int) -> None:
        """That many requests have ended: their clients are free again."""
        self._num_free += num_ended

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`."""
        items = []
        while self._pending and self._num_free:
            self._num_free -= 1
            request = self._pending.popleft()
            request.arrived_at = now
            items.append(Arrival(request, self._refused))
        return items

    def _refused(self, request: Request, error: Exception) -> None:
        self.release(1)
        self._on_refused(request, error)

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`: at once, if a client is free."""
        return 0.0 if self._pending and self._num_free else None

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return not self._pending


class _Measurement:
    """Follows every request from its arrival to its last token."""

    def __init__(self, stats: ServingStats) -> None:
        self.stats = stats
        self.records: list[RequestRecord] = []
        self.num_ended = 0
        self.num_tokens = 0
        self._last_output_at: dict[str, float] = {}
        self._max_gap_s: dict[str, float] = {}

    def take(self, outputs: Sequence[RequestOutput], now: float) -> int:
        """Record the outputs of a step that ended now; returns how many requests ended with it."""
        num_tokens = num_ended = 0
        for output in outputs:
            request_id = output.request.request_id
            if output.num_tokens:
                num_tokens += output.num_tokens
                before = self._last_output_at.get(request_id)
                self._last_output_at[request_id] = now
                if before is not None:
                    gap_s = now - before
                    self.stats.add_gap(gap_s)
                    if gap_s > self._max_gap_s.get(request_id, 0.0):
                        self._max_gap_s[request_id] = gap_s
            if output.finish_reason is not None:
                num_ended += 1
                self._end(output.request, output.finish_reason)
        if num_tokens:
            self.stats.add_tokens(now, num_tokens)
            self.num_tokens += num_tokens
        self.num_ended += num_ended
        return num_ended

    def refuse(self, request: Request, error: Exception) -> None:
        """Record a request that the engine turned away."""
        self.num_ended += 1
        self.stats.add_failure()

    def _end(self, request: Request, reason: FinishReason) -> None:
        last_output_at = self._last_output_at.pop(request.request_id, None)
        max_gap_s = self._max_gap_s.pop(request.request_id, 0.0)
        if last_output_at is None or reason in (FinishReason.ABORT, FinishReason.ERROR):
            self.stats.add_failure()
            return
        assert request.first_token_at is not None, "an output came, so there was a first one"
        record = RequestRecord(
            request_id=request.request_id,
            sent_at=request.arrived_at,
            first_token_at=request.first_token_at,
            last_token_at=last_output_at,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            max_itl_s=max_gap_s,
            num_preemptions=request.num_preemptions,
        )
        self.records.append(record)
        self.stats.add_request(record)


def replay(
    engine: Engine,
    arrivals: Sequence[tuple[float, Request]],
    *,
    concurrency: int | None = None,
    slo: Slo | None = None,
    on_progress: OnProgress | None = None,
) -> ReplayResult:
    """Run requests through an engine and measure them. Ctrl-C ends it early with what was done until then.

    The instant of an output is the engine's clock at the end of the step that made it; a request is sent at
    its arrival, so time that it waits for the engine to look counts.

    Args:
        engine: fresh, without work; its source is replaced.
        arrivals: (seconds from the start of the replay, request); `request.arrived_at` is set here.
        concurrency: if given, a closed loop of that many clients, which take the requests in the order given
            and ignore the arrivals.
    """
    assert not engine.has_work and engine.num_steps == 0, "statistics need an engine that has done nothing yet"
    started_at = engine.clock.now()
    measurement = _Measurement(ServingStats(_first_send(started_at, arrivals, concurrency), slo))
    clients: ClosedLoopSource | None = None
    if concurrency is None:
        engine.source = _open_loop(arrivals, started_at, measurement.refuse)
    else:
        requests = [request for _, request in arrivals]
        engine.source = clients = ClosedLoopSource(requests, concurrency, measurement.refuse)
    interrupted = False
    try:
        for outputs in engine.run():
            num_ended = measurement.take(outputs, engine.clock.now())
            if clients is not None:
                clients.release(num_ended)
            if on_progress is not None:
                on_progress(measurement.num_ended, measurement.num_tokens)
    except KeyboardInterrupt:
        interrupted = True
    summary = measurement.stats.summary() | _engine_keys(engine, len(arrivals) - measurement.num_ended)
    return ReplayResult(summary, measurement.records, interrupted)


def _first_send(started_at: float, arrivals: Sequence[tuple[float, Request]], concurrency: int | None) -> float:
    if concurrency is not None or not arrivals:
        return started_at
    return started_at + min(arrival_s for arrival_s, _ in arrivals)


def _open_loop(arrivals: Sequence[tuple[float, Request]], started_at: float, on_refused: OnRefused) -> ArrivalSource:
    items: list[tuple[float, Item]] = []
    for arrival_s, request in arrivals:
        request.arrived_at = started_at + arrival_s
        items.append((request.arrived_at, Arrival(request, on_refused)))
    return TraceSource(items)


def _engine_keys(engine: Engine, num_unfinished: int) -> Summary:
    stats = engine.stats
    return {
        "num_unfinished": num_unfinished,
        "num_preemptions": stats.num_preemptions,
        "num_steps": engine.num_steps,
        "mean_kv_waste": stats.mean_kv_waste,
        "peak_kv_waste": stats.peak_kv_waste,
        "prefix_cache_queries": stats.prefix_cache_queries,
        "prefix_cache_hits": stats.prefix_cache_hits,
    }


@contextmanager
def progress_bar(label: str, num_requests: int, console: Console | None = None) -> Iterator[OnProgress]:
    """A progress bar for `replay(on_progress=…)`: requests ended, output tokens, time left.

    It goes to stderr; where that is no terminal, lines say that this part began and that all its requests ended, and
    every ten seconds how far it is.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = console or Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{label}: {counted(num_requests, 'request')} …", highlight=False)
        told_at = monotonic()
        is_done = False

        def tell(num_ended: int, num_tokens: int) -> None:
            nonlocal told_at, is_done
            is_done = num_ended >= num_requests
            if monotonic() - told_at >= _PROGRESS_INTERVAL_S:
                told_at = monotonic()
                console.print(f"{label}: {counted(num_ended, 'request')}, {num_tokens:,} tokens", highlight=False)

        yield tell
        if is_done:  # not after Ctrl-C
            console.print(f"{label}: done", highlight=False)
        return
    columns = (
        TextColumn("{task.description:<12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tokens]:>8,} tokens"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(label, total=num_requests, tokens=0)
        yield lambda num_ended, num_tokens: progress.update(task, completed=num_ended, tokens=num_tokens)
