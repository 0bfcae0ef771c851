"""What a monitored vLLM server would show of a simulated run: scrapes of its /metrics, and its log."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from headway.core.engine import Engine, Listener
from headway.core.events import Event, RequestEnded, StepFinished, StrideFinished
from headway.core.plan import RequestOutput
from headway.core.request import FinishReason, Request
from headway.errors import ConfigError
from headway.metrics import (
    HISTOGRAMS,
    LABELS,
    EngineFigures,
    Family,
    Histogram,
    engine_families,
    render,
    token_count_buckets,
)
from headway.simulation.server_log import epoch_ms, log_prefix
from headway.status_log import LOG_INTERVAL_S, HitRate, StatusLog

T = TypeVar("T")
Sink = Callable[[float, str], object]
"""Called with an instant, and what was scraped or logged then; in order of time."""


class Telemetry:
    """An observer of a simulation that scrapes its engines and writes their logs, in virtual time.

    Figures are those that a server would have told at that instant: gauges as the last step that had ended left them,
    so that they stand still while a step takes long. Engines of several replicas share a scrape, under labels of their
    own. After the run `close` tells the rest.

    Args:
        on_scrape: gets the text of each scrape, every sample with its time.
        on_log: gets each line of the log, without its end.

    Raises:
        ConfigError: an interval that is not positive.
    """

    def __init__(
        self,
        *,
        model_name: str = "simulated",
        kv_cache_dtype: str = "auto",
        on_scrape: Sink | None = None,
        on_log: Sink | None = None,
        scrape_interval_s: float = 15.0,
        log_interval_s: float = LOG_INTERVAL_S,
    ) -> None:
        for name, value in (("scrape interval", scrape_interval_s), ("log interval", log_interval_s)):
            if not 0.0 < value < math.inf:
                raise ConfigError(f"The {name} must be a positive number of seconds, not {value:g}.")
        self._model_name = model_name
        self._kv_cache_dtype = kv_cache_dtype
        self._scrape: _Gathering[list[Family]] = _Gathering(scrape_interval_s, self._scraped)
        self._log: _Gathering[list[str]] = _Gathering(log_interval_s, self._logged)
        self._on_scrape = on_scrape
        self._on_log = on_log
        self._ranks: list[_RankTelemetry] = []

    def attach(self, rank: int, engine: Engine) -> Listener:
        """See `headway.simulation.run.Observer`."""
        labels = dict(zip(LABELS, (self._model_name, str(rank)), strict=True))
        found = _RankTelemetry(engine, rank, labels, self._kv_cache_dtype)
        if self._on_scrape is not None:
            found.tickers.append(_Ticker(self._scrape.interval_s, found.families, self._scrape.join()))
        if self._on_log is not None:
            found.tickers.append(_Ticker(self._log.interval_s, found.log_lines, self._log.join()))
        self._ranks.append(found)
        return found

    def close(self) -> None:
        """Tell what is left: the last scrape and the last line come after the last step."""
        until = max((rank.updated_at for rank in self._ranks), default=0.0)
        for rank in self._ranks:
            rank.finish(until)

    def _scraped(self, at_s: float, of_ranks: Sequence[Sequence[Family]]) -> None:
        assert self._on_scrape is not None
        merged = [family for families in zip(*of_ranks, strict=True) for family in families]
        text = render(merged, epoch_ms(at_s))
        self._on_scrape(at_s, f"# scrape at {at_s:g} s\n{text}")

    def _logged(self, at_s: float, of_ranks: Sequence[Sequence[str]]) -> None:
        assert self._on_log is not None
        for lines in of_ranks:
            for line in lines:
                self._on_log(at_s, line)


class _Gathering(Generic[T]):
    """Puts together what all ranks told at one instant: each rank tells in order of time, but runs on its own clock."""

    def __init__(self, interval_s: float, deliver: Callable[[float, Sequence[T]], None]) -> None:
        self.interval_s = interval_s
        self._deliver = deliver
        self._told: list[deque[T]] = []
        self._num_delivered = 0

    def join(self) -> Callable[[T], None]:
        """Add a rank; returns what it calls at each of its instants."""
        queue: deque[T] = deque()
        self._told.append(queue)

        def tell(item: T) -> None:
            queue.append(item)
            while all(self._told):
                self._num_delivered += 1
                self._deliver(self._num_delivered * self.interval_s, [each.popleft() for each in self._told])

        return tell


class _Ticker:
    """Calls at multiples of an interval, the first of them after 0."""

    __slots__ = ("_act", "_count", "_interval_s", "due_at")

    def __init__(self, interval_s: float, read: Callable[[float], T], tell: Callable[[T], None]) -> None:
        def act(at_s: float) -> None:
            tell(read(at_s))

        self._interval_s = interval_s
        self._count = 1
        self._act = act
        self.due_at = interval_s

    def advance(self, until: float) -> None:
        """Act at every instant before `until`."""
        while self.due_at < until:
            self._act(self.due_at)
            self._count += 1
            self.due_at = self._count * self._interval_s

    def finish(self, until: float) -> None:
        """The same, and once more at or after `until`."""
        self.advance(until)
        self._act(self.due_at)


class _RankTelemetry:
    """One engine's listener: takes each step in after telling what was due before its end."""

    def __init__(self, engine: Engine, rank: int, labels: dict[str, str], kv_cache_dtype: str) -> None:
        scheduler = engine.scheduler
        self._engine = engine
        self._scheduler = scheduler
        self._labels = labels
        self._cache_dtype = kv_cache_dtype
        self._num_drafts = scheduler.config.num_speculative_tokens
        counts = token_count_buckets(scheduler.config.max_model_len)
        self._histograms = {name: Histogram(buckets or counts) for name, _, buckets in HISTOGRAMS}
        self._gaps = self._histograms["inter_token_latency_seconds"]
        self._step_tokens = self._histograms["iteration_tokens_total"]
        self._finished: Counter[FinishReason] = Counter()
        self._hit_rate = HitRate()
        self._num_usable_blocks = scheduler.kv.pool.num_usable_blocks
        self._num_generation_tokens = 0
        self._num_blocks = self._num_running = self._num_waiting = 0
        self._counters = (0, 0, 0, 0)
        self._speculation: tuple[int, int, int, tuple[int, ...]] = (0, 0, 0, ())
        self._status = StatusLog(rank)
        self.tickers: list[_Ticker] = []
        self.updated_at = 0.0

    def __call__(self, event: Event) -> None:
        """See `headway.core.engine.Listener`."""
        if isinstance(event, StepFinished):
            self._step(event)
        elif isinstance(event, StrideFinished):
            self._stride(event)
        elif isinstance(event, RequestEnded) and event.request.finish_reason is not None:
            self._finished[event.request.finish_reason] += 1

    def finish(self, until: float) -> None:
        """Tell the rest of a run that ended then."""
        for ticker in self.tickers:
            ticker.finish(until)

    # ------------------------------------------------------------------ taking steps in

    def _pass(self, now: float) -> None:
        for ticker in self.tickers:
            if ticker.due_at < now:
                ticker.advance(now)

    def _stride(self, event: StrideFinished) -> None:
        stride, before = event.stride, self.updated_at
        num_requests, step_id = stride.num_requests, stride.first_step_id
        added: Counter[int] = Counter()
        for added_at, _, blocks in stride.added:
            added[added_at] += len(blocks)
        due_at = min((ticker.due_at for ticker in self.tickers), default=math.inf)
        for now in event.ends_at:
            if due_at < now:
                self._pass(now)
                due_at = min(ticker.due_at for ticker in self.tickers)
            self._gaps.observe(now - before, num_requests)
            self._step_tokens.observe(num_requests)
            self._num_generation_tokens += num_requests
            self._num_blocks += added[step_id]
            step_id += 1
            self.updated_at = before = now
        self._take_gauges()

    def _step(self, event: StepFinished) -> None:
        now, before, plan = event.at, self.updated_at, event.plan
        self._pass(now)
        run = plan.lockstep
        num_in_step = num_tokens = run.num_requests if run is not None and run.items is None else 0
        for output in event.outputs:
            if not output.in_lockstep:
                num_tokens += output.num_tokens
                if output.previous_token_at is not None and output.previous_token_at == before:
                    num_in_step += 1
                else:
                    self._out_of_step(output, now)
            if output.finish_reason is not None:
                self._end(output.request, output.finish_reason, now)
        if num_in_step:
            self._gaps.observe(now - before, num_in_step)
        if plan.num_tokens:
            self._step_tokens.observe(plan.num_tokens)
        self._num_generation_tokens += num_tokens
        self.updated_at = now
        self._take_gauges()
        self._take_counters(len(plan.new))

    def _take_gauges(self) -> None:
        scheduler = self._scheduler
        self._num_running = len(scheduler.running)
        self._num_waiting = len(scheduler.waiting)
        self._num_blocks = scheduler.kv.pool.num_referenced_blocks

    def _take_counters(self, num_admitted: int) -> None:
        stats = self._scheduler.stats
        self._hit_rate.follow(num_admitted, stats.prefix_cache_queries, stats.prefix_cache_hits)
        self._counters = (
            stats.num_prompt_tokens,
            stats.num_preemptions,
            stats.prefix_cache_queries,
            stats.prefix_cache_hits,
        )
        if self._num_drafts:
            accepted = tuple(stats.num_accepted_per_position)
            self._speculation = (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens, accepted)

    def _out_of_step(self, output: RequestOutput, now: float) -> None:
        """A first token, or one after a pause."""
        if output.previous_token_at is None:
            self._histograms["time_to_first_token_seconds"].observe(now - output.request.arrived_at)
        else:
            self._gaps.observe(now - output.previous_token_at)

    def _end(self, request: Request, reason: FinishReason, now: float) -> None:
        self._finished[reason] += 1
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        scheduled, first, last = request.first_scheduled_at, request.first_token_at, request.last_token_at
        assert scheduled is not None and first is not None and last is not None, "it ended with a token"
        num_outputs = request.num_output_tokens
        values: dict[str, float | None] = {
            "e2e_request_latency_seconds": now - request.arrived_at,
            "request_queue_time_seconds": scheduled - request.arrived_at,
            "request_prefill_time_seconds": first - scheduled,
            "request_decode_time_seconds": last - first,
            "request_inference_time_seconds": last - scheduled,
            "request_time_per_output_token_seconds": (last - first) / (num_outputs - 1) if num_outputs > 1 else None,
            "request_prompt_tokens": request.num_prompt_tokens,
            "request_generation_tokens": num_outputs,
            "request_max_num_generation_tokens": num_outputs,
            "request_prefill_kv_computed_tokens": request.num_prompt_tokens - request.num_cached_tokens,
            "request_params_max_tokens": request.sampling.max_tokens,
            "request_params_n": 1,
            "request_num_preemptions": request.num_preemptions,
        }
        for name, value in values.items():
            if value is not None:
                self._histograms[name].observe(value)

    # ------------------------------------------------------------------ telling

    def _figures(self) -> EngineFigures:
        num_prompt_tokens, num_preemptions, queries, hits = self._counters
        num_drafts, num_draft_tokens, num_accepted, per_position = self._speculation
        return EngineFigures(
            num_running=self._num_running,
            num_waiting=self._num_waiting,
            kv_usage=self._num_blocks / self._num_usable_blocks,
            num_prompt_tokens=num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            num_preemptions=num_preemptions,
            prefix_cache_queries=queries,
            prefix_cache_hits=hits,
            num_drafts=num_drafts,
            num_draft_tokens=num_draft_tokens,
            num_accepted_tokens=num_accepted,
            num_accepted_per_position=per_position,
        )

    def families(self, at_s: float) -> list[Family]:
        """What a scrape now finds."""
        labels = self._labels
        engine = engine_families(
            self._figures(),
            labels,
            self._scheduler.kv.config,
            cache_dtype=self._cache_dtype,
            num_speculative_tokens=self._num_drafts,
        )
        ended = [
            ("_total", {**labels, "finished_reason": reason.value}, self._finished[reason]) for reason in FinishReason
        ]
        return [
            *engine,
            Family("vllm:request_success", "counter", "Requests that have ended, by reason.", ended),
            *(
                Family(f"vllm:{name}", "histogram", text, self._histograms[name].samples(labels))
                for name, text, _ in HISTOGRAMS
            ),
        ]

    def log_lines(self, at_s: float) -> list[str]:
        """The periodic lines."""
        return self._status.lines(at_s, log_prefix(at_s), self._figures(), self._hit_rate.value)
