"""Figures that can be computed with: whatever the readers let through, nothing here is negative or not a number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from headway.doctor.evidence import Evidence
from headway.evidence.engine import EngineSample, EngineTotals, Histogram
from headway.evidence.load import LoadResult

_LARGEST = 1e12
"""No count, rate or time of one deployment is larger."""
_SMALLEST = 1e-9
"""And none that is not 0 is smaller; ratios stay finite."""
_SHARES = ("kv_usage", "prefix_hit_rate", "mm_hit_rate")
_LARGEST_SHARE = 1.01
"""A share just above 1 is rounding."""


def usable(evidence: Evidence) -> Evidence:
    """The evidence without values that cannot be: they become unknown."""
    return replace(
        evidence,
        samples=tuple(_sample(sample) for sample in evidence.samples),
        totals=_totals(evidence.totals) if evidence.totals is not None else None,
        loads=tuple(_load(load) for load in evidence.loads),
    )


def _is_usable(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= _LARGEST


def _number(value: Any, least: float = 0.0) -> Any:
    if value is None or not _is_usable(value) or value < least or 0 < value < _SMALLEST:
        return None
    return value


_GAUGES = tuple(item.name for item in fields(EngineSample) if item.name not in ("engine", "source", "at_s"))


def _sample(sample: EngineSample) -> EngineSample:
    changes: dict[str, float | None] = {}
    for name in _GAUGES:
        value = getattr(sample, name)
        if value is None:
            continue
        if not _is_usable(value) or (name in _SHARES and value > _LARGEST_SHARE):
            changes[name] = None
        elif name in _SHARES and value > 1:
            changes[name] = 1.0
        elif 0 < value < _SMALLEST:
            changes[name] = 0.0
    if sample.at_s is not None and not math.isfinite(sample.at_s):
        changes["at_s"] = None
    return replace(sample, **changes) if changes else sample  # type: ignore[arg-type]


def _mapping(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if _is_usable(value) and not 0 < value < _SMALLEST}


def _totals(totals: EngineTotals) -> EngineTotals:
    histograms = {name: item for name, item in totals.histograms.items() if _is_sound(item)}
    duration = totals.duration_s if totals.duration_s is not None and _is_usable(totals.duration_s) else None
    return replace(
        totals,
        duration_s=duration or None,
        counters=_mapping(totals.counters),
        finished=_mapping(totals.finished),
        histograms=histograms,
    )


def _is_sound(histogram: Histogram) -> bool:
    """Cumulative counts that never fall, and a sum that can be."""
    counts = histogram.counts
    rising = all(_is_usable(count) for count in counts) and list(counts) == sorted(counts)
    return rising and _number(histogram.count) == histogram.count and _number(histogram.sum) == histogram.sum


def _load(load: LoadResult) -> LoadResult:
    return replace(
        load,
        concurrency=_number(load.concurrency, 1),
        requests_per_s=_number(load.requests_per_s) or None,
        mean_prompt_tokens=_number(load.mean_prompt_tokens),
        mean_output_tokens=_number(load.mean_output_tokens),
        lengths=tuple(pair for pair in load.lengths if all(_is_usable(value) for value in pair)),
        measured=_mapping(load.measured),
    )
