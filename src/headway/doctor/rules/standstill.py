"""Nothing moves, or something other than seats, blocks and prompts holds requests back."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil

from headway.doctor.diagnosis import Confidence
from headway.doctor.figures import Series
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent, span
from headway.evidence.engine import EngineSample


def judge_impossible(case: Case) -> Ruling:
    """The head of the queue needs more blocks than there are: nothing runs, and everybody waits behind it."""
    stuck = _longest(case, lambda one: (one.num_waiting or 0) >= 1 and one.num_running == 0 and not _is_full(one))
    pool, length = case.settings.kv_tokens, case.settings.max_model_len
    longest = case.evidence.plan.longest_admissible if case.evidence.plan is not None else None
    admissible = min((value for value in (pool, longest) if value), default=None)
    exceeds = admissible is not None and length is not None and length > admissible
    figures: dict[str, float | str | bool] = {}
    texts: list[str] = []
    if exceeds and admissible is not None:
        figures["longest_admissible_tokens"] = float(admissible)
        texts.append(
            f"max_model_len {length:,} lets requests in that are longer than the {admissible:,} tokens that the KV "
            "cache can ever hold for one request."
        )
    refuted = [
        "A request that starts while the same head still waits.",
        "Running above 0 or any token within the next minutes.",
    ]
    if stuck is None:
        stuck = _only_sample(case)
    if stuck is None:
        if not exceeds or not case.figures.has_run or case.settings.kv_source == "planned":
            return NOTHING  # vLLM starts only if one request fits: an engine that runs refutes the estimate
        texts.append("No sample shows it happening: the first such request will block all behind it.")
        return found("impossible_request_at_queue_head", "weak", texts, refuted, figures)
    waiting = stuck.last("num_waiting") or 0
    seen = f"{len(stuck.samples)} samples over {span(stuck.duration_s)}" if len(stuck.samples) > 1 else "One sample"
    texts.insert(
        0,
        f"{seen}: nothing runs, {amount(waiting)} requests wait, "
        f"and no token is computed, at KV usage {percent(stuck.mean('kv_usage') or 0.0)}. Blocks and seats are free: "
        "the first in the queue can never be scheduled.",
    )
    confidence: Confidence = "strong" if exceeds or len(stuck.samples) > limits.STALL_LEAST_SAMPLES else "medium"
    figures["num_waiting"] = waiting
    return found("impossible_request_at_queue_head", confidence, texts, refuted, figures)


def _only_sample(case: Case) -> Series | None:
    """The only sample there is, if several wait in it with nothing running and blocks free: no step leaves that."""
    samples = [sample for series in case.figures.series for sample in series.samples]
    if len(samples) != 1 or samples[0].num_running != 0 or (samples[0].num_waiting or 0) < 2:
        return None
    is_free = samples[0].kv_usage is not None and samples[0].kv_usage < limits.KV_ROOM
    return Series((samples[0],)) if is_free and _is_still(samples[0]) else None


def judge_stall(case: Case) -> Ruling:
    """Requests run, and hardly a token comes out; blocks are free, or at least do not explain it alone."""
    stuck = _longest(case, lambda sample: (sample.num_running or 0) > 0 and not _is_full(sample))
    if stuck is None:
        stuck = _longest(case, lambda sample: (sample.num_running or 0) > 0)
    if stuck is None or _takes_blocks(stuck):
        return NOTHING
    rate, running = stuck.mean("generation_tokens_per_s") or 0.0, stuck.mean("num_running") or 0.0
    kv = stuck.mean("kv_usage")
    text = (
        f"{len(stuck.samples)} samples in a row: {amount(running)} requests run, yet {rate:.1f} tokens/s are generated "
        "and no prompt tokens are finished"
    )
    text += f", at KV usage {percent(kv)}." if kv is not None else "."
    texts = [text, "A step that neither computes prompts nor decodes is held up outside the scheduler."]
    texts += [
        f"Line {event.line} of the log: “{event.text[:160]}”."
        for event in case.evidence.events
        if event.kind in ("jit", "error")
    ][:3]
    later = _after(case, stuck)
    computed = _computed_rate(case, stuck, later)
    figures: dict[str, float | str | bool] = {"num_running": running, "generation_tokens_per_s": rate}
    if later:
        texts.append(f"Afterwards {later:,.0f} prompt tokens/s are reported at once: work had piled up.")
    is_prefill = computed is not None and computed >= limits.PLAUSIBLE_PREFILL
    confidence: Confidence = "strong" if kv is not None and kv < limits.KV_ROOM and not is_prefill else "medium"
    if kv is not None and kv >= limits.KV_FULL:
        confidence = "weak"
    return found(
        "engine_stall_other",
        confidence,
        texts,
        [
            "A single prompt of tens of thousands of tokens in this interval: its tokens are counted when it is done.",
            "KV usage near 100 %, which would make it a matter of blocks.",
        ],
        figures,
        (
            "host: multimodal preprocessing, tokenising or grammar compilation; look at the CPU time of the API server",
            "JIT or graph compilation: warnings in the log at these instants",
            "device: a hung collective; compare the ranks' logs",
        ),
    )


def _takes_blocks(stuck: Series) -> bool:
    """The same requests take more blocks in every sample: chunks of a long prompt, which counts when it is done."""
    usage, running = stuck.values("kv_usage"), stuck.values("num_running")
    if len(usage) < limits.QUEUE_LEAST_SAMPLES or max(running) != min(running):
        return False
    rises = all(before < after for before, after in pairwise(usage))
    return rises and usage[-1] - usage[0] >= limits.PREFILL_USAGE


def judge_lora(case: Case) -> Ruling:
    """Requests wait for a LoRA slot: seats and blocks are free, but max_loras adapters are in the batch."""
    facts, slots = case.evidence.facts, case.settings.max_loras
    running, waiting = set(facts.lora_running), set(facts.lora_waiting)
    if may_be_adapters(case):
        return _adapters_by_elimination(case, slots or 1)
    others = waiting - running
    if not others or slots is None or len(running) < slots:
        return NOTHING
    queue = case.queue
    if queue is not None and queue.gate in ("seats", "kv", "both"):
        return NOTHING
    text = (
        f"{len(running)} adapters run, as many as max_loras {slots} allows; requests for {len(others)} others wait "
        f"({', '.join(sorted(others)[:5])})"
    )
    text += (
        f" while {amount(queue.num_running)} requests run and KV usage is {percent(queue.kv_usage or 0.0)}."
        if queue
        else "."
    )
    return found(
        "lora_slots",
        "strong" if queue is not None and queue.is_lasting else "medium",
        [text],
        ["Waiting requests whose adapter is among the running ones.", "Running at max_num_seqs, or KV usage at 90 %."],
        {"max_loras": float(slots), "num_adapters": float(len(running | waiting))},
    )


def may_be_adapters(case: Case) -> bool:
    """Adapters are served, nothing else explains the queue, and nothing tells which adapters run."""
    queue, effective = case.queue, case.evidence.effective
    if queue is None or not queue.is_lasting or queue.gate != "other" or effective is None:
        return False
    is_told = bool(case.evidence.facts.lora_running or case.evidence.facts.lora_waiting)
    return effective.value("enable_lora") is True and not is_told


def _adapters_by_elimination(case: Case, slots: int) -> Ruling:
    queue = case.queue
    assert queue is not None
    text = (
        f"{amount(queue.num_waiting)} requests wait while {amount(queue.num_running)} run; seats and blocks are free "
        f"and no prompt is computed. Adapters are served with max_loras {slots}: a request whose adapter is not among "
        f"the {slots} in the batch waits until one leaves."
    )
    wanted = float(slots + ceil(queue.num_waiting))
    return found(
        "lora_slots",
        "medium",
        [text],
        ["Waiting requests whose adapter is among the running ones.", "A queue of requests to the base model alone."],
        {"max_loras": float(slots), "num_adapters": wanted},
        ("adapters: vllm:lora_requests_info lists those that run and those that wait",),
    )


def _is_still(sample: EngineSample) -> bool:
    """No token moves, however many requests there are."""
    generation, prompt = sample.generation_tokens_per_s, sample.prompt_tokens_per_s
    if generation is None:
        return sample.num_running == 0 and not prompt
    running = max(1.0, sample.num_running or 0.0)
    return generation / running < limits.STALL_TOKENS_PER_S and (prompt or 0.0) < limits.STALL_PROMPT_TOKENS_PER_S


def _is_full(sample: EngineSample) -> bool:
    return sample.kv_usage is not None and sample.kv_usage >= limits.KV_TIGHT


def _longest(case: Case, holds: Callable[[EngineSample], bool]) -> Series | None:
    """The longest stretch of still samples for which a condition holds, if it is long enough."""
    best: list[EngineSample] = []
    for series in case.figures.series:
        current: list[EngineSample] = []
        for sample in series.samples:
            if not (holds(sample) and _is_still(sample)):
                current = []
                continue
            current.append(sample)
            if len(current) > len(best):
                best = current
    if len(best) < limits.STALL_LEAST_SAMPLES:
        return None
    stretch = Series(tuple(best))
    covered_s = stretch.duration_s * len(best) / (len(best) - 1)
    return None if 0 < covered_s < limits.STALL_LEAST_S else stretch


def _after(case: Case, stuck: Series) -> float | None:
    """Prompt tokens a second of the first sample after a stretch."""
    last = stuck.samples[-1]
    for series in case.figures.series:
        if last in series.samples:
            index = series.samples.index(last)
            following = series.samples[index + 1 : index + 2]
            return next((one.prompt_tokens_per_s for one in following if one.prompt_tokens_per_s), None)
    return None


def _computed_rate(case: Case, stuck: Series, later: float | None) -> float | None:
    """Prompt tokens a second that were really computed, if what is reported after a stretch was worked on in it."""
    if later is None or stuck.duration_s <= 0:
        return None
    interval_s = stuck.duration_s / (len(stuck.samples) - 1)
    tokens = later * interval_s * (1 - (case.figures.load.prefix_hit_rate or 0.0))
    return tokens / (stuck.duration_s + 2 * interval_s)
