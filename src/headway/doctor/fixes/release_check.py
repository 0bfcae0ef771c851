"""Whether the deployment's exact release takes a change beside its other flags."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from headway.catalog.flags import flags_of
from headway.compat import Finding, judge
from headway.deployment.arguments import Written
from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.words import Word
from headway.errors import HeadwayError

_BREAKS = frozenset((
    "unknown_flag", "rejected", "unsupported", "runtime_crash", "wrong_output", "silent_noop", "ignored",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change that the release would not take, and what it has against it."""

    setting: str
    finding: Finding

    @property
    def reason(self) -> str:
        """In words, with the way out that the data names."""
        finding = self.finding
        instead = f" Instead: {finding.fix}" if finding.fix else ""
        return f"{finding.verdict.replace('_', ' ')}, {finding.versions}: {finding.message}{instead} [{finding.source}]"


def refusal(effective: Effective | None, setting: str, value: Any) -> Refusal | None:
    """What the release has against a change that it has nothing against now; None where nothing is known."""
    changed = with_setting(effective, setting, value) if effective is not None and value is not None else None
    if effective is None or changed is None:
        return None
    known = {_key(finding) for finding in judge(effective).findings}
    for finding in judge(changed).findings:
        if finding.verdict in _BREAKS and _key(finding) not in known:
            return Refusal(setting, finding)
    return None


def _key(finding: Finding) -> str:
    """The rule behind a finding; its message may hold numbers that the change moves."""
    return finding.id or finding.message


def with_setting(effective: Effective, setting: str, value: Any) -> Effective | None:
    """The deployment with one setting written anew, in the same release; None where it cannot be written."""
    flag = flags_of(effective.version).get(setting)
    if flag is None:
        return None
    given = effective.invocation
    if given.form == "settings":
        written = Written(setting, value, flag.option, str(value))
        changed = replace(given, settings={**given.settings, setting: written})
    else:
        words = _words(flag.option, flag.kind(effective.version), value)
        changed = replace(given, words=[*given.words, *words])
    card = effective.accelerator.id if effective.accelerator is not None else None
    try:
        return resolve_effective(
            changed,
            engine_version=effective.version_text,
            accelerator="cpu" if "cpu" in effective.facts.platforms else card,
            model=effective.model.id if effective.model is not None else None,
        )
    except HeadwayError:
        return None


def _words(option: str, kind: str, value: Any) -> list[Word]:
    if isinstance(value, bool):
        if kind == "store_bool":
            return [Word(option), Word(str(value))]
        return [Word(option if value else f"--no-{option[2:]}")]
    return [Word(option), Word(value if isinstance(value, str) else json.dumps(value))]
