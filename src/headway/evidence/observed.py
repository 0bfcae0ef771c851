"""Figures that somebody states: `key=value,…`, or a JSON or CSV file in whatever shape people write them down."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.errors import InputError
from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample, EngineTotals
from headway.evidence.files import read_text
from headway.evidence.load import LoadResult
from headway.evidence.observed_tree import ObservedTree

MAX_ROWS = 100_000
_PAIR = re.compile(r"\s*([^=:,;\n]+?)\s*[=:]\s*([^,;\n]*?)\s*(?:[,;\n]|$)")
_MAX_INLINE = 100_000


@dataclass(frozen=True, slots=True)
class Observed:
    """Stated figures in the form of measured ones; `stated` holds those that have no place elsewhere, by name."""

    samples: tuple[EngineSample, ...] = ()
    loads: tuple[LoadResult, ...] = ()
    events: tuple[EngineEvent, ...] = ()
    facts: EngineFacts = field(default_factory=EngineFacts)
    totals: EngineTotals | None = None
    stated: Mapping[str, float | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_observed(given: str) -> Observed:
    """Read a file, JSON text, or `key=value,…`.

    Raises:
        InputError: what can only be a file's name and is none, or a file that cannot be read.
    """
    text = given.strip()
    if text[:1] not in ("{", "[") and _is_file(text):
        path = Path(text)
        return _of_text(read_text(path).removeprefix("\ufeff"), path.name)
    if text[:1] in ("{", "[") or "\n" in text:
        return _of_text(text, "observed")
    if "=" not in text and not re.search(r"\w\s*:\s*[\d.]", text):
        raise InputError(
            f"Cannot read {given}: there is no such file.",
            hint="Give a JSON or CSV file, or figures such as ttft_p99=8.2s,itl_mean=33ms,output_throughput=240.",
        )
    return _of_pairs(text, "observed")


def read_observed_object(content: Any, source: str = "observed") -> Observed:
    """Read figures that are already a mapping or a list, as JSON has them."""
    tree = ObservedTree(source)
    tree.read(content)
    return _made(tree)


def _made(tree: ObservedTree) -> Observed:
    return Observed(
        samples=tuple(tree.samples),
        loads=tuple(tree.loads),
        events=tuple(tree.events),
        facts=tree.facts(),
        totals=tree.totals(),
        stated=dict(tree.stated),
        notes=tuple(dict.fromkeys(tree.notes)),
    )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def _of_text(text: str, source: str) -> Observed:
    stripped = text.lstrip()
    if stripped[:1] in ("{", "["):
        try:
            try:
                content = json.loads(text)
            except json.JSONDecodeError:
                content = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            return Observed(notes=(f"{source}: is not JSON that can be read: {error}.",))
        return read_observed_object(content, source)
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) > 1 and "=" not in lines[0] and max(lines[0].count(mark) for mark in ",;\t|") > 0:
        return _of_table(lines, source)
    return _of_pairs("\n".join(lines), source)


def _of_table(lines: list[str], source: str) -> Observed:
    delimiter = max(",;\t|", key=lines[0].count)
    rows: list[dict[str, str]] = []
    notes: list[str] = []
    try:
        for row in csv.DictReader(io.StringIO("\n".join(lines)), delimiter=delimiter):
            rows.append({key.strip(): value for key, value in row.items() if isinstance(key, str) and value})
            if len(rows) >= MAX_ROWS:
                notes.append(f"{source}: only the first {MAX_ROWS:,} rows are used.")
                break
    except csv.Error as error:
        notes.append(f"{source}: {error}.")
    tree = ObservedTree(source)
    tree.notes += notes
    tree.read(rows)
    return _made(tree)


def _of_pairs(text: str, source: str) -> Observed:
    content: dict[str, str] = {}
    notes: list[str] = []
    position = 0
    words = text[:_MAX_INLINE]
    while position < len(words):
        match = _PAIR.match(words, position)
        if match is None:
            end = min((i for mark in ",;\n" if (i := words.find(mark, position)) >= 0), default=len(words))
            if words[position:end].strip():
                notes.append(f"{source}: {words[position:end].strip()[:100]!r} is not key=value.")
            position = end + 1
            continue
        content[match[1]] = match[2]
        position = max(match.end(), position + 1)
    tree = ObservedTree(source)
    tree.notes += notes
    tree.read(content)
    return _made(tree)
