"""The token budget of a step: too large, and decodes stall behind chunks; too small, and fixed costs eat the rest."""

from __future__ import annotations

from dataclasses import dataclass

from headway.doctor.diagnosis import Confidence
from headway.doctor.figures import Series
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent, span
from headway.doctor.rules.missing import BUDGET
from headway.doctor.rules.prefill import WAITED_TTFT_S, measured_prefill_tokens_per_s, slowed_without_prompts
from headway.evidence.engine import EngineSample
from headway.evidence.figure_names import words_of

_MANY_STEPS = 16
"""Steps for the prompts of all clients, from which the fixed costs of each are felt in the time to first token."""


_MOST_OF_A_STEP = 0.4
"""P99 gap over the step of a full chunk, below which hardly a decode ever waited for one."""
_DECODES = 4.0
"""Tokens a second of a request that decodes on any device; answers of one token do not come so fast."""


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """A step with a full chunk: its time, the prefill rate behind it, and whether decodes were seen to stall for it."""

    step_s: float
    prefill_tokens_per_s: float
    source: str
    is_seen: bool
    contrast: float | None
    """Decode rate without prefill over that beside it."""


def judge(case: Case) -> Ruling:
    """Too large, too small, or large for nothing."""
    for rule in (_whole_prompts, _too_large, _too_small, _wasteful, _behind_prompts):
        ruling = rule(case)
        if ruling.bottleneck is not None:
            return ruling
    return NOTHING


# ---------------------------------------------------------------- too large


def chunk_step(case: Case) -> ChunkStep | None:
    """The step of a full chunk: as the samples show it, else by physics."""
    budget = case.settings.max_num_batched_tokens
    if budget is None:
        return None
    seen = _seen_in_samples(case, budget)
    if seen is not None:
        return seen
    if case.physics is None:
        rate = measured_prefill_tokens_per_s(case)
        return ChunkStep(budget / rate, rate, "at the prompt throughput seen", False, None) if rate else None
    running = round(case.figures.mean("num_running") or case.figures.load.concurrency or 1)
    context = (case.figures.load.mean_prompt_tokens or 1024.0) + (case.figures.load.mean_output_tokens or 0.0) / 2
    step_s = case.physics.mixed_step_s(max(1, budget - running), running, context)
    return ChunkStep(step_s, budget / step_s, "by physics", False, None)


def _seen_in_samples(case: Case, budget: int) -> ChunkStep | None:
    """Chunk over prefill rate, if decodes beside prefill are as slow as that says: one token a step each."""
    prefill, output = measured_prefill_tokens_per_s(case), case.figures.load.mean_output_tokens
    if not prefill or (output is not None and output <= limits.PURE_PREFILL_OUTPUT_TOKENS):
        return None
    step_s = budget / prefill
    for series in case.figures.series:
        hidden = slowed_without_prompts(series)
        rates = [one.prompt_tokens_per_s or 0.0 for one in series.samples]
        pairs = list(zip(rates, hidden, strict=True))
        beside = series.where(tuple(rate >= prefill / 2 or is_hidden for rate, is_hidden in pairs))
        if sum(hidden) >= limits.STALL_LEAST_SAMPLES and series.where(hidden).duration_s >= limits.STALL_LEAST_S:
            beside = series.where(hidden)  # an interval in which a prompt is done is prefill only in part
        alone = series.where(
            tuple(rate < limits.STALL_PROMPT_TOKENS_PER_S and not is_hidden for rate, is_hidden in pairs)
        )
        slow, running = beside.mean("generation_tokens_per_s"), beside.mean("num_running")
        if not slow or not running or running < 2:
            continue
        if slow * step_s > 1.5 * running:
            continue
        return ChunkStep(step_s, prefill, "measured", True, _contrast(alone, slow / running))
    return None


def _contrast(alone: Series, slow: float) -> float | None:
    rate, running = alone.mean("generation_tokens_per_s"), alone.mean("num_running")
    return rate / running / slow if rate and running and slow else None


