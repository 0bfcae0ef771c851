"""Gauges, preemptions and tendencies in sentences: `Running: 0 reqs, Waiting: 1 reqs`, `constantly growing`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headway.evidence.figure_names import figure_of
from headway.evidence.log_lines import read_event, read_stats
from headway.evidence.quantities import Quantity, quantity

_RANGE = r"(~?\d+(?:\.\d+)?(?:\s*-\s*\d+(?:\.\d+)?)?)"
_GAUGES: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("num_running", re.compile(rf"\bRunning:?\s*{_RANGE}", re.IGNORECASE)),
    ("num_waiting", re.compile(rf"\b(?:Waiting|Pending):?\s*{_RANGE}", re.IGNORECASE)),
    ("kv_usage", re.compile(rf"\bKV (?:cache )?(?:usage:?)?\s*{_RANGE}\s*%", re.IGNORECASE)),
    ("generation_tokens_per_s", re.compile(rf"\bgeneration(?: throughput)?:?\s*{_RANGE}\s*tok", re.IGNORECASE)),
    ("prompt_tokens_per_s", re.compile(rf"\b(?:prompt|prefill)(?: throughput)?:?\s*{_RANGE}\s*tok", re.IGNORECASE)),
)
_NO_THROUGHPUT = re.compile(r"\b(?:0|no|zero) throughput\b", re.IGNORECASE)
_TENDENCY = re.compile(r"\b(grow\w*|ris\w+|increas\w+|climb\w*|fall\w*|shrink\w*|decreas\w+|flat|constant|steady)\b")
_AMOUNT = re.compile(
    r"\b(low|high|full|few|many|no|near zero|empty)\s+(KV(?: cache)?(?: usage)?|running|pending|waiting|queued)\b",
    re.IGNORECASE,
)
_MODE = re.compile(r"\b(RECOMPUTE|SWAP)\b", re.IGNORECASE)
_CUMULATIVE = re.compile(r"cumulative\w*(?:[ _]preemptions?)?\D{0,12}?(\d{1,12})")
_GROUP = re.compile(r"[Ss]equence group (\S+?)(?=[\s,.]|$)")


def read_gauges(text: str) -> dict[str, Quantity]:
    """Figures of a sample in a sentence or a log line, by field; shares as a quantity in percent."""
    stats = read_stats(text)
    if stats is not None:
        shares = ("kv_usage", "prefix_hit_rate", "mm_hit_rate", "external_hit_rate")
        return {
            name: Quantity(value * 100, "%") if name in shares else Quantity(value)
            for name, value in stats.figures.items()
        }
    found: dict[str, Quantity] = {}
    for name, pattern in _GAUGES:
        match = pattern.search(text)
        amount = quantity(match[1]) if match is not None else None
        if amount is not None:
            found[name] = Quantity(amount.value, "%" if name == "kv_usage" else None)
    if found and _NO_THROUGHPUT.search(text):
        found.setdefault("generation_tokens_per_s", Quantity(0.0))
        found.setdefault("prompt_tokens_per_s", Quantity(0.0))
    return found


def read_words(name: str, text: str) -> tuple[dict[str, str], Mapping[str, float | str] | None]:
    """What a sentence says of gauges in words, by the sample's field, and the fields of a preemption it tells of.

    `growing` and `falling` are the words for a tendency whatever a sentence calls it.
    """
    words: dict[str, str] = {}
    figure = figure_of(name)
    if figure is not None and figure.kind in ("gauge", "share") and (match := _TENDENCY.search(text.lower())):
        words[figure.key] = _tendency(match[1])
    for amount, what in _AMOUNT.findall(text):
        named = figure_of(what)
        if named is not None:
            words.setdefault(named.key, amount.lower())
    return words, _preemption(text)


def _tendency(word: str) -> str:
    if word.startswith(("grow", "ris", "increas", "climb")):
        return "growing"
    return "falling" if word.startswith(("fall", "shrink", "decreas")) else "steady"


def _preemption(text: str) -> Mapping[str, float | str] | None:
    if "preempt" not in text.lower():
        return None
    event = read_event(text)
    if event is not None and event.kind == "preemption":
        return event.fields
    fields: dict[str, float | str] = {}
    if match := _GROUP.search(text):
        fields["group"] = match[1]
    if match := _MODE.search(text):
        fields["mode"] = match[1].upper()
    if match := _CUMULATIVE.search(text):
        fields["cumulative_preemptions"] = float(match[1])
    return fields or None
