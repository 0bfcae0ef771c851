"""KV blocks run out: with a warning, silently, for one huge request, at the door, or soon."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from headway.doctor.diagnosis import Confidence
from headway.doctor.figures import Forecast, Series, expected_kv_usage, forecast
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent, span
from headway.doctor.rules.sweep import latency_of

_RANK: dict[Confidence, int] = {"strong": 0, "medium": 1, "weak": 2}
_GAPS = ("mean_tpot_ms", "median_tpot_ms", "p50_tpot_ms", "mean_itl_ms", "median_itl_ms", "p50_itl_ms")
_BY_OUTPUT = 0.5
"""Share of what a huge request holds that it was seen to generate, from which a limit on outputs would have helped."""
_CLIFF = 2.0
"""Times per token grow at most in proportion to the batch; twice that is no batch's doing."""
LEAK_OR_RUNAWAY = (
    "leak: num_requests_running == 0 and KV usage > 0 once the load has stopped",
    "runaway: num_requests_running > 0 and no completions (request_success_total stands still); outputs without "
    "max_tokens look like this",
)


@dataclass(frozen=True, slots=True)
class _Facet:
    """One way in which starvation shows."""

    confidence: Confidence
    evidence: tuple[str, ...]
    figures: dict[str, float | str | bool] = field(default_factory=dict)
    discriminate: tuple[str, ...] = ()


def judge(case: Case) -> Ruling:
    """KV starvation, from every trace it leaves."""
    makers = (_warned, _counted, _silent, _swapped, _hog, _at_the_door, _deadlocked, _cliff, _filling, _arithmetic)
    facets = [facet for maker in makers if (facet := maker(case)) is not None]
    if not facets:
        return _excluded(case)
    facets.sort(key=lambda facet: _RANK[facet.confidence])
    figures = {name: value for facet in reversed(facets) for name, value in facet.figures.items()}
    return found(
        "kv_starvation",
        facets[0].confidence,
        [sentence for facet in facets for sentence in facet.evidence],
        [
            "KV usage that stays below 90 % while requests wait.",
            "vllm:num_preemptions_total that does not grow over ten minutes under the same load.",
        ],
        figures,
        tuple(dict.fromkeys(text for facet in facets for text in facet.discriminate)),
    )


def _excluded(case: Case) -> Ruling:
    highest, expected = case.figures.highest("kv_usage"), expected_kv_usage(case.figures)
    if highest is not None and highest < limits.KV_ROOM and not _preempted(case):
        reason = f"KV usage never exceeds {percent(highest)}, and nothing was preempted as far as it is told."
    elif highest is None and expected is not None and expected < limits.KV_ROOM:
        reason = f"All requests at their full length take at most {percent(expected)} of the KV cache."
    else:
        return NOTHING
    return Ruling(ruled_out={"kv_starvation": reason})


def _preempted(case: Case) -> bool:
    return bool(case.figures.preemptions and case.figures.preemptions.count > 0)


def _warned(case: Case) -> _Facet | None:
    """Preemption warnings of V0, or whatever log lines say so."""
    events = [event for event in case.evidence.events if event.kind == "preemption"]
    if not events:
        return None
    last = events[-1]
    counts = [
        float(value) for event in events if isinstance(value := event.fields.get("cumulative_preemptions"), int | float)
    ]
    mode = last.fields.get("mode")
    total = counts[-1] if counts else float(len(events))
    text = f"The log warns of preemption: {amount(total)} so far"
    figures: dict[str, float | str | bool] = {"cumulative_preemptions": total}
    if mode:
        text += f", mode {mode}"
        figures["mode"] = mode
    times = [event.at_s for event in events if event.at_s is not None]
    if len(times) > 1 and len(counts) > 1 and times[-1] > times[0]:
        rate = (counts[-1] - counts[0]) / (times[-1] - times[0])
        figures["preemptions_per_s"] = rate
        text += f", {60 * rate:.1f} a minute"
    return _Facet("strong", (f"{text}. Each one computes its request's context again.",), figures)


def _counted(case: Case) -> _Facet | None:
    """The preemption counter, against the requests that finished."""
    seen = case.figures.preemptions
    if seen is None or seen.count <= 0:
        return None
    share = seen.per_request
    when = "since the engine started" if seen.is_since_start else "while it was watched"
    if share is not None:
        if share < limits.PREEMPTED_SHARE:
            return None
        confidence: Confidence = "strong" if share >= limits.PREEMPTED_OFTEN else "medium"
        text = f"{amount(seen.count)} preemptions {when} for {amount(seen.num_finished or 0)} finished requests."
    else:
        highest = case.figures.highest("kv_usage")
        is_full = highest is not None and highest >= limits.KV_TIGHT
        if seen.is_since_start and not is_full:
            return None
        if seen.count < 2 and not is_full:
            return None
        confidence = "strong" if is_full and not seen.is_since_start else "medium"
        text = f"{amount(seen.count)} preemptions {when}"
        text += f", with KV usage up to {percent(highest)}." if highest is not None else "."
    figures: dict[str, float | str | bool] = {"num_preemptions": seen.count}
    if share is not None:
        figures["preemptions_per_request"] = share
    return _Facet(confidence, (text,), figures)


