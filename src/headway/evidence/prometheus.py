"""Metrics as Prometheus's text formats and its HTTP API write them; whatever is broken is left out and told.

A file may hold one scrape or several after one another: a new one begins where a series, or its HELP or TYPE, comes
again. Samples with time stamps are brought together by their time.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

MAX_TIMED = 4_000_000
"""Samples with time stamps that are kept; they can only be ordered once all are read."""
_LINES_TOLD = 5

_LINE = re.compile(r"([a-zA-Z_:][\w:.]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+([-+]?[\d.]+(?:[eE][-+]?\d+)?))?\s*", re.ASCII)
_LABEL = re.compile(r'\s*([a-zA-Z_][\w.]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)', re.ASCII | re.DOTALL)
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:inf|infinity)|nan", re.ASCII | re.IGNORECASE)
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_APART = re.compile(r"(\d+(?:\.\d+)?)\s*(s|sec|seconds?|m|min|minutes?)\s+(?:apart|later)\b", re.IGNORECASE)
_AT = re.compile(r"\bt\s*=\s*\+?(\d+(?:\.\d+)?)\s*s?\b|\bat\s+\+?(\d+(?:\.\d+)?)\s*s\b", re.IGNORECASE)
_EPOCH = re.compile(r"(?<!\d)(1\d{9}(?:\.\d+)?)(?!\d)")
_HEADER = re.compile(r"HTTP/\d|date:", re.IGNORECASE)
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?")


@dataclass(eq=False, slots=True)
class Series:
    """A metric's name and labels; one object for each within a text."""

    name: str
    labels: Mapping[str, str]


@dataclass(slots=True)
class Scrape:
    """Values by series, in the order read.

    `at_s` is the absolute time, or one relative to the scrapes beside it; None where nothing tells it.
    """

    values: list[tuple[Series, float]] = field(default_factory=list)
    at_s: float | None = None


class ExpositionReader:
    """Reads texts and answers into scrapes, and collects notes about what could not be used.

    Args:
        source: what the notes call the text.
        wanted: whether a metric's name is of interest; the others are skipped.
    """

    def __init__(self, source: str, wanted: Callable[[str], bool]) -> None:
        self._source = source
        self._wanted = wanted
        self._series: dict[str, Series | None] = {}
        self._problems: dict[str, list[int]] = {}
        self._counts: dict[str, int] = {}
        self._extra: list[str] = []
        self._num_plain = 0
        self.num_wanted = 0

    def notes(self) -> list[str]:
        """What could not be used, with the first lines concerned."""
        told = []
        for what, lines in self._problems.items():
            count = self._counts[what]
            shown = ", ".join(map(str, lines)) + (", …" if count > len(lines) else "")
            told.append(f"{self._source}: {count} {'line' if count == 1 else 'lines'} {what} ({shown}).")
        return told + self._extra

    def _problem(self, what: str, line: int) -> None:
        lines = self._problems.setdefault(what, [])
        self._counts[what] = self._counts.get(what, 0) + 1
        if len(lines) < _LINES_TOLD:
            lines.append(line)

    def read_text(self, lines: Iterable[str]) -> Iterator[Scrape]:
        """Scrapes of a text, as they are complete; those with time stamps come last, in order of time."""
        clock = _CommentClock()
        current = clock.begin()
        seen: set[Series | str] = set()
        timed: dict[float, Scrape] = {}
        num_timed = 0
        last = ""
        for number, raw in enumerate(lines, start=1):
            line = raw.strip()
            if not line:
                continue
            last = raw
            if line.startswith("#") or _HEADER.match(line):
                family = _family(line)
                if line == "# EOF" or (family is not None and family in seen):
                    if current.values:
                        yield current
                        current = clock.begin()
                    seen = set()
                if family is not None:
                    seen.add(family)
                clock.read(line, current)
                continue
            found = self._sample(line, number)
            if found is None:
                continue
            series, value, at_s = found
            self.num_wanted += 1
            if at_s is not None:
                num_timed += 1
                if num_timed <= MAX_TIMED:
                    timed.setdefault(float(round(at_s)), Scrape(at_s=at_s)).values.append((series, value))
                continue
            if series in seen:
                yield current
                current, seen = clock.begin(), set()
            seen.add(series)
            current.values.append((series, value))
        self._drop_cut_value(current, last)
        if current.values:
            yield current
        if num_timed > MAX_TIMED:
            self._extra.append(f"{self._source}: only the first {MAX_TIMED:,} of {num_timed:,} samples are used.")
        for key in sorted(timed):
            yield timed[key]

    def _drop_cut_value(self, current: Scrape, last: str) -> None:
        """A file that ends within a number shows a smaller one; engines write every number with a point."""
        if not current.values or last.endswith("\n") or not last:
            return
        text = last.split()[-1]
        is_only_plain = self._num_plain == 1 and len(current.values) > 1
        if re.fullmatch(r"\d+\.", text) or (text.isdecimal() and is_only_plain):
            current.values.pop()
            self._extra.append(f"{self._source}: ends within a line; its last value, {text}, is not used.")

    def _sample(self, line: str, number: int) -> tuple[Series, float, float | None] | None:
        if " # {" in line:
            line = line[: line.rindex(" # {")]
        match = _LINE.fullmatch(line)
        if match is None:
            if self._wanted(re.split(r"[{\s]", line, maxsplit=1)[0]):
                self._problem("cannot be read", number)
            return None
        name, labels, text, stamp = match.groups()
        key = f"{name}{{{labels}}}" if labels else name
        if key not in self._series:
            self._series[key] = self._make_series(name, labels) if self._wanted(name) else None
            if len(self._series) > 200_000:
                self._series.clear()
                return None
        series = self._series[key]
        if series is None:
            if self._wanted(name):
                self._problem("have labels that cannot be read", number)
            return None
        if not _FLOAT.fullmatch(text):
            self._problem("have a value that is no number", number)
            return None
        value = float(text)
        self._num_plain += text.isdecimal()
        if math.isnan(value):
            self._problem("have the value NaN", number)
            return None
        at_s = None
        if stamp is not None and _FLOAT.fullmatch(stamp):
            at_s = float(stamp)
            at_s = at_s / 1000 if abs(at_s) > 1e11 else at_s
            at_s = at_s if math.isfinite(at_s) else None
        return series, value, at_s

    def _make_series(self, name: str, text: str | None) -> Series | None:
        labels: dict[str, str] = {}
        position, end = 0, len(text or "")
        while text and position < end and text[position:].strip():
            match = _LABEL.match(text, position)
            if match is None:
                return None
            labels[match[1]] = re.sub(r'\\[n"\\]', lambda escape: _ESCAPES[escape[0]], match[2])
            position = match.end()
        return Series(name, labels)

    def read_json(self, text: str) -> Iterator[Scrape]:
        """Scrapes of a saved answer of the HTTP API: a `matrix` (range query) or a `vector`, or a list of answers."""
        try:
            documents = _documents(text)
        except (ValueError, RecursionError) as error:
            self._extra.append(f"{self._source}: is not JSON ({error}).")
            return
        timed: dict[float, Scrape] = {}
        interned: dict[tuple[str, frozenset[tuple[str, str]]], Series] = {}
        unnamed = unusable = 0
        for result in (item for document in documents for item in _results(document)):
            metric = result.get("metric")
            labels = {str(key): str(value) for key, value in metric.items()} if isinstance(metric, dict) else {}
            name = labels.pop("__name__", "")
            if not name:
                unnamed += 1
                continue
            if not self._wanted(name):
                continue
            series = interned.setdefault((name, frozenset(labels.items())), Series(name, labels))
            values = result.get("values") or [result.get("value")]
            for pair in values if isinstance(values, list) else []:
                point = _point(pair)
                if point is None:
                    unusable += 1
                    continue
                self.num_wanted += 1
                timed.setdefault(float(round(point[0])), Scrape(at_s=point[0])).values.append((series, point[1]))
        if unnamed:
            self._extra.append(
                f"{self._source}: {unnamed} series have no __name__: query the metrics themselves, not rate() or sum()."
            )
        if unusable:
            self._extra.append(f"{self._source}: {unusable} points are no numbers.")
        for key in sorted(timed):
            yield timed[key]


