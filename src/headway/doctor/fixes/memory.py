"""Changes that give the KV cache more room, or the weights fewer bytes; and those that add GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from headway.doctor.diagnosis import Bottleneck, BottleneckKind, Fix
from headway.doctor.fixes.outputs import cap_tokens
from headway.doctor.fixes.values import change, kv_gain_words, least_budget, round_down
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import Case
from headway.doctor.rules.load import demand_of
from headway.doctor.rules.pool import highest_utilization, trial
from headway.planner.fixes import find_fixes

_POOL_SETTINGS = ("num_gpu_blocks_override", "kv_cache_memory_bytes")
"""Either replaces what the engine measures; the first outranks the second."""
USUAL_UTILIZATION = 0.90
_UTILIZATION_GAINS = 2.0
"""A request so many times longer than what fits: the last hundredths of the card's memory do not make up for it."""


# ---------------------------------------------------------------- more blocks


def raise_utilization(case: Case, kind: BottleneckKind, highest: float = limits.HIGHEST_UTILIZATION) -> Iterator[Fix]:
    """More of the card for KV blocks, up to what leaves room for the rest; or more of what sets the pool's size."""
    settings = case.settings
    for setting in _POOL_SETTINGS:
        given = case.evidence.effective.value(setting) if case.evidence.effective is not None else None
        if isinstance(given, int) and given > 0:
            yield from _larger_pool(case, kind, setting, given)
            return
    now = settings.gpu_memory_utilization
    highest = min(highest, highest_utilization(case))
    if now is not None and now >= highest - 0.005:
        return
    gain = kv_gain_words(case, gpu_memory_utilization=highest)
    reason = f"More of the card's memory for KV blocks.{gain}"
    side = "Less room for CUDA graphs and other programs: an out-of-memory error at start shows it."
    yield change("gpu_memory_utilization", now, highest, reason, kind, side)


def _larger_pool(case: Case, kind: BottleneckKind, setting: str, given: int) -> Iterator[Fix]:
    """A pool whose size was given by hand: what memory has room for where that can be planned, else twice as much."""
    plan = trial(case, **{setting: None})
    to = 2 * given
    if plan is not None:
        to = plan.num_gpu_blocks if setting == "num_gpu_blocks_override" else plan.available_kv_cache_bytes
    if to <= given:
        return
    gain = kv_gain_words(case, **{setting: to})
    reason = f"The size of the KV cache is set by hand: gpu_memory_utilization does not change it.{gain}"
    yield change(setting, given, to, reason, kind, "It must fit: an out-of-memory error at start shows if not.")


def _smaller_budget_for_kv(case: Case, kind: BottleneckKind) -> Iterator[Fix]:
    """A budget above 8,192 keeps memory for activations that blocks could have."""
    settings = case.settings
    budget, to = settings.max_num_batched_tokens, 8192
    if budget is None or budget <= to or settings.enable_chunked_prefill is False or to < least_budget(settings):
        return
    gain = kv_gain_words(case, max_num_batched_tokens=to)
    reason = f"Activations for {budget:,} tokens a step take memory from the KV cache.{gain}"
    yield change("max_num_batched_tokens", budget, to, reason, kind, "Long prompts take more steps.")


def fp8_cache(case: Case, kind: BottleneckKind) -> Iterator[Fix]:
    """An FP8 KV cache, where the card computes in FP8 and the cache is not narrow already."""
    settings = case.settings
    card = settings.accelerator
    capability = card.compute_capability if card is not None else None
    if settings.kv_cache_dtype not in (None, "auto", "bfloat16", "float16") or (capability and capability < (8, 9)):
        return
    gain = kv_gain_words(case, kv_cache_dtype="fp8")
    reason = f"Half the bytes a token: nearly twice the tokens in the same memory.{gain}"
    yield change(
        "kv_cache_dtype", settings.kv_cache_dtype or "auto", "fp8", reason, kind, "Check accuracy on your task."
    )


def more_gpus(case: Case, kind: BottleneckKind, reason: str) -> Iterator[Fix]:
    """Twice the GPUs to each replica, where the model's heads allow it."""
    size = case.settings.tensor_parallel_size
    if case.evidence.plan is not None and trial(case, tensor_parallel_size=2 * size) is None:
        return
    side = "Twice the GPUs; steps shrink by less than half, least where cards talk over PCIe."
    yield change("tensor_parallel_size", size, 2 * size, reason, kind, side)


def more_replicas(case: Case, kind: BottleneckKind, reason: str, count: int | None = None) -> Iterator[Fix]:
    now = case.settings.data_parallel_size
    demand = demand_of(case)
    to = max(count or 0, (demand.replicas if demand is not None else 2) * now, now + 1)
    yield change("replicas", now, to, reason, kind, f"{to / now:g} times the GPUs.")


