"""What the deployment's plan says of other settings, and how large its pool of KV blocks can become."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import Case
from headway.errors import HeadwayError
from headway.planner import Plan, make_plan


def trial(case: Case, **changes: Any) -> Plan | None:
    """The plan with some of its deployment's fields changed; None where there is no plan or it cannot be."""
    if case.evidence.plan is None:
        return None
    try:
        return make_plan(replace(case.evidence.plan.deployment, **changes))
    except (HeadwayError, TypeError):
        return None


def highest_utilization(case: Case) -> float:
    """The largest gpu_memory_utilization to advise on this card."""
    card = case.settings.accelerator
    is_shared = card is not None and card.is_integrated
    return limits.HIGHEST_SHARED_UTILIZATION if is_shared else limits.HIGHEST_UTILIZATION


def pool_tokens_with(case: Case, **changes: Any) -> float | None:
    """Tokens that the pool would hold with some settings changed; None where it cannot be planned.

    What the engine has more or less than its plan is carried over.
    """
    now, plan, changed = case.settings.kv_tokens, case.evidence.plan, trial(case, **changes)
    if now is None or plan is None or changed is None:
        return None
    return now + float(changed.kv_cache_tokens.likely - plan.kv_cache_tokens.likely)


def largest_pool_tokens(case: Case) -> float | None:
    """Tokens that the pool could hold if it had all the memory that may be given to it."""
    now = case.settings.kv_tokens
    most = pool_tokens_with(
        case,
        gpu_memory_utilization=highest_utilization(case),
        num_gpu_blocks_override=None,
        kv_cache_memory_bytes=None,
    )
    return max((float(value) for value in (now, most) if value), default=None)