def _too_large(case: Case) -> Ruling:
    budget, step = case.settings.max_num_batched_tokens, chunk_step(case)
    if budget is None or step is None or case.settings.enable_chunked_prefill is False or case.wants_throughput:
        return NOTHING
    tail = case.figures.value("p99_itl_ms", "max_itl_ms")
    usual = case.figures.value("p50_itl_ms", "median_itl_ms", "mean_itl_ms", "mean_tpot_ms")
    missed = case.violates("itl", "tpot")
    bound_s = case.bound("p99_itl_ms", "mean_itl_ms", "p99_tpot_ms", "mean_tpot_ms")
    stalls = bool(tail and usual and tail >= limits.STALL_RATIO * usual)
    explains = bool(tail and 0.4 * tail <= 1e3 * step.step_s <= 2.5 * tail)
    texts: list[str] = []
    if step.is_seen:
        if tail is not None and tail < _MOST_OF_A_STEP * 1e3 * step.step_s:
            return NOTHING  # gaps that are measured outrank a rate that prompts counted at their end make too low
        if step.step_s < (bound_s / 1e3 if bound_s is not None else limits.STALLED_ITL_S):
            return NOTHING
        texts.append(_seen_words(budget, step))
        confidence: Confidence = "strong" if (step.contrast or 0.0) >= limits.STALL_RATIO else "medium"
    elif missed is not None and stalls and (usual or 0.0) <= missed[2] and 1e3 * step.step_s > missed[2]:
        texts.append(f"{missed[0]} is {amount(missed[1])} ms for a bound of {amount(missed[2])} ms.")
        confidence = "strong" if explains else "medium"
    elif missed is None and bound_s is None and stalls and (tail or 0.0) >= 1e3 * limits.STALLED_ITL_S and explains:
        confidence = "strong" if (tail or 0.0) >= 1e3 * limits.BAD_ITL_S else "medium"
    elif missed is None and (stated := _stated_contrast(case)) is not None and step.step_s >= limits.STALLED_ITL_S:
        fast, slow = stated
        texts.append(f"Decoding runs at {amount(fast)} tokens/s, and at {amount(slow)} beside prefill.")
        confidence = "medium"
    else:
        return NOTHING
    if tail and usual:
        texts.append(
            f"The P99 gap between tokens is {amount(tail)} ms, {tail / usual:.1f} times the usual {amount(usual)} ms."
        )
    if not step.is_seen:
        texts.append(
            f"A step with a full chunk of {budget:,} tokens takes about {span(step.step_s)} ({step.source}), and each "
            "decoding request gets one token from it."
        )
    texts.append(_largest_chunks(step))
    figures: dict[str, float | str | bool] = {
        "predicted_itl_s": step.step_s,
        "prefill_tokens_per_s": step.prefill_tokens_per_s,
        "direction": "down",
    }
    figures |= {
        f"largest_chunk_for_{1e3 * target:.0f}_ms": largest_chunk(step, target) for target in limits.ITL_TARGETS_S
    }
    return found(
        "chunk_missized",
        confidence,
        texts,
        ["Gaps as long in intervals without any prefill.", "Gaps that do not shrink when the chunk does."],
        figures,
    )


_DECODE = frozenset(("decode", "decoding", "gen", "generation", "tg", "output"))
_BESIDE = frozenset(("during", "while", "beside", "under", "with", "mixed", "concurrent"))
_ALONE = frozenset(("alone", "after", "before", "without", "standalone", "recovered", "idle", "only", "solo", "normal"))


def _stated_contrast(case: Case) -> tuple[float, float] | None:
    """Rates of decoding without and beside prefill, where somebody states both and they are far apart."""
    fast: list[float] = []
    slow: list[float] = []
    for name, value in case.evidence.stated.items():
        words = set(words_of(name))
        if not isinstance(value, int | float) or not words & _DECODE:
            continue
        if words & _BESIDE and words & {"prefill", "prompt", "prefilling"}:
            slow.append(float(value))
        elif words & _ALONE:
            fast.append(float(value))
    if not fast or not slow or min(fast) < limits.STALL_RATIO * max(slow):
        return None
    return min(fast), max(slow)


