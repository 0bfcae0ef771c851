"""Reading between measured points: linear along one axis after another."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence


class Curve:
    """A piecewise linear function through measured points.

    Below the first point it keeps that value. Beyond the last it goes on along the last two points, never downwards.

    Args:
        points: value by coordinate; at least one.
    """

    __slots__ = ("_xs", "_ys")

    def __init__(self, points: Mapping[int, float]) -> None:
        self._xs: Sequence[int] = sorted(points)
        self._ys = [points[x] for x in self._xs]

    def __call__(self, x: float) -> float:
        xs, ys = self._xs, self._ys
        if x <= xs[0] or len(xs) == 1:
            return ys[0]
        index = min(bisect_right(xs, x), len(xs) - 1)
        low, high = ys[index - 1], ys[index]
        value = low + (high - low) * (x - xs[index - 1]) / (xs[index] - xs[index - 1])
        return value if x <= xs[-1] else max(value, high)

    @property
    def points(self) -> Iterable[tuple[int, float]]:
        """The measured points, by coordinate."""
        return zip(self._xs, self._ys, strict=True)


class Grid:
    """Measured points in several coordinates, not necessarily a full grid.

    The first coordinate is bracketed by the two nearest measured values; within each of the two the next coordinate is,
    among the points measured there, and so on. Each axis is linear and ends as `Curve` does.

    Args:
        points: value by coordinates, all of one length.
    """

    __slots__ = ("_children", "_curve", "_keys")

    def __init__(self, points: Mapping[tuple[int, ...], float]) -> None:
        first = next(iter(points))
        self._curve: Curve | None = None
        if len(first) == 1:
            self._curve = Curve({key[0]: value for key, value in points.items()})
            return
        branches: dict[int, dict[tuple[int, ...], float]] = {}
        for key, value in points.items():
            branches.setdefault(key[0], {})[key[1:]] = value
        self._keys = sorted(branches)
        self._children = [Grid(branches[key]) for key in self._keys]

    def at(self, x: float, *rest: float) -> float:
        """The value between the measured points."""
        if self._curve is not None:
            return self._curve(x)
        keys, children = self._keys, self._children
        if x <= keys[0] or len(keys) == 1:
            return children[0].at(*rest)
        index = min(bisect_right(keys, x), len(keys) - 1)
        below, above = keys[index - 1], keys[index]
        if x == below:
            return children[index - 1].at(*rest)
        low, high = children[index - 1].at(*rest), children[index].at(*rest)
        value = low + (high - low) * (x - below) / (above - below)
        return value if x <= keys[-1] else max(value, high)

    def along_last(self, *fixed: float) -> Curve:
        """The function of the last coordinate, the others fixed: its kinks are at the measured points."""
        node: Grid = self
        xs: set[int] = set()
        stack = [node]
        while stack:
            node = stack.pop()
            if node._curve is not None:
                xs.update(x for x, _ in node._curve.points)
            else:
                stack.extend(node._children)
        return Curve({x: self.at(*fixed, float(x)) for x in xs})
