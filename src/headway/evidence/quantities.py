"""Numbers as people write them: `8.2s`, `20.5%`, `~110`, `1.2k`, `5-7`, `12-14, spikes 27.7`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

_NUMBER = r"(\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|\.\d+)"
_QUANTITY = re.compile(
    rf"\s*(?:[~≈<>]=?|about|around|approx\.?|up to|circa)?\s*([-+]?){_NUMBER}\s*([kKMG](?![a-zA-Z]))?"
    rf"(?:\s*(?:-|–|\.\.|to|…)\s*{_NUMBER}\s*([kKMG](?![a-zA-Z]))?)?\s*([a-zA-Zµμ%][\w/%]*)?"
)
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9}
UNITS_MS = {
    "ms": 1.0, "msec": 1.0, "millisecond": 1.0, "milliseconds": 1.0, "s": 1e3, "sec": 1e3, "secs": 1e3, "second": 1e3,
    "seconds": 1e3, "us": 1e-3, "µs": 1e-3, "μs": 1e-3, "ns": 1e-6, "min": 6e4, "mins": 6e4, "minute": 6e4,
    "minutes": 6e4, "h": 3.6e6,
}  # fmt: skip
"""Units of time, in milliseconds."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number, of a range its middle; `unit` as written, without blanks."""

    value: float
    unit: str | None = None
    low: float | None = None
    high: float | None = None


def quantity(value: Any) -> Quantity | None:
    """The number that a value is or begins with; None for anything else, and where it is not finite."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return Quantity(float(value)) if abs(value) < 1e300 and math.isfinite(value) else None
    if not isinstance(value, str):
        return None
    text = value.strip()
    if re.fullmatch(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?", text):
        text = text.replace(",", "")
    match = _QUANTITY.match(text)
    if match is None:
        return None
    sign, first, factor, second, last_factor, unit = match.groups()
    low = float(first) * _FACTORS.get(factor or last_factor or "", 1.0)
    high = low if second is None else float(second) * _FACTORS.get(last_factor or "", 1.0)
    if high < low or not math.isfinite(high):
        high = low
    middle = (low + high) / 2 * (-1.0 if sign == "-" else 1.0)
    if not math.isfinite(middle):
        return None
    return Quantity(middle, unit, low if high > low else None, high if high > low else None)
