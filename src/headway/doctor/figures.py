"""Numbers derived from the evidence, each in one place: settings in effect, series over time, latencies, the load."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from headway.doctor.cleaning import usable
from headway.doctor.evidence import Evidence
from headway.doctor.in_effect import InEffect, in_effect
from headway.evidence.engine import EngineSample, EngineTotals, Histogram
from headway.evidence.load import LoadResult

_SAME_INSTANT_S = 1e-6
"""Closer instants are one: a slope over less means nothing, and may be beyond any number."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A least-squares line through a gauge: its slope a second, the share of steps upwards, and the fit (R²)."""

    per_s: float
    rising_share: float
    fit: float


@dataclass(frozen=True, slots=True)
class Series:
    """Samples of one engine from one source, in order of time."""

    samples: tuple[EngineSample, ...]

    def values(self, name: str) -> tuple[float, ...]:
        """The finite values of a gauge that the samples have, in order."""
        found = (getattr(sample, name) for sample in self.samples)
        return tuple(value for value in found if value is not None and math.isfinite(value))

    def mean(self, name: str) -> float | None:
        """Mean of a gauge; None where no sample has it."""
        values = self.values(name)
        return fmean(values) if values else None

    def middle(self, name: str) -> float | None:
        """Median of a gauge."""
        values = self.values(name)
        return median(values) if values else None

    def highest(self, name: str) -> float | None:
        """Largest value of a gauge."""
        return max(self.values(name), default=None)

    def lowest(self, name: str) -> float | None:
        """Smallest value of a gauge."""
        return min(self.values(name), default=None)

    def last(self, name: str) -> float | None:
        """Last value of a gauge."""
        values = self.values(name)
        return values[-1] if values else None

    def first(self, name: str) -> float | None:
        """First value of a gauge."""
        values = self.values(name)
        return values[0] if values else None

    @property
    def duration_s(self) -> float:
        """From the first to the last sample whose instant is known."""
        times = self.values("at_s")
        return max(0.0, times[-1] - times[0]) if len(times) > 1 else 0.0

    def points(self, name: str) -> tuple[tuple[float, float], ...]:
        """(instant, value) of the samples that have both."""
        return tuple(
            (sample.at_s, value)
            for sample in self.samples
            if sample.at_s is not None and (value := getattr(sample, name)) is not None and math.isfinite(value)
        )

    def trend(self, name: str) -> Trend | None:
        """How a gauge moves; None with fewer than two instants that differ."""
        points = self.points(name)
        mean_at, mean_value = _mean(at for at, _ in points), _mean(value for _, value in points)
        spread = sum((at - mean_at) ** 2 for at, _ in points)
        if spread <= _SAME_INSTANT_S**2:
            return None
        per_s = sum((at - mean_at) * (value - mean_value) for at, value in points) / spread
        total = sum((value - mean_value) ** 2 for _, value in points)
        steps = [after - before for (_, before), (_, after) in pairwise(points)]
        rising = sum(step > 0 for step in steps) / len(steps)
        return Trend(per_s, rising, per_s**2 * spread / total if total > 0 else 0.0)

    def growth(self, name: str) -> float:
        """Sum of all increases of a counter; a fall is a restart and counts from zero."""
        values = self.values(name)
        return sum(after - before if after >= before else after for before, after in pairwise(values))

    def where(self, keep: tuple[bool, ...]) -> Series:
        """The samples whose flag is true."""
        return Series(tuple(sample for sample, kept in zip(self.samples, keep, strict=True) if kept))


def _mean(values: Any) -> float:
    found = list(values)
    return fmean(found) if found else 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """The load as far as the evidence tells it.

    `requests_per_s` is what clients offer, `completed_per_s` what the engine finishes. `mean_output_tokens` and
    `mean_prompt_tokens` are of finished requests where the engine counts them, else as the client asked.
    """

    requests_per_s: float | None = None
    completed_per_s: float | None = None
    concurrency: int | None = None
    num_requests: int | None = None
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    longest_prompt_tokens: float | None = None
    median_prompt_tokens: float | None = None
    prefix_hit_rate: float | None = None

    @property
    def mean_computed_prompt_tokens(self) -> float | None:
        """Prompt tokens of a request that no cached prefix saves."""
        if self.mean_prompt_tokens is None:
            return None
        return self.mean_prompt_tokens * (1 - (self.prefix_hit_rate or 0.0))


@dataclass(frozen=True, slots=True)
class Measured:
    """A latency or throughput and where it was read."""

    value: float
    source: str


