"""Measured serving rows of a CSV file: which of them a simulation can be judged on, and with what assumptions."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from headway.catalog import find_accelerator, find_model
from headway.catalog.accelerators import Accelerator
from headway.catalog.architecture import ModelArchitecture
from headway.catalog.versions import parse_version
from headway.errors import ConfigError, InputError

GRADES = ("A+", "A", "A-", "B")
_RELEASES = (
    ("2024-08", "0.5.4"),
    ("2024-09", "0.6.1"),
    ("2024-12", "0.6.6"),
    ("2025-02", "0.7.3"),
    ("2025-03", "0.8.1"),
    ("2025-05", "0.8.5"),
    ("2025-07", "0.9.2"),
    ("2025-09", "0.10.2"),
    ("2025-10", "0.11.0"),
    ("2025-12", "0.12.0"),
    ("2026-01", "0.14.0"),
    ("2026-02", "0.15.1"),
    ("2026-03", "0.17.0"),
    ("2026-04", "0.19.0"),
    ("2026-06", "0.22.1"),
    ("2026-07", "0.24.0"),
)
"""A release that was current from that month on."""
_UNDATED_VERSION = "0.11.0"
_LONG_OUTPUT = 4096
_QUANTIZATION = {
    "fp4": "nvfp4",
    "nvfp4": "nvfp4",
    "mxfp4": "mxfp4",
    "fp8": "fp8",
    "int8": "int8",
    "w8a8": "int8",
    "int4": "w4a16",
    "w4a16": "w4a16",
    "awq": "awq",
    "gptq": "gptq",
    "bf16": "none",
    "fp16": "none",
    "bfloat16": "none",
    "float16": "none",
}


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured configuration with what it was measured to do.

    `assumed_version` is True where the row names no release: then the one current at its date stands in, or 0.11.0.
    `spread`: lengths are `fixed`, `range` (uniform from 0.8 of the nominal) or `chat` (log-normal around the mean).
    `measured` maps summary keys to numbers.
    """

    row_id: str
    source: str
    model_name: str
    gpu: str
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    quantization: str | None
    kv_cache_dtype: str
    engine_version: str
    assumed_version: bool
    enforce_eager: bool
    enable_chunked_prefill: bool | None
    enable_prefix_caching: bool | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    gpu_memory_utilization: float | None
    num_gpu_blocks: int | None
    num_prompt_tokens: float
    num_output_tokens: float
    spread: str
    concurrency: int | None
    requests_per_s: float | None
    num_requests: int
    measured: Mapping[str, float]

    @property
    def model(self) -> ModelArchitecture:
        """The catalogue's facts."""
        return find_model(self.model_name)

    @property
    def accelerator(self) -> Accelerator:
        """The catalogue's facts."""
        return find_accelerator(self.gpu)

    @property
    def is_held_out(self) -> bool:
        """Every row of a 70B model on two H100 by tensor parallelism is kept out of every fit."""
        is_70b = "70b" in self.model_name.lower()
        return is_70b and self.gpu.startswith("H100") and self.tensor_parallel_size == 2


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows that pass, and how many were dropped at each gate, in the gates' order."""

    rows: tuple[MeasuredRow, ...]
    num_read: int
    dropped: Mapping[str, int]


class _DroppedError(Exception):
    """A row does not pass; the message names the gate."""


