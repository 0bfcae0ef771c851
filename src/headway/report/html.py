"""A report of one simulation as a single HTML file: tables and plots that need no network and no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from headway.report.explain import RequestStory
from headway.report.files import write_file
from headway.report.metrics import LATENCIES, STATISTICS, metrics
from headway.report.svg import Svg
from headway.report.tables import format_number
from headway.report.words import LATENCIES_IN_WORDS

_INK, _SOFT, _RULE, _LINE = "#1f2933", "#616e7c", "#e4e7eb", "#1a936f"
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 560.0, 210.0, 56.0, 28.0, 36.0

_STYLE = """
body { font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; color: #1f2933;
       max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
p.sub { color: #616e7c; margin-top: 0; } table { border-collapse: collapse; } .plots { display: flex; flex-wrap: wrap; }
td, th { padding: .2rem .9rem .2rem 0; text-align: right; border-bottom: 1px solid #e4e7eb; font-weight: normal; }
th { color: #616e7c; } td:first-child, th:first-child, td.text { text-align: left; } svg { margin: 0 1rem 1rem 0; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot: points by x."""

    title: str
    x_label: str
    points: Sequence[tuple[float, float]]
    unit: str = ""
    is_log: bool = False
    """x is logarithmic."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a report shows. `rows` are (label, cells); stories are the slowest requests, worst first."""

    title: str
    subtitle: str
    settings: Sequence[tuple[str, str, str]]
    header: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    plots: Sequence[Series]
    stories: Sequence[RequestStory]


def write_report(path: str | Path, report: Report) -> Path:
    """Write the report.

    Raises:
        ConfigError: the file cannot be written.
    """
    return write_file(path, report_html(report))


def report_html(report: Report) -> str:
    """The document that `write_report` writes."""
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{escape(report.title)}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f'<h1>{escape(report.title)}</h1><p class="sub">{escape(report.subtitle)}</p>',
        _table(report.header, report.rows),
        f'<p class="sub">{escape(LATENCIES_IN_WORDS)}</p>',
        '<h2>Over time, and by request</h2><div class="plots">',
        *(line_plot(series) for series in report.plots if len(series.points) > 1),
        "</div>",
    ]
    if report.stories:
        parts += ["<h2>The slowest requests, and why</h2>", _stories(report.stories)]
    settings = [(name, (value, why)) for name, value, why in report.settings]
    parts += ["<h2>Settings</h2>", _table(("", "value", "why"), settings, text_from=1), "</body></html>", ""]
    return "\n".join(parts)


def _table(header: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], text_from: int | None = None) -> str:
    lines = ["<table><tr>" + "".join(f"<th>{escape(name)}</th>" for name in header) + "</tr>"]
    for label, cells in rows:
        shown = "".join(
            f'<td class="text">{escape(cell)}</td>'
            if text_from is not None and i >= text_from - 1
            else f"<td>{escape(cell)}</td>"
            for i, cell in enumerate(cells)
        )
        lines.append(f"<tr><td>{escape(label)}</td>{shown}</tr>")
    return "\n".join([*lines, "</table>"])


def _stories(stories: Sequence[RequestStory]) -> str:
    rows = []
    for story in stories:
        times = (story.e2el_s, story.ttft_s, story.queued_s, story.prefill_s, story.stalled_s, story.preempted_s)
        lengths = f"{story.num_prompt_tokens} + {story.num_output_tokens}"
        rows.append((story.request_id, (lengths, *map(format_number, times), story.why)))
    header = ("request", "tokens", "E2EL s", "TTFT s", "queued s", "prefill s", "stalled s", "preempted s", "why")
    return _table(header, rows, text_from=8)


def line_plot(series: Series) -> str:
    """One line with its axes, as SVG."""
    svg = Svg(_WIDTH, _HEIGHT + _TOP, title=series.title)
    svg.text(_LEFT, 20, series.title, size=14, fill=_INK, bold=True)
    xs = [math.log10(max(x, 1e-9)) if series.is_log else x for x, _ in series.points]
    ys = [y for _, y in series.points]
    low, high, top = min(xs), max(xs), max(ys) or 1.0
    span = (high - low) or 1.0
    plot_width, plot_height = _WIDTH - _LEFT - 16, _HEIGHT - _BOTTOM
    for share in (0.0, 0.5, 1.0):
        y = _TOP + plot_height * (1 - share)
        svg.line(_LEFT, y, _LEFT + plot_width, y, stroke=_RULE)
        svg.text(_LEFT - 6, y + 4, _shown(top * share, series.unit), size=11, fill=_SOFT, anchor="end")
        x = low + share * span
        value = 10**x if series.is_log else x
        svg.text(
            _LEFT + plot_width * share,
            _TOP + plot_height + 16,
            format_number(value),
            size=11,
            fill=_SOFT,
            anchor="start" if share == 0 else "middle" if share < 1 else "end",
        )
    svg.text(_LEFT + plot_width, 20, series.x_label, size=11, fill=_SOFT, anchor="end")
    svg.polyline(
        [
            (_LEFT + plot_width * (x - low) / span, _TOP + plot_height * (1 - y / top))
            for x, y in zip(xs, ys, strict=True)
        ],
        stroke=_LINE,
    )
    return svg.to_string()


def _shown(value: float, unit: str) -> str:
    return f"{value:.0%}" if unit == "%" else format_number(value)


def distribution(values: Sequence[float], title: str, x_label: str) -> Series:
    """The share of values at or below x, as a plot on a logarithmic x."""
    ordered = sorted(values)
    step = max(1, len(ordered) // 400)
    points = [(value * 1e3, (i + 1) / len(ordered)) for i, value in enumerate(ordered) if i % step == 0]
    if ordered:
        points.append((ordered[-1] * 1e3, 1.0))
    return Series(title, x_label, points, "%", is_log=True)


def summary_rows(summary: Mapping[str, Any], bars: Mapping[str, float | None]) -> list[tuple[str, list[str]]]:
    """Latencies by statistic with their error bars."""
    rows = []
    for label, key in LATENCIES:
        values = [summary.get(f"{name}_{key}_ms") for name in STATISTICS]
        bar = bars.get(f"mean_{key}_ms")
        cells = ["–" if value is None else format_number(value) for value in values]
        rows.append((f"{label}, ms", [*cells, "unknown" if bar is None else f"± {bar:.0%}"]))
    for metric in metrics("output_throughput", "request_throughput"):
        value = summary.get(metric.key)
        rows.append((metric.label, ["–" if value is None else format_number(value), "", "", "", "", ""]))
    return rows
