"""Gauges of all engines of a deployment together, and what Little's law makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from headway.doctor.figures import Figures, Series
from headway.evidence.engine import EngineSample

_LEAST_SAMPLES = 4
_STEADY_SHARE, _STEADY_WITHIN, _STEADY_LEAST, _FEW = 0.7, 0.03, 2.0, 8.0
"""The number in the system counts as fixed if so many samples lie within 3 % (or 1) of their median, or equal it where
it is below 8. Independent arrivals would put at most two in five there."""
_MOSTLY_PROMPTS = 20.0
"""Prompt over output tokens. A prompt takes a step for each 2,000 or so of its tokens, an output one for each."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The deployment at an instant; `tokens_per_s` is the mean of the interval that ends here."""

    at_s: float
    num_running: float
    num_waiting: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Gauges:
    """Means over the samples in which anything ran or waited, summed over engines; None where no sample has it.

    `in_system` is running + waiting by sample, `waiting` those waiting. `moments` are the samples in order of time,
    idle ones too; empty unless all have their instants and rates.
    """

    num_running: float | None = None
    num_waiting: float | None = None
    kv_usage: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    in_system: tuple[float, ...] = ()
    waiting: tuple[float, ...] = ()
    moments: tuple[Moment, ...] = ()

    @property
    def is_steady(self) -> bool:
        """Whether the number in the system moves less than independent arrivals would move it."""
        values = self.in_system
        if len(values) < _LEAST_SAMPLES or median(values) < _STEADY_LEAST:
            return False
        middle = median(values)
        within = max(1.0, _STEADY_WITHIN * middle) if middle >= _FEW else 0.5
        return sum(abs(value - middle) <= within for value in values) >= _STEADY_SHARE * len(values)

    @property
    def middle_in_system(self) -> float | None:
        """Median of running and waiting together."""
        return median(self.in_system) if self.in_system else None

    @property
    def mean_itl_ms(self) -> float | None:
        """Little's law on decodes: those running over tokens/s; None where most that run may be at their prompts."""
        running, rate = self.num_running, self.generation_tokens_per_s
        prompts = self.prompt_tokens_per_s or 0.0
        if not running or not rate or prompts > _MOSTLY_PROMPTS * rate:
            return None
        return 1e3 * running / rate


def gauges_of(figures: Figures) -> Gauges:
    """Read the gauges of the source that has the most samples."""
    sources: dict[str, list[Series]] = {}
    for series in figures.series:
        sources.setdefault(series.samples[0].source, []).append(series)
    if not sources:
        return Gauges()
    engines = max(sources.values(), key=lambda found: sum(len(one.samples) for one in found))
    busy = [one for one in map(_busy, engines) if one.samples]
    if not busy:
        return Gauges()
    usages = [value for one in busy if (value := one.mean("kv_usage")) is not None]
    return Gauges(
        num_running=_summed(busy, "num_running"),
        num_waiting=_summed(busy, "num_waiting"),
        kv_usage=fmean(usages) if usages else None,
        prompt_tokens_per_s=_summed(busy, "prompt_tokens_per_s"),
        generation_tokens_per_s=_summed(busy, "generation_tokens_per_s"),
        in_system=_in_system(busy),
        waiting=_by_sample(busy, lambda sample: sample.num_waiting or 0.0),
        moments=_moments(engines),
    )


def _busy(series: Series) -> Series:
    return series.where(
        tuple(bool((sample.num_running or 0.0) > 0 or (sample.num_waiting or 0.0) > 0) for sample in series.samples)
    )


def _summed(engines: Sequence[Series], name: str) -> float | None:
    means = [value for one in engines if (value := one.mean(name)) is not None]
    return sum(means) if means else None


def _in_system(engines: Sequence[Series]) -> tuple[float, ...]:
    return _by_sample(engines, lambda sample: (sample.num_running or 0.0) + (sample.num_waiting or 0.0))


def _by_sample(engines: Sequence[Series], value: Callable[[EngineSample], float]) -> tuple[float, ...]:
    """A value added up engine by engine where their samples go together, else of the engine with the most."""
    columns = [[value(sample) for sample in one.samples] for one in engines]
    if len({len(column) for column in columns}) == 1:
        return tuple(map(sum, zip(*columns, strict=True)))
    longest = max(columns, key=len)
    return tuple(value * len(columns) for value in longest)


def _moments(engines: Sequence[Series]) -> tuple[Moment, ...]:
    """Samples of all engines added up where they go together; else none."""
    columns = [[_moment(sample) for sample in one.samples] for one in engines]
    if len({len(column) for column in columns}) != 1:
        return ()
    found: list[Moment] = []
    for parts in zip(*columns, strict=True):
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            found.append(
                Moment(
                    max(part.at_s for part in known),
                    sum(part.num_running for part in known),
                    sum(part.num_waiting for part in known),
                    sum(part.tokens_per_s for part in known),
                )
            )
    is_ordered = all(before.at_s < after.at_s for before, after in pairwise(found))
    return tuple(found) if len(found) >= _LEAST_SAMPLES and is_ordered else ()


def _moment(sample: EngineSample) -> Moment | None:
    at_s, running, rate = sample.at_s, sample.num_running, sample.generation_tokens_per_s
    if at_s is None or running is None or rate is None:
        return None
    return Moment(at_s, running, sample.num_waiting or 0.0, rate)
