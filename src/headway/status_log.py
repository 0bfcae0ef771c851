"""vLLM's periodic log lines about an engine, for whoever watches one: a server, or a simulation of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headway.metrics import EngineFigures

LOG_INTERVAL_S = 10.0
"""vLLM's `VLLM_LOG_STATS_INTERVAL`."""
_HIT_RATE_REQUESTS = 1000
"""vLLM's hit rate is that of the last so many requests."""


class StatusFigures(NamedTuple):
    """What a periodic line tells; the throughputs are means since the line before, shares go from 0 to 1."""

    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    num_running: int
    num_waiting: int
    kv_usage: float
    prefix_hit_rate: float
    num_preemptions: int = 0
    """Since the line before; told only if there were any."""


def status_line(prefix: str, engine: int, figures: StatusFigures) -> str:
    """The periodic line of `vllm/v1/metrics/loggers.py`; `prefix` is everything before the file's name."""
    preempted = f"Preemptions: {figures.num_preemptions}, " if figures.num_preemptions else ""
    return (
        f"{prefix} [loggers.py:271] Engine {engine:03d}: "
        f"Avg prompt throughput: {figures.prompt_tokens_per_s:.1f} tokens/s, "
        f"Avg generation throughput: {figures.generation_tokens_per_s:.1f} tokens/s, "
        f"Running: {figures.num_running} reqs, Waiting: {figures.num_waiting} reqs, {preempted}"
        f"GPU KV cache usage: {figures.kv_usage * 100:.1f}%, "
        f"Prefix cache hit rate: {figures.prefix_hit_rate * 100:.1f}%"
    )


def speculation_line(
    prefix: str, interval_s: float, num_drafts: int, num_drafted: int, num_accepted: int, per_position: Sequence[int]
) -> str:
    """The line of `vllm/v1/spec_decode/metrics.py` about the drafts since the line before; there must be some."""
    rates = ", ".join(f"{count / num_drafts:.3f}" for count in per_position)
    return (
        f"{prefix} [metrics.py:101] SpecDecoding metrics: "
        f"Mean acceptance length: {1 + num_accepted / num_drafts:.2f}, "
        f"Accepted throughput: {num_accepted / interval_s:.2f} tokens/s, "
        f"Drafted throughput: {num_drafted / interval_s:.2f} tokens/s, "
        f"Accepted: {num_accepted} tokens, Drafted: {num_drafted} tokens, "
        f"Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {num_accepted / num_drafted * 100:.1f}%"
    )


class HitRate:
    """Share of looked-up tokens that the prefix cache had, over vLLM's window of requests."""

    __slots__ = ("_hits", "_num_requests", "_queries", "_steps", "_totals")

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int, int]] = deque()
        self._num_requests = self._queries = self._hits = 0
        self._totals = (0, 0)

    def follow(self, num_admitted: int, total_queries: int, total_hits: int) -> None:
        """Take a step in that admitted so many requests; the totals count tokens since the engine's start."""
        if num_admitted:
            self.observe(num_admitted, total_queries - self._totals[0], total_hits - self._totals[1])
        self._totals = (total_queries, total_hits)

    def observe(self, num_requests: int, queries: int, hits: int) -> None:
        """Take look-ups in: of so many requests, so many tokens, of which so many were found."""
        self._steps.append((num_requests, queries, hits))
        self._num_requests += num_requests
        self._queries += queries
        self._hits += hits
        while len(self._steps) > 1 and self._num_requests > _HIT_RATE_REQUESTS:
            num_requests, queries, hits = self._steps.popleft()
            self._num_requests -= num_requests
            self._queries -= queries
            self._hits -= hits

    @property
    def value(self) -> float:
        """From 0 to 1; 0 if nothing was looked up."""
        return self._hits / self._queries if self._queries else 0.0


class _Told(NamedTuple):
    """What the last line told, and when."""

    at_s: float = 0.0
    figures: EngineFigures = EngineFigures()
    is_idle: bool = True


class StatusLog:
    """Turns one engine's totals into its periodic lines."""

    def __init__(self, engine: int = 0, started_at: float = 0.0) -> None:
        self._engine = engine
        self._last = _Told(started_at)

    def lines(self, at_s: float, prefix: str, figures: EngineFigures, hit_rate: float) -> list[str]:
        """What is to be logged now; like vLLM, nothing about an engine that is idle and was so the last time."""
        last, before = self._last, self._last.figures
        interval_s = at_s - last.at_s
        prompt = (figures.num_prompt_tokens - before.num_prompt_tokens) / interval_s
        generation = (figures.num_generation_tokens - before.num_generation_tokens) / interval_s
        is_idle = not prompt and not generation
        self._last = _Told(at_s, figures, is_idle)
        if is_idle and last.is_idle:
            return []
        status = StatusFigures(
            prompt,
            generation,
            figures.num_running,
            figures.num_waiting,
            figures.kv_usage,
            hit_rate,
            figures.num_preemptions - before.num_preemptions,
        )
        lines = [status_line(prefix, self._engine, status)]
        num_drafts = figures.num_drafts - before.num_drafts
        if num_drafts:
            accepted = figures.num_accepted_per_position
            accepted_before = (*before.num_accepted_per_position, *(0,) * len(accepted))
            lines.append(
                speculation_line(
                    prefix,
                    interval_s,
                    num_drafts,
                    figures.num_draft_tokens - before.num_draft_tokens,
                    figures.num_accepted_tokens - before.num_accepted_tokens,
                    [now - then for now, then in zip(accepted, accepted_before, strict=False)],
                )
            )
        return lines