def _silent(case: Case) -> _Facet | None:
    """Nobody warns, but running requests turn into waiting ones one for one while the cache is full."""
    for series in case.figures.series:
        running, waiting, kv = (series.values(name) for name in ("num_running", "num_waiting", "kv_usage"))
        if len(running) < limits.QUEUE_LEAST_SAMPLES or not len(running) == len(waiting) == len(kv):
            continue
        totals = [one + other for one, other in zip(running, waiting, strict=True)]
        fallen, grown = running[0] - running[-1], waiting[-1] - waiting[0]
        is_conserved = max(totals) - min(totals) <= max(1.0, 0.002 * max(totals))
        falls = all(later <= earlier for earlier, later in pairwise(running))
        if min(kv) < limits.KV_FULL or not is_conserved or not falls or grown <= 0:
            continue
        if fallen < max(2.0, limits.SILENT_FALL * running[0]):
            continue
        text = (
            f"Running falls from {amount(running[0])} to {amount(running[-1])} while waiting rises by {amount(grown)}: "
            f"their sum stays {amount(totals[-1])} at KV usage {percent(min(kv))} or more. At least {amount(fallen)} "
            "requests were preempted and sent back to the queue, without any warning line."
        )
        return _Facet("strong", (text,), {"infer_preemptions": fallen, "conserved_total": totals[-1]})
    return None


def _swapped(case: Case) -> _Facet | None:
    highest = case.figures.highest("num_swapped")
    if not highest:
        return None
    text = f"Up to {amount(highest)} requests were swapped out to the CPU: their blocks were taken for others."
    return _Facet("strong", (text,), {"num_swapped": highest})


def _hog(case: Case) -> _Facet | None:
    """One or two running requests own most of the pool; the others wait for room. Slow, but no deadlock."""
    queue = case.queue
    if queue is None or queue.share < limits.QUEUE_SHARE or queue.kv_usage is None or queue.num_waiting < 1:
        return None
    running, kv, rate = queue.num_running, queue.series.last("kv_usage") or 0.0, queue.generation_tokens_per_s
    if not 0 < running <= limits.HOG_RUNNING or queue.kv_usage < limits.HOG_USAGE:
        return None
    if not rate or rate < limits.STALL_TOKENS_PER_S:
        return None
    pool = pool_tokens_from_slope(queue.series) or case.settings.kv_tokens
    grown = _generated_share(queue.series)
    texts = [
        f"{amount(running)} running request holds {percent(kv)} of the KV cache; {amount(queue.num_waiting)} wait, and "
        f"the first of them needs more than the {percent(1 - kv)} that is free.",
        f"It is slow, not deadlocked: {amount(rate)} tokens/s still flow.",
    ]
    figures: dict[str, float | str | bool] = {"not_deadlock": True, "by_output": grown >= _BY_OUTPUT}
    if grown < _BY_OUTPUT:
        texts.append("Little of that was generated while it was watched: it is its prompt that is long.")
    if pool is not None:
        figures |= {"kv_tokens_about": float(pool), "running_context_tokens_about": kv * pool}
        texts.append(
            f"The pool holds about {amount(pool)} tokens, and the running context is about {amount(kv * pool)} tokens."
        )
    return _Facet("strong", tuple(texts), figures)


def _generated_share(series: Series) -> float:
    """Part of what is held at the end that the same requests took while they generated, and no prompt was computed."""
    taken = 0.0
    for before, after in pairwise(series.samples):
        if before.kv_usage is None or after.kv_usage is None or before.num_running != after.num_running:
            continue
        if (after.prompt_tokens_per_s or 0.0) < limits.STALL_PROMPT_TOKENS_PER_S:
            taken += max(0.0, after.kv_usage - before.kv_usage)
    last = series.last("kv_usage") or 0.0
    return taken / last if last > 0 else 0.0


def pool_tokens_from_slope(series: Series) -> float | None:
    """Size of the pool: tokens generated a second over the share of the pool that they fill a second.

    Only where nothing else moves blocks: the same requests run, and no prompt is computed.
    """
    trend, prompt = series.trend("kv_usage"), series.highest("prompt_tokens_per_s")
    running, rate = series.values("num_running"), series.mean("generation_tokens_per_s")
    if trend is None or trend.per_s <= 0 or not rate or not running or max(running) != min(running):
        return None
    return rate / trend.per_s if (prompt or 0.0) < limits.STALL_PROMPT_TOKENS_PER_S else None


