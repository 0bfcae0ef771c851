"""Where a function of one number is lowest."""

from __future__ import annotations

import math
from collections.abc import Callable

_GOLDEN = (math.sqrt(5) - 1) / 2


def lowest(function: Callable[[float], float], low: float, high: float, *, within: float) -> float:
    """The argument at which a function with one valley between two bounds is lowest, by golden sections."""
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > within:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = function(right)
    return (low + high) / 2


def lowest_of_two(
    function: Callable[[float, float], float],
    first: tuple[float, float, float],
    second: tuple[float, float, float],
    *,
    start: float,
    num_turns: int,
) -> tuple[float, float]:
    """The same for two numbers, by turns along each axis; ends early when a turn gains nothing.

    Args:
        first, second: low, high and precision of each number.
        start: of the second.
    """
    x, y, last = 0.0, start, math.inf
    for _ in range(num_turns):
        x = lowest(_fix_second(function, y), first[0], first[1], within=first[2])
        y = lowest(_fix_first(function, x), second[0], second[1], within=second[2])
        now = function(x, y)
        if last - now < _GAIN:
            break
        last = now
    return x, y


_GAIN = 1e-9


def _fix_first(function: Callable[[float, float], float], x: float) -> Callable[[float], float]:
    return lambda y: function(x, y)


def _fix_second(function: Callable[[float, float], float], y: float) -> Callable[[float], float]:
    return lambda x: function(x, y)
