"""Follows one engine's events and feeds `ServingStats`, whether requests come one by one or in lockstep."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence

from headway.core.engine import Engine
from headway.core.events import Event, RequestArrived, RequestEnded, RequestRefused, StepFinished, StrideFinished
from headway.core.plan import RequestOutput
from headway.core.request import FinishReason, Request
from headway.report.slo import RequestRecord
from headway.report.summary import ServingStats


class SuffixMaximum:
    """Answers for the largest value since any index; values come in order, memory stays near log of their number."""

    __slots__ = ("_indices", "_values")

    def __init__(self) -> None:
        self._indices = array("q")
        self._values = array("d")

    def push(self, index: int, value: float) -> None:
        """Add the next value."""
        indices, values = self._indices, self._values
        while values and values[-1] <= value:
            values.pop()
            indices.pop()
        indices.append(index)
        values.append(value)

    def since(self, index: int) -> float:
        """The largest value after `index`; 0 if there is none."""
        position = bisect_right(self._indices, index)
        return self._values[position] if position < len(self._values) else 0.0


class Measurement:
    """An engine listener that measures every request from its arrival to its last token.

    Almost every gap between two outputs of a request is the time between two updates, the same for all that run; only
    requests that paused (preempted, or left out of a step) are looked at one by one.

    Args:
        on_record: called with each request that ran to its end.
        on_ended: told which requests have ended in a step, refused ones too.
    """

    def __init__(
        self,
        engine: Engine,
        stats: ServingStats,
        *,
        on_record: Callable[[RequestRecord, Request], None],
        on_ended: Callable[[Sequence[Request]], None],
    ) -> None:
        self._scheduler = engine.scheduler
        self._stats = stats
        self._on_record = on_record
        self._on_ended = on_ended
        self._updated_at = self._counted_at = 0.0
        self._num_updates = 0
        self._gaps = SuffixMaximum()
        """Times between updates: the gaps of whoever gets a token in each."""
        self._max_pause_s: dict[str, float] = {}
        self._first_update: dict[str, int] = {}
        self.waiting_s = 0.0
        """Requests waiting, summed over time."""
        self.running_s = 0.0
        self.queued_s = 0.0
        """Time during which anybody waited."""
        self.peak_waiting = 0
        self.peak_running = 0

    def __call__(self, event: Event) -> None:
        """See `headway.core.engine.Listener`."""
        if isinstance(event, StepFinished):
            self._step(event)
        elif isinstance(event, StrideFinished):
            self._stride(event)
        elif isinstance(event, RequestArrived):
            if not self._scheduler.running and len(self._scheduler.waiting) == 1:
                self._counted_at = event.at  # The engine stood idle until now.
        elif isinstance(event, RequestEnded | RequestRefused):
            self._stats.add_failure()
            self._forget(event.request)
            self._on_ended([event.request])

    def kv_summary(self) -> dict[str, float]:
        """Waste and usage of the KV cache, 0 to 1: means weigh each step in which anything is held equally."""
        stats, kv = self._scheduler.stats, self._scheduler.kv
        slots = kv.pool.num_usable_blocks * kv.block_size
        mean = stats.kv_reserved_slots_sum / stats.num_kv_samples if stats.num_kv_samples else 0.0
        return {
            "mean_kv_waste": stats.mean_kv_waste,
            "peak_kv_waste": stats.peak_kv_waste,
            "mean_kv_usage": mean / slots,
            "peak_kv_usage": stats.peak_kv_reserved_slots / slots,
        }

    def _count_time(self, now: float) -> None:
        scheduler = self._scheduler
        num_waiting, num_running = len(scheduler.waiting), len(scheduler.running)
        elapsed_s = now - self._counted_at
        self._counted_at = now
        self.waiting_s += num_waiting * elapsed_s
        self.running_s += num_running * elapsed_s
        if num_waiting:
            self.queued_s += elapsed_s
        if num_waiting > self.peak_waiting:
            self.peak_waiting = num_waiting
        if num_running > self.peak_running:
            self.peak_running = num_running

    def _stride(self, event: StrideFinished) -> None:
        ends_at = event.ends_at
        self._count_time(ends_at[-1])
        num_requests, before, index = event.stride.num_requests, self._updated_at, self._num_updates
        add_gap, add_tokens, push = self._stats.add_gap, self._stats.add_tokens, self._gaps.push
        for now in ends_at:
            gap_s = now - before
            add_gap(gap_s, num_requests)
            add_tokens(now, num_requests)
            index += 1
            push(index, gap_s)
            before = now
        self._updated_at = before
        self._num_updates = index

    def _step(self, event: StepFinished) -> None:
        now, run, before = event.at, event.plan.lockstep, self._updated_at
        self._count_time(now)
        self._num_updates += 1
        gap_s = now - before
        self._gaps.push(self._num_updates, gap_s)
        num_in_step = num_tokens = run.num_requests if run is not None and run.items is None else 0
        ended: list[RequestOutput] = []
        for output in event.outputs:
            if not output.in_lockstep:
                num_tokens += output.num_tokens
                if output.previous_token_at == before:
                    num_in_step += 1
                else:
                    self._out_of_step(output, now)
            if output.finish_reason is not None:
                ended.append(output)
        self._stats.add_gap(gap_s, num_in_step)
        if num_tokens:
            self._stats.add_tokens(now, num_tokens)
        self._updated_at = now
        for output in ended:
            assert output.finish_reason is not None
            self._end(output.request, output.finish_reason)
        if ended:
            self._on_ended([output.request for output in ended])

    def _out_of_step(self, output: RequestOutput, now: float) -> None:
        """A first token, or one after a pause: then the gap is longer than any of the steps in it."""
        request_id = output.request.request_id
        if output.previous_token_at is None:
            self._first_update[request_id] = self._num_updates
            return
        gap_s = now - output.previous_token_at
        self._stats.add_gap(gap_s)
        self._max_pause_s[request_id] = max(gap_s, self._max_pause_s.get(request_id, 0.0))

    def _end(self, request: Request, reason: FinishReason) -> None:
        max_gap_s = self._longest_gap(request)
        self._forget(request)
        if reason in (FinishReason.ABORT, FinishReason.ERROR):
            self._stats.add_failure()
            return
        assert request.first_token_at is not None and request.last_token_at is not None, "it ended with a token"
        record = RequestRecord(
            request_id=request.request_id,
            sent_at=request.arrived_at,
            first_token_at=request.first_token_at,
            last_token_at=request.last_token_at,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            max_itl_s=max_gap_s,
            num_preemptions=request.num_preemptions,
        )
        self._stats.add_request(record)
        self._on_record(record, request)

    def _longest_gap(self, request: Request) -> float:
        request_id = request.request_id
        in_step = self._gaps.since(self._first_update.get(request_id, self._num_updates))
        return max(in_step, self._max_pause_s.get(request_id, 0.0))

    def _forget(self, request: Request) -> None:
        self._max_pause_s.pop(request.request_id, None)
        self._first_update.pop(request.request_id, None)
