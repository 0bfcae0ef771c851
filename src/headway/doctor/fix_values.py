"""Values to try: round ones, within what versions, budgets and the plan allow."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, replace
from typing import Any

from headway.catalog.flags import flags_of
from headway.compat import Finding, judge
from headway.deployment.arguments import Written
from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.words import Word
from headway.doctor.in_effect import InEffect
from headway.doctor.rules.base import Case
from headway.errors import HeadwayError
from headway.planner import Plan, make_plan

OUTSIDE_SETTINGS = frozenset(("replicas", "client", "request_rate", "max_tokens"))
"""Changes that are no flag of the engine."""
SGLANG_NAMES = {
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "gpu_memory_utilization": "mem_fraction_static",
    "max_model_len": "context_length",
    "tensor_parallel_size": "tp_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "enforce_eager": "disable_cuda_graph",
    "speculative_config": "speculative_algorithm",
}
"""What SGLang calls a setting of vLLM's; it has none of the others."""
_BREAKS = frozenset(
    ("unknown_flag", "rejected", "unsupported", "runtime_crash", "wrong_output", "silent_noop", "ignored")
)


def round_down(value: float, step: int) -> int:
    """The largest multiple of `step` up to a value."""
    return int(value // step) * step


def round_up(value: float, step: int) -> int:
    """The smallest multiple of `step` from a value on."""
    return -int(-value // step) * step


def chunk_below(tokens: float) -> int:
    """A round token budget of at most so many tokens: a power of two from 256 on, else a multiple of 16."""
    if tokens < 256:
        return max(16, round_down(tokens, 16))
    return 1 << (int(tokens).bit_length() - 1)


def least_budget(settings: InEffect) -> int:
    """The smallest max_num_batched_tokens that every running request can still decode in."""
    return (settings.max_num_seqs or 1) * (1 + settings.num_speculative_tokens)


def trial(case: Case, **changes: Any) -> Plan | None:
    """The plan with some of its deployment's fields changed; None where there is no plan or it cannot be."""
    if case.evidence.plan is None:
        return None
    try:
        return make_plan(replace(case.evidence.plan.deployment, **changes))
    except (HeadwayError, TypeError):
        return None


def kv_gain_words(case: Case, **changes: Any) -> str:
    """What a change does to the KV cache by the plan, for a sentence; empty where there is no plan."""
    plan, changed = case.evidence.plan, trial(case, **changes)
    if plan is None or changed is None:
        return ""
    before, after = plan.kv_cache_tokens.likely, changed.kv_cache_tokens.likely
    if before <= 0:
        return f" By the plan the KV cache then holds {after:,} tokens."
    return f" By the plan the KV cache goes from {before:,} to {after:,} tokens ({after / before - 1:+.0%})."


def exists(settings: InEffect, name: str) -> bool:
    """Whether the engine, in its version, has a setting."""
    if name in OUTSIDE_SETTINGS:
        return True
    if settings.is_sglang:
        return name in SGLANG_NAMES
    return settings.version is None or name in flags_of(settings.version)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A change that the deployment's release would not take."""

    setting: str
    finding: Finding


def refusal(effective: Effective | None, setting: str, value: Any) -> Refusal | None:
    """What the exact release has against a change, as far as the compatibility data tells."""
    if effective is None or setting in OUTSIDE_SETTINGS or value is None:
        return None
    changed = changed_effective(effective, setting, value)
    if changed is None:
        return None
    known = {finding.id or finding.message for finding in judge(effective).findings}
    for finding in judge(changed).findings:
        if finding.verdict in _BREAKS and (finding.id or finding.message) not in known:
            return Refusal(setting, finding)
    return None


def changed_effective(effective: Effective, setting: str, value: Any) -> Effective | None:
    """The deployment with one setting written anew, in the same release; None where it cannot be written."""
    flag = flags_of(effective.version).get(setting)
    if flag is None:
        return None
    invocation = copy.copy(effective.invocation)
    if invocation.form == "settings":
        written = Written(setting, value, flag.option, str(value))
        invocation.settings = {**invocation.settings, setting: written}
    else:
        invocation.words = [*invocation.words, *_words(flag.option, flag.kind(effective.version), value)]
    try:
        return resolve_effective(
            invocation,
            engine_version=effective.version_text,
            accelerator=effective.accelerator.id if effective.accelerator is not None else None,
        )
    except HeadwayError:
        return None


def _words(option: str, kind: str, value: Any) -> list[Word]:
    if isinstance(value, bool):
        if kind == "store_bool":
            return [Word(option), Word(str(value))]
        return [Word(option if value else f"--no-{option[2:]}")]
    text = (
        json.dumps(value)
        if isinstance(value, dict | list)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
    return [Word(option), Word(text)]
