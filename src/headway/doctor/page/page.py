"""The one page, without its looks: sections of sentences, lists and tables that each format draws in its own way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from headway.doctor.diagnosis import Bottleneck, Diagnosis, Fix, ModelCheck, SettingRead
from headway.doctor.page.configuration import is_on_the_page
from headway.doctor.page.setting_remarks import shown_value
from headway.doctor.page.words import TITLES, figure_text, predicted_text, told_first


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or a few."""

    text: str
    is_soft: bool = False
    """Less important than what surrounds it."""


@dataclass(frozen=True, slots=True)
class Item:
    """A line of a list, and what belongs under it."""

    text: str
    details: tuple[str, ...] = ()
    is_strong: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Items, numbered where their order matters."""

    items: tuple[Item, ...]
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class Grid:
    """A table; all cells are text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Block = Paragraph | Listing | Grid
Tone = Literal["good", "bad", "open"]


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is under it."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The whole page. `headline` is the verdict in a line, `tone` what it means for the reader."""

    title: str
    subtitle: str
    headline: str
    tone: Tone
    sections: tuple[Section, ...]


_MOST_BOTTLENECKS, _MOST_SENTENCES, _MOST_FIXES, _MOST_OTHERS = 3, 5, 6, 6
"""More than this does not fit on a page; the JSON form has everything."""


def make_page(diagnosis: Diagnosis) -> Page:
    """Lay a diagnosis out in the order of the sheet, from the configuration to what to measure next."""
    headline, tone = _headline(diagnosis)
    sections = (
        _configuration(diagnosis),
        _bottlenecks(diagnosis),
        _fixes(diagnosis),
        _must_not(diagnosis),
        _missing(diagnosis),
        _compat(diagnosis),
        _plain("Ruled out", [f"{_name(key)}: {reason}" for key, reason in diagnosis.ruled_out.items()]),
        _plain("Not used", diagnosis.unusable),
        _reading(diagnosis),
        _plain("Measure next", diagnosis.measure_next),
    )
    return Page(
        "headway doctor", diagnosis.subject, headline, tone, tuple(found for found in sections if found is not None)
    )


def _headline(diagnosis: Diagnosis) -> tuple[str, Tone]:
    if not diagnosis.bottlenecks:
        return "No bottleneck can be named from what was given.", "open"
    first = diagnosis.bottlenecks[0]
    text = f"{TITLES[first.kind]} ({first.confidence} evidence)."
    if first.kind in ("none", "none_idle"):
        return text, "good"
    if useful := [fix for fix in diagnosis.fixes if fix.helps is not False]:
        text += f" First: {change_text(useful[0])}."
    return text, "bad"


def change_text(fix: Fix) -> str:
    """`max_num_seqs 256 → 384`."""
    before = f"{shown_value(fix.from_value)} → " if fix.from_value is not None else "→ "
    after = "off" if fix.to_value is None else shown_value(fix.to_value)
    return f"{fix.setting} {before}{after}"


def _configuration(diagnosis: Diagnosis) -> Section | None:
    rows = [row for row in diagnosis.configuration if is_on_the_page(row)]
    if not rows:
        return None
    grid = Grid(
        ("setting", "value", "default", "controls", "here"),
        tuple((row.name, _value(row), _default(row), row.controls, row.remark) for row in rows),
    )
    rest = sum(not is_on_the_page(row) and row.value is not None for row in diagnosis.configuration)
    more = (Paragraph(f"{rest} more scheduler settings are at their defaults.", is_soft=True),) if rest else ()
    return Section("Configuration read", (grid, *more))


def _value(row: SettingRead) -> str:
    note = {"forced": " (forced)", "reported": " (reported)", "planned": " (planned)", "unknown": " (not known)"}
    return shown_value(row.value) + note.get(row.origin, "")


def _default(row: SettingRead) -> str:
    if row.default is None and row.default_reason.startswith("depends"):
        return row.default_reason
    return shown_value(row.default)


def _bottlenecks(diagnosis: Diagnosis) -> Section | None:
    found = diagnosis.bottlenecks
    if not found:
        return None
    items = tuple(_bottleneck(item) for item in found[:_MOST_BOTTLENECKS])
    return Section("Bottleneck" if len(found) == 1 else "Bottlenecks, the most limiting first", (
        Listing(items), *_rest(len(found), _MOST_BOTTLENECKS)
    ))  # fmt: skip


