"""A line about the engine every few seconds, as vLLM's server logs it, so that tools which read those lines work."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from headway.core.engine import Engine
from headway.core.events import Event, StepFinished
from headway.metrics import EngineFigures
from headway.status_log import LOG_INTERVAL_S, HitRate, StatusLog

Emit = Callable[[str], None]


class StatusReporter:
    """Follows an engine and tells how it does.

    Args:
        emit: gets each line, without its end.
    """

    def __init__(self, engine: Engine, emit: Emit, interval_s: float = LOG_INTERVAL_S) -> None:
        self._engine = engine
        self._emit = emit
        self._interval_s = interval_s
        self._log = StatusLog(started_at=time.monotonic())
        self._hit_rate = HitRate()
        engine.listeners.append(self._on_event)

    def _on_event(self, event: Event) -> None:
        """On the engine's thread."""
        if isinstance(event, StepFinished):
            stats = self._engine.stats
            self._hit_rate.follow(len(event.plan.new), stats.prefix_cache_queries, stats.prefix_cache_hits)

    async def run(self) -> None:
        """Report until cancelled."""
        while True:
            await asyncio.sleep(self._interval_s)
            prefix = f"(APIServer pid={os.getpid()}) INFO {time.strftime('%m-%d %H:%M:%S')}"
            figures = EngineFigures.of(self._engine)
            for line in self._log.lines(time.monotonic(), prefix, figures, self._hit_rate.value):
                self._emit(line)
