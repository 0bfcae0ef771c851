"""Which vLLM features and flags go together, by exact version: rows of data with their source.

The format is described in docs/compat-data.md. Loading validates: a row that breaks a rule is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import combinations
from types import MappingProxyType
from typing import Any, Literal, get_args

from headway.catalog.conditions import Condition, condition
from headway.catalog.versions import Version, outside_known, parse_version
from headway.errors import ConfigError

Verdict = Literal[
    "unknown_flag",
    "rejected",
    "unsupported",
    "runtime_crash",
    "wrong_output",
    "silent_noop",
    "ignored",
    "fallback",
    "unknown",
    "ok",
]
WORST_FIRST: tuple[Verdict, ...] = get_args(Verdict)
"""Verdicts by what a user meets first: the order in which `Verdict` names them."""
Basis = Literal["docs", "code", "issue"]
ENGINES = ("any", "V0", "V1")
PLATFORMS = ("any", "cuda", "rocm", "rdna3", "cpu", "tpu", "xpu", "sm70", "sm75", "sm80", "sm89", "sm90")
FIRST_COVERED: Version = (0, 6, 0)
LAST_COVERED: Version = (0, 33, 0)
FORMAT = "headway-compat/1"


@dataclass(frozen=True, slots=True)
class Feature:
    """A named feature, the condition under which a deployment uses it, and other names for it."""

    name: str
    title: str
    when: Condition
    also: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One statement: these features together, where `when` also holds, have this verdict from `first` to `last`.

    `last` None: still so in the newest release covered. `sets` are the values that settings take whatever was written.
    `at` says when it shows: start, load, first request, request, under load, always.
    """

    id: str
    features: tuple[str, ...]
    verdict: Verdict
    first: Version
    last: Version | None
    engine: str
    platform: str
    when: Condition | None
    basis: Basis
    at: str
    sets: Mapping[str, Any]
    settings: tuple[str, ...]
    message: str
    fix: str
    supersedes: tuple[str, ...]
    source: str

    def covers(self, version: Version) -> bool:
        """The row speaks of that release; one that was not examined counts as the examined one before it, and
        one older than all as the oldest."""
        return self._within(version) or self._within(_examined(version))

    def _within(self, version: Version) -> bool:
        return self.first <= version and (self.last is None or version <= self.last)

    @property
    def versions(self) -> str:
        """The range in words, such as `0.16.0 to 0.29.0`."""
        first = ".".join(map(str, self.first))
        return f"{first} and later" if self.last is None else f"{first} to {'.'.join(map(str, self.last))}"


@dataclass(frozen=True, slots=True)
class CompatData:
    """All features and rows."""

    features: Mapping[str, Feature]
    rows: tuple[Row, ...]

    def feature(self, name: str) -> Feature | None:
        """A feature by its name or another name for it; case, blanks, `-` and `_` do not count."""
        return _index(self).get(_normal(name))

    def at(self, version: Version) -> list[Row]:
        """Rows that speak of a version; rows superseded by another of that version are left out."""
        found = [row for row in self.rows if row.covers(version)]
        gone = {name for row in found for name in row.supersedes}
        return [row for row in found if row.id not in gone]


def _normal(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _index(data: CompatData) -> Mapping[str, Feature]:
    index: dict[str, Feature] = {}
    for feature in data.features.values():
        for name in (feature.name, feature.title, *feature.also):
            index.setdefault(_normal(name), feature)
    return index


@cache
def compat_data() -> CompatData:
    """The catalogue's data, validated."""
    return load_compat(resources.files("headway.catalog").joinpath("vllm_compat.json").read_text(encoding="utf-8"))


_EXAMINED = """
0.6.0 0.6.3 0.6.6 0.7.0 0.7.3 0.8.0 0.8.1 0.8.4 0.8.5 0.9.0 0.9.1 0.9.2 0.10.0 0.10.1 0.10.2 0.11.0 0.11.1 0.11.2 0.12.0
0.13.0 0.14.0 0.14.1 0.15.0 0.16.0 0.17.0 0.18.0 0.18.1 0.19.0 0.19.1 0.20.0 0.20.2 0.21.0 0.22.0 0.22.1 0.23.0 0.24.0
0.25.0 0.25.1 0.26.0 0.27.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0
"""
EXAMINED: tuple[Version, ...] = tuple(parse_version(text) for text in _EXAMINED.split())
"""Releases whose code and documentation were read."""


def coverage_note(version: Version) -> str | None:
    """What to tell of a release that the data does not reach; None where it does."""
    return outside_known(version, FIRST_COVERED, LAST_COVERED)


def _examined(version: Version) -> Version:
    return max((known for known in EXAMINED if known <= version), default=EXAMINED[0])


def load_compat(text: str) -> CompatData:
    """Read and validate a data file.

    Raises:
        ConfigError: a field that is missing or wrong, an unknown feature, a range that runs backwards, or two rows that
            contradict each other without saying which one holds.
    """
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"Not JSON: {error}.") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f"Not a compatibility file: its format must be {FORMAT!r}.")
    features = {
        name: Feature(name, record["title"], condition(record["when"]), tuple(record.get("also", ())))
        for name, record in content["features"].items()
    }
    rows = tuple(_row(record, features) for record in content["rows"])
    ids = [row.id for row in rows]
    if len(set(ids)) != len(ids):
        raise ConfigError(f"Two rows have the id {next(name for name in ids if ids.count(name) > 1)!r}.")
    check_contradictions(rows)
    return CompatData(MappingProxyType(features), rows)


