"""Requests from whatever file a user has: traces row by row, and the JSON that benchmark tools write."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from headway.errors import WorkloadError
from headway.workload.readers import read_trace
from headway.workload.trace import TraceRequest

_CHARACTERS_PER_TOKEN = 4
"""English text in the vocabularies of today; for files that hold text and no counts."""
_GZIP_MAGIC = b"\x1f\x8b"


def read_requests(
    path: str | Path, *, limit: int | None = None, skip_empty: bool = False, seed: int = 0
) -> Iterator[TraceRequest]:
    """Requests of a trace (see `read_trace`), or of one of these JSON documents, told apart by content:

    - ShareGPT: an array of `conversations`; the first exchange of each, as `vllm bench serve` takes it. Lengths are
      those in the file, or estimated at 4 characters a token.
    - A result of `vllm bench serve --save-detailed`: `input_lens`, `output_lens`, and `start_times` where it has them.
    - A report of GuideLLM: the successful requests of all its benchmarks.

    Where no arrivals were recorded they are drawn, one a second on average: a rate can be given to them
    (`has_arrivals`).

    Raises:
        WorkloadError: while reading; names the file, the entry and the key.
    """
    path = Path(path)
    document = _document(path)
    if document is None:
        return read_trace(path, limit=limit, skip_empty=skip_empty)
    return itertools.islice(_Document(path, document, skip_empty, seed).requests(), limit)


def has_arrivals(path: str | Path) -> bool:
    """Whether the file says when its requests came."""
    document = _document(Path(path))
    if document is None:
        return True
    if isinstance(document, list):
        # What is no list of conversations is refused when it is read, whatever is given to it.
        return not all(isinstance(entry, dict) and _turns(entry) is not None for entry in document[:1])
    return "benchmarks" in document or bool(document.get("start_times"))


def _document(path: Path) -> Any:
    """The JSON document in the file; None if it is a trace, which is read row by row."""
    head = _head(path)
    if head[:1] not in ("[", "{"):
        return None
    if head[:1] == "{":
        first_line = head.split("\n", 1)[0]
        try:
            row = json.loads(first_line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and not _is_result(row):
            return None
    try:
        with _open(path) as file:
            document = json.loads(file.read().decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        # A first line that is cut off, or JSON Lines with one bad row: the row reader words it with its row.
        if head[:1] == "{" and _has_several_rows(path):
            return None
        raise WorkloadError(f"{path}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except RecursionError:
        raise WorkloadError(f"{path}: JSON that is nested too deeply for a workload.") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise WorkloadError(f"{path}: cannot be read: {error}.") from None
    return document


def _has_several_rows(path: Path) -> bool:
    with _open(path) as file:
        lines = [line.strip() for line in itertools.islice(file, 2)]
    return len(lines) == 2 and lines[0].endswith(b"}") and lines[1].startswith(b"{")


def _is_result(row: Mapping[str, Any]) -> bool:
    return "input_lens" in row or "benchmarks" in row


def _open(path: Path) -> Any:
    with path.open("rb") as file:
        packed = file.read(2) == _GZIP_MAGIC
    return gzip.open(path, "rb") if packed else path.open("rb")


def _head(path: Path) -> str:
    if not path.is_file():
        return ""
    try:
        with _open(path) as file:
            head: bytes = file.read(1 << 20)
    except (OSError, EOFError, zlib.error):
        return ""
    return head.decode("utf-8-sig", "replace").lstrip()


class _Document:
    """One JSON document of requests."""

    def __init__(self, path: Path, document: Any, skip_empty: bool, seed: int) -> None:
        self._path = path
        self._document = document
        self._skip_empty = skip_empty
        self._gaps = Random(f"{seed}/arrivals")
        self._drawn_at = 0.0

    def requests(self) -> Iterator[TraceRequest]:
        """All requests, in the document's order."""
        document = self._document
        if isinstance(document, list):
            rows = self._conversations(document)
        elif "benchmarks" in document:
            rows = self._guidellm(document["benchmarks"])
        elif "input_lens" in document:
            rows = self._vllm_bench(document)
        else:
            raise WorkloadError(
                f"{self._path}: a JSON document that is no known workload.",
                hint="Known: ShareGPT, results of vllm bench serve --save-detailed, GuideLLM reports, or one JSON "
                "object a line.",
            )
        empty = True
        for request in rows:
            empty = False
            yield request
        if empty:
            raise WorkloadError(f"{self._path}: the file holds no requests.")

    def _conversations(self, entries: Sequence[Any]) -> Iterator[TraceRequest]:
        for number, entry in enumerate(entries, start=1):
            turns = _turns(entry) if isinstance(entry, dict) else None
            if not isinstance(turns, list):
                raise self._error(
                    number,
                    "conversations",
                    "the value is missing",
                    "A JSON array is read as ShareGPT's; a trace is one JSON object a line.",
                )
            if len(turns) < 2:
                continue  # vllm bench serve leaves out conversations without an answer.
            lengths = [self._turn_length(number, turn) for turn in turns[:2]]
            request = self._request(number, ("conversations", "conversations"), self._draw_arrival(), *lengths)
            if request is not None:
                yield request

    def _turn_length(self, number: int, turn: Any) -> int:
        if isinstance(turn, dict):
            for key in ("num_tokens", "tokens", "token_count"):
                if isinstance(turn.get(key), int):
                    return int(turn[key])
            text = turn.get("value", turn.get("content"))
            if isinstance(text, str):
                return math.ceil(len(text) / _CHARACTERS_PER_TOKEN)
        raise self._error(number, "conversations", "a turn without text ('value')")

    def _vllm_bench(self, result: Mapping[str, Any]) -> Iterator[TraceRequest]:
        prompts, outputs, starts = (result.get(key) for key in ("input_lens", "output_lens", "start_times"))
        if not isinstance(prompts, list) or not isinstance(outputs, list) or len(prompts) != len(outputs):
            raise WorkloadError(
                f"{self._path}: 'input_lens' and 'output_lens' are not lists of the same length.",
                hint="Run vllm bench serve with --save-detailed.",
            )
        if starts and not isinstance(starts, list):
            raise WorkloadError(f"{self._path}: 'start_times' is not a list.")
        if starts and len(starts) != len(prompts):
            raise WorkloadError(f"{self._path}: 'start_times' has {len(starts)} entries for {len(prompts)} requests.")
        for number, start in enumerate(starts or [], start=1):
            if not _is_number(start):
                raise self._error(number, "start_times", f"{start!r} is not a time")
        first = min(starts) if starts else 0.0
        for index, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
            arrival_s = starts[index] - first if starts else self._draw_arrival()
            request = self._request(index + 1, ("input_lens", "output_lens"), arrival_s, prompt, output)
            if request is not None:
                yield request

    def _guidellm(self, benchmarks: Any) -> Iterator[TraceRequest]:
        number, offset_s = 0, 0.0
        for benchmark in benchmarks if isinstance(benchmarks, list) else []:
            requests = (benchmark.get("requests") or {}) if isinstance(benchmark, dict) else None
            done = (requests.get("successful") or []) if isinstance(requests, dict) else requests
            if not isinstance(done, list) or not all(isinstance(item, dict) for item in done):
                raise self._error(number + 1, "requests", "not a list of requests")
            starts = [_first(item, "request_start_time", "start_time") for item in done]
            known = [start for start in starts if _is_number(start)]
            first = min(known, default=0.0)
            for item, start in zip(done, starts, strict=True):
                number += 1
                if not _is_number(start):
                    what = "the value is missing" if start is None else f"{start!r} is not a time"
                    raise self._error(number, "request_start_time", what)
                prompt = _tokens(item, "prompt_tokens", "input_tokens", "input_metrics")
                output = _tokens(item, "output_tokens", "output_tokens", "output_metrics")
                request = self._request(
                    number, ("prompt_tokens", "output_tokens"), offset_s + start - first, prompt, output
                )
                if request is not None:
                    yield request
            offset_s += max(known, default=0.0) - first

    def _request(
        self, number: int, keys: tuple[str, str], arrival_s: float, prompt: Any, output: Any
    ) -> TraceRequest | None:
        for key, value in zip(keys, (prompt, output), strict=True):
            if not _is_number(value) or value != int(value) or value < 0:
                raise self._error(number, key, f"{value!r} is not a number of tokens")
        if not prompt or not output:
            if self._skip_empty:
                return None
            key = keys[0] if not prompt else keys[1]
            raise self._error(number, key, "0 tokens", "Failed requests are kept so; --skip-empty leaves them out.")
        if not arrival_s >= 0:
            raise self._error(number, "start", f"{arrival_s!r} is not a time")
        return TraceRequest(float(arrival_s), int(prompt), int(output), row=number)

    def _draw_arrival(self) -> float:
        self._drawn_at += self._gaps.expovariate(1.0)
        return self._drawn_at

    def _error(self, number: int, key: str, what: str, hint: str | None = None) -> WorkloadError:
        return WorkloadError(f"{self._path}, entry {number}, key {key!r}: {what}.", hint=hint)


def _turns(entry: Mapping[str, Any]) -> Any:
    return entry.get("conversations", entry.get("conversation"))


def _is_number(value: Any) -> bool:
    """A finite number, as times and counts are."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _first(item: Mapping[str, Any], *keys: str) -> Any:
    return next((item[key] for key in keys if item.get(key) is not None), None)


def _tokens(item: Mapping[str, Any], plain: str, other: str, nested: str) -> Any:
    value = _first(item, plain, other)
    if value is None and isinstance(item.get(nested), dict):
        value = _first(item[nested], "total_tokens", "text_tokens")
    return value
