"""Traces from files: CSV or JSON Lines, plain or gzip, told apart by content, read row by row."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from headway.errors import WorkloadError
from headway.workload.columns import Columns, find_columns, parse_count, parse_instant, parse_keys
from headway.workload.trace import TraceRequest

_GZIP_MAGIC = b"\x1f\x8b"
_SHOWN_CHARACTERS = 60
"""Of a value that is refused."""


def read_trace(path: str | Path, *, limit: int | None = None, skip_empty: bool = False) -> Iterator[TraceRequest]:
    """Read the requests of a trace one by one, in the file's order, in memory that stays small.

    Known column spellings: Azure 2023 and 2024, BurstGPT, Mooncake, Vidur, ServeGen, LLMServingSim, and a
    plain `arrival,prompt_tokens,output_tokens`. Numeric arrivals are kept (Mooncake's milliseconds become
    seconds); dates become seconds since the first row.

    Args:
        limit: stop after this many requests.
        skip_empty: leave out rows with zero tokens, which some traces keep for failed requests, instead of
            refusing.

    Raises:
        WorkloadError: while reading; names the file, the row (the header is row 1 of a CSV) and the column.
            The file is opened when the first request is asked for.
    """
    return itertools.islice(_read(Path(path), skip_empty), limit)


def _read(path: Path, skip_empty: bool) -> Iterator[TraceRequest]:
    row_number = 0
    try:
        with _open_text(path) as lines:
            parser: _RowParser | None = None
            for row_number, row in _rows(path, lines):
                parser = parser or _RowParser(path, row, skip_empty)
                request = parser.parse(row_number, row)
                if request is not None:
                    yield request
            if parser is None:
                raise WorkloadError(f"{path}: the file holds no requests.")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WorkloadError(f"{path}: cannot be read after row {row_number}: {reason}.") from None
    except UnicodeDecodeError:
        raise WorkloadError(
            f"{path}: not text after row {row_number}.", hint="A trace is CSV or JSON Lines, plain or gzip."
        ) from None


def _open_text(path: Path) -> IO[str]:
    if path.is_dir():
        raise WorkloadError(f"{path} is a folder.", hint="Name one trace file in it.")
    if not path.exists():
        raise WorkloadError(f"{path}: no such file.")
    with path.open("rb") as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
    if is_gzip:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open("r", encoding="utf-8-sig", newline="")


def _rows(path: Path, lines: IO[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows as mappings from column to value, with their number in the file (from 1, header included)."""
    first_number, first = next(((number, line) for number, line in enumerate(lines, start=1) if line.strip()), (0, ""))
    if not first:
        raise WorkloadError(f"{path}: the file is empty.")
    if first.lstrip().startswith("{"):
        yield from _json_rows(path, first_number, itertools.chain([first], lines))
    elif first.lstrip().startswith("["):
        raise WorkloadError(
            f"{path}: a JSON array, which cannot be read row by row.", hint="Write one JSON object a line."
        )
    else:
        yield from _csv_rows(path, first_number, first, lines)


def _json_rows(path: Path, first_number: int, lines: Iterator[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(lines, start=first_number):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise WorkloadError(f"{path}, row {number}: not JSON ({error.msg}).") from None
        except (ValueError, RecursionError):
            raise WorkloadError(
                f"{path}, row {number}: JSON that no trace has (too deep, or too long a number)."
            ) from None
        if not isinstance(row, dict):
            raise WorkloadError(f"{path}, row {number}: not a JSON object.")
        yield number, row


def _csv_rows(path: Path, header_number: int, header: str, lines: IO[str]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    delimiter = max(",\t;", key=header.count)
    names = next(csv.reader([header], delimiter=delimiter))
    reader = csv.reader(lines, delimiter=delimiter)
    try:
        for fields in reader:
            if fields:
                yield (
                    header_number + reader.line_num,
                    dict(itertools.zip_longest(names, fields[: len(names)])),
                )
    except csv.Error as error:
        raise WorkloadError(f"{path}, row {header_number + reader.line_num}: not CSV ({error}).") from None


class _RowParser:
    """Turns rows of one file into requests; keeps the columns and the first date."""

    def __init__(self, path: Path, first_row: Mapping[str, Any], skip_empty: bool) -> None:
        self._path = path
        self._skip_empty = skip_empty
        self._first_date: datetime | None = None
        self._columns: Columns = find_columns(
            list(first_row), lambda message, hint: WorkloadError(f"{path}: {message}", hint=hint)
        )

    def parse(self, number: int, row: Mapping[str, Any]) -> TraceRequest | None:
        """One request, or None for a row without tokens that is to be skipped."""
        columns = self._columns
        num_prompt_tokens = self._count(number, row, columns.prompt_tokens)
        num_output_tokens = self._count(number, row, columns.output_tokens)
        if num_prompt_tokens == 0 or num_output_tokens == 0:
            return None
        keys = self._value(number, row, columns.block_keys, parse_keys) if columns.block_keys else ()
        request_id = row.get(columns.request_id) if columns.request_id else None
        return TraceRequest(
            arrival_s=self._arrival(number, row),
            num_prompt_tokens=num_prompt_tokens,
            num_output_tokens=num_output_tokens,
            request_id=None if request_id in (None, "") else str(request_id),
            block_keys=keys,
            block_key_tokens=self._key_tokens(number, row) if keys else 0,
            row=number,
        )

    def _arrival(self, number: int, row: Mapping[str, Any]) -> float:
        name = self._columns.arrival
        instant = self._value(number, row, name, parse_instant)
        if isinstance(instant, datetime):
            first = self._first_date = self._first_date or instant
            if (first.tzinfo is None) != (instant.tzinfo is None):
                raise self._error(number, name, row, "has a time zone where others have none, or the reverse")
            arrival_s = (instant - first).total_seconds()
            if arrival_s < 0:
                raise self._error(number, name, row, "is before the first row")
            return arrival_s
        if self._first_date is not None:
            raise self._error(number, name, row, "is a number where others are dates")
        if instant < 0:
            raise self._error(number, name, row, "is negative")
        return float(instant) / self._columns.arrival_units_per_s

    def _count(self, number: int, row: Mapping[str, Any], name: str) -> int:
        count: int = self._value(number, row, name, parse_count)
        if count < 0:
            raise self._error(number, name, row, "is negative")
        if count == 0 and not self._skip_empty:
            raise self._error(
                number,
                name,
                row,
                "is zero",
                "Some traces keep failed requests so; --skip-empty leaves them out.",
            )
        return count

    def _key_tokens(self, number: int, row: Mapping[str, Any]) -> int:
        columns = self._columns
        if columns.block_key_tokens is None:
            if columns.fixed_key_tokens:
                return columns.fixed_key_tokens
            raise WorkloadError(
                f"{self._path}: the column {columns.block_keys!r} does not say how many tokens a key covers.",
                hint="Add a column 'block_key_tokens'.",
            )
        count: int = self._value(number, row, columns.block_key_tokens, parse_count)
        if count < 1:
            raise self._error(number, columns.block_key_tokens, row, "must be at least 1")
        return count

    def _value(self, number: int, row: Mapping[str, Any], name: str, parse: Any) -> Any:
        try:
            return parse(row.get(name))
        except ValueError as error:
            raise self._error(number, name, row, str(error)) from None

    def _error(
        self, number: int, name: str, row: Mapping[str, Any], what: str, hint: str | None = None
    ) -> WorkloadError:
        value = row.get(name)
        shown = "the value is missing" if value in (None, "") else f"{_shortened(value)} {what}"
        return WorkloadError(f"{self._path}, row {number}, column {name!r}: {shown}.", hint=hint)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
