"""The table of a simulation: every metric with its error bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group

from headway.report.metrics import LATENCIES, STATISTICS, TOTALS, Metric
from headway.report.tables import format_value, new_table, titled
from headway.report.words import LATENCIES_IN_WORDS

_HIDDEN_ZEROS = ("failed", "num_skipped")


def prediction_table(title: str, summary: Mapping[str, Any], bars: Mapping[str, float | None]) -> Group:
    """One simulation: latencies by statistic, then totals; ± beside each metric that a step time enters."""
    table = new_table()
    table.add_column("", style="dim")
    for name in STATISTICS:
        table.add_column(name, justify="right")
    table.add_column("±", justify="right", style="dim")
    for label, key in LATENCIES:
        cells = [format_value(summary.get(f"{name}_{key}_ms"), Metric("", "")) for name in STATISTICS]
        table.add_row(f"{label}, ms", *cells, _bar(bars.get(f"mean_{key}_ms")))
    table.add_row()
    for metric in TOTALS:
        value = summary.get(metric.key)
        if value is None or (metric.key in _HIDDEN_ZEROS and not value):
            continue
        table.add_row(metric.label, format_value(value, metric), "", "", "", "", _bar(bars.get(metric.key, 0.0)))
    return titled(title, table, LATENCIES_IN_WORDS)


def _bar(relative: float | None) -> str:
    if relative is None:
        return "unknown"
    return f"{relative:.0%}" if relative else ""
