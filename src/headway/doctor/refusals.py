"""What the doctor does not recommend, whatever the figures say."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from headway.catalog.flags import all_flags, flags_of
from headway.compat.judge import Finding, judge
from headway.deployment.arguments import Written
from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.words import Word
from headway.doctor.diagnosis import Fix, MustNot
from headway.doctor.figures import Figures
from headway.errors import ConfigError

SCALING = frozenset(("replicas", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size"))
CHUNKING = frozenset(("enable_chunked_prefill", "max_num_batched_tokens", "long_prefill_token_threshold"))
_FORBIDDEN = frozenset((
    "unknown_flag", "rejected", "unsupported", "runtime_crash", "wrong_output", "silent_noop", "ignored",
))  # fmt: skip
_SPECULATION = ("speculative_config", "spec_decode", "speculative_model")
DUTY_CYCLE = MustNot(
    "GPU duty cycle",
    "What nvidia-smi calls utilisation says that some kernel ran, not how much it did: a decode step that waits for "
    "memory shows 100 %. Scale by WAITING, KV usage and the time to first token instead.",
)


def refuse_incompatible(effective: Effective | None, fixes: Sequence[Fix]) -> tuple[list[Fix], list[MustNot]]:
    """Fixes that the deployment's release takes beside its other flags, and refusals in place of the others."""
    if effective is None:
        return list(fixes), []
    known = {(finding.id, finding.message) for finding in judge(effective).bad}
    kept: list[Fix] = []
    refused: list[MustNot] = []
    for fix in fixes:
        changed = with_setting(effective, fix.setting, fix.to_value)
        found = [] if changed is None else judge(changed).bad
        new = [finding for finding in found if (finding.id, finding.message) not in known]
        against = [finding for finding in new if finding.verdict in _FORBIDDEN and _is_about(finding, fix.setting)]
        if against:
            refused.append(_refusal(fix, against[0], effective))
        else:
            notes = tuple(finding.message for finding in new if finding.verdict == "fallback")
            kept.append(replace(fix, side_effects=(*fix.side_effects, *notes)) if notes else fix)
    return kept, refused


def _is_about(finding: Finding, setting: str) -> bool:
    """A finding about a change that names no setting is taken to be about it."""
    return not finding.settings or setting in finding.settings or finding.verdict != "unknown_flag"


def _refusal(fix: Fix, finding: Finding, effective: Effective) -> MustNot:
    verdict = finding.verdict.replace("_", " ")
    instead = f" Instead: {finding.fix}" if finding.fix else ""
    reason = f"It would help, but vLLM {effective.version_text} says: {verdict}. {finding.message}{instead}"
    return MustNot(fix.setting, f"{reason} [{finding.source}]")


def with_setting(effective: Effective, name: str, value: Any) -> Effective | None:
    """The deployment with one setting changed; None for what is no flag, and for a flag that is left out."""
    if name not in all_flags() or value is None:
        return None
    invocation = effective.invocation
    option, text = all_flags()[name].option, value if isinstance(value, str) else json.dumps(value)
    if invocation.form == "settings":
        settings = {**invocation.settings, name: Written(name, value, option, text)}
        changed = replace(invocation, settings=settings)
    else:
        is_switch = isinstance(value, bool) and flags_of(effective.version).get(name) is not None
        given = [Word(option if value else f"--no-{option[2:]}")] if is_switch else [Word(option), Word(text)]
        changed = replace(invocation, words=[*invocation.words, *given])
    card = effective.accelerator.id if effective.accelerator is not None else None
    try:
        return resolve_effective(
            changed,
            engine_version=effective.version_text,
            accelerator="cpu" if "cpu" in effective.facts.platforms else card,
            model=effective.model.id if effective.model is not None else None,
        )
    except ConfigError:
        return None


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
    if fix.setting not in CHUNKING:
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


def about_scaling(figures: Figures, fixes: Iterable[Fix]) -> list[MustNot]:
    """Where more GPUs are proposed, or somebody measured it, the duty cycle is named as no reason to scale."""
    told = any("gpu_util" in key or "duty" in key for load in figures.evidence.loads for key in load.measured)
    return [DUTY_CYCLE] if told or any(fix.setting in SCALING for fix in fixes) else []
