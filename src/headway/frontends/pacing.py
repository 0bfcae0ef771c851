"""The wall clock of a simulated server: it knows how late it is."""

from __future__ import annotations

import logging

from headway.core.clock import WallClock

logger = logging.getLogger(__name__)

LATE_SHARE = 0.05
"""A step that ends later than this share of its time distorts what clients measure."""
_WARN_AFTER = 20


class PacedClock(WallClock):
    """Sleeps each step out to its deadline and measures by how much it missed it.

    Warns once when twenty steps in a row end late: the machine is then too slow for the deployment it stands in for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lag_s = 0.0
        self.max_lag_s = 0.0
        self.num_late = 0
        self._num_late_in_a_row = 0
        self._has_warned = False

    def finish_step(self, started_at: float, duration_s: float) -> None:
        """See `Clock.finish_step`."""
        super().finish_step(started_at, duration_s)
        if duration_s <= 0.0:
            return
        self.lag_s = max(0.0, self.now() - started_at - duration_s)
        self.max_lag_s = max(self.max_lag_s, self.lag_s)
        if self.lag_s < LATE_SHARE * duration_s:
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
                self.lag_s * 1e3,
            )
