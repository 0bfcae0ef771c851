"""Results of benchmarks: `vllm bench serve`, GuideLLM, headway's own, and tables of runs."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.errors import InputError
from headway.evidence.files import read_text
from headway.evidence.load import LoadResult
from headway.evidence.run_rows import Run, lengths_of, run_of_row, settle_units

_CLOSED_STRATEGIES = ("concurrent", "throughput", "synchronous")
_LATENCY = re.compile(r"(?:mean|median|p\d+(?:\.\d+)?)_(?:ttft|tpot|itl|e2el|latency)_ms")
_RATES = ("output_throughput", "request_throughput", "total_token_throughput", "request_goodput")
_PRINTED = re.compile(r"^[#\s]*([A-Z][\w ./()-]*?)(?:\s*\(([\w/]+)\))?:\s+([\d.]+|inf)\s*$")
_MAX_ROWS = 10_000


def read_bench(path: Path) -> tuple[list[LoadResult], list[str]]:
    """Every run that a file of any known form holds, and what could not be used of it.

    Raises:
        InputError: the file does not exist, cannot be read, or holds no run.
    """
    text = read_text(path).removeprefix("\ufeff")
    notes: list[str] = []
    if "Serving Benchmark Result" in text:
        runs = list(_printed(text, path.name, notes))
    elif text.lstrip()[:1] in ("{", "["):
        runs = list(_from_objects(path, text, notes))
    else:
        runs = list(_from_table(text, path.name, notes))
    if not runs:
        raise InputError(
            f"{path} holds no result of a benchmark.",
            hint="Understood: vllm bench serve (JSON, or the table that it prints), GuideLLM, headway bench and "
            "simulate --json, and CSV or JSON tables with a run a row.",
        )
    return runs, notes


def read_vllm_bench(path: Path) -> list[LoadResult]:
    """Results of `vllm bench serve --save-result`: one JSON object, or one a line.

    Raises:
        InputError: the file cannot be read, or an object lacks what a result has.
    """
    return [_from_bench(f"{path.name}, result {index}", record) for index, record in enumerate(_objects(path), 1)]


def read_guidellm(path: Path) -> list[LoadResult]:
    """A GuideLLM report: one result a benchmark.

    Raises:
        InputError: the file cannot be read, or holds no benchmark.
    """
    found = [item for record in _objects(path) for item in record.get("benchmarks") or ()]
    if not found:
        raise InputError(f"{path} holds no GuideLLM benchmark.")
    return [_from_guidellm(f"{path.name}, benchmark {index}", item) for index, item in enumerate(found, 1)]


def _from_objects(path: Path, text: str, notes: list[str]) -> Iterator[LoadResult]:
    for index, record in enumerate(_objects_of(path, text), 1):
        source = f"{path.name}, result {index}"
        try:
            if isinstance(record.get("benchmarks"), list):
                for number, item in enumerate(record["benchmarks"], 1):
                    yield _from_guidellm(f"{path.name}, benchmark {number}", item)
            elif "completed" in record and ("total_output_tokens" in record or "output_lens" in record):
                yield _from_bench(source, record)
            else:
                yield from _from_row(source, record, notes)
        except InputError as error:
            notes.append(str(error))


def _from_row(source: str, row: Mapping[Any, Any], notes: list[str]) -> Iterator[LoadResult]:
    run, rest = run_of_row(row)
    if run.is_told:
        notes += settle_units([run], source)
        yield run.result(source)
    elif run.has_load or rest:
        notes.append(f"{source}: holds no latency or throughput.")


def _from_table(text: str, name: str, notes: list[str]) -> Iterator[LoadResult]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if len(lines) < 2:
        return
    delimiter = max(",;\t|", key=lines[0].count)
    if delimiter not in lines[0]:
        return
    unknown: dict[str, int] = {}
    runs: list[tuple[str, Run]] = []
    try:
        for index, row in enumerate(csv.DictReader(io.StringIO("\n".join(lines)), delimiter=delimiter), 1):
            if index > _MAX_ROWS:
                notes.append(f"{name}: only the first {_MAX_ROWS:,} rows are used.")
                break
            run, rest = run_of_row({key: value for key, value in row.items() if isinstance(key, str) and value})
            for key in rest:
                unknown[key] = unknown.get(key, 0) + 1
            if run.is_told:
                runs.append((f"{name}, row {index + 1}", run))
    except csv.Error as error:
        notes.append(f"{name}: {error}.")
    notes += settle_units([run for _, run in runs], name)
    yield from (run.result(source) for source, run in runs)
    if unknown:
        notes.append(f"{name}: columns that are not understood: {', '.join(list(unknown)[:20])}.")


def _printed(text: str, name: str, notes: list[str]) -> Iterator[LoadResult]:
    """The table that `vllm bench serve` and `sglang.bench_serving` print, once or several times."""
    parts = re.split(r"=+ *Serving Benchmark Result *=+", text)
    before = parts[0]
    for index, part in enumerate(parts[1:], 1):
        row: dict[str, str] = {}
        for line in [*before.splitlines()[-30:], *part.splitlines()[:80]]:
            match = _PRINTED.match(line)
            if match is not None:
                row[f"{match[1]} ({match[2]})" if match[2] else match[1]] = match[3]
        before = part
        run, _ = run_of_row(row)
        if run.is_told:
            notes += settle_units([run], name)
            yield run.result(f"{name}, result {index}")


def _from_bench(source: str, record: Mapping[str, Any]) -> LoadResult:
    try:
        completed = int(record["completed"])
        prompts = record.get("input_lens") or [round(record["total_input_tokens"] / completed)] * min(completed, 10**6)
        outputs = record.get("output_lens") or [round(record["total_output_tokens"] / completed)] * min(
            completed, 10**6
        )
        rate = float(record.get("request_rate") or "inf")
        limit = record.get("max_concurrency")
        lengths = lengths_of(prompts, outputs)
        measured = {
            key: float(value)
            for key, value in record.items()
            if (_LATENCY.fullmatch(key) or key in _RATES) and value and math.isfinite(float(value))
        }
        concurrency = int(limit) if limit else None
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise InputError(f"{source} is not a result of vllm bench serve: {error}.") from None
    if not measured or not lengths:
        raise InputError(f"{source} holds no latencies or no completed requests.")
    return LoadResult(
        source,
        concurrency,
        rate if 0.0 < rate < math.inf else None,
        sum(item[0] for item in lengths) / len(lengths),
        sum(item[1] for item in lengths) / len(lengths),
        completed,
        lengths,
        measured,
        _settings_of(record),
    )


def _settings_of(record: Mapping[str, Any]) -> dict[str, object]:
    """What headway's own results, and metadata given to vLLM's, say of the deployment."""
    run, _ = run_of_row({key: value for key, value in record.items() if not isinstance(value, list | dict)})
    return {key: value for key, value in run.settings.items() if key not in ("engine", "model")}


_GUIDELLM = {
    "time_to_first_token_ms": "ttft",
    "inter_token_latency_ms": "itl",
    "time_per_output_token_ms": "tpot",
    "request_latency": "e2el",
}
"""GuideLLM's metrics; the request latency is in seconds."""
_GUIDELLM_RATES = {"output_tokens_per_second": "output_throughput", "requests_per_second": "request_throughput"}


