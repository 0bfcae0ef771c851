"""Walks stated figures, however they are nested, and turns them into samples, runs, events and facts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample, EngineTotals, Histogram
from headway.evidence.figure_names import Figure, figure_of, percentile_label, words_of
from headway.evidence.labelled_names import with_tables
from headway.evidence.load import LoadResult
from headway.evidence.load_words import load_of_words
from headway.evidence.observed_group import GAUGES, RATE_FIELDS, Group, instant, is_sample_row, rows_to_samples
from headway.evidence.observed_words import read_gauges, read_words
from headway.evidence.quantities import UNITS_MS, Quantity, quantity
from headway.evidence.run_labels import are_percentiles, are_runs, is_load_label, run_of_label
from headway.evidence.run_rows import Run, is_setting, put_figure, run_of_row, scalar, setting_name, settle_units

_MAX_DEPTH = 12
_MAX_ENTRIES = 100_000
_LOAD_WORDS = frozenset(("load", "bench", "benchmark", "workload", "test", "command", "config", "traffic"))
_TIME_NAMES = frozenset(("at_s", "t", "time", "time_s", "ts", "timestamp", "elapsed", "elapsed_s", "t_s", "at"))
_INTERVAL_NAMES = frozenset(("interval_s", "interval", "step_s", "every_s"))
_HEADINGS = frozenset(("log", "logs", "observed", "metrics", "stats", "sample", "engine", "spec", "figures"))
_SERIES_WORDS = re.compile(r"^(?:series|samples|values|log)[_ ]|[_ ](?:series|samples|values|log)$")
_BUCKETS = re.compile(r"(.+?)[_ ]?(?:buckets?|histogram)")
_HISTOGRAM_KEYS = {"ttft": "ttft_s", "itl": "itl_s", "tpot": "tpot_s", "e2el": "e2el_s", "queue": "queue_s"}


class ObservedTree:
    """Collects what stated figures say. `stated` has what has no place elsewhere; `notes` names it."""

    def __init__(self, source: str) -> None:
        self.samples: list[EngineSample] = []
        self.loads: list[LoadResult] = []
        self.events: list[EngineEvent] = []
        self.stated: dict[str, float | str] = {}
        self.notes: list[str] = []
        self._source = source
        self._facts: dict[str, float] = {}
        self._counters: dict[str, float] = {}
        self._histograms: dict[str, Histogram] = {}
        self._not_understood: list[str] = []

    def facts(self) -> EngineFacts:
        """Sizes and limits of the engine."""
        share = self._facts.get("gpu_memory_utilization")
        whole: dict[str, Any] = {key: int(value) for key, value in self._facts.items() if value is not share}
        return EngineFacts(gpu_memory_utilization=share, **whole)

    def totals(self) -> EngineTotals | None:
        """Counters and histograms; None if there are none."""
        if not self._counters and not self._histograms:
            return None
        return EngineTotals(counters=self._counters, histograms=self._histograms)

    def read(self, content: Any) -> None:
        """Read everything."""
        if isinstance(content, list):
            self._list(content, self._source, "", Run(), 0)
        elif isinstance(content, Mapping):
            base = self._group(content, self._source, "", Run(), 0)
            if not self.loads and base.has_load:
                self.loads.append(base.result(self._source))
        else:
            self.notes.append(f"{self._source}: holds no figures.")
        if self._not_understood:
            names = list(dict.fromkeys(self._not_understood))
            shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            self.notes.append(f"{self._source}: not understood, and kept as stated: {shown}.")

    def _keep(self, where: str, value: float | str) -> None:
        self.stated[where] = value
        self._not_understood.append(where)

    def _group(self, node: Mapping[Any, Any], source: str, path: str, base: Run, depth: int) -> Run:
        """Read a mapping; returns its run with the base's load."""
        group = Group(source)
        nested: list[tuple[str, Any]] = []
        is_spec = "spec" in path.lower().rsplit(".", 1)[-1]
        node = with_tables(node)
        for raw, value in list(node.items())[:_MAX_ENTRIES]:
            key = str(raw)[:200]
            if isinstance(value, Mapping | list):
                nested.append((key, value))
            else:
                self._scalar(group, key, value, f"{path}.{key}" if path else key, is_spec)
        self._means(group, node)
        later = [(key, value) for key, value in nested if not self._table(group, key, value, base)]
        if group.is_sample and group.prompt is not None:
            group.rates.setdefault("prompt_tokens_per_s", group.prompt)
        elif group.prompt is not None:
            group.run.put_load("mean_prompt_tokens", group.prompt)
        run = group.run.merged(base)
        self.samples += group.samples()
        self.loads += group.runs(base, self.notes)
        if group.spec:
            text = json.dumps(group.spec)
            self.events.append(EngineEvent("spec_decode", None, 0, text, group.spec, source))
        self._below(later, source, path, run, depth)
        return run

    def _below(self, later: Sequence[tuple[str, Any]], source: str, path: str, run: Run, depth: int) -> None:
        names = [key for key, _ in later]
        speculates = any("spec" in name.lower() for name in names)
        for key, value in later:
            below = f"{path}.{key}" if path else key
            if depth >= _MAX_DEPTH:
                self._keep(below, "nested too deeply")
            elif isinstance(value, list):
                self._list(value, source, below, run.load_only(), depth)
            else:
                where, base = f"{source}, {key}", run.load_only()
                if set(words_of(key)) <= _HEADINGS:
                    where = f"{source}, with" if speculates and "with" in names else source
                else:
                    beside = [name for name in names if name != key]
                    own = run_of_label(key, beside, has_rate=run.requests_per_s is not None, speculates=speculates)
                    base = own.merged(base)
                num_loads, num_samples = len(self.loads), len(self.samples)
                told = self._group(value, where, below, base, depth + 1)
                is_engine_at_a_load = len(self.samples) > num_samples and len(self.loads) == num_loads
                if is_engine_at_a_load and is_load_label(key):
                    self.loads.append(told.result(where))

    def _scalar(self, group: Group, key: str, value: Any, where: str, is_spec: bool) -> None:
        name = key.strip().lower()
        figure, amount = figure_of(key), quantity(value)
        if value is None or value == "":
            return
        if name in _TIME_NAMES and (at_s := instant(value)) is not None:
            group.at_s = at_s
        elif name in _INTERVAL_NAMES and amount is not None:
            group.interval_s = amount.value * UNITS_MS.get(amount.unit or "s", 1e3) / 1e3
        elif is_spec and amount is not None and _spec(group, name, figure, amount):
            return
        elif name == "prompt" and amount is not None:
            group.prompt = amount.value
        elif figure is not None and amount is not None:
            self._figure(group, key, figure, amount, value)
            if figure.key == "duration":
                self.stated[where] = amount.value if amount.unit is None else str(value)
        elif is_setting(key) and len(str(value)) < 60:
            group.run.settings[setting_name(key)] = scalar(value)
            self.stated[where] = amount.value if amount is not None else str(value)
        elif isinstance(value, str) and (amount is None or " " in value.strip()):
            self._text(group, key, value, where)
        else:
            self._keep(where, amount.value if amount is not None else str(value)[:200])

    def _means(self, group: Group, node: Mapping[Any, Any]) -> None:
        """A latency's sum over its count is its mean."""
        for raw, value in node.items():
            key = str(raw)
            stem = key.removesuffix("_sum")
            figure, total = figure_of(stem), quantity(value)
            if stem == key or figure is None or figure.kind != "latency" or figure.unit is None or total is None:
                continue
            names = (f"{stem}_count", re.sub(r"_[a-z]+$", "_count", stem))
            count = next((found for name in names if (found := quantity(node.get(name))) is not None), None)
            if count is not None and count.value > 0.0:
                group.run.put_latency(figure.key, Quantity(total.value / count.value), figure.unit)

    def _figure(self, group: Group, key: str, figure: Figure, amount: Quantity, value: Any) -> None:
        if figure.kind in GAUGES:
            group.put_gauge(figure, amount)
        elif figure.kind == "fact":
            if 0.0 < amount.value < 1e15:
                self._facts.setdefault(figure.key, amount.value)
        elif figure.kind == "total":
            self._counters[figure.key] = max(0.0, amount.value)
        elif figure.kind == "spec":
            _spec(group, key, figure, amount)
        elif figure.key in RATE_FIELDS:
            group.rates[figure.key] = amount.value
        elif figure.concurrency is not None:
            put_figure(group.by_concurrency.setdefault(figure.concurrency, Run()), key, value)
        else:
            put_figure(group.run, key, value)

    def _text(self, group: Group, key: str, text: str, where: str) -> None:
        if set(words_of(key)) & _LOAD_WORDS:
            group.run = group.run.merged(load_of_words(text))
        for name, amount in read_gauges(text).items():
            if name in RATE_FIELDS:
                group.rates.setdefault(name, amount.value)
            else:
                group.gauges.setdefault(name, amount)
        words, preemption = read_words(key, text)
        for name, word in words.items():
            self.stated.setdefault(name, word)
        if preemption is not None:
            self.events.append(EngineEvent("preemption", None, 0, text[:500], preemption, group.source))
        self.stated[where] = text[:500]

    def _table(self, group: Group, key: str, value: Any, base: Run) -> bool:
        """A figure by run, by percentile or by bucket, or a list of its values; False for anything else."""
        figure = figure_of(_SERIES_WORDS.sub("", key))
        if isinstance(value, list):
            is_time = key.strip().lower() in _TIME_NAMES
            return group.put_times(value) if is_time else group.put_list(figure, value)
        if (match := _BUCKETS.fullmatch(key)) and (found := _histogram(match[1], value)) is not None:
            self._histograms[found[0]] = found[1]
            return True
        if figure is None or figure.kind not in ("latency", "rate") or not value:
            return False
        amounts = {str(label): quantity(item) for label, item in value.items()}
        told = {label: amount for label, amount in amounts.items() if amount is not None}
        if len(told) < len(amounts):
            return self._nested_table(group, key, value, base)
        if figure.kind == "latency" and are_percentiles(told):
            for label, amount in told.items():
                metric = figure.key.split("_", 1)[1]
                group.run.put_latency(f"{percentile_label(label) or 'mean'}_{metric}", amount, figure.unit)
            return True
        speculates = bool(group.spec)
        if not are_runs(told, speculates=speculates):
            return False
        has_rate = group.run.requests_per_s is not None or base.requests_per_s is not None
        for label in told:
            beside = [name for name in told if name != label]
            named = run_of_label(label, beside, has_rate=has_rate, speculates=speculates)
            if "variant" in named.settings:
                self.notes.append(f"{self._source}: nothing says what {', '.join(told)} of {key} count.")
            put_figure(group.column(named), key, value.get(label, told[label].value))
        return True

    def _nested_table(self, group: Group, key: str, value: Mapping[Any, Any], base: Run) -> bool:
        """A figure by run and then by load, such as `{"none": {"c1": 11, "c4": 34}, "mtp": {…}}`."""
        inner = {str(label): row for label, row in value.items() if isinstance(row, Mapping) and row}
        if len(inner) < len(value) or not are_runs(inner) or not all(are_runs(map(str, row)) for row in inner.values()):
            return False
        if any(quantity(item) is None for row in inner.values() for item in row.values()):
            return False
        has_rate = group.run.requests_per_s is not None or base.requests_per_s is not None
        for label, row in inner.items():
            outer = run_of_label(label, [name for name in inner if name != label], has_rate=has_rate)
            for name, item in row.items():
                beside = [str(other) for other in row if other != name]
                put_figure(group.column(run_of_label(str(name), beside, has_rate=has_rate).merged(outer)), key, item)
        return True

    def _list(self, items: list[Any], source: str, path: str, base: Run, depth: int) -> None:
        """Rows of a table: samples if they have gauges of the engine, else runs."""
        rows = [item for item in items[:_MAX_ENTRIES] if isinstance(item, Mapping)]
        if len(rows) < len(items):
            others = [item for item in items[:_MAX_ENTRIES] if not isinstance(item, Mapping)]
            for index, item in enumerate(others[:100]):
                group = Group(source)
                where = f"{path}.{index}"
                if isinstance(item, str):
                    self._text(group, path, item, where)
                    self.samples += group.samples()
                else:
                    self._keep(where, str(item)[:200])
        if any(is_sample_row(row) for row in rows):
            samples, unknown = rows_to_samples(rows, source)
            beside = _runs_beside(rows) if len(samples) == len(rows) else None
            if beside is not None:
                self._sweep(samples, beside, base, source)
                return
            self.samples += samples
            for index, key, value in unknown:
                self._keep(f"{path}.{index}.{key}" if path else f"{index}.{key}", value)
            return
        runs: list[tuple[str, Run]] = []
        for index, row in enumerate(rows):
            where, name = (f"{path}.{index}" if path else str(index)), f"{source}, row {index + 1}"
            if any(isinstance(value, Mapping | list) for value in row.values()):
                self._group(row, name, where, base, depth + 1)
            elif (run := self._run_row(row, where)) is not None:
                runs.append((name, run.merged(base)))
        self.notes += settle_units([run for _, run in runs], source)
        self.loads += [run.result(name) for name, run in runs]

    def _sweep(self, samples: Sequence[EngineSample], runs: Sequence[Run], base: Run, source: str) -> None:
        """Rows that have the engine's gauges and a load each: an engine at so many loads, rather than over time."""
        for index, sample in enumerate(samples, 1):
            self.samples.append(replace(sample, source=f"{source}, row {index}"))
        self.notes += settle_units(runs, source)
        self.loads += [run.merged(base).result(f"{source}, row {index}") for index, run in enumerate(runs, 1)]

    def _run_row(self, row: Mapping[Any, Any], where: str) -> Run | None:
        run, rest = run_of_row(row)
        for key, value in rest.items():
            amount = quantity(value)
            if amount is not None and run.is_told:
                run.measured[str(key)] = amount.value
            else:
                self._keep(f"{where}.{key}", amount.value if amount is not None else str(value)[:200])
        if run.is_told:
            return run
        for name, setting in run.settings.items():
            self._keep(f"{where}.{name}", str(setting)[:200])
        return None


