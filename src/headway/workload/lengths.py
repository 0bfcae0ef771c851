"""Distributions of lengths, in tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

from headway.errors import WorkloadError


class Length(Protocol):
    """A distribution of token counts, all at least 1."""

    def draw(self, rng: Random) -> int:
        """One value."""


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always the same count."""

    num_tokens: int

    def __post_init__(self) -> None:
        _require(self.num_tokens >= 1, f"A length must be at least 1 token, not {self.num_tokens}.")

    def draw(self, rng: Random) -> int:
        """The count itself."""
        return self.num_tokens


@dataclass(frozen=True, slots=True)
class UniformLength:
    """Every count from `low` to `high`, both included, equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _require(1 <= self.low <= self.high, f"Lengths from {self.low} to {self.high} are not a range from 1 up.")

    def draw(self, rng: Random) -> int:
        """One count."""
        return rng.randint(self.low, self.high)


@dataclass(frozen=True, slots=True)
class LogNormalLength:
    """exp(N(ln median, sigma)), rounded, within 1 to `maximum`; chat prompts have a sigma of 0.8 to 1.2."""

    median: float
    sigma: float
    maximum: int = 1_000_000

    def __post_init__(self) -> None:
        ok = self.median >= 1 and self.sigma >= 0 and self.maximum >= 1
        _require(ok, f"A log-normal length needs median >= 1, sigma >= 0 and max >= 1, not {self}.")

    def draw(self, rng: Random) -> int:
        """One count."""
        return min(self.maximum, max(1, round(rng.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class NormalLength:
    """N(mean, std), rounded, drawn again until it is within 1 to `maximum`."""

    mean: float
    std: float
    maximum: int = 1_000_000

    def __post_init__(self) -> None:
        ok = 1 <= self.mean <= self.maximum and self.std >= 0
        _require(ok, f"A normal length needs 1 <= mean <= max and std >= 0, not {self}.")

    def draw(self, rng: Random) -> int:
        """One count."""
        while True:
            count = round(rng.gauss(self.mean, self.std))
            if 1 <= count <= self.maximum:
                return count


@dataclass(frozen=True, slots=True)
class EmpiricalLength:
    """Counts drawn from those observed, each as likely as it was often."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        _require(bool(self.counts) and min(self.counts) >= 1, "Observed lengths must be at least 1 token each.")

    def draw(self, rng: Random) -> int:
        """One count."""
        return rng.choice(self.counts)

    @classmethod
    def from_file(cls, path: str) -> EmpiricalLength:
        """Observed lengths from a file with one count a line.

        Raises:
            WorkloadError: names the file and the row.
        """
        counts = []
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise WorkloadError(f"Cannot read {path}: {error}.") from None
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            ok = line.strip().isdigit() and int(line) >= 1
            _require(ok, f"{path}, row {number}: {line.strip()!r} is not a number of tokens.")
            counts.append(int(line))
        return cls(tuple(counts))


def parse_length(text: str) -> Length:
    """Read `512`, `100-900`, `normal:mean=1500,std=600,max=8192`, `lognormal:median=200,sigma=0.8,max=2000` or
    `file:PATH` (one observed count a line).

    Raises:
        WorkloadError: none of these.
    """
    kind, _, rest = text.partition(":")
    if kind == "file":
        return EmpiricalLength.from_file(rest)
    try:
        if kind in ("lognormal", "normal"):
            given = dict(part.split("=", 1) for part in rest.split(","))
            maximum = int(given.pop("max", 1_000_000))
            length: Length
            if kind == "normal":
                length = NormalLength(float(given.pop("mean")), float(given.pop("std")), maximum)
            else:
                length = LogNormalLength(float(given.pop("median")), float(given.pop("sigma")), maximum)
            _require(not given, f"Unknown in {text!r}: {', '.join(given)}.")
            return length
        if "-" in text[1:]:
            low, high = text.split("-", 1)
            return UniformLength(int(low), int(high))
        return FixedLength(int(text))
    except (ValueError, KeyError):
        raise WorkloadError(
            f"{text!r} is not a length.",
            hint="Examples: 512, 100-900, lognormal:median=200,sigma=0.8,max=2000.",
        ) from None


def _require(ok: bool, message: str) -> None:
    if not ok:
        raise WorkloadError(message)
