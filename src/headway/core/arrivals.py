"""Where requests and aborts come from: a trace by time, an inbox, or a list by step index."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.core.request import FinishReason, Request


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request joins the queue. `on_refused` is told why, should the engine turn it away."""

    request: Request
    on_refused: Callable[[Request, Exception], None] | None = None


@dataclass(frozen=True, slots=True)
class Finish:
    """End a request from outside: its client has gone (ABORT, the default), or a stop string completed (STOP)."""

    request_id: str
    reason: FinishReason = FinishReason.ABORT
    stop_reason: int | str | None = None


Item = Arrival | Finish


class ArrivalSource(Protocol):
    """Hands items to the engine when they are due."""

    wake: threading.Event | None
    """Set when an item arrives unannounced, so that an idle engine wakes up."""

    def due(self, now: float, step: int) -> Sequence[Item]:
        """Everything that is due now, before step number `step`, in order. Each item is handed out once."""

    def next_at(self) -> float | None:
        """Instant of the next known item; None if none is known."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing will ever come again."""


class TraceSource:
    """Requests by time of arrival, on the engine's clock."""

    wake: threading.Event | None = None

    def __init__(self, arrivals: Iterable[tuple[float, Item]]) -> None:
        self._pending = deque(sorted(arrivals, key=lambda pair: pair[0]))

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`."""
        items = []
        while self._pending and self._pending[0][0] <= now:
            items.append(self._pending.popleft()[1])
        return items

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`."""
        return self._pending[0][0] if self._pending else None

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return not self._pending


class Inbox:
    """Items from other threads, as they come. `put` and `close` are thread-safe."""

    def __init__(self) -> None:
        self.wake: threading.Event | None = threading.Event()
        self._items: deque[Item] = deque()
        self._closed = False

    def put(self, item: Item) -> None:
        """Hand an item to the engine's next step."""
        self._items.append(item)
        assert self.wake is not None
        self.wake.set()

    def close(self) -> None:
        """Nothing will come any more; an idle engine's `run` then returns."""
        self._closed = True
        assert self.wake is not None
        self.wake.set()

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`."""
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`."""
        return None

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return self._closed and not self._items
