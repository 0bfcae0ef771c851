"""Speculative decoding as the evidence shows it: who drafts, drafts a step, how many are accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from headway.doctor.evidence import Evidence
from headway.doctor.figures import Figures
from headway.executors.simulated.speculation import SpeculationModel

_UNKNOWN_ACCEPTANCE = 0.7
_UNKNOWN_DRAFTS = 3


@dataclass(frozen=True, slots=True)
class Speculation:
    """What is drafted and how much of it is accepted; the simulation prices the drafts by their method.

    Args:
        num_drafts: drafts a step, at least 1.
        acceptance_rate: probability for each draft, 0 to 1.
        source: where the acceptance comes from, in a sentence.
        config: what --speculative-config says; empty where only drafts are seen.
    """

    num_drafts: int
    acceptance_rate: float
    source: str
    config: Mapping[str, Any]

    @property
    def flag(self) -> str:
        """--speculative-config for a simulation: the method and the drafter as written, the drafts as seen."""
        named = {key: value for key in ("method", "model") if isinstance(value := self.config.get(key), str) and value}
        return json.dumps({**named, "num_speculative_tokens": self.num_drafts})

    def under(self, config: Mapping[str, Any]) -> Speculation:
        """Another configuration, each draft of which is taken to be accepted as often."""
        if config == self.config:
            return self
        count = config.get("num_speculative_tokens")
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            count = self.num_drafts
        return replace(self, config=config, num_drafts=count)


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
    return Speculation(drafts, rate, source, config)


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
