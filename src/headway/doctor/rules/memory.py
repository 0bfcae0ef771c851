"""It does not fit: the weights, or one request of max_model_len, exceed the memory."""

from __future__ import annotations

from headway.doctor.diagnosis import Confidence
from headway.doctor.rules.base import NOTHING, Case, Ruling, found

_GIB = 2**30


def judge(case: Case) -> Ruling:
    """The start-up log says so, or the plan does and nothing was seen running."""
    startup, plan = case.evidence.startup, case.evidence.plan
    texts: list[str] = []
    figures: dict[str, float | str | bool] = {}
    refused = startup is not None and (startup.error is not None or startup.no_memory_for_blocks)
    if startup is not None and startup.fits is False and (refused or not case.figures.has_run):
        length, tokens = startup.max_model_len, startup.tokens
        text = "The start-up log says that the KV cache does not hold one request of max_model_len"
        text += f" ({tokens:,} tokens for {length:,})." if tokens and length else "."
        texts.append(text)
        if startup.shortfall_bytes:
            figures["shortfall_gib"] = startup.shortfall_bytes / _GIB
            texts.append(f"{startup.shortfall_bytes / _GIB:.2f} GiB are lacking on each GPU.")
        confidence: Confidence = "strong"
    elif plan is not None and not plan.fits and not case.figures.has_run and (startup is None or startup.fits is None):
        figures["shortfall_gib"] = plan.shortfall_bytes / _GIB
        texts.append(
            f"By the plan the pool has {plan.num_gpu_blocks:,} blocks, and one request of max_model_len "
            f"{plan.resolved.max_model_len:,} needs {plan.blocks_per_request:,}: "
            f"{plan.shortfall_bytes / _GIB:.2f} GiB are lacking on each GPU."
        )
        confidence = "medium"
    else:
        return NOTHING
    refuted = ["A start-up log with a maximum concurrency of 1.00x or more."]
    return found("hbm_bound", confidence, texts, refuted, figures)
