"""Plots of results side by side, as SVG files that any browser shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import ConfigError
from headway.report.files import check_writable, write_file
from headway.report.metrics import Metric
from headway.report.svg import Svg
from headway.report.tables import format_value

PLOTTED_METRICS = (
    Metric("Output throughput, tok/s", "output_throughput", better="high"),
    Metric("Time to first token, p99", "p99_ttft_ms", "ms", "low"),
    Metric("Gap between tokens, p99", "p99_itl_ms", "ms", "low"),
    Metric("KV cache reserved but unused, mean", "mean_kv_waste", "%", "low"),
)

_COLOURS = {"naive": "#9aa5b1", "static": "#d9822b", "continuous": "#3d7cc9", "chunked": "#1a936f"}
_OTHER_COLOURS = ("#7b61c4", "#c2457a", "#5c6f82", "#a58a1f")
_INK, _SOFT, _RULE = "#1f2933", "#616e7c", "#e4e7eb"

_MARGIN, _HEADER, _GAP = 32.0, 84.0, 40.0
_ROW_GAP = 16.0
_PANEL_WIDTH, _PANEL_HEAD, _BAR_PITCH, _BAR_HEIGHT = 420.0, 52.0, 32.0, 20.0
_LABEL_WIDTH, _VALUE_WIDTH = 84.0, 84.0


def write_comparison_plot(
    path: str | Path,
    results: Mapping[str, Mapping[str, Any]],
    *,
    title: str,
    subtitle: str = "",
    metrics: Sequence[Metric] = PLOTTED_METRICS,
) -> Path:
    """Write a plot of results side by side: a panel a metric, a bar a result.

    Raises:
        ConfigError: the name does not end in .svg, or the file cannot be written.
    """
    return write_file(check_plot_path(path), comparison_svg(results, title=title, subtitle=subtitle, metrics=metrics))


def check_plot_path(path: str | Path) -> Path:
    """Refuse a plot file that could not be written, before the run that would fill it.

    Raises:
        ConfigError: the name does not end in .svg, or no file can be written there.
    """
    path = Path(path)
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"A plot is written as SVG, not {path.name!r}.", hint=f"Try {path.with_suffix('.svg')}.")
    check_writable(path, "--plot")
    return path


def comparison_svg(
    results: Mapping[str, Mapping[str, Any]],
    *,
    title: str,
    subtitle: str = "",
    metrics: Sequence[Metric] = PLOTTED_METRICS,
) -> str:
    """The document that `write_comparison_plot` writes: two panels a row, each scaled to its own largest
    value.
    """
    panel_height = _PANEL_HEAD + _BAR_PITCH * len(results)
    num_rows = (len(metrics) + 1) // 2
    svg = Svg(
        2 * _MARGIN + 2 * _PANEL_WIDTH + _GAP,
        _HEADER + num_rows * (panel_height + _ROW_GAP) - _ROW_GAP + _MARGIN,
        title=title,
    )
    svg.text(_MARGIN, _MARGIN + 14, title, size=20, fill=_INK, bold=True)
    svg.text(_MARGIN, _MARGIN + 36, subtitle, size=13, fill=_SOFT)
    for index, metric in enumerate(metrics):
        x = _MARGIN + (index % 2) * (_PANEL_WIDTH + _GAP)
        y = _HEADER + (index // 2) * (panel_height + _ROW_GAP)
        _panel(svg, x, y, metric, {name: result.get(metric.key) for name, result in results.items()})
    return svg.to_string()


def _panel(svg: Svg, x: float, y: float, metric: Metric, values: Mapping[str, float | None]) -> None:
    svg.line(x, y, x + _PANEL_WIDTH, y, stroke=_RULE)
    svg.text(x, y + 24, metric.label, size=14, fill=_INK, bold=True)
    if metric.better:
        svg.text(x + _PANEL_WIDTH, y + 24, _ADVICE[metric.better], size=12, fill=_SOFT, anchor="end")
    known = [value for value in values.values() if value is not None]
    largest = max(known, default=0.0) or 1.0
    full = _PANEL_WIDTH - _LABEL_WIDTH - _VALUE_WIDTH
    bars_x, bars_y = x + _LABEL_WIDTH, y + _PANEL_HEAD - 10
    for row, (name, value) in enumerate(values.items()):
        top = bars_y + row * _BAR_PITCH
        svg.text(bars_x - 10, top + 15, name, size=13, fill=_INK, anchor="end")
        width = max(2.0, full * (value or 0.0) / largest)
        if value is not None:
            svg.rect(bars_x, top, width, _BAR_HEIGHT, fill=_colour(name, row), radius=3)
        text = format_value(value, metric) + (" ms" if metric.unit == "ms" and value is not None else "")
        svg.text(bars_x + (width if value is not None else 0) + 8, top + 15, text, size=13, fill=_INK)


_ADVICE = {"high": "higher is better", "low": "lower is better"}


def _colour(name: str, index: int) -> str:
    return _COLOURS.get(name) or _OTHER_COLOURS[index % len(_OTHER_COLOURS)]
