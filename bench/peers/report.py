"""What a peer's process tells: one line of JSON. Standard library only."""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path


class Recorder:
    """Times of one run: start-up, the first token and the gaps of each request.

    A peer's runner calls `ready` when the model is loaded and warm, `begin`, `tokens` at each output, `end`.
    """

    def __init__(self) -> None:
        self._made_at = time.perf_counter()
        self._ready_at = self._started_at = self._ended_at = self._cpu_s = 0.0
        self._server: int | None = None
        self._arrivals: list[float] = []
        self._times: list[list[float]] = []

    def ready(self) -> None:
        """The model could serve now."""
        self._ready_at = time.perf_counter()

    def watch(self, pid: int) -> None:
        """The engine is that process: its memory and processor time count."""
        self._server = pid

    def begin(self, arrivals_s: Sequence[float]) -> float:
        """The clock of arrivals starts; returns its zero."""
        self._arrivals = list(arrivals_s)
        self._times = [[] for _ in arrivals_s]
        self._cpu_s = -self._processor_s()
        self._started_at = time.perf_counter()
        return self._started_at

    def tokens(self, index: int, count: int) -> None:
        """So many more tokens of that request came."""
        self._times[index] += [time.perf_counter() - self._started_at] * count

    def times(self, index: int, instants: Sequence[float]) -> None:
        """All tokens of that request, by the clock of `time.perf_counter`, from a peer that notes them itself."""
        self._times[index] = [instant - self._started_at for instant in instants]

    def end(self) -> None:
        """All requests have ended."""
        self._ended_at = time.perf_counter()
        self._cpu_s += self._processor_s()

    def print(self, num_prompt_tokens: int, num_output_tokens: int, **facts: object) -> None:
        """Print the result.

        decode_tokens_per_s is of one request, from its first token on.
        """
        elapsed_s = self._ended_at - self._started_at
        ttft = [times[0] - arrival for times, arrival in zip(self._times, self._arrivals, strict=True) if times]
        gaps = [b - a for times in self._times for a, b in pairwise(times)]
        num_told = sum(map(len, self._times))
        if num_told != num_output_tokens:
            raise SystemExit(f"{num_told} tokens came, not {num_output_tokens}")
        result = {
            "start_up_s": self._ready_at - self._made_at,
            "elapsed_s": elapsed_s,
            "cpu_s": self._cpu_s,
            "total_tokens_per_s": (num_prompt_tokens + num_output_tokens) / elapsed_s,
            "output_tokens_per_s": num_output_tokens / elapsed_s,
            "decode_tokens_per_s": len(gaps) / sum(gaps) if gaps else None,
            "peak_rss_mib": self._peak_kib() / 1024,
            "ttft_p50_s": quantile(ttft, 0.5),
            "ttft_p99_s": quantile(ttft, 0.99),
            "itl_p50_s": quantile(gaps, 0.5),
            "itl_p99_s": quantile(gaps, 0.99),
            **facts,
        }
        sys.stdout.write("\nRESULT " + json.dumps(result) + "\n")
        sys.stdout.flush()

    def _processor_s(self) -> float:
        if self._server is None:
            return time.process_time()
        fields = Path(f"/proc/{self._server}/stat").read_text().rpartition(")")[2].split()
        user, system = int(fields[11]), int(fields[12])  # utime and stime, by proc(5)
        return (user + system) / os.sysconf("SC_CLK_TCK")

    def _peak_kib(self) -> int:
        if self._server is None:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        lines = Path(f"/proc/{self._server}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def quantile(values: Sequence[float], share: float) -> float | None:
    """The value below which a share of the values lies; None of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
