"""Traces to files, in the spelling that `read_trace` prefers."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from headway.errors import WorkloadError
from headway.workload.trace import TraceRequest

_BASE = ("arrival_s", "num_prompt_tokens", "num_output_tokens")


def write_trace(path: str | Path, requests: Iterable[TraceRequest]) -> int:
    """Write requests row by row; the name decides: `.csv` or `.jsonl`, with `.gz` after it for gzip.

    CSV keeps what the plain traces have (arrival and lengths); JSON Lines also keeps ids and block keys,
    which come back as numbers or strings, or as text if they were something else.

    Returns:
        The number of requests written.

    Raises:
        WorkloadError: another kind of name, or a file that cannot be written.
    """
    path = Path(path)
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if kind not in (".csv", ".jsonl"):
        raise WorkloadError(f"{path}: a trace is written as .csv or .jsonl (with .gz for gzip).")
    try:
        with _create_text(path) as file:
            return _write_csv(file, requests) if kind == ".csv" else _write_jsonl(file, requests)
    except OSError as error:
        raise WorkloadError(f"{path}: cannot be written: {error.strerror}.") from None


@contextmanager
def _create_text(path: Path) -> Iterator[IO[str]]:
    if path.suffix != ".gz":
        with path.open("w", encoding="utf-8", newline="") as file:
            yield file
        return
    # No file name and no time in the gzip header, so that equal traces are equal files.
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
    ):
        yield text


def _write_csv(file: IO[str], requests: Iterable[TraceRequest]) -> int:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_BASE)
    count = 0
    for request in requests:
        writer.writerow((_seconds(request), request.num_prompt_tokens, request.num_output_tokens))
        count += 1
    return count


def _write_jsonl(file: IO[str], requests: Iterable[TraceRequest]) -> int:
    count = 0
    for request in requests:
        row: dict[str, object] = {
            "arrival_s": _seconds(request),
            "num_prompt_tokens": request.num_prompt_tokens,
            "num_output_tokens": request.num_output_tokens,
        }
        if request.request_id is not None:
            row["request_id"] = request.request_id
        if request.block_keys:
            row["block_keys"] = [key if isinstance(key, int | str) else repr(key) for key in request.block_keys]
            row["block_key_tokens"] = request.block_key_tokens
        file.write(json.dumps(row) + "\n")
        count += 1
    return count


def _seconds(request: TraceRequest) -> float:
    return round(request.arrival_s, 6)