def _at_the_door(case: Case) -> _Facet | None:
    """Requests wait with seats free and the cache full."""
    queue = case.queue
    if queue is None or not queue.is_lasting or queue.gate not in ("kv", "both") or queue.kv_usage is None:
        return None
    if queue.num_running <= limits.HOG_RUNNING and queue.kv_usage < limits.KV_TIGHT:
        return None
    text = f"{amount(queue.num_waiting)} requests wait while KV usage is {percent(queue.kv_usage)}"
    if queue.gate == "both":
        text += f"; {amount(queue.num_running)} run, which is also every seat."
        return _Facet("medium", (text,))
    if queue.seats is not None:
        text += f" and only {amount(queue.num_running)} of {queue.seats} seats are taken"
    is_full = queue.kv_usage >= limits.KV_FULL
    return _Facet("strong" if is_full and queue.seats is not None else "medium", (f"{text}: blocks are the gate.",))


def _deadlocked(case: Case) -> _Facet | None:
    """No token moves, every block is taken, and requests wait: nobody gets the next block, nobody gives one back."""
    queue = case.queue
    if queue is None or not queue.is_lasting or queue.gate != "standstill" or not queue.num_running:
        return None
    if queue.kv_usage is None or queue.kv_usage < limits.KV_FULL:
        return None
    text = (
        f"Nothing moves: {amount(queue.num_running)} requests run, {amount(queue.num_waiting)} wait, and KV usage is "
        f"{percent(queue.kv_usage)}, so that none gets its next block."
    )
    return _Facet("medium", (text,), {"deadlocked": True})


def _cliff(case: Case) -> _Facet | None:
    """A sweep in which the time per token jumps where the cache becomes full: requests are preempted over and over."""
    told = sorted(
        (load.concurrency, load.measured["kv_usage"], gap)
        for load in case.evidence.loads
        if load.concurrency and "kv_usage" in load.measured and (gap := latency_of(load, _GAPS)) is not None
    )
    for (before, kv_before, gap_before), (after, kv_after, gap_after) in pairwise(told):
        if gap_before <= 0 or kv_before >= limits.KV_FULL or kv_after < limits.KV_FULL:
            continue
        if gap_after / gap_before >= _CLIFF * after / before:
            text = (
                f"From {before} to {after} concurrent requests the time per token goes from {span(gap_before)} to "
                f"{span(gap_after)} while KV usage goes from {percent(kv_before)} to {percent(kv_after)}: a larger "
                "batch alone does not do that, requests that are preempted and computed again do."
            )
            return _Facet("strong", (text,), {"concurrency_that_fits": float(before)})
    return None


def is_filling(case: Case) -> Forecast | None:
    """A pool that the same requests fill steadily, near its end and soon full."""
    ahead = forecast(case.figures)
    if ahead is None or ahead.kv_now < limits.FILLING_FROM or ahead.seconds_to_full > limits.FILLING_HORIZON_S:
        return None
    running = ahead.series.values("num_running")
    if running and max(running) - min(running) > max(1.0, limits.FILLING_RUNNING_SPREAD * max(running)):
        return None
    done, duration = case.figures.load.completed_per_s, ahead.series.duration_s
    if done is not None and running and done * duration > 0.1 * max(running):
        return None
    return ahead


def _filling(case: Case) -> _Facet | None:
    ahead = is_filling(case)
    if ahead is None:
        return None
    running = ahead.series.last("num_running")
    text = (
        f"KV usage rises by {100 * ahead.slope_per_s:.3f} points a second to {percent(ahead.kv_now)}"
        f"{f' with {amount(running)} requests running on' if running is not None else ''}: full in about "
        f"{span(ahead.seconds_to_full)}, and then requests are preempted."
    )
    figures: dict[str, float | str | bool] = {
        "kv_now": 100 * ahead.kv_now,
        "slope_pct_per_s": 100 * ahead.slope_per_s,
        "seconds_to_full": ahead.seconds_to_full,
    }
    is_long = len(ahead.series.samples) > limits.QUEUE_LEAST_SAMPLES + 1
    return _Facet("medium" if is_long else "weak", (text,), figures, LEAK_OR_RUNAWAY)


def _arithmetic(case: Case) -> _Facet | None:
    """Without a gauge: the load's requests at their full length do not fit the pool together."""
    settings, load = case.settings, case.figures.load
    expected = expected_kv_usage(case.figures)
    if case.figures.highest("kv_usage") is not None or settings.kv_tokens is None or expected is None:
        return None
    if expected <= 1.0 or not load.concurrency:
        return None
    seats = settings.max_num_seqs
    held = settings.kv_tokens / ((load.mean_prompt_tokens or 0) + (load.mean_output_tokens or 0))
    if seats is not None and seats <= held:
        return None
    text = (
        f"{load.concurrency} concurrent requests of {amount(load.mean_prompt_tokens or 0)} + "
        f"{amount(load.mean_output_tokens or 0)} tokens need {percent(expected)} of the {settings.kv_source} pool of "
        f"{settings.kv_tokens:,} tokens: about {amount(held)} run at once."
    )
    return _Facet("medium", (text,), {"expected_kv_usage": expected, "requests_that_fit": held})
