"""What the deployment's exact release makes of its flags, in sentences."""

from __future__ import annotations

from dataclasses import dataclass

from headway.compat.judge import Finding, judge
from headway.deployment.effective import Effective
from headway.deployment.lints import lints_of

_HARMLESS = frozenset(("ok", "unknown"))


@dataclass(frozen=True, slots=True)
class CompatNotes:
    """Notes, worst first; `is_clean`: nothing among them is refused, crashes, or does nothing."""

    notes: tuple[str, ...] = ()
    is_clean: bool = True


def compat_notes(effective: Effective | None) -> CompatNotes:
    """Judge the flags by release, then read them as a careful reader would. Nothing is said twice."""
    if effective is None:
        return CompatNotes()
    judgement = judge(effective)
    lints = [lint for lint in lints_of(effective) if lint.level != "note"]
    notes = [_sentence(finding, effective) for finding in judgement.findings if finding.verdict not in _HARMLESS]
    told = {finding.message for finding in judgement.findings}
    notes += [_at(lint.message, lint.line) for lint in lints if lint.message not in told]
    is_clean = judgement.is_clean and not lints
    return CompatNotes(tuple(dict.fromkeys(notes)), is_clean)


def _sentence(finding: Finding, effective: Effective) -> str:
    what = finding.verdict.replace("_", " ")
    scope = f" ({' + '.join(finding.features)}, {finding.versions})" if finding.features else ""
    text = f"{what}{scope}: {finding.message}"
    if finding.fix:
        text += f" {finding.fix}"
    return _at(f"{text} [{finding.source}]", finding.line)


def _at(text: str, line: int) -> str:
    return f"{text} (line {line})" if line else text