def _seen_words(budget: int, step: ChunkStep) -> str:
    text = (
        f"{budget:,} tokens a step at {amount(step.prefill_tokens_per_s)} prompt tokens/s make steps of "
        f"{step.step_s:.2f} s while any prefill runs, and each decoding request gets one token a step"
    )
    if step.contrast is not None and step.contrast > 1:
        text += f"; without prefill each decodes {step.contrast:.0f} times as fast"
    return f"{text}."


def largest_chunk(step: ChunkStep, target_s: float) -> float:
    """Tokens that a step may compute within a target, at the same prefill rate."""
    return step.prefill_tokens_per_s * target_s


def _largest_chunks(step: ChunkStep) -> str:
    parts = [f"{largest_chunk(step, target):,.0f} tokens for {span(target)}" for target in limits.ITL_TARGETS_S]
    sizes = " and ".join(parts)
    return f"The largest chunk at that rate is about {sizes}; prompts then take more steps to their first token."


def _whole_prompts(case: Case) -> Ruling:
    """Chunked prefill is off, and gaps between tokens are as long as whole prompts take."""
    tail = case.figures.value("p99_itl_ms", "max_itl_ms")
    usual = case.figures.value("p50_itl_ms", "median_itl_ms", "mean_itl_ms", "mean_tpot_ms")
    if case.settings.enable_chunked_prefill is not False or case.wants_throughput or not tail or not usual:
        return NOTHING
    missed = case.violates("itl", "tpot")
    if tail < limits.STALL_RATIO * usual or (missed is None and tail < 1e3 * limits.STALLED_ITL_S):
        return NOTHING
    texts = [
        f"The P99 gap between tokens is {amount(tail)} ms, {tail / usual:.1f} times the usual {amount(usual)} ms.",
        "Chunked prefill is off, so that decodes wait for whole prompts.",
    ]
    refuted = ["Gaps as long in intervals without any prefill."]
    return found("chunk_missized", "medium", texts, refuted, {"direction": "on"})


# ---------------------------------------------------------------- too small


def _too_small(case: Case) -> Ruling:
    budget = case.settings.max_num_batched_tokens
    if budget is None or case.settings.enable_chunked_prefill is False:
        return NOTHING
    queue = case.queue
    waits = queue is not None and queue.is_lasting and queue.gate == "prefill"
    running = queue.num_running if queue is not None and waits else (case.figures.mean("num_running") or 0.0)
    texts: list[str] = []
    if waits and running and budget < 2 * running:
        texts.append(
            f"{amount(running)} decoding requests take {amount(running)} of the {budget:,} tokens a step, so that only "
            f"{amount(max(0.0, budget - running))} are left for prompts."
        )
    efficiency = _efficiency(case, budget)
    is_small = budget <= limits.SMALL_CHUNK or (case.wants_throughput and budget < 8192)
    if (
        is_small
        and efficiency is not None
        and efficiency < (0.9 if case.wants_throughput else limits.SMALL_CHUNK_EFFICIENCY)
    ):
        texts.append(
            f"A step of {budget:,} tokens computes prompts at {percent(efficiency)} of the rate of one of 8,192: "
            "weights are read and fixed costs are paid for too few rows."
        )
    elif is_small and case.wants_throughput and not texts and efficiency is None and not case.figures.series:
        texts.append(
            f"Nobody waits for single tokens here: {budget:,} tokens a step cut prompts into more steps than needed."
        )
    is_idle = case.figures.series and not (queue is not None and queue.is_lasting)
    if is_idle and case.wants_throughput:
        return NOTHING  # a client that sends little fills no step of any size
    if not texts or not (waits or case.wants_throughput or case.violates("ttft") or _first_tokens_wait(case, budget)):
        return NOTHING
    figures: dict[str, float | str | bool] = {"direction": "up", "max_num_batched_tokens": float(budget)}
    if efficiency is not None:
        figures["prefill_efficiency"] = efficiency
    confidence: Confidence = "strong" if waits and efficiency is not None else "medium"
    refuted = ["Prompt throughput that does not rise with the budget."]
    return found("chunk_missized", confidence, texts, refuted, figures)


