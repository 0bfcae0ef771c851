"""Latency samples, run-length coded, with the statistics that numpy would give."""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_right

_COMPACT_AT = 1 << 20
_FINEST_BITS = 17
"""Significant bits of a value, where the pairs would be too many otherwise: within 8e-6 of it."""


class LatencyAccumulator:
    """Samples in seconds, kept as (value, count) pairs of 16 bytes, at most a million of them.

    In one step every decoding request sees the same gap: a million requests are a few million pairs, not
    hundreds of millions of samples. Pairs with equal values are merged, and statistics are exact, until half a
    million different values are held; from then on values are rounded to 17 bits, to within 8e-6, or to as many
    fewer as keeps them to half a million: ten million requests take the memory of one.
    """

    __slots__ = ("_bits", "_counts", "_cumulated", "_num_samples", "_values")

    def __init__(self) -> None:
        self._values = array("d")
        self._counts = array("Q")
        self._num_samples = 0
        self._bits = 0
        """Bits that values are rounded to; 0 keeps them as they are."""
        self._cumulated: list[int] | None = None
        """Running sum of counts; present exactly while the pairs are sorted by value, without equal
        neighbours.
        """

    def add(self, value_s: float, count: int = 1) -> None:
        """Record `count` samples of the same value."""
        if count < 1:
            return
        self._num_samples += count
        self._cumulated = None
        if self._values and self._values[-1] == value_s:
            self._counts[-1] += count
            return
        self._values.append(value_s)
        self._counts.append(count)
        if len(self._values) >= _COMPACT_AT:
            self._compact()
            while len(self._values) > _COMPACT_AT // 2:
                self._bits = self._bits - 1 if self._bits else _FINEST_BITS
                self._compact()

    def __len__(self) -> int:
        """Number of samples."""
        return self._num_samples

    @property
    def num_pairs(self) -> int:
        """Pairs held: the memory is 16 bytes each."""
        return len(self._values)

    @property
    def mean_s(self) -> float | None:
        """Arithmetic mean; None without samples."""
        if not self._num_samples:
            return None
        return math.fsum(map(_product, self._values, self._counts)) / self._num_samples

    @property
    def std_s(self) -> float | None:
        """Population standard deviation; None without samples."""
        mean = self.mean_s
        if mean is None:
            return None
        squares = ((value - mean) ** 2 * count for value, count in zip(self._values, self._counts, strict=True))
        return math.sqrt(math.fsum(squares) / self._num_samples)

    def percentile(self, percent: float) -> float | None:
        """Percentile by linear interpolation between order statistics, numpy's default; None without samples.

        Args:
            percent: 0 to 100.
        """
        if not self._num_samples:
            return None
        rank = (self._num_samples - 1) * (percent / 100)
        below = math.floor(rank)
        low, high = self._nth(below), self._nth(min(below + 1, self._num_samples - 1))
        share = rank - below
        # Interpolated from the nearer end, as numpy does, so that equal samples give exactly that sample.
        return high - (high - low) * (1 - share) if share >= 0.5 else low + (high - low) * share

    def _nth(self, index: int) -> float:
        if self._cumulated is None:
            self._compact()
            self._cumulated = list(itertools.accumulate(self._counts))
        return self._values[bisect_right(self._cumulated, index)]

    def _compact(self) -> None:
        values, counts, bits = array("d"), array("Q"), self._bits
        for value, count in sorted(zip(self._values, self._counts, strict=True)):
            near = _rounded(value, bits) if bits else value
            if values and values[-1] == near:
                counts[-1] += count
            else:
                values.append(near)
                counts.append(count)
        self._values, self._counts = values, counts


def _rounded(value: float, bits: int) -> float:
    """To so many significant bits; rounding keeps the order."""
    fraction, exponent = math.frexp(value)
    return math.ldexp(round(math.ldexp(fraction, bits)), exponent - bits)


def _product(value: float, count: int) -> float:
    return value * count
