"""A simulated deployment in real time: its clock, and the door through which requests come.

The deployment's own time is that of `headway simulate`: it stands still between steps, and jumps to the end of each. It
is kept beside real time. Work that only this machine has (reading HTTP, scheduling in Python, handing tokens out) must
not become part of it, so a step's tokens leave a little before its end, and the next step is decided a little after,
with the requests that had been received by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from headway.core.arrivals import Arrival, Finish, Inbox, Item
from headway.core.clock import WallClock

logger = logging.getLogger(__name__)

LATE_SHARE = 0.05
"""A step that ends later than this share of its time distorts what clients measure."""
_WARN_AFTER = 20
_SLACK_S, _SLACK_SHARE = 5e-3, 0.2
"""Requests are read and tokens handed out within so long, and this share of a step."""
_FIRST_LEAD_S, _LEAD_GAIN = 1e-3, 0.1
"""Tokens leave so much before the end of their step; from then on as much as handing out those before took."""
ON_THE_WAY_S = 1.5e-3
"""A request was sent about so long before the server could note its receipt: 1 ms from plain sockets on the same
machine, 2 ms from the `openai` package."""


class PacedClock(WallClock):
    """The deployment's time on the engine's thread, real time on all others; both count seconds from the same origin.

    Measures by how much steps end late, and warns once when twenty in a row do: the machine is then too slow for the
    deployment it stands in for, whose time is set forward.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lag_s = 0.0
        self.max_lag_s = 0.0
        self.num_late = 0
        self._instant = 0.0
        self._step_s = 0.0
        self._lead_s = _FIRST_LEAD_S
        self._cpu_s = 0.0
        self._engine_thread: int | None = None
        self._was_idle = True
        self._num_late_in_a_row = 0
        self._has_warned = False

    def real_now(self) -> float:
        """The real instant, on any thread."""
        return super().now()

    def now(self) -> float:
        """See `Clock.now`."""
        return self._instant if threading.get_ident() == self._engine_thread else super().now()

    def finish_step(self, started_at: float, duration_s: float) -> None:
        """See `Clock.finish_step`: returns just before the end, with the deployment's time at the end."""
        self._engine_thread = threading.get_ident()
        end = started_at + duration_s
        self._sleep_until(end - min(self._lead_s, _SLACK_SHARE * duration_s))
        self._instant = max(self._instant, end)
        self._cpu_s = time.process_time()
        if duration_s > 0.0:
            # After a long prompt come short steps: slack grows with them, and shrinks at once.
            self._step_s = min(duration_s, 2.0 * self._step_s) if self._step_s else duration_s
            self._note_lag(max(0.0, self.real_now() - end), duration_s)

    def settle(self) -> None:
        """Wait until requests received by now, in the deployment's time, are at the door. For the engine's thread.

        Where real time is further ahead than a step makes up for, the deployment's time jumps to it. After idling it
        is where the request that ended the idling puts it.
        """
        if self._was_idle:
            self._was_idle = False
            return
        slack_s = min(_SLACK_S, _SLACK_SHARE * self._step_s)
        self._sleep_until(self._instant + slack_s)
        # While this thread slept, the process did nothing but hand out the step's tokens and read requests.
        self._lead_s += _LEAD_GAIN * (time.process_time() - self._cpu_s - self._lead_s)
        late_s = self.real_now() - slack_s - self._instant
        if late_s > self._step_s / 2:
            self._instant += late_s

    def wait_until(self, instant: float | None, wake: threading.Event | None = None) -> None:
        """See `Clock.wait_until`. The deployment's time moves to `instant` if that has come, and else stays."""
        self._engine_thread, self._was_idle = threading.get_ident(), True
        timeout = None if instant is None else max(0.0, instant - self.real_now())
        if wake is not None:
            wake.wait(timeout)
            wake.clear()
        elif timeout is not None:
            time.sleep(timeout)
        if instant is not None:
            self._instant = max(self._instant, min(instant, self.real_now()))

    def _sleep_until(self, instant: float) -> None:
        remaining_s = instant - self.real_now()
        if remaining_s > 0.0:
            time.sleep(remaining_s)

    def _note_lag(self, lag_s: float, duration_s: float) -> None:
        self.lag_s = lag_s
        self.max_lag_s = max(self.max_lag_s, lag_s)
        if lag_s < LATE_SHARE * duration_s:
            self._num_late_in_a_row = 0
            return
        self.num_late += 1
        self._num_late_in_a_row += 1
        if self._num_late_in_a_row >= _WARN_AFTER and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "This machine does not keep up: steps of %.1f ms end %.1f ms late, so clients measure more than the "
                "deployment would take. See the metric headway:simulation_lag_seconds.",
                duration_s * 1e3,
                lag_s * 1e3,
            )


class PacedInbox(Inbox):
    """Hands a request to the engine once the deployment's time has reached the instant of its sending.

    Ends of requests (`Finish`) are handed out at once, but not before the request itself.
    """

    def __init__(self, clock: PacedClock) -> None:
        super().__init__()
        self._clock = clock
        self._held: deque[Item] = deque()

    def due(self, now: float, step: int) -> Sequence[Item]:
        """See `ArrivalSource.due`. Only the engine's thread calls it."""
        self._clock.settle()
        now = max(now, self._clock.now())
        self._held.extend(super().due(now, step))
        items: list[Item] = []
        held: deque[Item] = deque()
        waiting_ids: set[str] = set()
        for item in self._held:
            if isinstance(item, Arrival) and _sent_at(item) > now:
                waiting_ids.add(item.request.request_id)
                held.append(item)
            elif isinstance(item, Finish) and item.request_id in waiting_ids:
                held.append(item)
            else:
                items.append(item)
        self._held = held
        return items

    def next_at(self) -> float | None:
        """See `ArrivalSource.next_at`: the first request that has been received and not been handed out."""
        self._held.extend(super().due(0.0, 0))
        return min((_sent_at(item) for item in self._held if isinstance(item, Arrival)), default=None)

    @property
    def exhausted(self) -> bool:
        """See `ArrivalSource.exhausted`."""
        return not self._held and super().exhausted


def _sent_at(item: Arrival) -> float:
    return item.request.arrived_at - ON_THE_WAY_S
