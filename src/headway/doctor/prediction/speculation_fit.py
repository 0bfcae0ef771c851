"""Speculative decoding as the evidence shows it: drafts a step, how many are accepted, what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from headway.catalog.architecture import ModelArchitecture
from headway.catalog.speculation import speculative_method
from headway.doctor.evidence import Evidence
from headway.doctor.figures import Figures
from headway.executors.simulated.drafters import draft_share
from headway.executors.simulated.speculation import SpeculationModel

_UNKNOWN_ACCEPTANCE = 0.7
_UNKNOWN_DRAFTS = 3


@dataclass(frozen=True, slots=True)
class Speculation:
    """The acceptance model, and where it comes from in a sentence."""

    model: SpeculationModel
    source: str


def fit_speculation(evidence: Evidence, figures: Figures) -> Speculation | None:
    """What is drafted and accepted; None where nothing speculates.

    Mean tokens a step L are told by counters of drafts and accepted tokens, by SpecDecoding log lines, or by a client:
    gaps between chunks (ITL) over time per token (TPOT). The acceptance rate p of each draft then solves
    L = (1 - p^(k+1)) / (1 - p).
    """
    config = figures.settings.speculation
    if config is None:
        return None
    mean_tokens, source = _mean_tokens(evidence, figures)
    drafts = figures.settings.num_speculative_tokens or _drafts_seen(evidence) or _UNKNOWN_DRAFTS
    if mean_tokens is None:
        rate, source = _UNKNOWN_ACCEPTANCE, "acceptance is not told: each draft is taken to be accepted at 70 %"
    else:
        drafts = max(drafts, _ceil(mean_tokens - 1.0), 1)
        rate = acceptance_for(mean_tokens, drafts)
        source = f"{mean_tokens:.2f} tokens a step, from {source}"
    return Speculation(SpeculationModel(drafts, rate, _draft_cost(config, figures.settings.model)), source)


def acceptance_for(mean_tokens: float, num_drafts: int) -> float:
    """The acceptance rate at which `num_drafts` drafts bring so many tokens a step on average, 0 to 1."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if SpeculationModel(num_drafts, middle).mean_tokens_per_step < mean_tokens:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _ceil(value: float) -> int:
    return int(value) + (value > int(value))


def _mean_tokens(evidence: Evidence, figures: Figures) -> tuple[float | None, str]:
    totals = evidence.totals
    if totals is not None and (drafts := totals.counters.get("drafts")):
        return 1.0 + totals.counters.get("accepted_tokens", 0.0) / drafts, "counters of drafts"
    lengths = _numbers(evidence, "mean_acceptance_length")
    if lengths:
        return max(1.0, fmean(lengths)), "SpecDecoding log lines"
    itl, tpot = figures.value("mean_itl_ms"), figures.value("mean_tpot_ms")
    if itl and tpot and itl >= tpot:
        return itl / tpot, "gaps between chunks over time per token"
    return None, ""


def _drafts_seen(evidence: Evidence) -> int:
    """Drafts a step: drafted over steps, where a step brings one token more than it accepts."""
    totals = evidence.totals
    if totals is not None and (drafts := totals.counters.get("drafts")):
        return round(totals.counters.get("draft_tokens", 0.0) / drafts)
    drafted, accepted = _numbers(evidence, "drafted_per_s"), _numbers(evidence, "accepted_per_s")
    lengths = [value for value in _numbers(evidence, "mean_acceptance_length") if value > 1.0]
    if drafted and accepted and lengths:
        steps_per_s = fmean(accepted) / (fmean(lengths) - 1.0)
        return round(fmean(drafted) / steps_per_s) if steps_per_s > 0 else 0
    return 0


def _numbers(evidence: Evidence, name: str) -> list[float]:
    events = (event.fields.get(name) for event in evidence.events if event.kind == "spec_decode")
    return [float(value) for value in events if isinstance(value, int | float)]


def _draft_cost(config: Mapping[str, Any], model: ModelArchitecture | None) -> float:
    """Device time of a drafter's pass as a share of the model's, by weights read."""
    method = speculative_method(config) if config else ""
    return draft_share(method, model)