def _bottleneck(item: Bottleneck) -> Item:
    details = [*item.evidence[:_MOST_SENTENCES]]
    details += [f"Would be refuted by: {text}" for text in item.refuted_by[:2]]
    details += [f"To tell apart: {text}" for text in item.discriminate]
    return Item(f"{TITLES[item.kind]} ({item.kind}, {item.confidence} evidence)", tuple(details), is_strong=True)


def _fixes(diagnosis: Diagnosis) -> Section | None:
    blocks: list[Block] = []
    useful = [fix for fix in diagnosis.fixes if fix.helps is not False]
    useless = [fix for fix in diagnosis.fixes if fix.helps is False]
    if useful:
        items = tuple(_fix(fix, diagnosis.model_check) for fix in useful[:_MOST_FIXES])
        blocks += [Listing(items, is_ordered=True), *_rest(len(useful), _MOST_FIXES)]
    if useless:
        names = ", ".join(change_text(fix) for fix in useless[:_MOST_OTHERS])
        blocks.append(Paragraph(f"Simulated and of no use here: {names}."))
    if diagnosis.fixes and diagnosis.model_check is not None:
        blocks.append(Paragraph(model_check_text(diagnosis.model_check), is_soft=True))
    return Section("What to change, in this order", tuple(blocks)) if blocks else None


def _fix(fix: Fix, check: ModelCheck | None) -> Item:
    details = [fix.reason] if fix.reason else []
    told = told_first(fix.predicted)
    if told:
        details.append("Predicted: " + ", ".join(map(predicted_text, told)) + ".")
    elif fix.predicted:
        details.append("Predicted: no metric moves by 3 %.")
    if fix.side_effects:
        details.append("Side effects: " + "; ".join(text.rstrip(".") for text in fix.side_effects) + ".")
    if note := _own_note(fix.note, check):
        details.append(note)
    return Item(change_text(fix), tuple(details), is_strong=True)


def _own_note(note: str, check: ModelCheck | None) -> str:
    """A note without what the line about the model says for all fixes."""
    if check is None or check.accepted:
        return note
    shared = (check.note.removeprefix("Nothing is predicted.").strip(), _NOT_REPRODUCED)
    for text in shared:
        note = note.replace(text, "") if text else note
    return " ".join(note.split())


_NOT_REPRODUCED = "Not predicted: the model does not reproduce the evidence."


def model_check_text(check: ModelCheck) -> str:
    """Whether predictions can be believed, in a sentence."""
    if not check.simulated:
        return check.note or "No effect is predicted."
    off = f" (mean error {check.residual:.0%})" if check.residual is not None else ""
    pairs = [
        f"{figure_text(key, check.observed[key])} seen, {figure_text(key, check.simulated[key], named=False)} simulated"
        for key in check.observed
        if key in check.simulated
    ]
    told = f": {'; '.join(pairs[:4])}" if pairs else ""
    if check.accepted:
        return f"The fitted simulation reproduces what was seen{off}{told}. {check.note}".strip()
    return f"No effect is predicted{off}: the simulation does not reproduce what was seen{told}. {check.note}".strip()


def _must_not(diagnosis: Diagnosis) -> Section | None:
    items = [Item(entry.setting, (entry.reason,), is_strong=True) for entry in diagnosis.must_not]
    return _listing("Do not", items)


def _missing(diagnosis: Diagnosis) -> Section | None:
    items = [Item(f"{entry.figure}: {entry.why}", (f"Get it: {entry.how}",)) for entry in diagnosis.missing]
    return _listing("Missing, and what it would settle", items)


def _compat(diagnosis: Diagnosis) -> Section | None:
    return _plain("Compatibility in this release", diagnosis.compat)


def _reading(diagnosis: Diagnosis) -> Section | None:
    return _plain("Read next", [f"{title}: {place}" for title, place in diagnosis.read_next])


def _plain(title: str, texts: Sequence[str]) -> Section | None:
    return _listing(title, [Item(text) for text in texts])


def _listing(title: str, items: Sequence[Item]) -> Section | None:
    if not items:
        return None
    return Section(title, (Listing(tuple(items[:_MOST_OTHERS])), *_rest(len(items), _MOST_OTHERS)))


def _rest(number: int, most: int) -> Iterator[Paragraph]:
    if number > most:
        yield Paragraph(f"{number - most} more with --json.", is_soft=True)


def _name(key: str) -> str:
    return TITLES.get(key, key)
