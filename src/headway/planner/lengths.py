"""Prompt and output lengths of a workload: from a trace, a file of lengths, or a description."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headway.errors import WorkloadError
from headway.workload.columns import OUTPUT_TOKENS, PROMPT_TOKENS
from headway.workload.generators import Generated, SharedPrefix
from headway.workload.lengths import parse_length
from headway.workload.readers import read_trace
from headway.workload.trace import TraceRequest


@dataclass(frozen=True, slots=True)
class LengthStats:
    """Means and the longest of a workload's requests, in tokens."""

    num_requests: int
    mean_prompt: float
    mean_output: float
    p99_total: int
    longest: int


def length_stats(requests: Sequence[TraceRequest]) -> LengthStats:
    """Summarise; the requests must not be empty."""
    totals = sorted(request.num_prompt_tokens + request.num_output_tokens for request in requests)
    count = len(requests)
    return LengthStats(
        num_requests=count,
        mean_prompt=sum(request.num_prompt_tokens for request in requests) / count,
        mean_output=sum(request.num_output_tokens for request in requests) / count,
        p99_total=totals[min(count - 1, int(0.99 * count))],
        longest=totals[-1],
    )


def read_lengths(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """Requests of a trace, or of a CSV file that has lengths but no arrivals (all then arrive at 0).

    Raises:
        WorkloadError: the file cannot be read, or has no requests.
    """
    columns = _length_columns(path)
    if columns is None:
        return list(read_trace(path, limit=limit, skip_empty=True))
    requests: list[TraceRequest] = []
    with _open(path) as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                prompt, output = int(row[columns[0]]), int(row[columns[1]])
            except (TypeError, ValueError):
                raise WorkloadError(f"{path}, row {number}: a length is not a whole number.") from None
            if prompt > 0 and output > 0:
                requests.append(TraceRequest(0.0, prompt, output, row=number))
            if limit is not None and len(requests) >= limit:
                break
    if not requests:
        raise WorkloadError(f"{path}: the file holds no requests.")
    return requests


def described_lengths(
    prompt: str, output: str, num_requests: int, *, shared_prefix: int = 0, seed: int = 0
) -> list[TraceRequest]:
    """Requests drawn from descriptions such as `512` or `normal:mean=1500,std=600,max=8192`.

    Raises:
        WorkloadError: not a description.
    """
    generated = Generated(
        num_requests,
        prompt=parse_length(prompt),
        output=parse_length(output),
        prefix=SharedPrefix(shared_prefix) if shared_prefix else None,
        seed=seed,
    )
    return list(generated.requests())


def _length_columns(path: Path) -> tuple[str, str] | None:
    """The two length columns of a CSV file with no other column of a trace; None for anything else."""
    try:
        with _open(path) as file:
            names = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    prompt = [name for name in names if name.strip().lower() in PROMPT_TOKENS]
    output = [name for name in names if name.strip().lower() in OUTPUT_TOKENS]
    if len(names) == 2 and len(prompt) == 1 and len(output) == 1:
        return prompt[0], output[0]
    return None


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open("r", encoding="utf-8-sig", newline="")
