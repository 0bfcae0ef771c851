"""One mapping of stated figures while it is read: an engine at an instant, or over time, and runs of a benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from headway.evidence.engine import EngineSample
from headway.evidence.figure_names import RUN_RATES, Figure, figure_of, known_share
from headway.evidence.load import LoadResult
from headway.evidence.quantities import UNITS_MS, Quantity, quantity
from headway.evidence.run_rows import Run, put_figure, settle_units

GAUGES = ("gauge", "share")
RATE_FIELDS = ("generation_tokens_per_s", "prompt_tokens_per_s")
_TIMES = ("at_s", "t", "time", "time_s", "ts", "timestamp", "elapsed", "elapsed_s", "t_s", "at", "date")
_ROW_GAUGES = frozenset(("num_running", "num_waiting", "kv_usage"))


@dataclass(slots=True)
class Group:
    """What a mapping says, before it is settled. `lists` are values of one figure over the runs of a sweep."""

    source: str
    gauges: dict[str, Quantity] = field(default_factory=dict)
    percent: set[str] = field(default_factory=set)
    rates: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[float]] = field(default_factory=dict)
    run: Run = field(default_factory=Run)
    by_concurrency: dict[int, Run] = field(default_factory=dict)
    columns: list[Run] = field(default_factory=list)
    lists: list[tuple[Figure, list[float]]] = field(default_factory=list)
    spec: dict[str, float | str] = field(default_factory=dict)
    prompt: float | None = None
    at_s: float | None = None
    interval_s: float | None = None
    times: list[float] = field(default_factory=list)

    @property
    def is_sample(self) -> bool:
        """Whether gauges of the engine are told."""
        return bool(self.gauges or self.series)

    def put_gauge(self, figure: Figure, amount: Quantity) -> None:
        """Keep a gauge; those below zero are none."""
        if amount.value >= 0.0:
            self.gauges[figure.key] = amount
            if figure.is_percent:
                self.percent.add(figure.key)

    def put_list(self, figure: Figure | None, values: Sequence[Any]) -> bool:
        """Keep the values of one figure: a gauge over time, or a figure over runs; False if they are neither."""
        amounts = [quantity(value) for value in values]
        if figure is None or not values or any(amount is None or amount.value < 0.0 for amount in amounts):
            return False
        numbers = [amount.value for amount in amounts if amount is not None]
        if figure.kind in GAUGES or figure.key in RATE_FIELDS:
            self.series[figure.key] = numbers
        elif figure.kind in ("latency", "rate", "load"):
            self.lists.append((figure, numbers))
        else:
            return False
        return True

    def put_times(self, values: Sequence[Any]) -> bool:
        """Instants of the values in the lists beside; False unless all are instants in order."""
        times = [moment for value in values if (moment := instant(value)) is not None]
        if len(times) < max(1, len(values)) or times != sorted(times):
            return False
        self.times = times
        return True

    def column(self, named: Run) -> Run:
        """The run that has this label already, or a new one."""
        for run in self.columns:
            if run.settings == named.settings and run.has_same_load(named):
                return run
        self.columns.append(named)
        return named

    def samples(self) -> list[EngineSample]:
        """An engine at an instant, or one sample for each value of its series."""
        if not self.is_sample:
            rate = self.rates.pop("prompt_tokens_per_s", None)
            return [] if rate is None else [EngineSample(prompt_tokens_per_s=rate, source=self.source)]
        fixed = shares_settled({name: [amount] for name, amount in self.gauges.items()}, self.percent)
        figures: dict[str, Any] = {name: values[0] for name, values in fixed.items()} | self.rates
        if not self.series:
            return [EngineSample(at_s=self.at_s, source=self.source, **figures)]
        told = {name: [Quantity(value) for value in values] for name, values in self.series.items()}
        series = shares_settled(told, self.percent)
        made = []
        for index in range(max(len(values) for values in series.values())):
            at_s = None if self.interval_s is None else index * self.interval_s
            if index < len(self.times):
                at_s = self.times[index] - self.times[0]
            now: dict[str, Any] = {name: values[index] for name, values in series.items() if index < len(values)}
            made.append(EngineSample(at_s=at_s, source=self.source, **{**figures, **now}))
        return made

    def runs(self, base: Run, notes: list[str]) -> list[LoadResult]:
        """Runs that tell something, with the base's load; notes get units that had to be guessed."""
        own = self.run
        if (not self.is_sample or self._is_labelled(base)) and "generation_tokens_per_s" in self.rates:
            own.measured.setdefault(RUN_RATES["generation_tokens_per_s"], self.rates["generation_tokens_per_s"])
        self._spread()
        made = [own] if own.is_told else []
        parts = [*self.columns, *(self._labelled(count, run) for count, run in sorted(self.by_concurrency.items()))]
        made += [run.merged(own) for run in parts if run.is_told]
        notes += settle_units(made, self.source)
        labels = len(made) > 1
        return [
            run.merged(base).result(f"{self.source}, run {index}" if labels else self.source)
            for index, run in enumerate(made, 1)
        ]

    def _is_labelled(self, base: Run) -> bool:
        """Whether these are the gauges of one of several runs; requests that run are then its load."""
        running, waiting = self.gauges.get("num_running"), self.gauges.get("num_waiting")
        if not base.settings or self.series or running is None or running.value < 1:
            return False
        if self.run.concurrency is None and base.concurrency is None:
            self.run.concurrency = running.value + (waiting.value if waiting is not None else 0.0)
        return True

    def _labelled(self, concurrency: int, run: Run) -> Run:
        run.concurrency = float(concurrency)
        return run

    def _spread(self) -> None:
        """Values in lists belong to the runs told beside them, in order, or to the concurrencies in a list."""
        levels = next((values for figure, values in self.lists if figure.key == "concurrency"), None)
        counts = sorted(self.by_concurrency) if levels is None else [round(value) for value in levels]
        for figure, values in self.lists:
            if figure.key == "concurrency":
                continue
            if len(values) == len(counts):
                for count, value in zip(counts, values, strict=True):
                    put_figure(self.by_concurrency.setdefault(count, Run()), _name_of(figure), value)
            else:
                for index, value in enumerate(values):
                    column = self.column(Run(settings={"variant": index}))
                    put_figure(column, _name_of(figure), value)


