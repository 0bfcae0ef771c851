"""Speculative decoding that costs more than it gives."""

from __future__ import annotations

from headway.doctor.diagnosis import Confidence
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent
from headway.doctor.rules.sweep import at_most_load, setting_effects
from headway.evidence.engine import EngineSample

_NAMES = frozenset(("speculative_config", "speculative_model", "num_speculative_tokens", "speculation"))
_REFUTED = [
    "A lower time per token with speculation on, same prompts, same number of running requests.",
    "Averages that include prefill or other loads on one side only.",
]
_LEAST_DRAFTS = 200.0
_USELESS = 0.1
"""Share of drafts accepted, below which no way of drafting is cheap enough."""
_SAME_RATE = 0.1


def judge(case: Case) -> Ruling:
    """From runs with and without it, from servers with and without it, or from its acceptance."""
    for rule in (_from_runs, _from_servers, _from_acceptance):
        ruling = rule(case)
        if ruling.bottleneck is not None:
            return ruling
    return NOTHING


def is_on(value: object) -> bool:
    """Whether a setting's value turns speculation on."""
    return value not in (None, False, "", 0, "off", "none", "None")


def _from_runs(case: Case) -> Ruling:
    """Runs that differ in speculation alone."""
    pairs = [
        effect
        for effect in setting_effects(case.evidence)
        if len(effect.names) == 1
        and effect.names[0] in _NAMES
        and effect.is_of_decoding
        and is_on(effect.after[effect.names[0]]) != is_on(effect.before[effect.names[0]])
    ]
    changes = [
        (effect.relative if is_on(effect.after[effect.names[0]]) else 1 / (1 + effect.relative) - 1, effect.metric)
        for effect in at_most_load(pairs)
    ]
    if not changes:
        return NOTHING
    mean = sum(change for change, _ in changes) / len(changes)
    if mean <= limits.NO_CHANGE:
        return NOTHING
    text = (
        f"With speculation {changes[0][1].removesuffix('_ms')} is {percent(mean)} worse than without, in "
        f"{len(changes)} pair(s) of runs."
    )
    return found("spec_decode_overhead", "medium", [text], _REFUTED, {"cost_of_speculation": mean})


def _from_servers(case: Case) -> Ruling:
    """Log sections of two servers, one of which speculates, at the same number of running requests."""
    speculating = _speculating_sources(case)
    plain = _sources(case) - speculating
    best: tuple[float, EngineSample, EngineSample] | None = None
    for one in case.evidence.samples:
        for other in case.evidence.samples:
            if one.source not in speculating or other.source not in plain or one.num_running != other.num_running:
                continue
            if not one.generation_tokens_per_s or not other.generation_tokens_per_s or not one.num_running:
                continue
            ratio = other.generation_tokens_per_s / one.generation_tokens_per_s
            if best is None or ratio > best[0]:
                best = (ratio, one, other)
    if best is None or best[0] < limits.SPECULATION_GAIN:
        return NOTHING
    ratio, one, other = best
    texts = [
        f"With speculation {amount(one.generation_tokens_per_s or 0)} tokens/s, without "
        f"{amount(other.generation_tokens_per_s or 0)}, at {amount(one.num_running or 0)} running: {ratio:.1f} times "
        "as fast without."
    ]
    if (accepted := _acceptance(case)) is not None:
        texts.append(
            f"{percent(accepted)} of the drafts are accepted, so that it is not the drafts' quality: proposing and "
            "verifying them costs more than they save."
        )
    figures: dict[str, float | str | bool] = {"speedup_without": ratio}
    return found("spec_decode_overhead", "strong", texts, _REFUTED, figures)


def _sources(case: Case) -> set[str]:
    return {sample.source for sample in case.evidence.samples}


def _speculating_sources(case: Case) -> set[str]:
    """Sources that tell of drafts; of figures somebody states, those whose rate is what the drafts imply.

    With L tokens a step on average, accepted drafts are (L - 1) / L of all generated tokens.
    """
    found: set[str] = set()
    for event in case.evidence.events:
        accepted, length = event.fields.get("accepted_per_s"), event.fields.get("mean_acceptance_length")
        if event.kind != "spec_decode":
            continue
        if event.source in _sources(case):
            found.add(event.source)
        elif isinstance(accepted, int | float) and isinstance(length, int | float) and length > 1:
            expected = accepted * length / (length - 1)
            found |= {
                sample.source
                for sample in case.evidence.samples
                if sample.generation_tokens_per_s and abs(sample.generation_tokens_per_s / expected - 1) < _SAME_RATE
            }
    return found


def _acceptance(case: Case) -> float | None:
    totals = case.evidence.totals
    if totals is not None and (drafted := totals.counters.get("draft_tokens")):
        return min(1.0, totals.counters.get("accepted_tokens", 0.0) / drafted)
    rates = [
        float(value)
        for event in case.evidence.events
        if isinstance(value := event.fields.get("acceptance_rate"), int | float)
    ]
    return rates[-1] if rates else None


def _from_acceptance(case: Case) -> Ruling:
    """Tokens gained by a step with drafts against what the step costs more, by physics."""
    drafts, physics = case.settings.num_speculative_tokens, case.physics
    accepted, totals = _acceptance(case), case.evidence.totals
    if case.settings.speculation is None or accepted is None or not drafts:
        return NOTHING
    if totals is not None and 0 < totals.counters.get("draft_tokens", _LEAST_DRAFTS) < _LEAST_DRAFTS:
        return NOTHING
    if physics is None:
        return _hardly_accepted(accepted, drafts)
    running = max(1, round(case.figures.mean("num_running") or 1))
    gain = 1 + drafts * accepted
    context = case.figures.load.mean_prompt_tokens or 1024.0
    plain_s = physics.decode_step_s(running, context)
    rows_s = physics.decode_step_s(running * (1 + drafts), context / (1 + drafts))
    cost = rows_s / plain_s
    if gain / cost >= limits.SPECULATION_GAIN:
        return NOTHING
    text = (
        f"{percent(accepted)} of {drafts} drafts are accepted: {gain:.2f} tokens a step. With {running} running "
        f"requests a step that verifies them costs {cost:.2f} times a plain one, before the drafting itself."
    )
    confidence: Confidence = "strong" if gain / cost < 0.9 else "medium"
    return found("spec_decode_overhead", confidence, [text], _REFUTED, {"tokens_per_step": gain, "step_cost": cost})


def _hardly_accepted(accepted: float, drafts: int) -> Ruling:
    """Whatever the device: each draft costs a part of a step to propose and to verify, and hardly one is of use."""
    if accepted >= _USELESS:
        return NOTHING
    text = (
        f"{percent(accepted)} of {drafts} drafts a step are accepted: {1 + drafts * accepted:.2f} tokens a step, less "
        "than what proposing and verifying them costs on any device."
    )
    return found("spec_decode_overhead", "medium", [text], _REFUTED, {"tokens_per_step": 1 + drafts * accepted})
