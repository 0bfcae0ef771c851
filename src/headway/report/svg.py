"""A small writer of SVG: shapes and text with escaped values, nothing that needs a library to draw or a
network to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from xml.sax.saxutils import escape, quoteattr

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"

Anchor = Literal["start", "middle", "end"]


class Svg:
    """A drawing of a given size in pixels on a white ground; shapes are drawn in the order of the calls."""

    def __init__(self, width: float, height: float, *, title: str) -> None:
        self.width = width
        self.height = height
        self._parts = [f"<title>{escape(title)}</title>"]
        self.rect(0, 0, width, height, fill="#ffffff")

    def rect(self, x: float, y: float, width: float, height: float, *, fill: str, radius: float = 0) -> None:
        """A filled rectangle, its corners rounded by `radius`."""
        rounded = f' rx="{_number(radius)}"' if radius else ""
        self._parts.append(
            f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}"'
            f"{rounded} fill={quoteattr(fill)}/>"
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, *, stroke: str, width: float = 1) -> None:
        """A straight line."""
        self._parts.append(
            f'<line x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" y2="{_number(y2)}"'
            f' stroke={quoteattr(stroke)} stroke-width="{_number(width)}"/>'
        )

    def polyline(self, points: Sequence[tuple[float, float]], *, stroke: str, width: float = 1.5) -> None:
        """A line through points."""
        path = " ".join(f"{_number(x)},{_number(y)}" for x, y in points)
        self._parts.append(
            f'<polyline points="{path}" fill="none" stroke={quoteattr(stroke)} stroke-width="{_number(width)}"'
            ' stroke-linejoin="round"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        fill: str = "#1f2933",
        anchor: Anchor = "start",
        bold: bool = False,
    ) -> None:
        """One line of text with its baseline at y."""
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}" fill={quoteattr(fill)}'
            f' text-anchor="{anchor}"{weight}>{escape(text)}</text>'
        )

    def to_string(self) -> str:
        """The whole document."""
        size = f'width="{_number(self.width)}" height="{_number(self.height)}"'
        box = f'viewBox="0 0 {_number(self.width)} {_number(self.height)}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {box} font-family="{FONT}" role="img">'
        return "\n".join([head, *self._parts, "</svg>", ""])


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
