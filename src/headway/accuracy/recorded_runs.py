"""Recorded runs of real engines: requests with arrivals, lengths, prefix blocks and the times that were measured."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headway.catalog import find_accelerator, list_accelerators
from headway.errors import InputError
from headway.workload.trace import TraceRequest

_BLOCK_TOKENS = 16
_FLAGS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "block_size",
    "enforce_eager",
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "async_scheduling",
    "kv_cache_dtype",
    "quantization",
    "enable_expert_parallel",
)
"""Engine arguments that a simulation takes over."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of the run, with what was measured. Seconds; `tpot_s` is None for a single token."""

    request: TraceRequest
    ttft_s: float
    tpot_s: float | None
    latency_s: float


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run. `gpu` is an id of the catalogue; `flags` are engine arguments by vLLM's names."""

    name: str
    model: str
    gpu: str
    engine_version: str
    tensor_parallel_size: int
    data_parallel_size: int
    flags: Mapping[str, Any]
    num_gpu_blocks: int | None
    requests: tuple[RecordedRequest, ...]

    @property
    def expected_prefix_hit_tokens(self) -> int:
        """Prompt tokens whose blocks came before in the run: what a cache that forgets nothing finds.

        At least one token of each prompt is computed, so its last block is never a hit.
        """
        seen: set[Any] = set()
        hits = 0
        for item in self.requests:
            keys = item.request.keys_at(_BLOCK_TOKENS)
            for index in range((item.request.num_prompt_tokens - 1) // _BLOCK_TOKENS):
                if index >= len(keys) or keys[index] not in seen:
                    break
                hits += _BLOCK_TOKENS
            seen.update(keys)
        return hits


def read_runs(folder: Path) -> list[RecordedRun]:
    """All runs of a folder.

    Two files describe a run: `<gpu>_<name>.meta.json` with `<gpu>_<name>.requests.jsonl[.gz]` (times by request), and a
    CSV file `*.csv` that begins with `# … vLLM <version> … engine_kwargs={…}` and has arrivals, lengths, measured times
    and `prefix_block_ids`. Either is enough; where both tell of one run the CSV's prefix blocks complete the other.

    Raises:
        InputError: no run is found, or a file cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder.", hint="Give a folder of recorded runs.")
    tables = [_from_table(path) for path in sorted(folder.glob("*.csv")) if _header(path)]
    runs = [_with_prefixes(_from_meta(path), tables) for path in sorted(folder.glob("*.meta.json"))]
    described = {_identity(run) for run in runs}
    runs += [run for run in tables if _identity(run) not in described]
    if not runs:
        raise InputError(f"{folder} holds no recorded run.", hint="A run has a .meta.json and a .requests.jsonl file.")
    return runs


def _identity(run: RecordedRun) -> tuple[Any, ...]:
    lengths = tuple((item.request.num_prompt_tokens, item.request.num_output_tokens) for item in run.requests)
    return run.model, run.tensor_parallel_size, lengths


def _with_prefixes(run: RecordedRun, tables: Sequence[RecordedRun]) -> RecordedRun:
    twin = next((table for table in tables if _identity(table) == _identity(run)), None)
    if twin is None:
        return run
    requests = tuple(
        replace(
            item,
            request=replace(
                item.request,
                block_keys=other.request.block_keys,
                block_key_tokens=other.request.block_key_tokens,
            ),
        )
        for item, other in zip(run.requests, twin.requests, strict=True)
    )
    return replace(run, requests=requests, num_gpu_blocks=run.num_gpu_blocks or twin.num_gpu_blocks)


def _from_meta(path: Path) -> RecordedRun:
    name = path.name.removesuffix(".meta.json")
    meta = json.loads(_text(path))
    paths = [path.with_name(name + suffix) for suffix in (".requests.jsonl", ".requests.jsonl.gz")]
    requests_path = next((candidate for candidate in paths if candidate.exists()), None)
    if requests_path is None:
        raise InputError(f"{path} has no {name}.requests.jsonl[.gz] beside it.")
    records = [json.loads(line) for line in _text(requests_path).splitlines() if line.strip()]
    return _run(name, meta, json.dumps(meta), tuple(_from_timestamps(records, requests_path)))


def _from_timestamps(records: Sequence[Mapping[str, Any]], path: Path) -> Iterator[RecordedRequest]:
    try:
        records = sorted(records, key=lambda record: record["queued_ts"])
        start = records[0]["queued_ts"]
        for index, record in enumerate(records):
            num_output = int(record["output_toks"])
            queued, first, last = record["queued_ts"], record["first_token_ts"], record["last_token_ts"]
            yield RecordedRequest(
                TraceRequest(queued - start, int(record["input_toks"]), num_output, f"recorded-{index}"),
                first - queued,
                (last - first) / (num_output - 1) if num_output > 1 else None,
                last - queued,
            )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: a request lacks or misstates {error}.") from None


def _from_table(path: Path) -> RecordedRun:
    header = _header(path)
    assert header is not None
    version = re.search(r"vLLM (\d+(?:\.\d+)+)", header)
    arguments = re.search(r"engine_kwargs=(\{.*?\})(?:;|$)", header)
    if version is None or arguments is None:
        raise InputError(f"{path}: the first line names no vLLM version or engine_kwargs.")
    meta = {"vllm_version": version.group(1), "engine_kwargs": json.loads(arguments.group(1))}
    lines = _text(path).splitlines()
    requests = []
    try:
        for index, row in enumerate(csv.DictReader(line for line in lines if not line.startswith("#"))):
            keys = tuple(row.get("prefix_block_ids", "").split())
            num_output = int(row["n_out"])
            requests.append(
                RecordedRequest(
                    TraceRequest(
                        float(row["arrival_s"]),
                        int(row["n_in"]),
                        num_output,
                        f"recorded-{index}",
                        keys,
                        _BLOCK_TOKENS if keys else 0,
                        index + 1,
                    ),
                    float(row["ttft_ms"]) / 1e3,
                    float(row["tpot_ms"]) / 1e3 if num_output > 1 else None,
                    float(row["latency_ms"]) / 1e3,
                )
            )
    except (KeyError, ValueError) as error:
        raise InputError(f"{path}: row {len(requests) + 1} lacks or misstates {error}.") from None
    return _run(path.stem, meta, header, tuple(requests))


def _run(name: str, meta: Mapping[str, Any], text: str, requests: tuple[RecordedRequest, ...]) -> RecordedRun:
    arguments = meta.get("engine_kwargs") or {}
    blocks = meta.get("num_gpu_blocks") or arguments.get("num_gpu_blocks_override")
    found = re.search(r'"?num_gpu_blocks"?\s*[=:]\s*(\d+)', text)
    if "model" not in arguments or "vllm_version" not in meta:
        raise InputError(f"The run {name} names no model or no vllm_version.")
    return RecordedRun(
        name=name,
        model=arguments["model"],
        gpu=meta.get("gpu") or _gpu_of(name),
        engine_version=meta["vllm_version"],
        tensor_parallel_size=int(arguments.get("tensor_parallel_size") or 1),
        data_parallel_size=int(arguments.get("data_parallel_size") or 1),
        flags={key: arguments[key] for key in _FLAGS if arguments.get(key) is not None},
        num_gpu_blocks=int(blocks) if blocks else int(found.group(1)) if found else None,
        requests=requests,
    )


def _gpu_of(name: str) -> str:
    """The accelerator whose name or alias is a word of the run's name.

    Raises:
        InputError: none is.
    """
    words = {re.sub(r"[^a-z0-9]", "", word) for word in name.lower().split("_")}
    for gpu in list_accelerators():
        names = (gpu, *find_accelerator(gpu).aliases)
        if words & {re.sub(r"[^a-z0-9]", "", alias.lower()) for alias in names}:
            return gpu
    raise InputError(f"The run {name} names no known GPU.", hint='Put "gpu" into its .meta.json.')


def _header(path: Path) -> str | None:
    with path.open(encoding="utf-8", errors="replace") as file:
        line = file.readline()
    return line if line.startswith("#") and "engine_kwargs=" in line else None


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None
