"""Step logs: drive the Scheduler alone through a workload and record every decision.

The workload and record formats are those of the conformance oracle, which drives vLLM's own scheduler
(`tests/conformance/`), so that any two logs can be compared field by field. Settings are taken as given: a version
changes decisions, never configuration.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headway.config import REFERENCE_ENGINE_VERSION, CacheConfig, SchedulerConfig
from headway.core.plan import RequestOutput, StepPlan, StepResult
from headway.core.profiles import EngineCrashError
from headway.core.request import FinishReason, Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.executors.scripted import ScriptedExecutor
from headway.frontends.steplog_input import read_workload

Record = dict[str, Any]

_FIRST_OUTPUT_ID = 10_000_000


def run_workload(workload: Mapping[str, Any], engine_version: str = REFERENCE_ENGINE_VERSION) -> Iterator[Record]:
    """Records of a workload: one `config`, one `step` each step, and one `end`; see `docs/step-logs.md`.

    Where vLLM would wait for ever the log has a `deadlock` record; where the release would die, an `error` record.

    Raises:
        WorkloadError: a malformed workload; names the key and the request.
        ConfigError: settings that no scheduler accepts, or an unsupported version.
    """
    return _Run(workload, engine_version).records()


class _Run:
    def __init__(self, workload: Mapping[str, Any], engine_version: str) -> None:
        self.settings, self.specs = read_workload(workload)
        self.scheduler = _make_scheduler(self.settings, engine_version)
        most = self.settings["max_model_len"]
        self.executor = ScriptedExecutor(
            {str(spec["id"]): _outputs(i, spec, most) for i, spec in enumerate(self.specs)}
        )
        order = sorted(range(len(self.specs)), key=lambda i: (self.specs[i].get("arrival_step", 0), i))
        self.arrivals = deque(order)
        self.aborts = deque(
            sorted((spec["abort_step"], i) for i, spec in enumerate(self.specs) if spec.get("abort_step") is not None)
        )
        self.depth = self.settings["batch_queue"] or (2 if self.settings["async_scheduling"] else 1)
        self.in_flight: deque[tuple[StepPlan, StepResult]] = deque()
        self.step = 0
        self.totals = {"steps": 0, "tokens_scheduled": 0, "preemptions": 0, "finished": 0}
        self.num_emitted = 0

    def records(self) -> Iterator[Record]:
        """The whole log."""
        scheduler = self.scheduler
        yield {
            "type": "config",
            "vllm_version": scheduler.profile.version,
            "scheduler": "headway",
            **self.settings,
            "max_num_scheduled_tokens": self.settings["max_num_batched_tokens"],
            "reserve_full_isl": scheduler.gates_on_full_sequence,
        }
        num_records = 1
        try:
            for record in self._steps():
                if record["type"] == "step":
                    self.totals["steps"] += 1
                    self.num_emitted += sum(record["emitted"].values())
                yield record
                num_records += 1
                if num_records > self.settings["max_steps"]:
                    yield {"type": "max_steps"}
                    break
        except EngineCrashError as error:
            yield {"type": "error", "error": str(error)}
            return
        yield {"type": "end", **self.totals, "free_blocks": self._num_free, "tokens_emitted": self.num_emitted}

    def _steps(self) -> Iterator[Record]:
        scheduler = self.scheduler
        while True:
            if not self.in_flight and not scheduler.has_requests and self.arrivals:
                self.step = max(self.step, self.specs[self.arrivals[0]].get("arrival_step", 0))
            aborted = self._take()
            if not scheduler.has_requests and not self.in_flight:
                if aborted:
                    yield self._idle_record(aborted, [], [])
                if not self.arrivals:
                    return
                continue
            if not scheduler.has_requests:
                yield self._idle_record(aborted, *self._process(), drain=True)
                self.step += 1
                continue
            record, stuck = self._one_step(aborted)
            yield record
            if stuck:
                yield {
                    "type": "deadlock",
                    "step": self.step,
                    "waiting": record["waiting"],
                    "running": record["running"],
                }
                return
            self.step += 1

    def _take(self) -> list[str]:
        """Hand arrivals and aborts that are due to the scheduler; returns the ids aborted."""
        while self.arrivals and self.specs[self.arrivals[0]].get("arrival_step", 0) <= self.step:
            index = self.arrivals.popleft()
            self.scheduler.add(self._request(index, self.specs[index]))
        aborted = []
        while self.aborts and self.aborts[0][0] <= self.step:
            request_id = str(self.specs[self.aborts.popleft()[1]]["id"])
            if self.scheduler.finish(request_id, FinishReason.ABORT) is not None:
                aborted.append(request_id)
        self.totals["finished"] += len(aborted)
        return aborted

    def _one_step(self, aborted: list[str]) -> tuple[Record, bool]:
        """Schedule a step, process one if the queue is full; returns its record and whether vLLM would hang here."""
        scheduler = self.scheduler
        plan = scheduler.schedule(float(self.step))
        record = self._plan_record(plan, aborted)
        self.totals["tokens_scheduled"] += plan.num_tokens
        self.totals["preemptions"] += len(plan.preempted)
        self.in_flight.append((plan, self.executor.execute(plan)))
        outputs: list[RequestOutput] = []
        if len(self.in_flight) >= self.depth or (plan.num_tokens == 0 and not scheduler.has_requests):
            outputs = self._update()
        record |= {
            "emitted": {output.request.request_id: output.num_tokens for output in outputs},
            "finished": [output.request.request_id for output in outputs if output.finish_reason is not None],
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
            "computed": {request.request_id: request.num_computed_tokens for request in scheduler.running},
            "free_blocks_end": self._num_free,
        }
        progress = plan.scheduled or outputs or self.in_flight or self.arrivals or self.aborts or aborted
        return record, not progress and scheduler.has_requests

    def _plan_record(self, plan: StepPlan, aborted: list[str]) -> Record:
        revived = {request.request_id for request in (*plan.resumed, *plan.preempted)}
        admitted = {request.request_id for request in plan.new} | revived
        record: Record = {
            "type": "step",
            "step": self.step,
            "scheduled": [[item.request.request_id, item.num_tokens] for item in plan.scheduled],
            "total_tokens": plan.num_tokens,
            "new": [request.request_id for request in plan.new],
            "resumed": [item.request.request_id for item in plan.scheduled if item.request.request_id in revived],
            "preempted": [request.request_id for request in plan.preempted],
            "admitted": {
                item.request.request_id: item.request.num_computed_tokens - item.num_tokens
                for item in plan.scheduled
                if item.request.request_id in admitted
            },
        }
        if aborted:
            record["aborted"] = aborted
        record["free_blocks"] = self._num_free
        if self.settings["show_blocks"]:
            record["blocks"] = {item.request.request_id: item.request.block_ids for item in plan.scheduled}
        return record

    def _idle_record(
        self, aborted: list[str], emitted: Sequence[RequestOutput], finished: Sequence[str], drain: bool = False
    ) -> Record:
        record: Record = {
            "type": "step",
            "step": self.step,
            "scheduled": [],
            "total_tokens": 0,
            "new": [],
            "resumed": [],
            "preempted": [],
            "admitted": {},
        }
        if drain:
            record["drain"] = True
        if aborted:
            record["aborted"] = aborted
        return record | {
            "free_blocks": self._num_free,
            "emitted": {output.request.request_id: output.num_tokens for output in emitted},
            "finished": list(finished),
            "running": [],
            "waiting": [],
            "computed": {},
            "free_blocks_end": self._num_free,
        }

    def _process(self) -> tuple[list[RequestOutput], list[str]]:
        outputs = self._update()
        return outputs, [output.request.request_id for output in outputs if output.finish_reason is not None]

    def _update(self) -> list[RequestOutput]:
        plan, result = self.in_flight.popleft()
        outputs = self.scheduler.update(plan, result, float(self.step))
        self.totals["finished"] += sum(output.finish_reason is not None for output in outputs)
        return outputs

    @property
    def _num_free(self) -> int:
        return self.scheduler.kv.pool.num_free_blocks

    def _request(self, index: int, spec: Mapping[str, Any]) -> Request:
        prompt = spec["prompt_token_ids"]
        salt = spec.get("cache_salt") if self.scheduler.profile.has_cache_salt else None
        return Request(
            str(spec["id"]),
            TokenContent(prompt, self.settings["block_size"], salt),
            len(prompt),
            SamplingParams(temperature=0.0, max_tokens=spec["max_tokens"], ignore_eos=True),
            self.settings["max_model_len"],
            arrived_at=float(spec.get("arrival_time", index)),
            priority=spec.get("priority", 0),
        )


def _make_scheduler(settings: Mapping[str, Any], engine_version: str) -> Scheduler:
    config = SchedulerConfig(
        max_num_seqs=settings["max_num_seqs"],
        max_num_batched_tokens=settings["max_num_batched_tokens"],
        max_model_len=settings["max_model_len"],
        scheduling_policy=settings["policy"],
        enable_chunked_prefill=settings["enable_chunked_prefill"],
        long_prefill_token_threshold=settings["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=settings["long_prefill_token_threshold_adaptive"],
        max_num_active_seqs=settings["max_num_active_seqs"],
        scheduler_reserve_full_isl=settings["scheduler_reserve_full_isl"],
        async_scheduling=settings["async_scheduling"],
    )
    cache = CacheConfig(
        num_blocks=settings["num_blocks"],
        block_size=settings["block_size"],
        enable_prefix_caching=settings["enable_prefix_caching"],
        watermark=settings["watermark"],
        sliding_window=settings["sliding_window"],
    )
    return Scheduler(config, cache, engine_version=engine_version)


def _outputs(index: int, spec: Mapping[str, Any], most: int) -> Sequence[int]:
    first = _FIRST_OUTPUT_ID + 100_000 * index
    return spec.get("output_token_ids") or range(first, first + min(spec["max_tokens"], most))