class _CommentClock:
    """Times that comments and response headers tell, by which scrapes without stamps are placed."""

    def __init__(self) -> None:
        self._next: float | None = None
        self._interval: float | None = None
        self._last: Scrape | None = None

    def read(self, line: str, current: Scrape) -> None:
        """Use a comment or header: it is of the current scrape if nothing of that was read yet, else of the next."""
        if line.startswith(("# HELP", "# TYPE", "# UNIT")):
            return
        if match := _APART.search(line):
            self._interval = float(match[1]) * (60.0 if match[2].lower().startswith("m") else 1.0)
            if not current.values and current.at_s is None:
                current.at_s = 0.0
        at_s = _comment_time(line)
        if at_s is not None and current.values:
            self._next = at_s
        elif at_s is not None:
            current.at_s = at_s

    def begin(self) -> Scrape:
        """A new scrape, with its time if one is known already."""
        at_s, self._next = self._next, None
        before = self._last.at_s if self._last is not None else None
        if at_s is None and self._interval is not None and before is not None:
            at_s = before + self._interval
        self._last = Scrape(at_s=at_s)
        return self._last


def _comment_time(line: str) -> float | None:
    if match := re.match(r"date:\s*(.+)", line, re.IGNORECASE):
        try:
            return parsedate_to_datetime(match[1]).timestamp()
        except (ValueError, OverflowError, TypeError, IndexError):
            return None
    if match := _STAMP.search(line):
        try:
            return datetime.fromisoformat(match[0]).timestamp()
        except (ValueError, OverflowError):
            return None
    if match := _AT.search(line):
        return float(match[1] or match[2])
    if match := _EPOCH.search(line):
        return float(match[1])
    return None


def _family(line: str) -> str | None:
    """What a HELP or TYPE line speaks of."""
    words = line.split(maxsplit=3)
    return f"{words[1]} {words[2]}" if len(words) > 2 and words[0] == "#" and words[1] in ("HELP", "TYPE") else None


def _documents(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _results(document: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Each series of an answer, wherever the answer lies."""
    if isinstance(document, list):
        for item in document if depth < 4 else []:
            yield from _results(item, depth + 1)
    elif isinstance(document, dict):
        if "metric" in document and ("values" in document or "value" in document):
            yield document
        else:
            for key in ("data", "result", "results", "responses"):
                yield from _results(document.get(key), depth + 1)


def _point(pair: Any) -> tuple[float, float] | None:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    try:
        at_s, value = float(pair[0]), float(pair[1])
    except (TypeError, ValueError, OverflowError):
        return None
    return (at_s, value) if math.isfinite(at_s) and not math.isnan(value) else None
