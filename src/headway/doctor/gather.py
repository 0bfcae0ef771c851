"""Puts the evidence of one deployment together from files, addresses and text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from headway.doctor.deployment_evidence import plan_of, read_subject
from headway.doctor.evidence import Evidence, Objective
from headway.errors import InputError
from headway.evidence.bench_results import read_bench
from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample, EngineTotals
from headway.evidence.files import read_text
from headway.evidence.live import INTERVAL_S, is_url, scrape_live
from headway.evidence.load import LoadResult
from headway.evidence.load_words import load_of_words
from headway.evidence.observed import read_observed
from headway.evidence.run_rows import Run
from headway.evidence.run_variants import with_changes, with_named_variants
from headway.evidence.scrapes import Metrics, MetricsFold, read_metrics
from headway.evidence.server_log import read_server_log
from headway.planner.startup_log import StartupLog, read_startup_logs


@dataclass(slots=True)
class _Found:
    """What the sources told so far."""

    facts: EngineFacts = field(default_factory=EngineFacts)
    samples: list[EngineSample] = field(default_factory=list)
    totals: EngineTotals | None = None
    events: list[EngineEvent] = field(default_factory=list)
    loads: list[LoadResult] = field(default_factory=list)
    start_up_text: str = ""
    startup: StartupLog | None = None
    unusable: list[str] = field(default_factory=list)
    stated: dict[str, float | str] = field(default_factory=dict)


def gather(
    deployment: Path | str | None = None,
    *,
    metrics: Sequence[Path | str] = (),
    logs: Sequence[Path] = (),
    benches: Sequence[Path] = (),
    observed: Sequence[str] = (),
    trace: Path | None = None,
    engine_version: str | None = None,
    gpu: str | None = None,
    model: str | None = None,
    objective: Objective | None = None,
    interval_s: float | None = None,
) -> Evidence:
    """Read everything; what cannot be used ends in `unusable`, with the reason.

    Args:
        deployment: a deployment's file, or flags as text, with or without the command before them.
        metrics: files of scrapes of one server in order of time, saved answers of Prometheus, or addresses.
        benches: results of benchmarks.
        observed: figures that somebody states, as a file or as `key=value,…`.
        trace: requests to simulate; only kept here.
        interval_s: time between scrapes: of files that tell none, and to wait between two of a live server.

    Raises:
        InputError: a file that is named does not exist, or is binary; a server does not answer.
    """
    found = _Found()
    _read_logs(found, logs)
    _read_metrics(found, metrics, interval_s)
    _read_benches(found, benches)
    _read_observed(found, observed)
    if trace is not None and not trace.is_file():
        raise InputError(f"Cannot read {trace}: there is no such file.")
    subject = read_subject(
        deployment,
        logged=found.start_up_text,
        facts=found.facts,
        engine_version=engine_version,
        gpu=gpu,
        model=model,
    )
    found.unusable += subject.notes
    if subject.words is not None:
        found.loads = _with_words(with_named_variants(found.loads, subject.words), load_of_words(subject.words))
    found.loads = with_changes(found.loads, found.stated)
    plan, notes = plan_of(subject.effective, found.facts)
    return Evidence(
        effective=subject.effective,
        plan=plan,
        startup=found.startup,
        facts=found.facts,
        samples=tuple(found.samples),
        totals=found.totals,
        events=tuple(found.events),
        loads=tuple(found.loads),
        trace=trace,
        objective=objective or Objective(),
        unusable=tuple(dict.fromkeys([*found.unusable, *notes])),
        stated=found.stated,
    )


def _read_logs(found: _Found, paths: Iterable[Path]) -> None:
    for path in paths:
        log = read_server_log(path)
        found.samples += log.samples
        found.events += log.events
        found.unusable += log.notes
        found.start_up_text += log.start_up_text + "\n"
        found.facts = _merge(log.facts, found.facts)
    starts = read_startup_logs(found.start_up_text)
    if len(starts) > 1:
        found.unusable.append(f"The logs hold {len(starts)} starts; memory figures are those of the last.")
    if starts:
        found.startup = starts[-1]
        found.facts = _merge(found.facts, _facts_of(starts[-1]))


def _facts_of(start: StartupLog) -> EngineFacts:
    return EngineFacts(
        engine=start.engine,
        version=start.version,
        model=start.model,
        num_gpu_blocks=start.num_gpu_blocks,
        block_size=start.block_size,
        kv_cache_tokens=start.tokens,
        max_model_len=start.max_model_len,
        max_num_batched_tokens=start.max_num_batched_tokens,
        gpu_memory_utilization=start.gpu_memory_utilization,
        kv_cache_dtype=start.kv_cache_dtype,
    )


def _read_metrics(found: _Found, sources: Sequence[Path | str], interval_s: float | None) -> None:
    files = [Path(source) for source in sources if not is_url(str(source))]
    readings: list[Metrics] = [read_metrics(files, interval_s)] if files else []
    for url in (str(source) for source in sources if is_url(str(source))):
        fold = MetricsFold(url)
        for scrape in scrape_live(url, interval_s=interval_s or INTERVAL_S):
            fold.add_text(scrape.text, url, at_s=scrape.at_s)
        readings.append(fold.finish())
    for reading in readings:
        found.samples += reading.samples
        found.events += reading.events
        found.unusable += reading.notes
        found.facts = _merge(reading.facts, found.facts)
        if found.totals is None:
            found.totals = reading.totals
        elif reading.totals is not None:
            found.unusable.append("Metrics of several servers: the counters and histograms are those of the first.")


def _read_benches(found: _Found, paths: Iterable[Path]) -> None:
    for path in paths:
        read_text(path)
        try:
            runs, notes = read_bench(path)
        except InputError as error:
            found.unusable.append(f"{error}")
            continue
        found.loads += runs
        found.unusable += notes


def _read_observed(found: _Found, given: Iterable[str]) -> None:
    for text in given:
        seen = read_observed(text)
        found.samples += seen.samples
        found.loads += seen.loads
        found.events += seen.events
        found.stated |= seen.stated
        found.unusable += seen.notes
        found.facts = _merge(found.facts, seen.facts)
        if found.totals is None:
            found.totals = seen.totals
        elif seen.totals is not None:
            found.unusable.append("Counters that are stated are not used beside those of the metrics.")


def _with_words(loads: list[LoadResult], words: Run) -> list[LoadResult]:
    """Loads with what the given words say of theirs; a load of its own where there is none."""
    if not words.has_load:
        return loads
    told = words.result("the command")
    if not loads:
        return [told]
    names = ("concurrency", "requests_per_s", "mean_prompt_tokens", "mean_output_tokens", "num_requests")
    missing = {name: getattr(told, name) for name in names}
    return [
        replace(load, **{name: value for name, value in missing.items() if getattr(load, name) is None})
        for load in loads
    ]


def _merge(first: EngineFacts, second: EngineFacts) -> EngineFacts:
    """What the first tells, and from the second what it does not."""
    values = {}
    for item in fields(EngineFacts):
        one, other = getattr(first, item.name), getattr(second, item.name)
        values[item.name] = max(one, other) if item.name == "num_engines" else (other if one in (None, ()) else one)
    return replace(first, **values)
