"""The table of a simulation: every metric with its error bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group

from headway.report.tables import Metric, format_value, new_table, titled
from headway.report.words import LATENCIES_IN_WORDS

SIMULATION_METRICS = (
    Metric("Output tok/s", "output_throughput", better="high"),
    Metric("Requests/s", "request_throughput", better="high"),
    Metric("Goodput, req/s", "request_goodput", better="high"),
    Metric("TTFT mean", "mean_ttft_ms", "ms", "low"),
    Metric("TTFT p50", "p50_ttft_ms", "ms", "low"),
    Metric("TTFT p99", "p99_ttft_ms", "ms", "low"),
    Metric("TPOT mean", "mean_tpot_ms", "ms", "low"),
    Metric("TPOT p99", "p99_tpot_ms", "ms", "low"),
    Metric("ITL p50", "p50_itl_ms", "ms", "low"),
    Metric("ITL p99", "p99_itl_ms", "ms", "low"),
    Metric("E2EL p50", "p50_e2el_ms", "ms", "low"),
    Metric("E2EL p99", "p99_e2el_ms", "ms", "low"),
    Metric("KV usage mean", "mean_kv_usage", "%"),
    Metric("KV waste mean", "mean_kv_waste", "%", "low"),
    Metric("Preemptions", "num_preemptions", better="low", digits=0),
    Metric("Prefix hits, tokens", "prefix_cache_hits", digits=0),
    Metric("Running mean", "mean_num_running"),
    Metric("Waiting mean", "mean_num_waiting", better="low"),
)

_LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2EL", "e2el"))
_STATISTICS = (("mean", "mean"), ("p50", "p50"), ("p90", "p90"), ("p95", "p95"), ("p99", "p99"))
_TOTALS = (
    Metric("Duration, s", "duration"),
    Metric("Requests completed", "completed", digits=0),
    Metric("Requests left out", "num_skipped", digits=0),
    Metric("Requests failed", "failed", digits=0),
    Metric("Requests/s", "request_throughput"),
    Metric("Output tok/s", "output_throughput"),
    Metric("Goodput, req/s", "request_goodput"),
    Metric("KV usage, mean", "mean_kv_usage", "%"),
    Metric("KV usage, peak", "peak_kv_usage", "%"),
    Metric("Preemptions", "num_preemptions", digits=0),
    Metric("Prefix hits, tokens", "prefix_cache_hits", digits=0),
    Metric("Running, mean", "mean_num_running"),
    Metric("Waiting, mean", "mean_num_waiting"),
    Metric("Waiting, peak", "peak_num_waiting", digits=0),
)
_HIDDEN_ZEROS = ("failed", "num_skipped")


def prediction_table(title: str, summary: Mapping[str, Any], bars: Mapping[str, float | None]) -> Group:
    """One simulation: latencies by statistic, then totals; ± beside each metric that a step time enters."""
    table = new_table()
    table.add_column("", style="dim")
    for name, _ in _STATISTICS:
        table.add_column(name, justify="right")
    table.add_column("±", justify="right", style="dim")
    for label, key in _LATENCIES:
        cells = [format_value(summary.get(f"{name}_{key}_ms"), Metric("", "")) for _, name in _STATISTICS]
        table.add_row(f"{label}, ms", *cells, _bar(bars.get(f"mean_{key}_ms")))
    table.add_row()
    for metric in _TOTALS:
        value = summary.get(metric.key)
        if value is None or (metric.key in _HIDDEN_ZEROS and not value):
            continue
        table.add_row(metric.label, format_value(value, metric), "", "", "", "", _bar(bars.get(metric.key, 0.0)))
    return titled(title, table, LATENCIES_IN_WORDS)


def _bar(relative: float | None) -> str:
    if relative is None:
        return "unknown"
    return f"{relative:.0%}" if relative else ""