def _from_guidellm(source: str, item: Any) -> LoadResult:
    metrics = item.get("metrics") if isinstance(item, dict) else None
    if not isinstance(metrics, dict):
        raise InputError(f"{source} has no metrics.")

    def part(name: str) -> Mapping[str, Any]:
        value = metrics.get(name)
        found = value.get("successful") if isinstance(value, dict) else None
        return found if isinstance(found, dict) else {}

    def mean(name: str) -> float | None:
        return _positive(part(name).get("mean"))

    measured: dict[str, float] = {}
    for name, key in _GUIDELLM.items():
        factor = 1e3 if key == "e2el" else 1.0
        figures = {"mean": part(name).get("mean"), "median": part(name).get("median")}
        percentiles = part(name).get("percentiles")
        for label, value in (percentiles if isinstance(percentiles, dict) else {}).items():
            if match := re.fullmatch(r"p(\d{2})", str(label)):
                figures[f"p{match[1]}"] = value
        measured |= {
            f"{stat}_{key}_ms": number * factor
            for stat, value in figures.items()
            if (number := _positive(value)) is not None
        }
    prompt, output = mean("prompt_token_count"), mean("output_token_count")
    tpot = measured.get("mean_itl_ms", measured.get("mean_tpot_ms"))
    if prompt is None or output is None or tpot is None:
        raise InputError(f"{source} lacks prompt_token_count, output_token_count or inter_token_latency_ms.")
    measured["mean_tpot_ms"] = tpot
    measured |= {key: value for name, key in _GUIDELLM_RATES.items() if (value := mean(name)) is not None}
    kind, streams, rate = _strategy(item)
    is_closed = kind in _CLOSED_STRATEGIES
    concurrency = streams or mean("request_concurrency") or 1.0
    totals = item.get("request_totals") or metrics.get("request_totals")
    count = _positive(totals.get("successful")) if isinstance(totals, dict) else None
    number = min(10**6, int(count or max(20, 8 * round(concurrency))))
    offered = None if is_closed else rate or mean("requests_per_second")
    return LoadResult(
        source,
        max(1, round(concurrency)) if is_closed else None,
        offered,
        prompt,
        output,
        number,
        ((max(1, round(prompt)), max(1, round(output))),) * number,
        measured,
    )


def _strategy(item: Mapping[str, Any]) -> tuple[str, float | None, float | None]:
    """Kind, streams and rate of the load."""
    for key in ("args", "config"):
        holder = item.get(key)
        found = holder.get("strategy") if isinstance(holder, dict) else None
        if isinstance(found, dict):
            kind = str(found.get("type_") or found.get("type") or "concurrent")
            return kind, _positive(found.get("streams")), _positive(found.get("rate"))
    return "concurrent", None, None


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0.0 < value < 1e300 else None


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    return _objects_of(path, read_text(path).removeprefix("\ufeff"))


def _objects_of(path: Path, text: str) -> Iterator[dict[str, Any]]:
    try:
        try:
            document = json.loads(text)
        except json.JSONDecodeError:
            document = [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: line {error.lineno}: {error.msg}.") from None
    except (RecursionError, ValueError) as error:
        raise InputError(f"{path} is not JSON that can be read: {error}.") from None
    for record in document if isinstance(document, list) else [document]:
        if not isinstance(record, dict):
            raise InputError(f"{path} holds no JSON objects.")
        yield record
