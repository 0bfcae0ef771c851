"""Start-ups that were measured, as rows of a CSV file: for fitting the memory model and for judging the planner."""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headway.catalog.accelerators import GIB, find_accelerator
from headway.catalog.models import find_model
from headway.catalog.served import served
from headway.catalog.versions import parse_version
from headway.config import REFERENCE_ENGINE_VERSION
from headway.errors import ConfigError, InputError
from headway.planner.deployment import Deployment
from headway.planner.memory import MemoryCoefficients
from headway.planner.plan import Plan, Range, make_plan


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

    @property
    def versions(self) -> tuple[str, ...]:
        """The release, or that of the row's month; where it says neither, one of each kind that knows the model."""
        named = _version(self.version) or _released_by(self.version)
        if named is not None:
            return (named,)
        known = served(self.deployment.model.architecture) if self.deployment is not None else None
        eras = tuple(era for era in _ERAS if known is None or known.knows(parse_version(era)) is not False)
        return eras or _ERAS[-1:]


@dataclass(frozen=True, slots=True)
class Judged:
    """A start-up with what the planner says about it. `tokens_error` is relative; None where no tokens were read."""

    start_up: StartUp
    plan: Plan
    tokens_error: float | None
    available_error_gib: float | None

    @property
    def tokens(self) -> int:
        """Planned KV tokens."""
        return self.plan.kv_cache_tokens.likely

    @property
    def is_covered(self) -> bool:
        """The measured tokens lie within the planned range."""
        measured, planned = self.start_up.kv_cache_tokens, self.plan.kv_cache_tokens
        return measured is not None and planned.low <= measured <= planned.high

    @property
    def budget_error_gib(self) -> float:
        """The error in memory: of the log's KV memory, or of what its tokens take."""
        if self.available_error_gib is not None:
            return self.available_error_gib
        measured = self.start_up.kv_cache_tokens or 0
        return self.plan.kv_bytes_per_token * (self.tokens - measured) / GIB

    @property
    def beside_gib(self) -> float:
        """What the plan takes off the budget beside the weights."""
        taken = (term for term in self.plan.terms[1:] if term.counted and term.name != "weights")
        return sum(term.num_bytes for term in taken) / GIB

    @property
    def on_integrated(self) -> bool:
        """The card shares the host's memory."""
        return self.plan.deployment.accelerator.is_integrated


_ERAS = ("0.6.6", "0.10.0", "0.15.0", "0.21.0", "0.30.0")
"""One release of each kind of default; the middle answer stands for a start-up whose version is not known."""


_RELEASES = (
    ("2024-12", "0.6.6"),
    ("2025-02", "0.7.3"),
    ("2025-03", "0.8.2"),
    ("2025-04", "0.8.4"),
    ("2025-05", "0.8.5"),
    ("2025-06", "0.9.1"),
    ("2025-07", "0.9.2"),
    ("2025-08", "0.10.1"),
    ("2025-09", "0.10.2"),
    ("2025-10", "0.11.0"),
    ("2025-12", "0.12.0"),
    ("2026-01", "0.14.1"),
)
"""The release that was current at the middle of a month or soon after, for start-ups that are only dated."""


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
    plans = []
    for version in start_up.versions:
        with suppress(ConfigError):  # A release that does not take the flags is not the one that started.
            plans.append(make_plan(replace(start_up.deployment, engine_version=version), fitted))
    if not plans:
        return None
    plan = sorted(plans, key=lambda item: item.kv_cache_tokens.likely)[len(plans) // 2]
    if len(plans) > 1:
        spread = [planned for item in plans for planned in (item.kv_cache_tokens.low, item.kv_cache_tokens.high)]
        plan = replace(plan, kv_cache_tokens=Range(plan.kv_cache_tokens.likely, min(spread), max(spread)))
    measured, available = start_up.kv_cache_tokens, start_up.available_bytes
    return Judged(
        start_up=start_up,
        plan=plan,
        tokens_error=None if not measured else plan.kv_cache_tokens.likely / measured - 1,
        available_error_gib=None if available is None else (plan.available_kv_cache_bytes - available) / GIB,
    )


def tokens_from_pool(start_up: StartUp) -> int | None:
    """KV tokens that the planner reads off the pool that was logged; None where release, pool or cache is not known."""
    if start_up.deployment is None or start_up.available_bytes is None or not start_up.version_is_known:
        return None
    given = replace(
        start_up.deployment,
        engine_version=start_up.versions[0],
        kv_cache_memory_bytes=int(start_up.available_bytes),
    )
    try:
        return make_plan(given).kv_cache_tokens.likely
    except ConfigError:
        return None


def weighted_coverage(judged: Sequence[Judged]) -> float:
    """Share of rows whose measured KV tokens lie in the planned range, each source with the same weight."""
    shares = [sum(row.is_covered for row in rows) / len(rows) for rows in by_source(judged).values()]
    return sum(shares) / len(shares) if shares else 0.0


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
        nnodes=tp * pp if "different nodes" in row.get("notes", "") else 1,
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


def _released_by(text: str) -> str | None:
    """The last release of a month such as 2025-07; None for other text and months outside the list."""
    month = text.strip()[:7]
    if not re.fullmatch(r"20\d\d-\d\d", month) or not _RELEASES[0][0] <= month <= _RELEASES[-1][0]:
        return None
    return [version for released, version in _RELEASES if released <= month][-1]


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None
