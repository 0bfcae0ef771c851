"""Answers for a bare combination of features, without a deployment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from headway.catalog.compatibility import CompatData, Feature, Row, Verdict, compat_data, worst
from headway.catalog.versions import Version, parse_version
from headway.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Answer:
    """What the data says about features together. `rows` decide; `conditional` hold only under their condition;
    `documented` is what the release's documentation says, where that differs."""

    verdict: Verdict
    version: Version
    engine: str
    features: tuple[str, ...]
    rows: tuple[Row, ...]
    conditional: tuple[Row, ...]
    documented: tuple[Row, ...]

    @property
    def message(self) -> str:
        """The deciding row's message."""
        return self.rows[0].message if self.rows else "Nothing is known about this combination in this version."


def find_features(names: Sequence[str]) -> tuple[Feature, ...]:
    """Features by name; `lora+ngram` counts as two, and a method of speculation as speculation too.

    Raises:
        ConfigError: a name that the data does not have.
    """
    data = compat_data()
    found: list[Feature] = []
    for name in (part for text in names for part in ([text] if data.feature(text) else re.split(r"[+,&]", text))):
        feature = data.feature(name)
        if feature is None:
            raise ConfigError(f"{name!r} is not a feature.", hint=f"Known: {', '.join(sorted(data.features))}.")
        found.append(feature)
    return tuple(dict.fromkeys(found))


def query(features: Sequence[str], version: str, *, engine: str | None = None, platform: str | None = None) -> Answer:
    """The verdict on a combination: that of the row that matches most of it, the worst among equals.

    Args:
        engine: V0 or V1; default: what the version starts by itself.
        platform: `cuda`, `rocm`, `cpu`, `sm70`, …; default: a current CUDA device.

    Raises:
        ConfigError: not a version, a feature, an engine or a platform.
    """
    number = parse_version(version)
    wanted = find_features(features)
    if engine is not None and engine not in ("V0", "V1"):
        raise ConfigError(f"{engine!r} is not an engine.", hint="Known: V0, V1.")
    chosen = engine or ("V1" if number >= (0, 8, 0) else "V0")
    platforms = {"any", platform or "cuda", *(("rocm",) if platform == "rdna3" else ())}
    platforms |= {"cuda"} if (platform or "").startswith("sm") else set()
    names = {name for feature in wanted for name in _with_general(feature.name)}
    data = compat_data()
    matching = [
        row
        for row in data.rows
        if row.covers(number)
        and set(row.features) <= names
        and (row.features or row.platform != "any")
        and row.engine in ("any", chosen)
        and row.platform in platforms
    ]
    plain = [row for row in matching if row.when is None]
    deciding = _deciding(_unsuperseded(plain), names, wanted, data)
    return Answer(
        verdict=worst([row.verdict for row in deciding]) if deciding else "unknown",
        version=number,
        engine=chosen,
        features=tuple(feature.name for feature in wanted),
        rows=tuple(
            sorted(deciding, key=lambda row: worst([row.verdict]) != worst([each.verdict for each in deciding]))
        ),
        conditional=tuple(row for row in matching if row.when is not None),
        documented=tuple(row for row in plain if row.basis == "docs" and row not in deciding),
    )


def _with_general(name: str) -> tuple[str, ...]:
    """`spec_decode:mtp` is speculation too; EAGLE-3 is EAGLE; a hybrid model has recurrent state."""
    more = {"spec_decode:eagle3": ("spec_decode:eagle",), "hybrid_model": ("mamba",)}.get(name, ())
    head, colon, _ = name.partition(":")
    return (name, *more, head) if colon and head in ("spec_decode", "data_parallel", "kv_transfer") else (name, *more)


def _unsuperseded(rows: list[Row]) -> list[Row]:
    gone = {name for row in rows for name in row.supersedes}
    return [row for row in rows if row.id not in gone]


def _deciding(rows: list[Row], names: set[str], wanted: tuple[Feature, ...], data: CompatData) -> list[Row]:
    """Rows for a platform alone, else those that match most features; code and threads before the documentation."""
    alone = [row for row in rows if not row.features]
    if alone:
        return alone
    if not rows:
        return []
    specific = sum(":" in feature.name for feature in wanted)

    def weight(row: Row) -> tuple[int, int]:
        return len(row.features), sum(":" in name for name in row.features) if specific else 0

    if len(wanted) > 1:
        rows = [row for row in rows if len(row.features) > 1] or [row for row in rows if row.verdict != "ok"]
    best = max((weight(row) for row in rows), default=(0, 0))
    top = [row for row in rows if weight(row)[0] == best[0]]
    code = [row for row in top if row.basis != "docs"]
    platform = [row for row in code or top if row.platform != "any"]
    return platform or code or top
