"""How far a prediction may be off: the oracle's residual on step times, carried to each metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QUEUEING_AMPLIFICATION = 2.5
"""At saturation an error of step times shows 2.5 times as large in the time to first token, since it adds up over
everybody ahead in the queue (seen in replays of measured runs)."""


def error_bars(summary: Mapping[str, Any], residual: float | None, *, is_closed: bool) -> dict[str, float | None]:
    """Relative error for each predicted metric of a summary, by its key; None where nothing is known.

    Gaps and times per token are step times, and carry the residual as it is. Waiting amplifies it, the more of the time
    a queue stood (`saturation`). What an open loop completes below saturation is what arrived: no error.

    Args:
        residual: relative error of the oracle's step times.
    """
    saturation = summary.get("saturation") or 0.0
    ttft = 1.0 + (QUEUEING_AMPLIFICATION - 1.0) * saturation
    factors = {
        "ttft_ms": ttft,
        "tpot_ms": 1.0,
        "itl_ms": 1.0,
        "e2el_ms": _mixed(summary, ttft),
        "throughput": 1.0 if is_closed else saturation,
    }
    bars: dict[str, float | None] = {}
    for key, value in summary.items():
        factor = next((factor for ending, factor in factors.items() if key.endswith(ending)), None)
        if factor is not None and not key.startswith("std_") and value is not None:
            bars[key] = None if residual is None else residual * factor
    return bars


def _mixed(summary: Mapping[str, Any], ttft_factor: float) -> float:
    """End to end is time to first token and the rest, by their shares of the mean."""
    whole, first = summary.get("mean_e2el_ms"), summary.get("mean_ttft_ms")
    if not whole or first is None:
        return 1.0
    share = min(1.0, float(first) / float(whole))
    return share * ttft_factor + (1.0 - share)