def select_rows(path: Path, *, mixtures: bool = False) -> Selection:
    """Rows of vLLM, grade A+ to B, dense and in the catalogue, with lengths, load and TPOT.

    With `mixtures`, rows of mixtures of experts instead of dense ones, but not with data parallelism, which spreads
    the experts over the replicas.

    Left out besides: speculation (its acceptance is not in a row), more GPUs than the parallel sizes say, and states
    between releases, of which no version's behaviour can be assumed.

    Raises:
        InputError: the file cannot be read, or is not such a table.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            raw = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None
    needed = {"row_id", "grade", "source_id", "engine", "model", "gpu", "isl", "osl"}
    if raw and needed - set(raw[0]):
        raise InputError(f"{path} lacks the column(s) {', '.join(sorted(needed - set(raw[0])))}.")
    rows, dropped = [], Counter[str]()
    for record in raw:
        try:
            rows.append(_row(record, mixtures))
        except _DroppedError as gate:
            dropped[str(gate)] += 1
    return Selection(tuple(rows), len(raw), dropped)


def by_source(rows: Iterable[MeasuredRow]) -> dict[str, list[MeasuredRow]]:
    """Rows by the project that measured them."""
    groups: dict[str, list[MeasuredRow]] = {}
    for row in rows:
        groups.setdefault(row.source, []).append(row)
    return groups


def _row(record: Mapping[str, str], mixtures: bool) -> MeasuredRow:
    _gate(record["engine"] == "vllm", "another engine")
    _gate(record["grade"] in GRADES, "grade below B")
    prompt, output = positive_number(record["isl"]), positive_number(record["osl"])
    _gate(prompt is not None and output is not None, "no lengths")
    assert prompt is not None and output is not None
    concurrency, rate = positive_number(record["concurrency"]), positive_number(record["request_rate"])
    _gate(concurrency is not None or rate is not None, "no load")
    measured = _measured(record)
    _gate("mean_tpot_ms" in measured or "median_tpot_ms" in measured, "no TPOT")
    _gate(output > 1, "one output token has no TPOT")
    _gate(record["spec_decode"].lower() in ("", "none", "off"), "speculation")
    model, card = _facts(record)
    _gate(model.is_moe == mixtures, "dense" if mixtures else "not dense")
    tp, pp, dp = (int(positive_number(record[name]) or 1) for name in ("tp", "pp", "dp"))
    _gate(not mixtures or dp == 1, "experts spread over replicas")
    gpus = positive_number(record["num_gpus"])
    if not record["tp"] and gpus is not None:
        tp = int(gpus) // (pp * dp)
    _gate(gpus is None or tp * pp * dp == gpus, "GPUs do not match the parallel sizes")
    _gate(not record["engine_version"].startswith("main"), "an unreleased development state")
    version, assumed = _version(record["engine_version"], record["date"])
    flags = record["other_flags"]
    blocks = re.search(r"num_gpu_blocks(?:_override)?[= ](\d+)", flags)
    return MeasuredRow(
        row_id=record["row_id"],
        source=record["source_id"],
        model_name=record["model"],
        gpu=card.id,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=dp,
        quantization=_quantization(record["quant"], model),
        kv_cache_dtype=_kv_dtype(record["kv_cache_dtype"]),
        engine_version=version,
        assumed_version=assumed,
        enforce_eager=bool(re.search(r"enforce[-_]eager(?!=false)", flags.lower())),
        enable_chunked_prefill=_switch(record["chunked_prefill"]),
        enable_prefix_caching=_switch(record["prefix_caching"]),
        max_num_seqs=_whole(record["max_num_seqs"]),
        max_num_batched_tokens=_whole(record["max_num_batched_tokens"]),
        max_model_len=_whole(record["max_model_len"]),
        gpu_memory_utilization=positive_number(record["gpu_memory_utilization"].split(" ")[0]),
        num_gpu_blocks=int(blocks.group(1)) if blocks else None,
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        spread=_spread(record),
        concurrency=None if concurrency is None else round(concurrency),
        requests_per_s=rate if rate is not None and rate < 1e4 else None,
        num_requests=_whole(record["num_prompts"]) or _unsaid_requests(concurrency or 10.0, output),
        measured=measured,
    )


def _gate(passes: bool, name: str) -> None:
    if not passes:
        raise _DroppedError(name)


def _facts(record: Mapping[str, str]) -> tuple[ModelArchitecture, Accelerator]:
    try:
        model = find_model(record["model"])
    except ConfigError:
        raise _DroppedError("model not in the catalogue") from None
    try:
        card = find_accelerator(record["gpu"])
    except ConfigError:
        raise _DroppedError("GPU not in the catalogue") from None
    _gate(card.bandwidth_gbps is not None, "bandwidth not in the catalogue")
    return model, card


def _measured(record: Mapping[str, str]) -> dict[str, float]:
    columns = {
        "tpot_mean_ms": "mean_tpot_ms",
        "tpot_p50_ms": "median_tpot_ms",
        "ttft_mean_ms": "mean_ttft_ms",
        "ttft_p50_ms": "median_ttft_ms",
        "output_tok_s": "output_throughput",
    }
    values = {key: positive_number(record[column]) for column, key in columns.items()}
    return {key: value for key, value in values.items() if value}


def _version(text: str, date: str) -> tuple[str, bool]:
    """The release, and whether it is an assumption. Of several that are named the first counts."""
    match = re.match(r"~?v?(\d+\.\d+(?:\.\d+)?)", text.strip())
    if match and match.group(1).startswith("0."):
        parse_version(match.group(1))
        return match.group(1), text.strip() != match.group(1)
    month = _month(text) or _month(date)
    if month is None:
        return _UNDATED_VERSION, True
    return next((version for since, version in reversed(_RELEASES) if since <= month), _RELEASES[0][1]), True


def _month(text: str) -> str | None:
    match = re.search(r"(20\d\d)-?(\d\d)", text)
    return f"{match.group(1)}-{match.group(2)}" if match else None


def _quantization(text: str, model: ModelArchitecture) -> str | None:
    """None: the model's own format."""
    word = re.split(r"[-\s(?/]", text.lower())[0]
    named = _QUANTIZATION.get(word)
    if named == "none" and model.quantization is not None:
        return None
    own = model.quantization.method if model.quantization is not None else None
    return None if named == own else named


def _kv_dtype(text: str) -> str:
    return text if text.startswith("fp8") else "auto"


def _spread(record: Mapping[str, str]) -> str:
    dataset = record["dataset"].lower()
    if "sharegpt" in dataset:
        return "chat"
    return "range" if record["len_kind"] == "nominal" and "range-ratio" in dataset else "fixed"


def _unsaid_requests(concurrency: float, num_output_tokens: float) -> int:
    """Ten for each client, as InferenceX sends them; four where each takes thousands of steps."""
    each = 4 if num_output_tokens > _LONG_OUTPUT else 10
    return max(20, each * round(concurrency))


def _switch(text: str) -> bool | None:
    return {"on": True, "off": False}.get(text.split(" ")[0].lower())


def positive_number(text: str) -> float | None:
    """A cell's number; None where it has none that is above 0 and finite."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _whole(text: str) -> int | None:
    value = positive_number(text)
    return None if value is None else round(value)
