"""Will it fit, how many tokens, which budget. Standard library only."""

from __future__ import annotations

from typing import Any

from headway.catalog.accelerators import Accelerator, find_accelerator
from headway.catalog.architecture import ModelArchitecture
from headway.catalog.models import find_model
from headway.planner.budget import RankBudget, Term
from headway.planner.deployment import Deployment
from headway.planner.plan import Plan, Range, make_plan

__all__ = ["Deployment", "Plan", "Range", "RankBudget", "Term", "make_plan", "plan"]


def plan(model: str | ModelArchitecture, accelerator: str | Accelerator, **flags: Any) -> Plan:
    """Plan a model on a GPU; `flags` are the fields of `Deployment`, in vLLM's names.

    Example::

        >>> from headway import plan
        >>> planned = plan("llama-3.1-8b", "l40s", max_model_len=32768)
        >>> planned.fits, planned.num_gpu_blocks > 2048
        (True, True)

    Raises:
        ConfigError: an unknown model or GPU, or flags that cannot be or go together.
    """
    found = find_model(model) if isinstance(model, str) else model
    card = find_accelerator(accelerator) if isinstance(accelerator, str) else accelerator
    return make_plan(Deployment(found, card, **flags))
