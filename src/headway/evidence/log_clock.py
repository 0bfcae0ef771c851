"""The time of a log line, in every form that engines, containers and journals write it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from functools import lru_cache

_STAMP = re.compile(
    r"(?<![\d-])(?:(\d{4})-)?(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_SYSLOG = re.compile(
    r"(?:^|\| |\] )(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)"
)
_GLOG = re.compile(r"\b[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_HEAD = 160
"""Times stand within this many characters of a line's start."""
_FIRST_YEAR = 2024
"""Assumed where lines do not tell; a leap year, so that 29 February exists."""
_SLACK_S = 2.0
"""Lines of several processes may be out of order by this much."""
_DAY_S = 86_400.0


class LogClock:
    """Seconds since the first timed line. Never goes back: a clock that is set back is told, and time goes on."""

    def __init__(self) -> None:
        self.jumps: list[tuple[int, float]] = []
        """(line, seconds) where the written time goes back, or leaps ahead by more than a day."""
        self._year = _FIRST_YEAR
        self._month = 0
        self._offset: float | None = None
        self._first: float | None = None
        self._last = 0.0
        self._shift = 0.0

    @property
    def now_s(self) -> float | None:
        """The last time told; None before any."""
        return None if self._first is None else round(self._last - self._first + self._shift, 6)

    def at(self, text: str, line: int) -> float | None:
        """The time of a line; None if it has none."""
        raw = self._raw(text[:_HEAD])
        if raw is None:
            return None
        if self._first is None:
            self._first = self._last = raw
        step = raw - self._last
        if step < -_SLACK_S:
            self.jumps.append((line, step))
            self._shift -= step
        elif step < 0.0:
            raw = self._last
        elif step > _DAY_S:
            self.jumps.append((line, step))
        self._last = raw
        return self.now_s

    def _raw(self, head: str) -> float | None:
        dated = own = None
        for match in _STAMP.finditer(head):
            if match[1] and dated is None:
                dated = _dated(match)
            elif not match[1] and own is None:
                own = self._in_year(match.groups()[1:6], match[7])
        if dated is None and own is None:
            own = self._other(head)
        if dated is not None and own is not None:
            self._offset = dated - own
        if dated is not None:
            return dated
        return None if own is None else own + (self._offset or 0.0)

    def _other(self, head: str) -> float | None:
        if match := _SYSLOG.search(head):
            month = f"{_MONTHS.index(match[1]) + 1}"
            return self._in_year((month, *match.groups()[1:5]), None)
        if match := _GLOG.search(head):
            return self._in_year(match.groups()[:5], match[6])
        return None

    def _in_year(self, parts: Sequence[str], fraction: str | None) -> float | None:
        """A time without a year: December before January means that a year has passed."""
        month, day, hours, minutes, seconds = (int(part) for part in parts)
        if month < self._month - 6:
            self._year += 1
        self._month = month
        return _seconds(self._year, month, day, (hours, minutes, seconds), fraction)


def _dated(match: re.Match[str]) -> float | None:
    year, month, day, hours, minutes, seconds = (int(text) for text in match.groups()[:6])
    at_s = _seconds(year, month, day, (hours, minutes, seconds), match[7])
    zone = match[8]
    if at_s is not None and zone and zone != "Z":
        away = int(zone[1:3]) * 60 + int(zone[-2:])
        at_s -= away * 60 * (1 if zone[0] == "+" else -1)
    return at_s


def _seconds(year: int, month: int, day: int, rest: tuple[int, int, int], fraction: str | None) -> float | None:
    days = _days(year, month, day)
    hours, minutes, seconds = rest
    if days is None or hours > 23 or minutes > 59 or seconds > 60:
        return None
    return days * _DAY_S + hours * 3600 + minutes * 60 + seconds + (float(f"0.{fraction}") if fraction else 0.0)


@lru_cache(maxsize=1024)
def _days(year: int, month: int, day: int) -> int | None:
    if (month, day) == (2, 29):
        before = _days(year, 2, 28)
        return None if before is None else before + 1
    try:
        return date(year, month, day).toordinal()
    except ValueError:
        return None
