"""The flags of `vllm serve` by version: names, kinds, defaults, when they came and went, and what replaced them.

The facts are data (`vllm_flags.json`); this module only looks them up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from headway.catalog.versions import Version, parse_version

FlagKind = Literal[
    "str", "int", "float", "bool", "switch", "store_bool", "json", "dict_or_str", "size", "size_or_auto", "lora"
]
"""How a value is read. `bool` has a `--no-` form, `switch` has none, `store_bool` takes an optional true or false;
`size` reads 8k and 8K."""

NEWEST: Version = (0, 33, 0)
"""The newest release that the flag table knows."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One setting in all versions. `spans` are [first version, first version without it)."""

    name: str
    names: tuple[tuple[str, Version], ...]
    spans: tuple[tuple[Version, Version | None], ...]
    kinds: tuple[tuple[Version, FlagKind], ...]
    defaults: tuple[tuple[Version, Any], ...]
    is_engine: bool
    nargs: str | None
    choices: tuple[str, ...]
    is_optional: bool
    replaced_by: str | None
    note: str

    def exists_in(self, version: Version) -> bool:
        """The parser of that version knows the flag."""
        return any(first <= version and (end is None or version < end) for first, end in self.spans)

    def kind(self, version: Version) -> FlagKind:
        """How that version reads the value."""
        kind: FlagKind = _latest(self.kinds, version, self.kinds[0][1])
        return kind

    def default(self, version: Version) -> Any:
        """The parser's own default; None often means "chosen at start-up". Expressions are given as text."""
        return _latest(self.defaults, version, None)

    def spellings(self, version: Version) -> tuple[str, ...]:
        """Option strings in that version, without `--no-` forms."""
        return tuple(name for name, since in self.names if since <= version)

    @property
    def option(self) -> str:
        """The long spelling, such as `--max-num-seqs`."""
        return next(name for name, _ in self.names if name.startswith("--"))

    def removed_in(self, version: Version) -> Version | None:
        """The release that dropped the flag, if that was at or before `version`."""
        ends = [end for _, end in self.spans if end is not None and end <= version]
        return max(ends) if ends and not self.exists_in(version) else None


def all_flags() -> Mapping[str, Flag]:
    """Every flag of every version, by its setting's name (`max_num_seqs`)."""
    return _table()


def flags_of(version: Version) -> Mapping[str, Flag]:
    """The flags that a version's parser knows; a release newer than the table is read as the newest known."""
    return _flags_of(min(version, NEWEST))


@cache
def _flags_of(version: Version) -> Mapping[str, Flag]:
    return MappingProxyType({name: flag for name, flag in _table().items() if flag.exists_in(version)})


def _latest(steps: tuple[tuple[Version, Any], ...], version: Version, start: Any) -> Any:
    value = start
    for since, step in steps:
        if since <= version:
            value = step
    return value


@cache
def _table() -> Mapping[str, Flag]:
    text = resources.files("headway.catalog").joinpath("vllm_flags.json").read_text(encoding="utf-8")
    return MappingProxyType({record["name"]: _read(record) for record in json.loads(text)["flags"]})


def _read(record: Mapping[str, Any]) -> Flag:
    return Flag(
        name=record["name"],
        names=tuple((name, parse_version(since)) for name, since in record["flags"]),
        spans=tuple(
            (parse_version(first), None if end is None else parse_version(end)) for first, end in record["spans"]
        ),
        kinds=tuple((parse_version(since), kind) for since, kind in record["kinds"]),
        defaults=tuple((parse_version(step[0]), step[-1]) for step in record["defaults"]),
        is_engine=record["group"] == "engine",
        nargs=record.get("nargs"),
        choices=tuple(map(str, record.get("choices", ()))),
        is_optional=record.get("optional", False),
        replaced_by=record.get("replaced_by"),
        note=record.get("note", ""),
    )