def starved(case: Case, found: Bottleneck) -> Iterator[Fix]:
    """More room, or fewer and shorter requests in it; for one huge request by what made it huge."""
    kind = found.kind
    is_hog = "not_deadlock" in found.figures
    if found.figures.get("by_output") is True or (found.discriminate and not is_hog):
        yield from cap_tokens(case, kind)
    if any(
        name in found.figures
        for name in ("num_preemptions", "infer_preemptions", "cumulative_preemptions", "num_swapped")
    ):
        yield from _fewer_seats(case, found)
    yield from raise_utilization(case, kind)
    yield from _smaller_budget_for_kv(case, kind)
    yield from fp8_cache(case, kind)
    if is_hog:
        yield from _no_hogs(case, found)
    yield from more_gpus(case, kind, "Weights are split, so that each GPU has more room for KV blocks.")
    yield from more_replicas(case, kind, "Fewer requests on each replica's blocks.")


def _no_hogs(case: Case, found: Bottleneck) -> Iterator[Fix]:
    """A shorter longest request, which turns the huge one away."""
    pool, length = found.figures.get("kv_tokens_about"), case.settings.max_model_len
    if isinstance(pool, float) and pool >= 2048 and (length is None or length > pool / 2):
        to = round_down(pool / 2, 256)
        reason = "No request may then own more than half of the pool."
        yield change("max_model_len", length, to, reason, found.kind, "Longer requests are refused.")


def sustainable_seats(case: Case) -> int | None:
    """Requests whose blocks last to their end: by their mean length, else four fifths of those that run now."""
    load, pool = case.figures.load, case.settings.kv_tokens
    running = [value for series in case.figures.series if (value := series.last("num_running")) is not None]
    now = 0.8 * min(running) if running else None
    if pool and load.mean_prompt_tokens is not None and load.mean_output_tokens is not None:
        held = pool / max(1.0, load.mean_prompt_tokens + load.mean_output_tokens)
        return int(min(held, now / 0.8) if now else held)
    return int(now) if now is not None else None


def _fewer_seats(case: Case, found: Bottleneck) -> Iterator[Fix]:
    """Preemption recomputes what was computed: admitting only as many as last to their end saves that work."""
    seats, to = case.settings.max_num_seqs, sustainable_seats(case)
    if to is None and seats is not None and not case.figures.series and not case.settings.is_default("max_num_seqs"):
        to = seats // 2
    if to is None or to < limits.FEW_RUNNING or (seats is not None and to >= seats):
        return
    to = round_down(to, 8)
    reason = "With only as many seats as the blocks carry to their end nothing is preempted and computed twice."
    yield change(
        "max_num_seqs", seats, to, reason, found.kind, "The others wait in the queue rather than in the batch."
    )


def too_little_memory(case: Case, found: Bottleneck) -> Iterator[Fix]:
    """The planner's own list where it does not fit; else what reads fewer bytes a token."""
    plan = case.evidence.plan
    if plan is not None and not plan.fits:
        for fix in find_fixes(plan)[0]:
            yield change(
                fix.setting,
                fix.current,
                fix.value,
                f"It then fits: {fix.kv_cache_tokens:,} KV tokens.",
                found.kind,
                fix.note,
            )
        return
    startup = case.evidence.startup
    if startup is not None and startup.fits is False:
        shorter = list(_shorter_requests(startup.max_model_len, startup.max_model_len_that_fits, found.kind))
        longest, wanted = startup.max_model_len_that_fits, startup.max_model_len
        if longest and wanted and wanted > _UTILIZATION_GAINS * longest:
            yield from shorter
            yield from raise_utilization(case, found.kind)
        else:
            yield from raise_utilization(case, found.kind)
            yield from shorter
        yield from fp8_cache(case, found.kind)
        yield from more_gpus(case, found.kind, "Weights are split over more GPUs.")
        return
    yield from fewer_bytes(case, found)


def _shorter_requests(now: int | None, longest: int | None, kind: BottleneckKind) -> Iterator[Fix]:
    if longest:
        to = round_down(longest, 256) if longest >= 4096 else longest
        yield change("max_model_len", now, to, "The longest that fits.", kind, "Longer requests are refused.")


def fewer_bytes(case: Case, found: Bottleneck) -> Iterator[Fix]:
    """A decode step at the bandwidth floor gets faster only if it reads less, or makes more tokens of it."""
    yield from smaller_weights(case, found.kind)
    yield from fp8_cache(case, found.kind)
    yield from more_gpus(case, found.kind, "Each GPU reads its part of the weights: bandwidth adds up.")


def smaller_weights(case: Case, kind: BottleneckKind) -> Iterator[Fix]:
    model, card = case.settings.model, case.settings.accelerator
    now = case.evidence.effective.value("quantization") if case.evidence.effective is not None else None
    if model is None or model.quantization is not None or now is not None or card is None:
        return
    if card.compute_capability is not None and card.compute_capability >= (8, 9):
        reason = "FP8 weights: half the bytes to read, and arithmetic at twice the rate."
        yield change("quantization", None, "fp8", reason, kind, "Check accuracy on your task.")