def _row(record: Mapping[str, Any], features: Mapping[str, Feature]) -> Row:
    name = record.get("id", "?")
    missing = [key for key in ("id", "features", "verdict", "first", "basis", "message", "source") if key not in record]
    if missing:
        raise ConfigError(f"Row {name!r} lacks {', '.join(missing)}.")
    for key, known in (
        ("verdict", WORST_FIRST),
        ("engine", ENGINES),
        ("platform", PLATFORMS),
        ("basis", get_args(Basis)),
    ):
        if record.get(key, "any") not in (*known, "any") or (key in ("verdict", "basis") and record[key] not in known):
            raise ConfigError(f"Row {name!r}: {record[key]!r} is not a {key}.", hint=f"Known: {', '.join(known)}.")
    unknown = [feature for feature in record["features"] if feature not in features]
    if unknown:
        raise ConfigError(f"Row {name!r} names features that are not described: {', '.join(unknown)}.")
    if not record["source"].strip() or not record["message"].strip():
        raise ConfigError(f"Row {name!r} has an empty message or source.")
    if not record["features"] and "when" not in record and record.get("platform", "any") == "any":
        raise ConfigError(f"Row {name!r} says neither features, nor a condition, nor a platform.")
    first = parse_version(record["first"])
    last = None if record.get("last") is None else parse_version(record["last"])
    if last is not None and last < first:
        raise ConfigError(f"Row {name!r}: its range runs from {record['first']} back to {record['last']}.")
    return Row(
        id=name,
        features=tuple(record["features"]),
        verdict=record["verdict"],
        first=first,
        last=last,
        engine=record.get("engine", "any"),
        platform=record.get("platform", "any"),
        when=condition(record["when"]) if "when" in record else None,
        basis=record["basis"],
        at=record.get("at", "start"),
        sets=MappingProxyType(record.get("sets", {})),
        settings=tuple(record.get("settings", ())),
        message=record["message"],
        fix=record.get("fix", ""),
        supersedes=tuple(record.get("supersedes", ())),
        source=record["source"],
    )


def check_contradictions(rows: Sequence[Row]) -> None:
    """Refuse two rows that call the same thing working and not working in one version, unless one supersedes the other.

    Raises:
        ConfigError: naming both rows.
    """
    groups: dict[frozenset[str], list[Row]] = {}
    for row in rows:
        if row.when is None and row.verdict != "unknown":
            groups.setdefault(frozenset(row.features), []).append(row)
    for group in groups.values():
        for one, other in combinations(group, 2):
            if (one.verdict == "ok") == (other.verdict == "ok") or not _overlap(one, other):
                continue
            if one.id not in other.supersedes and other.id not in one.supersedes:
                raise ConfigError(f"Rows {one.id!r} and {other.id!r} contradict each other in {_shared(one, other)}.")


def _overlap(one: Row, other: Row) -> bool:
    engines = {one.engine, other.engine}
    platforms = {one.platform, other.platform}
    if len(engines - {"any"}) > 1 or len(platforms) > 1:
        return False
    return one.first <= (other.last or _FAR) and other.first <= (one.last or _FAR)


_FAR: Version = (999, 0, 0)


def _shared(one: Row, other: Row) -> str:
    return ".".join(map(str, max(one.first, other.first)))


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict that decides, by what a user meets first."""
    return min(verdicts, key=WORST_FIRST.index, default="ok")
