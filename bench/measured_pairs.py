"""Measured runs that differ in one setting: what the doctor predicts of the change, against what it did.

The rows are those of a CSV file of serving measurements, one source at a time. Each run becomes the evidence that a
user of it would have (flags, load, the client's figures), and the other run of the pair a fix.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

from headway.accuracy.measured_rows import positive_number
from headway.deployment.arguments import Written
from headway.deployment.effective import resolve_effective
from headway.deployment.invocation import Invocation
from headway.doctor.diagnosis import Fix, ModelCheck
from headway.doctor.evidence import Evidence
from headway.doctor.prediction.counterfactual import predict
from headway.doctor.prediction.ranking import NO_CHANGE
from headway.errors import InputError
from headway.evidence.load import LoadResult

METRICS: Mapping[str, str] = {
    "output_throughput": "output_tok_s",
    "mean_tpot_ms": "tpot_mean_ms",
    "median_ttft_ms": "ttft_p50_ms",
}
"""Summary key → column: what a pair is judged by."""
WITHIN = 0.2
_MEASURED: Mapping[str, str] = {
    **METRICS,
    "mean_ttft_ms": "ttft_mean_ms",
    "mean_itl_ms": "itl_mean_ms",
    "mean_e2el_ms": "e2e_mean_ms",
}
_DEPLOYMENT = ("gpu", "num_gpus", "tp", "pp", "dp", "engine_version")
_LOAD = ("dataset", "isl", "osl", "len_kind", "concurrency", "request_rate", "num_prompts")
_WHOLE = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
_SWITCHES: Mapping[str, str] = {
    "enable_chunked_prefill": "chunked_prefill",
    "enable_prefix_caching": "prefix_caching",
}
_FLAGS = ("block_size", "enforce_eager", "async_scheduling")
"""Read from the column of other flags, where they are written name=value."""
_SATURATING = "throughput"
"""A request rate of this name sends as much as the server takes; the concurrency column then says what ran."""
_NO_SPECULATION = ("", "none", "off")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One measured configuration; repeats of it are one run, with the mean of each figure."""

    row_ids: tuple[str, ...]
    deployment: tuple[str, ...]
    load: tuple[str, ...]
    settings: Mapping[str, Any]
    gpu: str
    engine_version: str
    offered: LoadResult
    spread: Mapping[str, float] = field(default_factory=dict)
    """(Largest - smallest) / mean over the repeats, by summary key; empty without repeats."""

    @property
    def measured(self) -> Mapping[str, float]:
        """The client's figures, by summary key."""
        return self.offered.measured


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs under one load that differ in one setting."""

    setting: str
    before: MeasuredRun
    after: MeasuredRun

    @property
    def values(self) -> tuple[Any, Any]:
        """The setting before and after; None is the default."""
        return self.before.settings.get(self.setting), self.after.settings.get(self.setting)

    def reversed(self) -> Pair | None:
        """The change undone; None if that would turn speculation on, whose acceptance the other run does not show."""
        return None if self.setting == "speculative_config" else Pair(self.setting, self.after, self.before)


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change does to one metric, as ratios of after over before."""

    metric: str
    measured: float
    predicted: float
    low: float | None
    high: float | None

    @property
    def is_direction_right(self) -> bool:
        """Better, worse or no change, as measured; under 3 % is no change."""
        return _direction(self.measured) == _direction(self.predicted)

    @property
    def is_after_close(self) -> bool:
        """The metric after the change within 20 %, had the one before been known exactly."""
        return abs(self.predicted / self.measured - 1.0) <= WITHIN

    @property
    def is_size_close(self) -> bool:
        """The effect itself within 20 % of the one measured; no change where there was none."""
        measured, predicted = self.measured - 1.0, self.predicted - 1.0
        if _direction(self.measured) == _direction(self.predicted) == 0:
            return True
        return abs(predicted - measured) <= WITHIN * abs(measured)

    @property
    def half_width(self) -> float | None:
        """Of the error bar, over the prediction."""
        if self.low is None or self.high is None:
            return None
        return (self.high - self.low) / 2 / self.predicted

    @property
    def is_covered(self) -> bool:
        """The measured effect lies within the error bar."""
        return self.low is not None and self.high is not None and self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A pair with the doctor's answer. `effects` is empty where it predicted nothing; `reason` then says why."""

    pair: Pair
    check: ModelCheck | None
    effects: Mapping[str, Effect]
    reason: str


