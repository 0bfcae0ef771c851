"""Reading between measured points: linear along one axis after another."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence


class Curve:
    """A piecewise linear function through measured points.

    Below the first point it keeps that value. Beyond the last it goes on with the mean slope of the upper half of the
    range (a single step between neighbours is mostly noise), never downwards.

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
        low, high = _bracket(xs, x)
        return _between(x, xs[low], xs[high], ys[low], ys[high])

    @property
    def xs(self) -> Sequence[int]:
        """Coordinates of the measured points, ascending."""
        return self._xs


class Grid:
    """Measured points in several coordinates, not necessarily a full grid.

    The first coordinate is bracketed by the two nearest measured values; within each of the two the next coordinate is,
    among the points measured there, and so on. Each axis is linear and ends as `Curve` does.

    Args:
        points: value by coordinates, all of one length; at least one.
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
        low, high = _bracket(keys, x)
        if x == keys[high]:
            return children[high].at(*rest)
        return _between(x, keys[low], keys[high], children[low].at(*rest), children[high].at(*rest))

    def along_last(self, *fixed: float) -> Curve:
        """The function of the last coordinate, the others fixed: what `at` gives, at the measured points on its way."""
        if self._curve is not None:
            return self._curve
        x, rest = fixed[0], fixed[1:]
        keys, children = self._keys, self._children
        if x <= keys[0] or len(keys) == 1:
            return children[0].along_last(*rest)
        low, high = _bracket(keys, x)
        if x == keys[high]:
            return children[high].along_last(*rest)
        below, above = children[low].along_last(*rest), children[high].along_last(*rest)
        xs = {*below.xs, *above.xs}
        return Curve({at: _between(x, keys[low], keys[high], below(at), above(at)) for at in xs})


def _bracket(keys: Sequence[int], x: float) -> tuple[int, int]:
    """Two indices whose keys enclose x, which is above the first; beyond the last: the last, and one half as far."""
    index = bisect_left(keys, x)
    if index < len(keys):
        return index - 1, index
    return max(0, bisect_right(keys, keys[-1] / 2, 0, len(keys) - 1) - 1), len(keys) - 1


def _between(x: float, low: int, high: int, at_low: float, at_high: float) -> float:
    value = at_low + (at_high - at_low) * (x - low) / (high - low)
    return value if x <= high else max(value, at_high)
