"""What is being examined, in a line."""

from __future__ import annotations

from headway.doctor.evidence import Evidence
from headway.doctor.figures import Figures


def subject_of(figures: Figures) -> str:
    """Model, hardware, release and generation of the engine, then the evidence that there is of it."""
    settings, evidence = figures.settings, figures.evidence
    name = settings.model.id if settings.model is not None else settings.model_name
    card = settings.accelerator.id if settings.accelerator is not None else None
    count = settings.num_gpus * settings.data_parallel_size
    hardware = f"{count} × {card}" if card and count > 1 else card
    what = " on ".join(part for part in (name or "a deployment whose model is not known", hardware) if part)
    return f"{what}; {_engine(figures)}. Seen: {_seen(evidence)}."


def _engine(figures: Figures) -> str:
    settings, effective = figures.settings, figures.evidence.effective
    if settings.is_sglang:
        return "SGLang"
    if settings.version is None:
        return "vLLM of an unknown release" + (f" ({settings.generation})" if settings.generation else "")
    text = f"vLLM {'.'.join(map(str, settings.version))}"
    text += f" ({settings.generation})" if settings.generation else ""
    assumed = effective is not None and effective.version_reason.startswith("not stated")
    return f"{text}, assumed: the release is not stated" if assumed and not figures.evidence.facts.version else text


def _seen(evidence: Evidence) -> str:
    parts = []
    if evidence.effective is not None:
        parts.append("flags")
    if evidence.startup is not None:
        parts.append("start-up log")
    if evidence.samples:
        parts.append(_count(len(evidence.samples), "sample"))
    if evidence.totals is not None:
        duration = evidence.totals.duration_s
        parts.append(f"counters over {duration:,.0f} s" if duration else "counters since the engine's start")
    if evidence.events:
        parts.append(_count(len(evidence.events), "event"))
    if evidence.loads:
        parts.append(_count(len(evidence.loads), "load result"))
    if evidence.trace is not None:
        parts.append("a trace")
    return ", ".join(parts) if parts else "nothing of it at work"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