def read_runs(path: Path, source: str, conditions: Mapping[str, Any]) -> list[MeasuredRun]:
    """The runs of one source, repeats together, in the file's order.

    Args:
        conditions: settings that the source's own scripts state and its rows leave out.

    Raises:
        InputError: the file cannot be read, or has no rows of that source.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("source_id") == source and row["engine"] == "vllm"]
    except (OSError, UnicodeDecodeError, csv.Error, KeyError) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None
    if not rows:
        raise InputError(f"{path} has no rows of {source}.")
    groups: dict[tuple[Any, ...], list[Mapping[str, str]]] = {}
    for row in rows:
        settings = _settings(row, conditions)
        key = (_values(row, _DEPLOYMENT), _values(row, _LOAD), tuple(sorted((k, str(v)) for k, v in settings.items())))
        groups.setdefault(key, []).append(row)
    return [_run(group, conditions) for group in groups.values()]


def find_pairs(runs: Sequence[MeasuredRun]) -> list[Pair]:
    """All pairs that agree in hardware, release and load, and differ in exactly one setting.

    The run with the default of the setting comes first, as a user would have it; of speculation the run that has it,
    since only there is its acceptance in evidence.
    """
    pairs = []
    for one, other in combinations(runs, 2):
        if (one.deployment, one.load) != (other.deployment, other.load):
            continue
        names = {
            name for name in (*one.settings, *other.settings) if one.settings.get(name) != other.settings.get(name)
        }
        if len(names) == 1:
            name = names.pop()
            is_first = name not in one.settings or (name in other.settings and not _is_default(name, other))
            if name == "speculative_config":
                is_first = one.settings.get(name) is not None
            pairs.append(Pair(name, one, other) if is_first else Pair(name, other, one))
    return pairs


def judge(pair: Pair) -> JudgedPair:
    """Hand the run before to the doctor, and ask for the change."""
    fix = Fix(pair.setting, *pair.values, reason="the other run of the pair")
    check, (answer, *_) = predict(evidence_of(pair.before), [fix])
    effects = {}
    for item in answer.predicted:
        before, after = pair.before.measured.get(item.metric), pair.after.measured.get(item.metric)
        if item.metric in METRICS and before and after and item.before:
            bounds = (None if bound is None else bound / item.before for bound in (item.low, item.high))
            effects[item.metric] = Effect(item.metric, after / before, item.after / item.before, *bounds)
    return JudgedPair(pair, check, effects, answer.note if not effects else "")


def evidence_of(run: MeasuredRun) -> Evidence:
    """What a user of that run has: its flags, the load, and what the client measured."""
    settings = {name: Written(name, value, name, str(value)) for name, value in run.settings.items()}
    effective = resolve_effective(
        Invocation("settings", "a measured run", settings=settings),
        engine_version=run.engine_version,
        accelerator=run.gpu,
    )
    return Evidence(effective=effective, loads=(run.offered,))


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation of two columns; equal values share their mean rank."""
    ranks = [_ranks(values) for values in (first, second)]
    means = [fmean(values) for values in ranks]
    products = sum((a - means[0]) * (b - means[1]) for a, b in zip(*ranks, strict=True))
    sizes = [sum((value - mean) ** 2 for value in values) for values, mean in zip(ranks, means, strict=True)]
    return float(products / (sizes[0] * sizes[1]) ** 0.5) if all(sizes) else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [(order.index(value) + len(order) - 1 - order[::-1].index(value)) / 2 for value in values]


def _direction(ratio: float) -> int:
    return 0 if abs(ratio - 1.0) < NO_CHANGE else 1 if ratio > 1.0 else -1


def _is_default(name: str, run: MeasuredRun) -> bool:
    """Whether a run that writes a setting writes its default."""
    settings = {key: value for key, value in run.settings.items() if key != name}
    invocation = Invocation("settings", "", settings={k: Written(k, v, k, str(v)) for k, v in settings.items()})
    effective = resolve_effective(invocation, engine_version=run.engine_version, accelerator=run.gpu)
    return bool(effective.value(name) == run.settings[name])


def _values(row: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(row[name] for name in names)


def _settings(row: Mapping[str, str], conditions: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a row names, in vLLM's spelling. A checkpoint's number format is part of the model."""
    found: dict[str, Any] = {"model": row["model"]}
    drafts = conditions.get("num_speculative_tokens", 3)
    found |= {name: value for name, value in conditions.items() if name != "num_speculative_tokens"}
    words = dict(word.split("=", 1) for word in row["other_flags"].split() if "=" in word)
    columns = {**row, **{name: words[name] for name in _FLAGS if name in words}}
    for name in _WHOLE:
        if columns.get(name, "").isdigit():
            found[name] = int(columns[name])
    for name, column in _SWITCHES.items():
        if columns[column] in ("on", "off"):
            found[name] = columns[column] == "on"
    for name in ("enforce_eager", "async_scheduling"):
        if columns.get(name) in ("true", "false"):
            found[name] = columns[name] == "true"
    if columns["kv_cache_dtype"]:
        found["kv_cache_dtype"] = columns["kv_cache_dtype"]
    if (share := positive_number(columns["gpu_memory_utilization"])) is not None:
        found["gpu_memory_utilization"] = share
    if (method := columns["spec_decode"]) not in _NO_SPECULATION:
        found["speculative_config"] = {"method": method, "num_speculative_tokens": drafts}
    return found


def _run(rows: Sequence[Mapping[str, str]], conditions: Mapping[str, Any]) -> MeasuredRun:
    row = rows[0]
    columns = {
        key: values
        for key, column in _MEASURED.items()
        if len(values := [value for item in rows if (value := positive_number(item[column])) is not None]) == len(rows)
    }
    measured = {key: fmean(values) for key, values in columns.items()}
    spread = {key: (max(values) - min(values)) / fmean(values) for key, values in columns.items() if len(values) > 1}
    saturates = row["request_rate"].startswith(_SATURATING)
    concurrency = None if saturates else positive_number(row["concurrency"])
    count = positive_number(row["num_prompts"])
    return MeasuredRun(
        tuple(item["row_id"] for item in rows),
        _values(row, _DEPLOYMENT),
        _values(row, _LOAD) if not saturates else _values(row, ("dataset", "isl", "osl", "request_rate")),
        _settings(row, conditions),
        row["gpu"],
        row["engine_version"],
        LoadResult(
            source="the benchmark",
            concurrency=None if concurrency is None else round(concurrency),
            requests_per_s=positive_number(row["request_rate"]),
            mean_prompt_tokens=positive_number(row["isl"]),
            mean_output_tokens=positive_number(row["osl"]),
            num_requests=None if count is None else round(count),
            measured=measured,
        ),
        spread,
    )
