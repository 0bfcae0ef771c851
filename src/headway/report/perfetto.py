"""Traces that ui.perfetto.dev and chrome://tracing open, written as they come."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from headway.errors import ConfigError
from headway.report.explain import RequestStory

_ENGINE, _REQUESTS = 1, 2


class PerfettoWriter:
    """Steps on a track for each rank, requests below with their phases, and counters.

    Args:
        path: `.json`, or `.json.gz` for gzip.
        max_events: nothing is written beyond; `num_dropped` then says how much is missing.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str | Path, max_events: int = 500_000) -> None:
        self._path = Path(path)
        self._left = max_events
        self.num_dropped = 0
        try:
            self._file: IO[str] = _create(self._path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
        self._file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        self._write_names()

    def _write_names(self) -> None:
        names = ((_ENGINE, "engine"), (_REQUESTS, "requests"))
        events = [{"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}} for pid, name in names]
        self._file.write(",\n".join(json.dumps(event) for event in events))

    def _event(self, event: Mapping[str, Any]) -> None:
        if self._left <= 0:
            self.num_dropped += 1
            return
        self._left -= 1
        self._file.write(",\n" + json.dumps(event, separators=(",", ":")))

    def step(self, rank: int, started_at: float, ended_at: float, name: str, args: Mapping[str, object]) -> None:
        """One step, or a stride of like ones."""
        self._event(
            {
                "ph": "X",
                "name": name,
                "pid": _ENGINE,
                "tid": rank,
                "ts": _us(started_at),
                "dur": _us(ended_at - started_at),
                "args": dict(args),
            }
        )

    def counters(self, rank: int, at: float, values: Mapping[str, float]) -> None:
        """Values at an instant, each on a track of its own."""
        for name, value in values.items():
            title = name if rank == 0 else f"{name}, rank {rank}"
            self._event({"ph": "C", "name": title, "pid": _ENGINE, "ts": _us(at), "args": {name: value}})

    def request(self, story: RequestStory) -> None:
        """A request with its phases: queued, prefill, decode; its times by cause are among the arguments."""
        first_token_at = story.arrived_at + story.ttft_s
        phases = (
            ("queued", story.arrived_at, story.arrived_at + story.queued_s),
            ("prefill", story.arrived_at + story.queued_s, first_token_at),
            ("decode", first_token_at, story.arrived_at + story.e2el_s),
        )
        args = {
            "why": story.why,
            "prompt_tokens": story.num_prompt_tokens,
            "output_tokens": story.num_output_tokens,
            "stalled_ms": round(story.stalled_s * 1e3, 3),
            "preemptions": story.num_preemptions,
        }
        whole = (story.request_id, story.arrived_at, story.arrived_at + story.e2el_s)
        for name, begin, end in (whole, *phases):
            shared = {"cat": "request", "id": story.request_id, "pid": _REQUESTS, "tid": 0, "name": name}
            self._event({"ph": "b", "ts": _us(begin), "args": args if name == story.request_id else {}} | shared)
            self._event({"ph": "e", "ts": _us(end)} | shared)

    def close(self) -> None:
        """Finish the file."""
        self._file.write("\n]}\n")
        self._file.close()


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _create(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "wt", encoding="utf-8")
    return path.open("w", encoding="utf-8")