@dataclass(frozen=True, slots=True)
class Preemptions:
    """Preemptions within the evidence (`is_since_start`: since the engine's start), and requests that finished."""

    count: float
    num_finished: float | None
    is_since_start: bool
    duration_s: float | None

    @property
    def per_request(self) -> float | None:
        """Preemptions for each request that finished."""
        return self.count / self.num_finished if self.num_finished else None


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the KV cache is full if it goes on filling as it did."""

    kv_now: float
    slope_per_s: float
    seconds_to_full: float
    series: Series


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything the rules look at. Shares go from 0 to 1, times are in seconds, as in `EngineSample`."""

    evidence: Evidence
    settings: InEffect
    series: tuple[Series, ...]
    load: Load
    measured: Mapping[str, Measured] = field(default_factory=dict)
    preemptions: Preemptions | None = None

    def value(self, *keys: str) -> float | None:
        """The first of these figures that was measured, such as `p99_itl_ms`."""
        return next((self.measured[key].value for key in keys if key in self.measured), None)

    @property
    def has_run(self) -> bool:
        """Whether anything was seen of the deployment at work."""
        return bool(self.series or self.evidence.totals or self.measured or self.evidence.events)

    def mean(self, name: str) -> float | None:
        """Mean of a gauge over every sample of every engine."""
        values = [value for series in self.series for value in series.values(name)]
        return fmean(values) if values else None

    def highest(self, name: str) -> float | None:
        """Largest value of a gauge anywhere."""
        return max((value for series in self.series for value in series.values(name)), default=None)

    def as_mapping(self) -> dict[str, float]:
        """What was read, by name with its unit, for the report. Left out is what a counter near 0 makes infinite."""
        found: dict[str, float] = {key: item.value for key, item in self.measured.items()}
        load = self.load
        for name in (
            "requests_per_s", "completed_per_s", "concurrency", "mean_prompt_tokens", "mean_output_tokens",
            "prefix_hit_rate",
        ):  # fmt: skip
            value = getattr(load, name)
            if value is not None:
                found[name] = float(value)
        for name in ("num_running", "num_waiting", "kv_usage", "prompt_tokens_per_s", "generation_tokens_per_s"):
            value = self.mean(name)
            if value is not None:
                found[f"mean_{name}"] = value
        if self.preemptions is not None:
            found["num_preemptions"] = self.preemptions.count
        if self.settings.kv_tokens is not None:
            found["kv_tokens"] = float(self.settings.kv_tokens)
        if self.settings.kv_tokens and self.settings.max_model_len:
            found["concurrency_at_max_len"] = self.settings.kv_tokens / self.settings.max_model_len
        if (expected := expected_kv_usage(self)) is not None:
            found["expected_kv_usage"] = expected
        if (ahead := forecast(self)) is not None:
            found["kv_now"] = 100 * ahead.kv_now
            found["slope_pct_per_s"] = 100 * ahead.slope_per_s
            found["seconds_to_full"] = ahead.seconds_to_full
        return {name: value for name, value in found.items() if math.isfinite(value)}


def figures_of(evidence: Evidence) -> Figures:
    """Derive the figures, from what of the evidence can be computed with."""
    evidence = usable(evidence)
    settings = in_effect(evidence)
    series = _series(evidence)
    return Figures(
        evidence=evidence,
        settings=settings,
        series=series,
        load=_load(evidence, series),
        measured=_measured(evidence),
        preemptions=_preemptions(evidence, series),
    )


def main_load(evidence: Evidence) -> LoadResult | None:
    """The load to judge by: of several runs that with the most concurrency or rate, the last among equals."""
    if not evidence.loads:
        return None
    return max(
        enumerate(evidence.loads), key=lambda item: (item[1].concurrency or 0, item[1].requests_per_s or 0.0, item[0])
    )[1]


def _series(evidence: Evidence) -> tuple[Series, ...]:
    groups: dict[tuple[str, str], list[EngineSample]] = {}
    for sample in evidence.samples:
        groups.setdefault((sample.source, sample.engine), []).append(sample)
    return tuple(Series(tuple(samples)) for samples in groups.values())


_HISTOGRAMS = {"ttft_s": "ttft", "itl_s": "itl", "e2el_s": "e2el", "queue_s": "queue"}


def _measured(evidence: Evidence) -> dict[str, Measured]:
    """Client figures first: they are what users feel; the engine's histograms fill in what the client did not tell."""
    found: dict[str, Measured] = {}
    load = main_load(evidence)
    if load is not None:
        found |= {key: Measured(value, load.source) for key, value in load.measured.items() if math.isfinite(value)}
        for key in [key for key in found if key.startswith("median_")]:
            found.setdefault(key.replace("median_", "p50_"), found[key])
    if evidence.totals is not None:
        for key, figure in _histogram_figures(evidence.totals).items():
            found.setdefault(key, Measured(figure, "the engine's histograms"))
    if "output_throughput" not in found:
        rates = [value for series in _series(evidence) if (value := series.mean("generation_tokens_per_s")) is not None]
        if rates:
            found["output_throughput"] = Measured(max(rates), "the engine's generation throughput")
    return found


def _histogram_figures(totals: EngineTotals) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, name in _HISTOGRAMS.items():
        histogram = totals.histograms.get(key)
        if histogram is None:
            continue
        figures = {"mean": histogram.mean, "p50": histogram.quantile(0.5), "p99": histogram.quantile(0.99)}
        found |= {f"{stat}_{name}_ms": 1e3 * value for stat, value in figures.items() if value is not None}
    return found


