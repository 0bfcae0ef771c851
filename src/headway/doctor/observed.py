"""What was observed under the main load, by the keys of a simulation's summary."""

from __future__ import annotations

import math

from headway.doctor.figures import Figures
from headway.doctor.gauges import Gauges
from headway.evidence.load import LoadResult

_KEYS = tuple(
    f"{stat}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for stat in ("mean", "median", "p90", "p95", "p99")
) + ("output_throughput", "request_throughput")


def observed_figures(figures: Figures, gauges: Gauges) -> dict[str, float]:
    """Client figures where there are any, else the engine's histograms; and the engine's gauges.

    Where nobody measured step times, Little's law on the decodes gives their mean.
    """
    found: dict[str, float] = {}
    for key, item in figures.measured.items():
        name = key.replace("p50_", "median_")
        if name in _KEYS and math.isfinite(item.value) and item.value > 0:
            found[name] = item.value
    return _with_gauges(found, gauges)


def load_figures(load: LoadResult) -> dict[str, float]:
    """What the client measured in one load."""
    renamed = {key.replace("p50_", "median_"): value for key, value in load.measured.items()}
    return {key: value for key, value in renamed.items() if key in _KEYS and math.isfinite(value) and value > 0}


def _with_gauges(found: dict[str, float], gauges: Gauges) -> dict[str, float]:
    for key, value in (
        ("mean_num_running", gauges.num_running),
        ("mean_num_waiting", gauges.num_waiting),
        ("mean_kv_usage", gauges.kv_usage),
        ("output_throughput", gauges.generation_tokens_per_s),
    ):
        if value is not None:
            found.setdefault(key, value)
    if not any(key.endswith(("tpot_ms", "itl_ms")) for key in found) and gauges.mean_itl_ms is not None:
        found["mean_itl_ms"] = gauges.mean_itl_ms
    return found