def _name_of(figure: Figure) -> str:
    """A name that has the figure's meaning, unit included."""
    if figure.kind == "latency":
        stem = figure.key.removesuffix("_ms")
        return f"{stem}_{figure.unit}" if figure.unit else stem
    return {"generation_tokens_per_s": "gen_tps", "prompt_tokens_per_s": "prompt_tps"}.get(figure.key, figure.key)


def shares_settled(series: Mapping[str, Sequence[Quantity]], percent: set[str]) -> dict[str, list[float]]:
    """Values by field, shares from 0 to 1: one above 1 says that all that stand together are in percent."""
    shares = [amount for name, values in series.items() if known_share(name) for amount in values]
    are_percent = any(amount.unit != "%" and amount.value > 1.0 for amount in shares)
    settled: dict[str, list[float]] = {}
    for name, values in series.items():
        settled[name] = [
            amount.value / 100
            if known_share(name) and (amount.unit == "%" or are_percent or name in percent)
            else amount.value
            for amount in values
        ]
        if known_share(name):
            settled[name] = [min(1.0, value) for value in settled[name]]
    return settled


def instant(value: Any) -> float | None:
    """Seconds, or a date as seconds since 1970."""
    amount = quantity(value)
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value.strip()).timestamp()
        except (ValueError, OverflowError):
            pass
    if amount is None:
        return None
    if amount.unit in UNITS_MS:
        return amount.value * UNITS_MS[amount.unit] / 1e3
    return amount.value / 1e3 if amount.value > 1e11 else amount.value


def _figures(settled: Mapping[str, Iterator[float]], names: Iterable[str]) -> dict[str, Any]:
    return {name: next(settled[name]) for name in names}


def is_sample_row(row: Mapping[Any, Any]) -> bool:
    """Whether a row has a gauge of the engine, so that it is one of a series over time."""
    figures = [figure_of(str(name)) for name, value in row.items() if quantity(value) is not None]
    return any(figure is not None and figure.kind in GAUGES and figure.key in _ROW_GAUGES for figure in figures)


def rows_to_samples(
    rows: Sequence[Mapping[Any, Any]], source: str
) -> tuple[list[EngineSample], list[tuple[int, str, float | str]]]:
    """Samples in the rows' order, and what of the rows is not understood: row, name, value."""
    table: list[dict[str, Quantity]] = []
    times: list[float | None] = []
    engines: list[str] = []
    percent: set[str] = set()
    unknown: list[tuple[int, str, float | str]] = []
    for index, row in enumerate(rows):
        figures: dict[str, Quantity] = {}
        at_s: float | None = None
        engine = "0"
        for raw, value in row.items():
            name = str(raw)
            figure, amount = figure_of(name), quantity(value)
            key = "prompt_tokens_per_s" if name.lower() == "prompt" else figure.key if figure is not None else ""
            key = "generation_tokens_per_s" if key == "output_throughput" else key
            if name.lower() in _TIMES and (moment := instant(value)) is not None:
                at_s = moment
            elif name.lower() in ("engine", "rank", "dp_rank", "instance", "pod"):
                engine = str(value)[:100]
            elif amount is not None and amount.value >= 0.0 and key in EngineSample.__dataclass_fields__:
                figures[key] = amount
                if figure is not None and figure.is_percent:
                    percent.add(key)
            elif value is not None and value != "" and not isinstance(value, Mapping | list):
                unknown.append((index, name, amount.value if amount is not None else str(value)[:200]))
        table.append(figures)
        times.append(at_s)
        engines.append(engine)
    columns = {name: [row[name] for row in table if name in row] for name in {key for row in table for key in row}}
    settled = {name: iter(values) for name, values in shares_settled(columns, percent).items()}
    start = next((at_s for at_s in times if at_s is not None), 0.0)
    samples = [
        EngineSample(
            at_s=None if at_s is None else at_s - start,
            engine=engine,
            source=source,
            **_figures(settled, figures),
        )
        for figures, at_s, engine in zip(table, times, engines, strict=True)
    ]
    return sorted(samples, key=lambda item: engines.index(item.engine)), unknown