def _runs_beside(rows: Sequence[Mapping[Any, Any]]) -> list[Run] | None:
    """The loads of rows that have gauges besides; None unless each has another one and none tells an instant."""
    runs: list[Run] = []
    for row in rows:
        run, rest = run_of_row(row)
        if any(str(name).strip().lower() in _TIME_NAMES for name in rest):
            return None
        for key, value in rest.items():
            figure, amount = figure_of(str(key)), quantity(value)
            if figure is not None and figure.kind in GAUGES and amount is not None:
                is_percent = figure.kind == "share" and (figure.is_percent or amount.unit == "%" or amount.value > 1.0)
                run.measured.setdefault(figure.key, amount.value / 100 if is_percent else amount.value)
        runs.append(run)
    loads = [run.concurrency or run.requests_per_s for run in runs]
    return runs if len(runs) > 1 and None not in loads and len(set(loads)) == len(loads) else None


def _spec(group: Group, name: str, figure: Figure | None, amount: Quantity) -> bool:
    """A figure of speculative decoding; shares may come in percent."""
    if figure is not None and figure.kind == "spec":
        key = figure.key
    elif name in ("rate", "acceptance", "accept_rate"):
        key = "acceptance_rate"
    else:
        return False
    is_percent = key == "acceptance_rate" and amount.value > 1.0
    group.spec[key] = amount.value / 100 if is_percent else amount.value
    return True


def _histogram(name: str, buckets: Mapping[Any, Any]) -> tuple[str, Histogram] | None:
    """Counts by upper bound in seconds; `+Inf` gives the count of all."""
    figure = figure_of(name)
    if figure is None or figure.kind != "latency" or figure.unit not in (None, "s", "seconds", "sec"):
        return None
    metric = figure.key.split("_")[1]
    found: dict[float, float] = {}
    for label, value in buckets.items():
        amount = quantity(value)
        try:
            bound = float(str(label))
        except ValueError:
            return None
        if amount is None or bound != bound or amount.value < 0.0:
            return None
        found[bound] = amount.value
    count = found.pop(float("inf"), None)
    bounds = tuple(sorted(found))
    counts = tuple(found[bound] for bound in bounds)
    if metric not in _HISTOGRAM_KEYS or list(counts) != sorted(counts):
        return None
    return _HISTOGRAM_KEYS[metric], Histogram(bounds, counts, count)
