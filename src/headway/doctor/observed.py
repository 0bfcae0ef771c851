"""What was observed under the main load, by the keys of a simulation's summary."""

from __future__ import annotations

import math
from dataclasses import replace

from headway.doctor.figures import Figures
from headway.doctor.prediction.gauges import Gauges
from headway.doctor.prediction.workload_fit import FittedWorkload
from headway.evidence.load import LoadResult

_STATISTICS = ("mean", "median", "p90", "p95", "p99")
_LATENCIES = tuple(f"{stat}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for stat in _STATISTICS)
_KEYS = (*_LATENCIES, "output_throughput", "request_throughput")


def observed_figures(figures: Figures, gauges: Gauges, workload: FittedWorkload) -> dict[str, float]:
    """Client figures where there are any, else the engine's histograms; and the engine's gauges.

    Where nobody measured step times, Little's law on the decodes gives their mean. Of a workload that is only a part of
    the time watched, waiting is what the gauges say of that part.
    """
    found: dict[str, float] = {}
    for key, item in figures.measured.items():
        name = key.replace("p50_", "median_")
        if name in _KEYS and math.isfinite(item.value) and item.value > 0:
            found[name] = item.value
    seen = workload.seen
    if seen:
        gauges = replace(
            gauges,
            num_running=seen["mean_num_running"],
            num_waiting=seen["mean_num_waiting"],
            generation_tokens_per_s=seen["output_throughput"],
        )
    if workload.is_part:
        found = {key: value for key, value in found.items() if not key.endswith(("ttft_ms", "e2el_ms"))}
        if "mean_ttft_ms" in seen:
            found["mean_ttft_ms"] = seen["mean_ttft_ms"]
    rate = gauges.generation_tokens_per_s
    if rate is not None and (not figures.evidence.loads or "output_throughput" not in found):
        found["output_throughput"] = rate
    for key, value in (
        ("mean_num_running", gauges.num_running),
        ("mean_num_waiting", gauges.num_waiting),
        ("mean_kv_usage", gauges.kv_usage),
    ):
        if value is not None:
            found[key] = value
    if not any(key.endswith(("tpot_ms", "itl_ms")) for key in found) and gauges.mean_itl_ms is not None:
        found["mean_itl_ms"] = gauges.mean_itl_ms
    return found


def load_figures(load: LoadResult) -> dict[str, float]:
    """What the client measured in one load."""
    renamed = {key.replace("p50_", "median_"): value for key, value in load.measured.items()}
    return {key: value for key, value in renamed.items() if key in _KEYS and math.isfinite(value) and value > 0}
