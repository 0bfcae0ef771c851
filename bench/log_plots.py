"""Panels of lines on logarithmic axes, as one SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.report.svg import Svg

_WIDTH, _HEIGHT = 460.0, 330.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 58.0, 56.0, 20.0, 48.0
_LEGEND_PITCH = 16.0
_INK, _SOFT, _RULE = "#1f2933", "#616e7c", "#e4e7eb"
_COLOURS = ("#1a936f", "#d9822b", "#3d7cc9", "#7b61c4", "#9aa5b1")

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over common axes. All numbers are positive; `dashed` names the lines that are bounds, drawn thin."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Points]
    dashed: Iterable[str] = ()


def write_panels(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Draw panels side by side."""
    svg = Svg(_WIDTH * len(panels), _HEIGHT + _LEGEND_PITCH * max(len(panel.lines) for panel in panels), title=title)
    for index, panel in enumerate(panels):
        _draw(svg, index * _WIDTH, panel)
    path.write_text(svg.to_string(), encoding="utf-8")


def _draw(svg: Svg, x0: float, panel: Panel) -> None:
    points = [point for line in panel.lines.values() for point in line]
    x_axis = _Axis([x for x, _ in points], x0 + _LEFT, x0 + _WIDTH - _RIGHT)
    y_axis = _Axis([y for _, y in points], _HEIGHT - _BOTTOM, _TOP, whole_decades=True)
    svg.text(x0 + 16, 24, panel.title, size=15, fill=_INK, bold=True)
    svg.text(x0 + 16, 43, panel.y_label, size=12, fill=_SOFT)
    svg.text(x0 + _WIDTH - _RIGHT, _HEIGHT - 14, panel.x_label, size=12, fill=_SOFT, anchor="end")
    for value in y_axis.ticks():
        svg.line(x0 + _LEFT, y_axis.at(value), x0 + _WIDTH - _RIGHT, y_axis.at(value), stroke=_RULE)
        svg.text(x0 + _LEFT - 8, y_axis.at(value) + 4, f"{value:g}", size=11, fill=_SOFT, anchor="end")
    for value in sorted({x for x, _ in points}):
        svg.text(x_axis.at(value), _HEIGHT - _BOTTOM + 18, f"{value:g}", size=11, fill=_SOFT, anchor="middle")
    for row, (name, line) in enumerate(panel.lines.items()):
        colour, thin = _COLOURS[row % len(_COLOURS)], name in panel.dashed
        placed = [(x_axis.at(x), y_axis.at(y)) for x, y in line]
        svg.polyline(placed, stroke=colour, width=1 if thin else 2)
        for x, y in () if thin else placed:
            svg.rect(x - 3, y - 3, 6, 6, fill=colour, radius=3)
        y = _HEIGHT + row * _LEGEND_PITCH
        svg.line(x0 + _LEFT, y - 4, x0 + _LEFT + 22, y - 4, stroke=colour, width=1 if thin else 3)
        svg.text(x0 + _LEFT + 30, y, name, size=12, fill=_INK)


class _Axis:
    """Where values lie between two places; with `whole_decades` it begins and ends at a power of ten."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, whole_decades: bool = False) -> None:
        self._low, self._high = math.log10(min(values)), math.log10(max(values))
        if whole_decades:
            self._low, self._high = math.floor(self._low), math.ceil(self._high)
        if self._high == self._low:
            self._high += 1
        self._begin, self._end = begin, end

    def at(self, value: float) -> float:
        """Place of a value."""
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """The powers of ten."""
        return [10.0**power for power in range(math.ceil(self._low), math.floor(self._high) + 1)]
