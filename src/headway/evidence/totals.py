"""Counters and histograms over a stretch of time, from what each series grew by."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headway.evidence.engine import EngineTotals, Histogram

Key = tuple[str, str, int, str]
"""Role, key and rank as in `Meaning`, and the bucket's bound or the finish reason."""


@dataclass(slots=True)
class Growth:
    """A counter from scrape to scrape. A fall is a restart: what the counter then shows was counted since.

    Args:
        last: its value in the latest scrape that has it.
        grown: what it grew by since the first scrape.
        is_whole: whether it was there from the first scrape, or could only begin later.
    """

    last: float
    grown: float = 0.0
    is_whole: bool = True
    num_scrapes: int = 1

    def add(self, value: float) -> bool:
        """The next scrape's value; True if the counter fell."""
        fell = value < self.last
        self.grown += value if fell else value - self.last
        self.last = value
        self.num_scrapes += 1
        return fell


def grow(growth: dict[Key, Growth], values: Mapping[Key, float], *, is_first: bool) -> bool:
    """Add a scrape's counters and histograms; True if one fell.

    A new finish reason begins at zero; anything else that an earlier scrape lacked is not known as a whole.
    """
    has_fallen = False
    families = {key[:3] for key in growth}
    for key, value in values.items():
        if key[0] == "gauge":
            continue
        item = growth.get(key)
        if item is not None:
            has_fallen |= item.add(value)
        elif is_first:
            growth[key] = Growth(value)
        elif key[0] == "counter" and key[:3] in families:
            growth[key] = Growth(value, grown=value, num_scrapes=2)
        else:
            growth[key] = Growth(value, is_whole=False)
    return has_fallen


def add_up(
    growths: Iterable[Mapping[Key, Growth]], duration_s: float | None, is_since_start: bool
) -> tuple[EngineTotals, list[str]]:
    """The totals of engines together, and notes on what cannot be used.

    Where several names mean the same, each engine's best counts. A histogram whose buckets fall is left out.
    """
    counters: dict[str, float] = {}
    finished: dict[str, float] = {}
    buckets: dict[str, list[dict[float, float]]] = {}
    sums: dict[tuple[str, str], float] = {}
    counted: dict[str, int] = {}
    notes: list[str] = []
    for growth in growths:
        best = _best_ranks(growth)
        own: dict[str, dict[float, float]] = {}
        for (role, key, rank, part), item in growth.items():
            if rank != best[_family(role), key] or not (is_since_start or (item.is_whole and item.num_scrapes > 1)):
                continue
            value = item.last if is_since_start else item.grown
            if role == "counter":
                counters[key] = counters.get(key, 0.0) + value
                if key == "requests" and part:
                    finished[part] = finished.get(part, 0.0) + value
            elif role == "bucket":
                bound = _bound(part)
                if bound is not None:
                    own.setdefault(key, {})[bound] = own.get(key, {}).get(bound, 0.0) + value
            elif math.isfinite(value):
                sums[role, key] = sums.get((role, key), 0.0) + value
                if role == "count":
                    counted[key] = counted.get(key, 0) + 1
        for key, found in own.items():
            buckets.setdefault(key, []).append(found)
    histograms: dict[str, Histogram] = {}
    for key in dict.fromkeys((*buckets, *(name for role, name in sums if role == "count"))):
        parts = buckets.get(key, [])
        total = sums.get(("count", key)) if counted.get(key, 0) >= len(parts) else None
        made = _histogram(parts, total, sums.get(("sum", key)))
        if made is None:
            notes.append(f"the buckets of {key} fall or do not agree; the histogram is not used.")
        else:
            histograms[key] = made
    if "step_tokens" in histograms:
        steps = histograms["step_tokens"]
        if steps.count is not None:
            counters["steps"] = steps.count
        if steps.sum is not None:
            counters["step_tokens"] = steps.sum
    return EngineTotals(duration_s, counters, finished, histograms, is_since_start), notes


def _family(role: str) -> str:
    return role if role == "counter" else "histogram"


def _best_ranks(growth: Mapping[Key, Growth]) -> dict[tuple[str, str], int]:
    """The smallest rank of each counter and histogram that was there from the first scrape; else of any."""
    best: dict[tuple[str, str], tuple[bool, int]] = {}
    for (role, key, rank, _), item in growth.items():
        name = (_family(role), key)
        candidate = (not item.is_whole, rank)
        best[name] = min(best.get(name, candidate), candidate)
    return {name: rank for name, (_, rank) in best.items()}


def _bound(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def _histogram(parts: Sequence[Mapping[float, float]], count: float | None, total: float | None) -> Histogram | None:
    """Histograms added up over the bounds that all have; None where their counts fall."""
    bounds = sorted(set.intersection(*(set(part) for part in parts))) if parts else []
    counts = [sum(part[bound] for part in parts) for bound in bounds]
    if any(after < before * (1 - 1e-9) for before, after in itertools.pairwise(counts)):
        return None
    if bounds and math.isinf(bounds[-1]):
        count = counts[-1] if count is None else count
        bounds, counts = bounds[:-1], counts[:-1]
    if counts and count is not None and counts[-1] > count * (1 + 1e-9):
        return None
    return Histogram(tuple(bounds), tuple(counts), count, total)
