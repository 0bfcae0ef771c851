"""Scrapes of /metrics, folded as they come into samples over time, totals and facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample, EngineTotals
from headway.evidence.files import line_chunks, read_text, text_lines, whole_lines
from headway.evidence.metric_facts import EngineKey, facts_of, short_names
from headway.evidence.metric_names import ENGINE_LABELS, Meaning, meaning_of, split_name
from headway.evidence.prometheus import ExpositionReader, Scrape, Series
from headway.evidence.totals import Growth, Key, add_up, grow

MAX_SAMPLES = 20_000
"""Of each engine; beyond, every second is dropped, again and again."""
MAX_RESTARTS = 100
_SHARES = frozenset(("kv_usage", "prefix_hit_rate"))
_HALF = 0.6
_FEW_VALUES = 10
_PROMPT = ("counter", "prompt_tokens", 0, "")
"""SGLang looks up every prompt token, and has no counter of look-ups."""
_RATES = {"prompt_tokens_per_s": "prompt_tokens", "generation_tokens_per_s": "generation_tokens"}


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the scrapes of one server tell, its engines added up in `totals` and apart in `by_engine`.

    With several scrapes the totals are what grew between the first and the last.
    """

    samples: tuple[EngineSample, ...] = ()
    totals: EngineTotals | None = None
    by_engine: Mapping[str, EngineTotals] = field(default_factory=dict)
    facts: EngineFacts = field(default_factory=EngineFacts)
    events: tuple[EngineEvent, ...] = ()
    notes: tuple[str, ...] = ()
    num_scrapes: int = 0


