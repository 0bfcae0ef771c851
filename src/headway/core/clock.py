"""The two clocks. Only clocks sleep, and only the wall clock reads the real time."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Instants and durations in seconds; instant 0 is when the clock was made."""

    def now(self) -> float:
        """The present instant."""

    def finish_step(self, started_at: float, duration_s: float) -> None:
        """A step that started then took that long: be at its end."""

    def wait_until(self, instant: float | None, wake: threading.Event | None = None) -> None:
        """Be idle until that instant, or until `wake` is set; None waits for `wake` alone."""


class WallClock:
    """Real time. A real step is over when it is over; a priced one is slept out to its deadline."""

    def __init__(self) -> None:
        self._origin = time.monotonic()

    def now(self) -> float:
        """See `Clock.now`."""
        return time.monotonic() - self._origin

    def finish_step(self, started_at: float, duration_s: float) -> None:
        """Sleep until started_at + duration_s; deadlines, so that errors never add up."""
        remaining = started_at + duration_s - self.now()
        if remaining > 0:
            time.sleep(remaining)

    def wait_until(self, instant: float | None, wake: threading.Event | None = None) -> None:
        """See `Clock.wait_until`; clears `wake`."""
        timeout = None if instant is None else max(0.0, instant - self.now())
        if wake is not None:
            wake.wait(timeout)
            wake.clear()
        elif timeout is not None:
            time.sleep(timeout)


class VirtualClock:
    """Simulated time: it jumps."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        """See `Clock.now`."""
        return self._now

    def finish_step(self, started_at: float, duration_s: float) -> None:
        """Jump to the end of the step."""
        self._now = max(self._now, started_at + duration_s)

    def wait_until(self, instant: float | None, wake: threading.Event | None = None) -> None:
        """Jump to that instant. None stays where it is in time, and waits for `wake` if there is one."""
        if instant is not None:
            self._now = max(self._now, instant)
        elif wake is not None:
            wake.wait()
            wake.clear()
