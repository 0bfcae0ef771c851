"""Tables for people: one look for every command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from headway.report.metrics import SERVING_METRICS, Better, Metric


def comparison_table(
    title: str, results: Mapping[str, Mapping[str, Any]], metrics: Sequence[Metric] = SERVING_METRICS
) -> Group:
    """Results side by side: a column each, a line a metric, the best value of a line in bold.

    A line that no result has a value for is left out.
    """
    table = new_table()
    table.add_column("", style="dim")
    for name in results:
        table.add_column(name, justify="right")
    for metric in metrics:
        values = [result.get(metric.key) for result in results.values()]
        if all(value is None for value in values):
            continue
        best = _best(values, metric.better)
        cells = [
            Text(format_value(value, metric), style="bold green" if value is not None and value == best else "")
            for value in values
        ]
        table.add_row(f"{metric.label}, ms" if metric.unit == "ms" else metric.label, *cells)
    return titled(title, table)


def facts_table(title: str, facts: Iterable[tuple[str, str, str]]) -> Group:
    """Lines of (name, value, why): what was resolved before a run, and the reason."""
    table = new_table(show_header=False)
    table.add_column("name", style="dim")
    table.add_column("value")
    table.add_column("why", style="dim", overflow="fold")
    for fact in facts:
        table.add_row(*map(Text, fact))
    return titled(title, table)


def new_table(*columns: str, show_header: bool = True) -> Table:
    """An empty table in the house style; long cells of the columns fold."""
    table = Table(show_header=show_header, box=None, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def titled(title: str, table: Table, caption: str = "") -> Group:
    """A table under its title, and above its caption."""
    # Not the table's own title, which would wrap at the width of its columns.
    above = [Text(title, style="bold")] if title else []
    return Group(*above, table, *([Text(caption, style="dim")] if caption else []))


def format_value(value: float | None, metric: Metric) -> str:
    """A number as a table shows it; a dash where there is none."""
    if value is None:
        return "–"
    if metric.unit == "%":
        return f"{value:.1%}"
    if metric.digits is not None:
        return f"{value:,.{metric.digits}f}"
    return format_number(value)


def format_number(value: float) -> str:
    """Three significant digits for small numbers, whole ones from 100 up, thousands apart."""
    size = abs(value)
    digits = 0 if size >= 100 or size == 0 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


def _best(values: Sequence[float | None], better: Better | None) -> float | None:
    known = [value for value in values if value is not None]
    if better is None or len(known) < 2 or min(known) == max(known):
        return None
    return max(known) if better == "high" else min(known)
