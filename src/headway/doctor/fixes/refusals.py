"""Two of the sheet's refusals, which need no figures: what a release forbids, and chunks without a look at drafts."""

from __future__ import annotations

from dataclasses import replace

from headway.compat.judge import judge
from headway.deployment.effective import Effective
from headway.doctor.diagnosis import Fix, MustNot
from headway.doctor.figures import Figures

_CHUNKING = frozenset(("enable_chunked_prefill", "max_num_batched_tokens", "long_prefill_token_threshold"))
_FORBIDDEN = frozenset((
    "unknown_flag", "rejected", "unsupported", "runtime_crash", "wrong_output", "silent_noop", "ignored",
))  # fmt: skip
_SPECULATION = ("speculative_config", "spec_decode", "speculative_model")


def forbidden_speculation(effective: Effective | None) -> list[MustNot]:
    """A speculative recipe that the exact release forbids, with the alternative that the data names."""
    if effective is None:
        return []
    found = []
    for finding in judge(effective).bad:
        names = (*finding.settings, *finding.features)
        if finding.verdict in _FORBIDDEN and any(name in names for name in _SPECULATION):
            instead = f" {finding.fix}" if finding.fix else ""
            text = f"{finding.verdict.replace('_', ' ')} in vLLM {effective.version_text}: {finding.message}{instead}"
            found.append(MustNot("speculative_config", f"{text} [{finding.source}]"))
    return found


def with_speculation(fix: Fix, figures: Figures) -> Fix:
    """Advice about chunks says what speculation takes of the same budget."""
    if fix.setting not in _CHUNKING:
        return fix
    settings = figures.settings
    if settings.speculation is None:
        text = "Speculation is off, so each running request takes one token of the budget."
    else:
        drafts = settings.num_speculative_tokens
        rows = f"{1 + drafts} tokens" if drafts else "several tokens"
        text = f"Speculation is on: each running request takes {rows} of the budget before any chunk does"
        text += f", {settings.max_num_seqs * (1 + drafts):,} with all seats taken." if settings.max_num_seqs else "."
    return replace(fix, note=f"{fix.note} {text}".strip())
