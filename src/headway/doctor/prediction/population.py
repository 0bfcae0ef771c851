"""Whether few samples of a queue show clients that keep a number in the system, or requests that come by themselves.

While a queue stands, the engine finishes as fast as it can whatever comes. Of independent arrivals the number in the
system then is a random walk: arrivals and ends each add a variance of about the number that finished, so that it moves
by sqrt(2 × finished). It does not walk further than a queue in balance reaches: one whose length is geometric, with a
mean of w, differs between two instants by sqrt(2 w (w + 1)). Clients that each send when they are answered keep it.
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Literal

from headway.doctor.prediction.gauges import Gauges

Population = Literal["held", "likely held", "likely free", "free"]
_FEWEST, _FEW = 2, 4
"""Samples: of more, their spread tells."""
_QUEUED = 0.1
_HELD_WITHIN = 0.03
"""Clients' own time between an answer and the next request moves the number by 3 %, or by one."""
_SURE, _EVEN = 0.1, 0.5
"""Chance that independent arrivals move it as little."""


def population_of(gauges: Gauges, num_finished: float | None) -> Population:
    """What the number in the system between the first and the last of two or three samples says.

    Args:
        num_finished: requests that finished in that time; where that is not known, nothing is sure.
    """
    held, waiting = gauges.in_system, gauges.waiting
    if not _FEWEST <= len(held) < _FEW or len(waiting) != len(held):
        return "free"
    if any(queue < max(1.0, _QUEUED * number) for queue, number in zip(waiting, held, strict=True)):
        return "free"
    moved, within = max(held) - min(held), max(1.0, _HELD_WITHIN * fmean(held))
    mean = fmean(waiting)
    walked = math.sqrt(2.0 * mean * (mean + 1.0))
    if num_finished is not None:
        walked = min(walked, math.sqrt(2.0 * num_finished))
    if moved <= within:
        chance = _chance_within(within, walked)
        if chance > _EVEN:
            return "likely free"
        return "held" if chance <= _SURE and num_finished is not None else "likely held"
    return "likely free" if _chance_within(moved, walked) <= _EVEN else "free"


def _chance_within(distance: float, walked: float) -> float:
    """That a normal number of this standard deviation, rounded to a whole one, is no further from 0."""
    return math.erf((math.floor(distance) + 0.5) / (walked * math.sqrt(2.0))) if walked > 0 else 1.0
