"""What a deployment should achieve, as people write it."""

from __future__ import annotations

import math
import re

from headway.doctor.evidence import Objective
from headway.errors import ConfigError

_METRICS = ("ttft", "itl", "tpot", "e2el")
_STATISTICS = ("mean", "median", "p50", "p90", "p95", "p99", "max")
_TOO_SHORT_MS = {"ttft": 10.0, "e2el": 10.0, "itl": 1.0, "tpot": 1.0}
"""A bound below this without a unit was meant in seconds."""
_HINT = "Use ttft, itl, tpot or e2el with a statistic and a bound in ms or with a unit: ttft_p99=2s,itl_p99=100ms."


def parse_objective(text: str | None, goal: str = "latency") -> Objective:
    """Read `ttft_p99=2s,itl_p99=100`: milliseconds unless a unit is given, the 99th percentile unless another is named.

    The order of statistic and metric, and a trailing `_ms` or `_s`, do not matter.

    Raises:
        ConfigError: a name or bound that is not understood, or one that must be in the wrong unit.
    """
    bounds: dict[str, float] = {}
    for part in (text or "").replace(",", " ").split():
        name, _, value = part.replace(":", "=").partition("=")
        key, metric = _key(name, part)
        bounds[key] = _bound_ms(value, name, metric, part)
    return Objective(bounds, goal)


def _key(name: str, part: str) -> tuple[str, str]:
    words = [word for word in re.sub(r"_(ms|s)$", "", name.strip().lower()).split("_") if word]
    metrics = [word for word in words if word in _METRICS]
    statistics = [word for word in words if word in _STATISTICS] or ["p99"]
    if len(metrics) != 1 or len(statistics) != 1 or len(words) > 2 or not set(words) <= {*_METRICS, *_STATISTICS}:
        raise ConfigError(f"{part!r} is not an objective.", hint=_HINT)
    return f"{statistics[0]}_{metrics[0]}_ms", metrics[0]


def _bound_ms(value: str, name: str, metric: str, part: str) -> float:
    match = re.fullmatch(r"([\d.]+(?:e[+-]?\d+)?)(ms|s)?", value.strip().lower())
    try:
        number = float(match[1]) if match else math.nan
    except ValueError:
        number = math.nan
    if match is None or not (0 < number < math.inf):
        raise ConfigError(f"{part!r} is not an objective.", hint=_HINT)
    unit = match[2] or ("s" if name.lower().endswith("_s") else "ms" if name.lower().endswith("_ms") else None)
    if unit == "s":
        return number * 1e3
    if unit is None and number < _TOO_SHORT_MS[metric]:
        raise ConfigError(f"{part!r} would be {number:g} ms, which cannot be meant.", hint=f"Write {name}={value}s.")
    return number