def _load(evidence: Evidence, series: tuple[Series, ...]) -> Load:
    client, totals = main_load(evidence), evidence.totals
    lengths = client.lengths if client is not None else ()
    prompts = sorted(prompt for prompt, _ in lengths)
    histograms = totals.histograms if totals is not None else {}
    prompt, output = histograms.get("prompt_tokens"), histograms.get("generation_tokens")
    hits = _hit_rate(evidence, series)
    return Load(
        requests_per_s=client.requests_per_s if client is not None else None,
        completed_per_s=_completed_per_s(totals, client),
        concurrency=client.concurrency if client is not None else None,
        num_requests=client.num_requests if client is not None else None,
        mean_prompt_tokens=_first(
            prompt.mean if prompt else None,
            fmean(prompts) if prompts else None,
            client.mean_prompt_tokens if client else None,
        ),
        mean_output_tokens=_first(
            output.mean if output else None,
            fmean(output for _, output in lengths) if lengths else None,
            client.mean_output_tokens if client else None,
        ),
        longest_prompt_tokens=_first(float(prompts[-1]) if prompts else None, _longest(prompt)),
        median_prompt_tokens=_first(median(prompts) if prompts else None, prompt.quantile(0.5) if prompt else None),
        prefix_hit_rate=hits,
    )


def _longest(prompts: Histogram | None) -> float | None:
    """The P99, or more where a bucket beyond it holds a prompt: one in a thousand can hold up all others."""
    if prompts is None:
        return None
    return max((value for value in (prompts.quantile(0.99), prompts.largest_at_least) if value), default=None)


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def num_finished(totals: EngineTotals | None) -> float | None:
    """Requests that finished, whatever the reason."""
    if totals is None:
        return None
    if totals.finished:
        return sum(totals.finished.values())
    if (count := totals.counters.get("requests")) is not None:
        return count
    histogram = totals.histograms.get("e2el_s")
    return histogram.count if histogram is not None else None


def _completed_per_s(totals: EngineTotals | None, client: LoadResult | None) -> float | None:
    finished = num_finished(totals)
    if totals is not None and totals.duration_s and finished is not None:
        return finished / totals.duration_s
    return client.measured.get("request_throughput") if client is not None else None


def _hit_rate(evidence: Evidence, series: tuple[Series, ...]) -> float | None:
    totals = evidence.totals
    if totals is not None and (queries := totals.counters.get("prefix_cache_queries")):
        return min(1.0, max(0.0, totals.counters.get("prefix_cache_hits", 0.0) / queries))
    rates = [rate for one in series if (rate := one.last("prefix_hit_rate")) is not None]
    return min(1.0, max(0.0, fmean(rates))) if rates else None


def _preemptions(evidence: Evidence, series: tuple[Series, ...]) -> Preemptions | None:
    """From the most exact source there is: a counter's growth, else its value since the start, else the log."""
    totals, finished = evidence.totals, num_finished(evidence.totals)
    growing = [one for one in series if len(one.values("num_preemptions")) > 1]
    if growing:
        duration = max(one.duration_s for one in growing)
        count = sum(one.growth("num_preemptions") for one in growing)
        return Preemptions(count, finished if totals and totals.duration_s else None, False, duration or None)
    if totals is not None and (total := totals.counters.get("preemptions", math.nan)) >= 0:
        return Preemptions(total, finished, totals.duration_s is None, totals.duration_s)
    single = [value for one in series for value in one.values("num_preemptions")]
    return Preemptions(sum(single), finished, True, None) if single else None


def forecast(figures: Figures) -> Forecast | None:
    """When the KV cache is full, from the slope of its usage; None where it does not rise steadily.

    Steady: at least three samples, every step but one in ten upwards, and a straight line explains nine tenths of it.
    """
    found = [one for series in figures.series if (one := _forecast(series)) is not None]
    return min(found, key=lambda one: one.seconds_to_full, default=None)


def _forecast(series: Series) -> Forecast | None:
    trend, now = series.trend("kv_usage"), series.last("kv_usage")
    if trend is None or now is None or len(series.points("kv_usage")) < 3:
        return None
    if trend.per_s <= 0 or trend.rising_share < 0.9 or trend.fit < 0.9:
        return None
    return Forecast(now, trend.per_s, max(0.0, 1 - now) / trend.per_s, series)


def expected_kv_usage(figures: Figures) -> float | None:
    """Share of the KV cache that the load's concurrent requests hold at most, each at its full length.

    Where the size of the cache is unknown it is taken to hold one request of max_model_len: else the engine would not
    have started. The result is then an upper bound.
    """
    load, settings = figures.load, figures.settings
    pool = settings.kv_tokens or settings.max_model_len
    if pool is None or load.mean_prompt_tokens is None or load.mean_output_tokens is None:
        return None
    running = figures.highest("num_running") or load.concurrency
    if running is None:
        return None
    return running * (load.mean_prompt_tokens + load.mean_output_tokens) / pool