def _first_tokens_wait(case: Case, budget: int) -> bool:
    """First tokens are late, and the prompts of all clients take many steps of this budget."""
    load, ttft = case.figures.load, case.figures.value("mean_ttft_ms", "p50_ttft_ms", "median_ttft_ms")
    if ttft is None or ttft < 1e3 * WAITED_TTFT_S or case.figures.highest("num_running") is not None:
        return False
    return (load.concurrency or 1) * (load.mean_computed_prompt_tokens or 0.0) >= _MANY_STEPS * budget


def _efficiency(case: Case, budget: int) -> float | None:
    if case.physics is None:
        return None
    return case.physics.prefill_tokens_per_s(budget) / case.physics.prefill_tokens_per_s(8192)


# ---------------------------------------------------------------- large for nothing


def _wasteful(case: Case) -> Ruling:
    """A budget near max_model_len under chunked prefill: activations for it are set aside and missing in the pool."""
    settings = case.settings
    budget = settings.max_num_batched_tokens
    if budget is None or budget <= limits.HUGE_BUDGET or settings.enable_chunked_prefill is False:
        return NOTHING
    is_short = case.queue is not None and case.queue.is_lasting and case.queue.gate in ("kv", "both")
    is_short = is_short or bool(case.figures.preemptions and case.figures.preemptions.count > 0)
    if case.wants_throughput or (case.figures.has_run and not is_short):
        return NOTHING
    texts = [
        f"max_num_batched_tokens {budget:,} is a budget for one step; prompts are cut into chunks, so that 2,048 to "
        "8,192 serve any max_model_len. Memory for a full step's activations is set aside and lacks in the KV cache."
    ]
    if settings.max_model_len and budget >= settings.max_model_len / 2:
        texts.append(f"It seems to be meant for max_model_len ({settings.max_model_len:,}): that is not needed.")
    refuted = ["Chunked prefill being off: then the budget must hold a whole prompt."]
    return found(
        "chunk_missized", "medium", texts, refuted, {"direction": "down", "max_num_batched_tokens": float(budget)}
    )


# ---------------------------------------------------------------- budget unknown


def _behind_prompts(case: Case) -> Ruling:
    """The same requests run for a while and get hardly a token, while prompts are computed; nothing waits."""
    settings = case.settings
    is_known = settings.max_num_batched_tokens is not None and not settings.is_default("max_num_batched_tokens")
    if is_known or (case.queue is not None and case.queue.is_lasting):
        return NOTHING
    output = case.figures.load.mean_output_tokens
    if output is not None and output <= limits.PURE_PREFILL_OUTPUT_TOKENS:
        return NOTHING
    for series in case.figures.series:
        slow = series.where(tuple(_is_slowed(sample) for sample in series.samples))
        running = slow.values("num_running")
        if len(slow.samples) < limits.QUEUE_LEAST_SAMPLES or slow.duration_s < limits.STALL_LEAST_S:
            continue
        if max(running) != min(running) or not slow.highest("prompt_tokens_per_s"):
            continue
        each = (slow.mean("generation_tokens_per_s") or 0.0) / running[0]
        usual = max(
            ((one.generation_tokens_per_s or 0.0) / one.num_running for one in series.samples if one.num_running),
            default=0.0,
        )
        if usual < max(_DECODES, limits.STALL_RATIO * each):
            continue
        text = (
            f"For {span(slow.duration_s)} the same {amount(running[0])} requests get {each:.2f} tokens/s each, not "
            f"{usual:.1f} as at other times, while {amount(slow.mean('prompt_tokens_per_s') or 0.0)} prompt tokens/s "
            "are computed: they decode behind chunks of prompts, or their answers are a few tokens long."
        )
        discriminate = (
            "chunks: with a smaller max_num_batched_tokens decodes go on beside the prompts",
            "prefill: requests of a few output tokens spend their time there whatever the chunk",
        )
        refuted = ["Gaps as long in intervals without any prefill."]
        return found("chunk_missized", "weak", [text], refuted, {"direction": "down"}, discriminate, (BUDGET,))
    return NOTHING


def _is_slowed(sample: EngineSample) -> bool:
    """Several run, and hardly a token a second comes out for each."""
    running, rate = sample.num_running or 0.0, sample.generation_tokens_per_s
    return running >= 2 and rate is not None and rate < running