def read_metrics(paths: Iterable[Path], interval_s: float | None = None) -> Metrics:
    """Files of one server in order of time: texts of one or more scrapes, or saved answers of Prometheus's API.

    Args:
        interval_s: time between scrapes that nothing else tells.

    Raises:
        InputError: a file does not exist, cannot be read, or is binary.
    """
    files = list(paths)
    names = [path.name for path in files]
    fold = MetricsFold(names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" if names else "", interval_s)
    for path in files:
        chunks = line_chunks(path)
        head = next(chunks, b"")
        if head.lstrip()[:1] in (b"{", b"["):
            fold.add_text(read_text(path), path.name)
        else:
            fold.add_lines(text_lines(_joined(head, chunks)), path.name)
        fold.end_file(path.stat().st_mtime)
    return fold.finish()


def read_metrics_text(*texts: str, source: str = "metrics", interval_s: float | None = None) -> Metrics:
    """The same from texts, each of one or more scrapes."""
    fold = MetricsFold(source, interval_s)
    for text in texts:
        fold.add_text(text, source)
    return fold.finish()


def _joined(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield head
    yield from chunks


@dataclass(slots=True)
class _State:
    """What is kept of one engine from scrape to scrape."""

    samples: list[EngineSample] = field(default_factory=list)
    stride: int = 1
    seen: int = 0
    growth: dict[Key, Growth] = field(default_factory=dict)
    last_at_s: float | None = None
    last_counters: dict[str, float] = field(default_factory=dict)
    infos: dict[str, tuple[float, Mapping[str, str]]] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    kind: str = ""
    most_values: int = 0


class MetricsFold:
    """Takes scrapes one by one; memory is that of one scrape and of the samples kept."""

    def __init__(self, source: str, interval_s: float | None = None) -> None:
        self.source = source
        self._interval_s = interval_s
        self._engines: dict[EngineKey, _State] = {}
        self._keys: dict[int, tuple[Series, Meaning, EngineKey, str] | None] = {}
        self._seen_names: set[str] = set()
        self._notes: list[str] = []
        self._odd: dict[str, int] = {}
        self._events: list[EngineEvent] = []
        self._num_scrapes = 0
        self._num_restarts = 0
        self._first_at_s: float | None = None
        self._last_at_s: float | None = None
        self._num_untimed = 0
        self._file_times: list[tuple[int, float]] = []

    def add_text(self, text: str, source: str, at_s: float | None = None) -> None:
        """A text of scrapes, or an answer of Prometheus's API; `at_s` is the time of a text of one scrape."""
        if text.lstrip()[:1] in ("{", "["):
            reader = ExpositionReader(source, self._is_wanted)
            self._take(source, reader, reader.read_json(text))
        else:
            self.add_lines(text_lines(whole_lines((text.encode("utf-8", errors="replace"),))), source, at_s)

    def add_lines(self, lines: Iterable[str], source: str, at_s: float | None = None) -> None:
        """Lines of scrapes, with their ends."""
        reader = ExpositionReader(source, self._is_wanted)
        self._take(source, reader, reader.read_text(lines), at_s)

    def _take(
        self, source: str, reader: ExpositionReader, scrapes: Iterator[Scrape], at_s: float | None = None
    ) -> None:
        for scrape in scrapes:
            scrape.at_s = scrape.at_s if at_s is None else at_s
            self.add(scrape)
        self._keys.clear()
        if reader.num_wanted == 0:
            self._notes.append(f"{source}: holds no metrics of vLLM or SGLang.")
        self._notes += reader.notes()

    def end_file(self, modified_at_s: float) -> None:
        """A file is done; its time is used where nothing else tells the time between scrapes."""
        self._file_times.append((self._num_scrapes, modified_at_s))

    def _is_wanted(self, name: str) -> bool:
        parts = split_name(name)
        if parts is None:
            return False
        self._seen_names.add(parts[1])
        return meaning_of(name) is not None

    def add(self, scrape: Scrape) -> None:
        """Use one scrape."""
        at_s = self._time(scrape)
        by_engine: dict[EngineKey, dict[Key, float]] = {}
        for series, value in {id(series): (series, value) for series, value in scrape.values}.values():
            found = self._key(series)
            if found is None:
                continue
            _, meaning, engine, part = found
            if meaning.role == "info":
                infos = self._state(engine, meaning).infos
                if meaning.key not in infos or value >= infos[meaning.key][0]:
                    infos[meaning.key] = (value, series.labels)
                continue
            if value < 0.0:
                if meaning.role != "gauge":
                    self._odd["counters below zero"] = self._odd.get("counters below zero", 0) + 1
                continue
            self._state(engine, meaning)
            values = by_engine.setdefault(engine, {})
            key = (meaning.role, meaning.key, meaning.rank, part)
            values[key] = values.get(key, 0.0) + value
        for engine, values in by_engine.items():
            if self._engines[engine].kind == "sglang" and (prompt := values.get(_PROMPT)) is not None:
                values["counter", "prefix_cache_queries", 0, ""] = prompt
            self._add_engine(self._engines[engine], engine, values, at_s)
        self._num_scrapes += 1

    def _time(self, scrape: Scrape) -> float | None:
        at_s = scrape.at_s
        if at_s is None and self._interval_s is not None:
            at_s = self._num_scrapes * self._interval_s
        if at_s is None:
            self._num_untimed += 1
            return None
        if self._first_at_s is None:
            self._first_at_s = at_s
        at_s -= self._first_at_s
        if self._last_at_s is not None and at_s < self._last_at_s:
            self._odd["scrapes earlier than the one before"] = (
                self._odd.get("scrapes earlier than the one before", 0) + 1
            )
            at_s = self._last_at_s
        self._last_at_s = at_s
        return at_s

    def _state(self, engine: EngineKey, meaning: Meaning) -> _State:
        state = self._engines.setdefault(engine, _State())
        state.kind = meaning.engine
        return state

    def _key(self, series: Series) -> tuple[Series, Meaning, EngineKey, str] | None:
        if id(series) in self._keys:
            return self._keys[id(series)]
        meaning = meaning_of(series.name)
        found = None
        labels = series.labels
        is_other_rank = any(labels.get(name, "0") not in ("0", "") for name in ("tp_rank", "pp_rank"))
        is_other_reason = (
            meaning is not None and meaning.only is not None and labels.get(meaning.only[0]) != meaning.only[1]
        )
        if meaning is not None and not is_other_rank and not is_other_reason:
            engine = tuple(labels.get(name, "") for name in ENGINE_LABELS)
            part = labels.get("le", "") if meaning.role == "bucket" else labels.get("finished_reason", "")
            found = (series, meaning, engine, part)
        self._keys[id(series)] = found
        return found

    def _add_engine(self, state: _State, engine: EngineKey, values: Mapping[Key, float], at_s: float | None) -> None:
        counters = _counters(values)
        if len(values) < _HALF * state.most_values and state.most_values > _FEW_VALUES:
            self._notes.append(
                f"{self.source}: scrape {self._num_scrapes + 1} is cut short; its counters are not used."
            )
            values = {key: value for key, value in values.items() if key[0] == "gauge"}
            counters = {}
        state.most_values = max(state.most_values, len(values))
        has_reset = grow(state.growth, values, is_first=state.seen == 0)
        if has_reset:
            text = f"{self.source}: counters fall in scrape {self._num_scrapes + 1}: the engine was started anew."
            self._num_restarts += 1
            if self._num_restarts <= MAX_RESTARTS:
                self._events.append(EngineEvent("restart", at_s, 0, text, {}, self.source))
        gauges = self._gauges(values)
        state.gauges = gauges
        sample = self._sample(state, engine, gauges, counters, at_s, has_reset)
        if state.seen % state.stride == 0:
            state.samples.append(sample)
            if len(state.samples) > MAX_SAMPLES:
                del state.samples[1::2]
                state.stride *= 2
        state.seen += 1
        if counters or not state.last_counters:
            state.last_at_s, state.last_counters = at_s, counters

    def _gauges(self, values: Mapping[Key, float]) -> dict[str, float]:
        best: dict[str, tuple[int, float]] = {}
        for (role, key, rank, _), value in values.items():
            if role == "gauge" and (key not in best or rank < best[key][0]):
                best[key] = (rank, value)
        gauges = {key: value for key, (_, value) in best.items()}
        for key in _SHARES & set(gauges):
            if gauges[key] > 1.0 + 1e-6:
                if gauges[key] <= 100.0:
                    gauges[key] /= 100.0
                    self._odd[f"values of {key} in percent"] = self._odd.get(f"values of {key} in percent", 0) + 1
                else:
                    del gauges[key]
                    self._odd[f"values of {key} above 100 %"] = self._odd.get(f"values of {key} above 100 %", 0) + 1
        return gauges

    def _sample(
        self,
        state: _State,
        engine: EngineKey,
        gauges: Mapping[str, float],
        counters: Mapping[str, float],
        at_s: float | None,
        has_reset: bool,
    ) -> EngineSample:
        figures = {key: value for key, value in gauges.items() if key in EngineSample.__dataclass_fields__}
        before = {} if has_reset else state.last_counters
        elapsed = None if at_s is None or state.last_at_s is None or has_reset else at_s - state.last_at_s
        if elapsed:
            for name, counter in _RATES.items():
                if counter in counters and counter in before:
                    figures[name] = (counters[counter] - before[counter]) / elapsed
        for name, prefix in (("prefix_hit_rate", "prefix"), ("mm_hit_rate", "mm"), ("external_hit_rate", "external")):
            stem = "prefix_cache" if prefix == "prefix" else f"{prefix}_cache"
            queries = counters.get(f"{stem}_queries", 0.0) - before.get(f"{stem}_queries", 0.0)
            hits = counters.get(f"{stem}_hits", 0.0) - before.get(f"{stem}_hits", 0.0)
            if queries > 0.0 and f"{stem}_hits" in counters:
                figures[name] = min(1.0, max(0.0, hits / queries))
        name = "\0".join(engine)
        return EngineSample(
            at_s=at_s, engine=name, num_preemptions=counters.get("preemptions"), source=self.source, **figures
        )

    def finish(self) -> Metrics:
        """Everything, engines named by what tells them apart."""
        names = short_names(self._engines)
        self._settle_times()
        is_timed = self._num_scrapes > 1 and not self._num_untimed
        duration = self._last_at_s if is_timed else None
        by_engine: dict[str, EngineTotals] = {}
        for engine, state in self._engines.items():
            totals, notes = add_up([state.growth], duration if state.seen > 1 else None, state.seen < 2)
            by_engine[names[engine]] = totals
            self._notes += [f"{self.source}: {note}" for note in notes]
        states = [state for state in self._engines.values() if state.seen > 1] or list(self._engines.values())
        if len(states) < len(self._engines):
            count = len(self._engines) - len(states)
            self._notes.append(f"{self.source}: {count} engines are in one scrape only, and not in the totals.")
        is_since_start = all(state.seen < 2 for state in states)
        together, notes = add_up(
            [state.growth for state in states], None if is_since_start else duration, is_since_start
        )
        if len(states) > 1:
            self._notes += [f"{self.source}: {note}" for note in notes]
        if self._events:
            more = f" The same {self._num_restarts - 1} times more." if self._num_restarts > 1 else ""
            self._notes.append(self._events[0].text + more)
        self._notes += [f"{self.source}: {count} {what}." for what, count in self._odd.items()]
        return Metrics(
            samples=tuple(self._samples(names)),
            totals=together if states else None,
            by_engine=by_engine,
            facts=facts_of(
                {engine: (state.kind, state.infos, state.gauges) for engine, state in self._engines.items()},
                self._seen_names,
            ),
            events=tuple(self._events),
            notes=tuple(dict.fromkeys(self._notes)),
            num_scrapes=self._num_scrapes,
        )

    def _settle_times(self) -> None:
        """Files of one scrape each that tell no time lie as far apart as they were written."""
        if self._num_scrapes < 2 or not self._num_untimed:
            return
        is_one_each = [count for count, _ in self._file_times] == list(range(1, self._num_scrapes + 1))
        gaps = [after[1] - before[1] for before, after in zip(self._file_times, self._file_times[1:], strict=False)]
        if self._num_untimed == self._num_scrapes and is_one_each and min(gaps, default=0.0) >= 5.0:
            start = self._file_times[0][1]
            times = [at_s - start for _, at_s in self._file_times]
            self._place(times)
            self._notes.append(
                f"{self.source}: nothing tells the time between scrapes; the files were written "
                f"{', '.join(f'{gap:,.0f}' for gap in gaps)} s apart, which is taken for it."
            )
        else:
            self._notes.append(
                f"{self.source}: nothing tells the time between the {self._num_scrapes} scrapes, so that there are no "
                "rates."
            )

    def _place(self, times: list[float]) -> None:
        self._num_untimed, self._last_at_s = 0, times[-1]
        for state in self._engines.values():
            if len(state.samples) != len(times):
                continue
            state.samples = [replace(item, at_s=at_s) for item, at_s in zip(state.samples, times, strict=True)]

    def _samples(self, names: Mapping[EngineKey, str]) -> Iterator[EngineSample]:
        for engine, state in self._engines.items():
            if state.stride > 1:
                kept = f"of {state.seen:,} samples of engine {names[engine]} every {state.stride}th is kept"
                self._notes.append(f"{self.source}: {kept}.")
            lone = len(state.samples) == 1
            for sample in state.samples:
                at_s = 0.0 if lone and sample.at_s is None else sample.at_s
                yield replace(sample, engine=names[engine], at_s=at_s)


def _counters(values: Mapping[Key, float]) -> dict[str, float]:
    """Counters by key, of the best name, summed over what splits them."""
    best: dict[str, tuple[int, float]] = {}
    for (role, key, rank, _), value in values.items():
        if role != "counter":
            continue
        if key not in best or rank < best[key][0]:
            best[key] = (rank, value)
        elif rank == best[key][0]:
            best[key] = (rank, best[key][1] + value)
    return {key: value for key, (_, value) in best.items()}
