"""Start-ups that were measured, as rows of a CSV file: for fitting the memory model and for judging the planner."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headway.catalog.accelerators import find_accelerator
from headway.catalog.models import find_model
from headway.catalog.versions import parse_version
from headway.config import REFERENCE_ENGINE_VERSION
from headway.errors import ConfigError, InputError
from headway.planner.deployment import Deployment
from headway.planner.memory import MemoryCoefficients
from headway.planner.plan import make_plan


@dataclass(frozen=True, slots=True)
class StartUp:
    """One measured start-up. `deployment` is None where the model or GPU is not in the catalogue; `reason` says so."""

    row_id: str
    source: str
    version: str
    deployment: Deployment | None
    reason: str
    kv_cache_tokens: int | None
    available_bytes: float | None
    kib_per_token: float | None

    @property
    def version_is_known(self) -> bool:
        """The row names a release, not just a date or nothing."""
        return _version(self.version) is not None


@dataclass(frozen=True, slots=True)
class Judged:
    """A start-up with what the planner says about it; errors are relative."""

    start_up: StartUp
    tokens: int
    tokens_error: float | None
    available_error_gib: float | None
    budget_share_error: float | None
    """The error of the KV memory as a share of the whole budget."""


_ERAS = ("0.6.6", "0.10.0", "0.15.0", "0.20.0", "0.30.0")
"""One release of each kind of default; the middle answer stands for a start-up whose version is not known."""


def read_start_ups(path: Path) -> list[StartUp]:
    """Rows of complete vLLM start-ups.

    Columns: model, gpu, num_gpus, tp, pp, quantization, kv_cache_dtype, engine, engine_version, gpu_memory_utilization,
    max_model_len, max_num_seqs, max_num_batched_tokens, enforce_eager, block_size, gpu_total_gib, available_kv_gib,
    kv_cache_tokens, kv_kib_per_token_per_gpu, complete, source, row_id.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"Cannot read {path}: {error}.") from None
    return [_start_up(row) for row in rows if row.get("engine") == "vllm" and row.get("complete") == "yes"]


def judge(start_up: StartUp, fitted: MemoryCoefficients | None = None) -> Judged | None:
    """The planner's answer for a start-up beside the measured one; None where the planner says unknown."""
    if start_up.deployment is None:
        return None
    versions = [start_up.deployment.engine_version] if start_up.version_is_known else _ERAS
    try:
        plans = [make_plan(replace(start_up.deployment, engine_version=version), fitted) for version in versions]
    except ConfigError:
        return None
    plan = sorted(plans, key=lambda item: item.kv_cache_tokens.likely)[len(plans) // 2]
    tokens, measured = plan.kv_cache_tokens.likely, start_up.kv_cache_tokens
    available = start_up.available_bytes
    error = None if available is None else plan.available_kv_cache_bytes - available
    return Judged(
        start_up=start_up,
        tokens=tokens,
        tokens_error=None if not measured else tokens / measured - 1,
        available_error_gib=None if error is None else error / 2**30,
        budget_share_error=None if error is None else error / plan.binding.requested_bytes,
    )


def weighted_share(judged: Sequence[Judged], within: float) -> float:
    """Share of rows whose KV tokens are within a relative error, each source with the same weight."""
    shares = [
        sum(abs(row.tokens_error) <= within for row in rows if row.tokens_error is not None) / len(rows)
        for rows in by_source(judged).values()
    ]
    return sum(shares) / len(shares) if shares else 0.0


def by_source(judged: Iterable[Judged]) -> Mapping[str, list[Judged]]:
    """Rows with a token error, by the repository or thread that they come from."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in judged:
        if row.tokens_error is not None:
            groups[row.start_up.source].append(row)
    return groups


def _start_up(row: Mapping[str, str]) -> StartUp:
    deployment, reason = None, ""
    try:
        deployment = _deployment(row)
    except ConfigError as error:
        reason = error.message
    return StartUp(
        row_id=row["row_id"],
        source=re.split(r"[@:](?!//)", row["source"])[0],
        version=row["engine_version"],
        deployment=deployment,
        reason=reason,
        kv_cache_tokens=_number(row["kv_cache_tokens"]),
        available_bytes=float(row["available_kv_gib"]) * 2**30 if row["available_kv_gib"] else None,
        kib_per_token=float(row["kv_kib_per_token_per_gpu"]) if row["kv_kib_per_token_per_gpu"] else None,
    )


def _deployment(row: Mapping[str, str]) -> Deployment:
    card = find_accelerator(row["gpu"].split("(")[0])
    if row["gpu_total_gib"]:
        card = replace(card, memory_torch_gib=float(row["gpu_total_gib"]))
    pp = _number(row["pp"]) or 1
    tp = _number(row["tp"]) or max(1, (_number(row["num_gpus"]) or 1) // pp)
    quantization = row["quantization"].split(" ")[0]
    share = row["gpu_memory_utilization"].split(" ")[0]
    return Deployment(
        find_model(row["model"]),
        card,
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        data_parallel_size=_number(row["dp"]) or 1,
        quantization=None if quantization in ("", "None") else quantization,
        kv_cache_dtype=row["kv_cache_dtype"] or "auto",
        max_model_len=_number(row["max_model_len"]) or None,
        max_num_seqs=_number(row["max_num_seqs"]),
        max_num_batched_tokens=_number(row["max_num_batched_tokens"]),
        gpu_memory_utilization=float(share) if re.fullmatch(r"[\d.]+", share) else None,
        block_size=_number(row["block_size"]),
        enforce_eager=row["enforce_eager"] == "True",
        engine_version=_version(row["engine_version"]) or REFERENCE_ENGINE_VERSION,
        usage="llm" if "offline" in row["max_num_seqs"] else "api",
    )


def _version(text: str) -> str | None:
    """The release in a row; None where only a date or nothing is given."""
    word = text.split(" ")[0].split("/")[0]
    try:
        parse_version(word)
    except ConfigError:
        return None
    return word


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
