"""The feature × feature table of one version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from headway.catalog.compatibility import Row, Verdict, compat_data, worst
from headway.catalog.versions import Version, parse_version

SYMBOLS: dict[Verdict, str] = {
    "ok": "y",
    "rejected": "N",
    "unsupported": "N",
    "runtime_crash": "!",
    "wrong_output": "!",
    "silent_noop": "o",
    "ignored": "o",
    "fallback": "f",
    "unknown_flag": "-",
    "unknown": "?",
}
LEGEND = (
    "y works, N rejected or not supported, ! crashes or gives wrong output, o accepted without effect, f falls back to "
    "something else, ? open, · nothing known, * the documentation of the release says otherwise"
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A pair's verdict, the rows behind it, and what the documentation says where that differs."""

    verdict: Verdict
    rows: tuple[Row, ...]
    documented: Verdict | None = None

    @property
    def symbol(self) -> str:
        """One letter, with `*` where the documentation says otherwise."""
        return SYMBOLS[self.verdict] + ("*" if self.documented is not None else "")


@dataclass(frozen=True, slots=True)
class Matrix:
    """All pairs of a version of which something is known."""

    version: Version
    features: tuple[str, ...]
    cells: dict[frozenset[str], Cell]

    def cell(self, one: str, other: str) -> Cell | None:
        """The cell of a pair, in either order."""
        return self.cells.get(frozenset((one, other)))

    def notes(self) -> Iterator[tuple[str, Row]]:
        """Pairs that do not simply work, with the deciding row."""
        for pair, cell in self.cells.items():
            if cell.verdict not in ("ok", "unknown") or cell.documented is not None:
                yield " x ".join(sorted(pair, key=self.features.index)), cell.rows[0]


def feature_matrix(version: str, *, engine: str | None = None) -> Matrix:
    """The table for a version on a CUDA device.

    Raises:
        ConfigError: not a version.
    """
    number = parse_version(version)
    chosen = engine or ("V1" if number >= (0, 8, 0) else "V0")
    data = compat_data()
    rows = [
        row
        for row in data.rows
        if row.covers(number)
        and len(row.features) == 2
        and row.when is None
        and row.engine in ("any", chosen)
        and row.platform in ("any", "cuda")
    ]
    gone = {name for row in rows for name in row.supersedes}
    pairs: dict[frozenset[str], list[Row]] = {}
    for row in rows:
        pairs.setdefault(frozenset(row.features), []).append(row)
    cells = {pair: _cell(found, gone) for pair, found in pairs.items()}
    order = list(data.features)
    used = sorted({name for pair in cells for name in pair}, key=order.index)
    return Matrix(number, tuple(used), cells)


def _cell(rows: list[Row], gone: set[str]) -> Cell:
    standing = [row for row in rows if row.id not in gone]
    code = [row for row in standing if row.basis != "docs"]
    docs = [row for row in rows if row.basis == "docs"]
    deciding = code or standing
    verdict = worst([row.verdict for row in deciding])
    documented = worst([row.verdict for row in docs]) if docs else None
    differs = documented is not None and code and documented != "unknown" and (documented == "ok") != (verdict == "ok")
    first = sorted(deciding, key=lambda row: row.verdict != verdict)
    return Cell(verdict, tuple(first), documented if differs else None)


def pairs_of(matrix: Matrix) -> Iterator[tuple[str, str, Cell]]:
    """Every known pair in the table's order."""
    for one, other in combinations(matrix.features, 2):
        if (cell := matrix.cell(one, other)) is not None:
            yield one, other, cell
