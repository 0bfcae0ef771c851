"""What users already have about a running deployment, as loads with measured latencies.

Read are results of `vllm bench serve`, reports of GuideLLM, and two scrapes of /metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.errors import InputError
from headway.simulation.run import SimulatedWorkload
from headway.workload.trace import TraceRequest

_CLOSED_STRATEGIES = ("concurrent", "throughput", "synchronous")


@dataclass(frozen=True, slots=True)
class Observation:
    """One load and what was measured under it.

    `lengths` holds (prompt, output) tokens by request. With a `concurrency` the load is a closed loop, paced if there
    is a rate too; without, requests come at `requests_per_s`, or all at once. `measured` has summary keys.
    """

    source: str
    lengths: tuple[tuple[int, int], ...]
    concurrency: int | None
    requests_per_s: float | None
    measured: Mapping[str, float]

    def workload(self) -> SimulatedWorkload:
        """The load as a simulation takes it; arrivals at a rate are evenly spaced."""
        gap = 0.0 if self.requests_per_s is None else 1.0 / self.requests_per_s
        requests = [TraceRequest(index * gap, *lengths) for index, lengths in enumerate(self.lengths)]
        return SimulatedWorkload(requests, self.concurrency, is_paced=self.concurrency is not None and gap > 0.0)


def read_vllm_bench(path: Path) -> list[Observation]:
    """Results of `vllm bench serve --save-result`: one JSON object, or one a line.

    Raises:
        InputError: the file cannot be read, or an object lacks what a result has.
    """
    return [_from_bench(f"{path.name}, result {index}", record) for index, record in enumerate(_objects(path), 1)]


def read_guidellm(path: Path) -> list[Observation]:
    """A GuideLLM report: one observation a benchmark.

    Raises:
        InputError: the file cannot be read, or holds no benchmark.
    """
    found = [item for record in _objects(path) for item in record.get("benchmarks") or ()]
    if not found:
        raise InputError(f"{path} holds no GuideLLM benchmark.")
    return [_from_guidellm(f"{path.name}, benchmark {index}", item) for index, item in enumerate(found, 1)]


def read_scrapes(before: Path, after: Path) -> tuple[list[Observation], int | None]:
    """Two scrapes of /metrics: the mean load between them, and the number of KV blocks if a label says it.

    The batch is output tokens a step, lengths are tokens a request; TPOT is the mean time between tokens.

    Raises:
        InputError: a file cannot be read, or the two are not of one running engine.
    """
    first, last = _scrape(before), _scrape(after)
    blocks = re.search(r'^vllm:cache_config_info\{[^}]*num_gpu_blocks="(\d+)"', _text(after), re.MULTILINE)

    def grown(*names: str) -> float:
        name = next((name for name in names if name in last), None)
        return 0.0 if name is None else last[name] - first.get(name, 0.0)

    requests = grown("vllm:request_success_total", "vllm:request_success")
    output = grown("vllm:generation_tokens_total", "vllm:generation_tokens")
    prompt = grown("vllm:prompt_tokens_total", "vllm:prompt_tokens")
    steps = grown("vllm:iteration_tokens_total_count")
    gaps = grown("vllm:inter_token_latency_seconds_count", "vllm:time_per_output_token_seconds_count")
    seconds = grown("vllm:inter_token_latency_seconds_sum", "vllm:time_per_output_token_seconds_sum")
    if min(requests, output, prompt, steps, gaps, seconds) < 0:
        raise InputError(f"Counters fall from {before} to {after}.", hint="Give the earlier scrape first.")
    num_blocks = int(blocks.group(1)) if blocks else None
    if requests < 1 or gaps < 1:
        return [], num_blocks
    running = (first.get("vllm:num_requests_running", 0.0) + last.get("vllm:num_requests_running", 0.0)) / 2
    batch = max(1, round(output / steps if steps else running))
    lengths = (max(1, round(prompt / requests)), max(2, round(output / requests)))
    tpot = {"mean_tpot_ms": seconds / gaps * 1e3}
    return [
        Observation(f"{before.name} to {after.name}", (lengths,) * max(20, 8 * batch), batch, None, tpot)
    ], num_blocks


def _from_bench(source: str, record: Mapping[str, Any]) -> Observation:
    try:
        completed = int(record["completed"])
        prompts = record.get("input_lens") or [round(record["total_input_tokens"] / completed)] * completed
        outputs = record.get("output_lens") or [round(record["total_output_tokens"] / completed)] * completed
        rate = float(record.get("request_rate") or "inf")
        limit = record.get("max_concurrency")
        lengths = tuple((int(p), int(o)) for p, o in zip(prompts, outputs, strict=True) if p and o)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{source} is not a result of vllm bench serve: {error}.") from None
    keys = ("mean_tpot_ms", "mean_ttft_ms", "output_throughput")
    measured = {key: float(record[key]) for key in keys if record.get(key)}
    if not measured or not lengths:
        raise InputError(f"{source} holds no latencies or no completed requests.")
    return Observation(source, lengths, int(limit) if limit else None, rate if rate < float("inf") else None, measured)


def _from_guidellm(source: str, item: Mapping[str, Any]) -> Observation:
    metrics = item.get("metrics") or {}

    def mean(name: str) -> float | None:
        value = (metrics.get(name) or {}).get("successful") or {}
        return float(value["mean"]) if value.get("mean") else None

    prompt, output, tpot = mean("prompt_token_count"), mean("output_token_count"), mean("inter_token_latency_ms")
    tpot = tpot or mean("time_per_output_token_ms")
    if prompt is None or output is None or tpot is None:
        raise InputError(f"{source} lacks prompt_token_count, output_token_count or inter_token_latency_ms.")
    holders = [item.get(key) or {} for key in ("args", "config")]
    strategy: Mapping[str, Any] = next(
        (holder["strategy"] for holder in holders if isinstance(holder.get("strategy"), dict)), {}
    )
    kind = str(strategy.get("type_") or strategy.get("type") or "concurrent")
    is_closed = kind in _CLOSED_STRATEGIES
    concurrency = strategy.get("streams") or mean("request_concurrency") or 1.0
    rate = strategy.get("rate") or mean("requests_per_second")
    totals = item.get("request_totals") or (metrics.get("request_totals") or {})
    count = int(totals.get("successful") or max(20, 8 * round(concurrency)))
    measured = {"mean_tpot_ms": tpot}
    for key, name in (("mean_ttft_ms", "time_to_first_token_ms"), ("output_throughput", "output_tokens_per_second")):
        value = mean(name)
        if value is not None:
            measured[key] = value
    return Observation(
        source,
        ((max(1, round(prompt)), max(1, round(output))),) * count,
        max(1, round(concurrency)) if is_closed else None,
        None if is_closed or not rate else float(rate),
        measured,
    )


def _scrape(path: Path) -> dict[str, float]:
    """Samples by name, summed over labels."""
    found: dict[str, float] = {}
    for line in _text(path).splitlines():
        match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{.*\})?\s+([-+\d.eE]+)(?:\s|$)", line)
        if match:
            found[match.group(1)] = found.get(match.group(1), 0.0) + float(match.group(2))
    if not any(name.startswith("vllm:") for name in found):
        raise InputError(f"{path} holds no vLLM metrics.", hint="Save the answer of GET /metrics.")
    return found


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    text = _text(path)
    try:
        try:
            document = json.loads(text)
        except json.JSONDecodeError:
            document = [json.loads(line) for line in text.splitlines() if line.strip()]
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not JSON: line {error.lineno}: {error.msg}.") from None
    for record in document if isinstance(document, list) else [document]:
        if not isinstance(record, dict):
            raise InputError(f"{path} holds no JSON objects.")
        yield record


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None
