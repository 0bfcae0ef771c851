"""Values to try: round ones, within what versions, budgets and the plan allow."""

from __future__ import annotations

from typing import Any

from headway.catalog.flags import flags_of
from headway.doctor.diagnosis import BottleneckKind, Fix
from headway.doctor.in_effect import InEffect
from headway.doctor.rules.base import Case
from headway.doctor.rules.pool import trial
from headway.doctor.sglang_flags import SGLANG_NAMES

OUTSIDE_SETTINGS = frozenset(("replicas", "client", "request_rate", "max_tokens"))
"""Changes that are no flag of the engine."""


def round_down(value: float, step: int) -> int:
    """The largest multiple of `step` up to a value."""
    return int(value // step) * step


def round_up(value: float, step: int) -> int:
    """The smallest multiple of `step` from a value on."""
    return -int(-value // step) * step


def chunk_below(tokens: float) -> int:
    """A round token budget of at most so many tokens: a power of two from 256 on, else a multiple of 16.

    Below 256 a fifth is left over: the fixed cost of a step makes small chunks slower than the rate of large ones says.
    """
    if tokens < 256:
        return max(16, round_down(0.8 * tokens, 16))
    return 1 << (int(tokens).bit_length() - 1)


def least_budget(settings: InEffect) -> int:
    """The smallest max_num_batched_tokens that every running request can still decode in."""
    return (settings.max_num_seqs or 1) * (1 + settings.num_speculative_tokens)


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


def change(setting: str, old: Any, new: Any, reason: str, kind: BottleneckKind, *side_effects: str) -> Fix:
    """A fix for one bottleneck; empty side effects are left out."""
    return Fix(setting, old, new, reason, (kind,), side_effects=tuple(text for text in side_effects if text))
