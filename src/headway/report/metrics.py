"""The metrics of serving: what each is called, where it comes from, how it is written; and which ones a table has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["high", "low"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One line of a table: how it is called, the summary's key that it comes from, how it is written."""

    label: str
    key: str
    unit: Literal["", "ms", "%"] = ""
    better: Better | None = None
    digits: int | None = None
    """Decimals; None chooses them by size, to three significant digits."""


LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2EL", "e2el"))
STATISTICS = ("mean", "p50", "p90", "p95", "p99")

_METRICS = {
    metric.key: metric
    for metric in (
        Metric("Duration, s", "duration"),
        Metric("Requests completed", "completed", digits=0),
        Metric("Requests left out", "num_skipped", digits=0),
        Metric("Requests failed", "failed", digits=0),
        Metric("Output tok/s", "output_throughput", better="high"),
        Metric("Requests/s", "request_throughput", better="high"),
        Metric("Goodput, req/s", "request_goodput", better="high"),
        *(
            Metric(f"{label} {statistic}", f"{statistic}_{key}_ms", "ms", "low")
            for label, key in LATENCIES
            for statistic in STATISTICS
        ),
        Metric("KV usage mean", "mean_kv_usage", "%"),
        Metric("KV usage peak", "peak_kv_usage", "%"),
        Metric("KV waste mean", "mean_kv_waste", "%", "low"),
        Metric("KV waste peak", "peak_kv_waste", "%", "low"),
        Metric("Preemptions", "num_preemptions", better="low", digits=0),
        Metric("Prefix hits, tokens", "prefix_cache_hits", digits=0),
        Metric("Running mean", "mean_num_running"),
        Metric("Waiting mean", "mean_num_waiting", better="low"),
        Metric("Waiting peak", "peak_num_waiting", better="low", digits=0),
    )
}


def metrics(*keys: str) -> tuple[Metric, ...]:
    """The metrics of a table, by their keys in a summary, in the order of its lines."""
    return tuple(_METRICS[key] for key in keys)


SERVING_METRICS = metrics(
    *("output_throughput", "request_throughput", "mean_ttft_ms", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms"),
    *("p99_tpot_ms", "p50_itl_ms", "p99_itl_ms", "request_goodput", "mean_kv_waste", "peak_kv_waste"),
    "num_preemptions",
)
"""What replays on a real model are compared by."""

SIMULATION_METRICS = metrics(
    *("output_throughput", "request_throughput", "request_goodput", "mean_ttft_ms", "p50_ttft_ms", "p99_ttft_ms"),
    *("mean_tpot_ms", "p99_tpot_ms", "p50_itl_ms", "p99_itl_ms", "p50_e2el_ms", "p99_e2el_ms", "mean_kv_usage"),
    *("mean_kv_waste", "num_preemptions", "prefix_cache_hits", "mean_num_running", "mean_num_waiting"),
)
"""What simulations are compared by."""

TOTALS = metrics(
    *("duration", "completed", "num_skipped", "failed", "request_throughput", "output_throughput", "request_goodput"),
    *("mean_kv_usage", "peak_kv_usage", "num_preemptions", "prefix_cache_hits", "mean_num_running"),
    *("mean_num_waiting", "peak_num_waiting"),
)
"""What stands below the latencies of one simulation."""
