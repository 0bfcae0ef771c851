"""Data parallelism: independent engines behind a stated router, advanced in the order of their clocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Event

from headway.core.arrivals import ArrivalSource, Item
from headway.core.engine import Engine
from headway.errors import ConfigError

ROUTERS = ("least_loaded", "round_robin")


class _RankSource:
    """What one rank has been given. Its next arrival is at the latest the workload's: that may come here."""

    wake: Event | None = None

    def __init__(self, whole: ArrivalSource) -> None:
        self._whole = whole
        self.pending: deque[Item] = deque()

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`."""
        items = list(self.pending)
        self.pending.clear()
        return items

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`."""
        return 0.0 if self.pending else self._whole.next_at()

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return not self.pending and self._whole.exhausted


class Router:
    """Sends each request to one of several ranks.

    `least_loaded`: where 4 × waiting + running is least, as vLLM's data-parallel load balancer scores engines, with
    counts that are up to date. `round_robin`: in turn. A single rank gets everything directly.

    Args:
        is_closed: requests come when others end, not at instants of their own.

    Raises:
        ConfigError: an unknown router.
    """

    def __init__(self, whole: ArrivalSource, num_ranks: int, router: str, *, is_closed: bool) -> None:
        if router not in ROUTERS:
            raise ConfigError(f"There is no router {router!r}.", hint=f"Known: {', '.join(ROUTERS)}.")
        self._whole = whole
        self._router = router
        self._is_closed = is_closed
        self._num_sent = 0
        self._rank_sources = [_RankSource(whole) for _ in range(num_ranks)] if num_ranks > 1 else []
        self.sources: Sequence[ArrivalSource] = self._rank_sources or [whole]

    def next_at(self, last_ended_at: float) -> float | None:
        """When the next request comes; in a closed loop that is when the last step has ended."""
        next_at = self._whole.next_at()
        return max(last_ended_at, next_at) if self._is_closed and next_at is not None else next_at

    def has_pending(self, rank: int) -> bool:
        """Whether requests were handed to that rank which its engine has not taken yet."""
        return bool(self._rank_sources[rank].pending)

    def route(self, now: float, engines: Sequence[Engine]) -> None:
        """Hand out everything that is due by `now`."""
        for item in self._whole.due(now, 0):
            rank = turn = self._num_sent % len(engines)
            if self._router == "least_loaded":
                in_turn = [*range(turn, len(engines)), *range(turn)]
                rank = min(in_turn, key=lambda i: self._score(engines[i], i))
            self._num_sent += 1
            self._rank_sources[rank].pending.append(item)

    def _score(self, engine: Engine, rank: int) -> int:
        num_waiting = len(engine.scheduler.waiting) + len(self._rank_sources[rank].pending)
        return 4 * num_waiting + len(engine.scheduler.running)


def run_ranks(engines: Sequence[Engine], router: Router) -> None:
    """Run until everything has finished.

    The engine whose clock is furthest behind goes first. An arrival is routed once no engine's clock is before it, so
    that the counts it is routed by are those of its instant, to within the step under way.
    """
    if len(engines) == 1:
        for _ in engines[0].run():
            pass
        return
    last_ended_at = 0.0
    while True:
        busy = [i for i, engine in enumerate(engines) if engine.has_work or router.has_pending(i)]
        behind = min(busy, key=lambda i: engines[i].clock.now(), default=None)
        next_at = router.next_at(last_ended_at)
        if next_at is not None and (behind is None or engines[behind].clock.now() >= next_at):
            for engine in engines:
                if not engine.has_work:
                    engine.clock.wait_until(next_at)
            router.route(next_at, engines)
        elif behind is not None:
            engines[behind].step()
            last_ended_at = engines[behind].clock.now()
        else:
            return
