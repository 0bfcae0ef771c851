"""Which settings runs differ in, from a command that writes alternatives: `--max-num-seqs 16|32`, `0.8 -> 0.85`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from headway.evidence.figure_names import words_of
from headway.evidence.load import LoadResult
from headway.evidence.run_labels import feature_change
from headway.evidence.run_rows import scalar, setting_name

_VALUE = r"[\w.]+"
_ALTERNATIVES = re.compile(rf"--([a-zA-Z][\w-]*)[ =]({_VALUE}(?:\s?\|\s?{_VALUE})+)")
_CHANGE = re.compile(rf"--([a-zA-Z][\w-]*)[ =]({_VALUE})\s*(?:->|→|=>)\s*({_VALUE})")
_NEW = re.compile(rf"--([a-zA-Z][\w-]*)[ =]({_VALUE})\s*\((?:new|added)\)")
_FLAG = re.compile(r"--([a-zA-Z][\w-]*)(?:[ =](?!-)([\w.]+))?")
_NO_VALUES = frozenset((
    "a", "an", "and", "as", "at", "but", "by", "flag", "flags", "for", "from", "in", "instead", "only", "or", "so",
    "the", "then", "to", "was", "which", "with",
))  # fmt: skip
"""Words that go on with a sentence behind a flag that takes no value."""
_TAKEN_OUT = re.compile(
    r"\b(?:without|no|not|remov\w+|dropp?\w*|delet\w+|disabl\w+)(?: (?:more|longer|the|flag))*[ `'\"]*$", re.I
)
_CHANGE_WORDS = frozenset(("change", "changed", "changes", "diff", "difference", "modification", "added", "fix"))
_BEFORE = frozenset(("before", "old", "baseline", "base"))
_AFTER = frozenset(("after", "new"))


def with_named_variants(loads: Iterable[LoadResult], words: str) -> list[LoadResult]:
    """Runs whose variant is one of a flag's alternatives, or before or after a change, get the flag as setting.

    A variant that several flags could mean, or none, stays a variant.
    """
    runs = list(loads)
    text = words[:20_000]
    variants = {str(run.settings["variant"]) for run in runs if "variant" in run.settings}
    named = _alternatives(text, variants) | _changes(text)
    return [_renamed(run, named) for run in runs]


def changed_settings(stated: Mapping[str, float | str]) -> dict[str, Mapping[str, object]]:
    """Settings by variant, from figures that name what changed between before and after: a flag, or a feature."""
    after: dict[str, object] = {}
    before: dict[str, object] = {}
    for name, text in stated.items():
        if not isinstance(text, str) or not _CHANGE_WORDS & set(words_of(name)):
            continue
        named = _changes(text)
        if named:
            return named
        for match in _FLAG.finditer(text):
            setting, value = _flag(match[1], match[2])
            is_out = _TAKEN_OUT.search(text[max(0, match.start() - 60) : match.start()]) is not None
            after[setting], before[setting] = (None, value) if is_out else (value, None)
        if not after:
            after, before = feature_change(text) or ({}, {})
    if not after:
        return {}
    found: dict[str, Mapping[str, object]] = dict.fromkeys(_BEFORE, before)
    return found | dict.fromkeys(_AFTER, after)


def _flag(name: str, word: str | None) -> tuple[str, object]:
    """The setting that a flag names in a sentence, and its value."""
    is_switch = name.startswith("no-") or word is None or word.lower() in _NO_VALUES
    return setting_name(name.removeprefix("no-")), not name.startswith("no-") if is_switch else scalar(word)


def with_changes(loads: Iterable[LoadResult], stated: Mapping[str, float | str]) -> list[LoadResult]:
    """Runs before and after get the settings that are said to have changed between them."""
    named = changed_settings(stated)
    return [_renamed(run, named) for run in loads]


def _renamed(run: LoadResult, named: Mapping[str, Mapping[str, object]]) -> LoadResult:
    settings = named.get(str(run.settings.get("variant")), named.get(str(run.settings.get("variant")).lower()))
    if settings is None:
        return run
    others = {name: value for name, value in run.settings.items() if name != "variant"}
    return replace(run, settings={**others, **settings})


def _alternatives(text: str, variants: set[str]) -> dict[str, Mapping[str, object]]:
    found: dict[str, dict[str, object]] = {}
    flags = [
        (flag.replace("-", "_"), [value.strip() for value in values.split("|")])
        for flag, values in _ALTERNATIVES.findall(text)
    ]
    fitting = [(flag, values) for flag, values in flags if variants and variants <= set(values)]
    if len(fitting) == 1:
        flag, values = fitting[0]
        found = {value: {flag: scalar(value)} for value in values}
    return dict(found)


def _changes(text: str) -> dict[str, Mapping[str, object]]:
    """Settings before and after, of all changes together."""
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    for flag, old, new in _CHANGE.findall(text):
        before[flag.replace("-", "_")], after[flag.replace("-", "_")] = scalar(old), scalar(new)
    for flag, new in _NEW.findall(text):
        before[flag.replace("-", "_")], after[flag.replace("-", "_")] = None, scalar(new)
    if not after:
        return {}
    named: dict[str, Mapping[str, object]] = dict.fromkeys(_BEFORE, before)
    return named | dict.fromkeys(_AFTER, after)
