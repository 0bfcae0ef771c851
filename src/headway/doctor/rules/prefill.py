"""Prompts arrive faster than they can be computed."""

from __future__ import annotations

from math import ceil

from headway.doctor.diagnosis import Confidence, Missing
from headway.doctor.figures import Series, expected_kv_usage, main_load
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent, span
from headway.doctor.rules.missing import PROMPT_THROUGHPUT, RUNNING

WAITED_TTFT_S = 1.0
"""A first token that comes earlier did not wait long enough to speak of a queue."""
_PROMPTS_RULE = 8.0
"""Prompt tokens for each output token from which a request's compute is its prompt's, decodes in batches or not."""
_BUSY_SHARE = 0.5
"""Of what is possible, or of a request's time, from which prefill is what the device is busy with."""
_LONG_ENOUGH = 1024
"""Prompt tokens from which the time to first token of a single request is its prefill's."""
_FIRST_TOKEN = ("median_ttft_ms", "p50_ttft_ms", "mean_ttft_ms")
_REFUTED = [
    "Running at max_num_seqs or KV usage at 90 % while requests wait: then those are the gate.",
    "A queue that stays as deep when the same requests come with prompts half as long.",
]


def offered_prefill_tokens_per_s(case: Case) -> float | None:
    """Prompt tokens a second that clients offer, less what the prefix cache saves."""
    rate, tokens = case.figures.load.requests_per_s, case.figures.load.mean_computed_prompt_tokens
    return rate * tokens if rate and tokens else None


def measured_prefill_tokens_per_s(case: Case) -> float | None:
    """Prompt tokens a second while prefill keeps the engine busy: the middle of the samples that show most of it.

    Engines count a prompt's tokens when the prompt is done: a long one shows nothing for a while and then more than one
    interval computed. Where intervals without prompt tokens are as slow as those with, they count as prefill too, and
    the mean over all of them is taken.
    """
    queue = case.queue
    chosen = (queue.series,) if queue is not None and queue.is_lasting else case.figures.series
    rates = [rate for series in chosen if (rate := _prefill_rate(series)) is not None]
    return max(rates, default=None)


def _prefill_rate(series: Series) -> float | None:
    values = series.values("prompt_tokens_per_s")
    busy = sorted(value for value in values if value > 0 and value >= max(values) / 2)
    if not busy:
        return None
    hidden = slowed_without_prompts(series)
    if not any(hidden):
        return busy[len(busy) // 2]
    counts = tuple(
        is_hidden or (sample.prompt_tokens_per_s or 0.0) >= limits.STALL_PROMPT_TOKENS_PER_S
        for sample, is_hidden in zip(series.samples, hidden, strict=True)
    )
    return series.where(counts).mean("prompt_tokens_per_s")


def slowed_without_prompts(series: Series) -> tuple[bool, ...]:
    """By sample: decodes are far slower than at their best although no prompt was counted."""
    rates = [
        sample.generation_tokens_per_s / sample.num_running
        if sample.generation_tokens_per_s is not None and sample.num_running
        else None
        for sample in series.samples
    ]
    best = max((rate for rate in rates if rate is not None), default=0.0)
    return tuple(
        rate is not None
        and rate * limits.STALL_RATIO < best
        and (sample.prompt_tokens_per_s or 0.0) < limits.STALL_PROMPT_TOKENS_PER_S
        for sample, rate in zip(series.samples, rates, strict=True)
    )


def judge(case: Case) -> Ruling:
    """Prefill is what the device is busy with, and requests wait for it."""
    queue, load = case.queue, case.figures.load
    texts: list[str] = []
    figures: dict[str, float | str | bool] = {}
    waits = queue is not None and queue.is_lasting and queue.gate == "prefill"
    if queue is None and _is_said(case):
        return _from_words(case)
    pure = load.mean_output_tokens is not None and load.mean_output_tokens <= limits.PURE_PREFILL_OUTPUT_TOKENS
    offered, capacity = offered_prefill_tokens_per_s(case), _capacity(case)
    if offered is not None:
        figures["offered_prefill_tps"] = offered
    if capacity is not None:
        figures["prefill_capacity_tps"] = capacity[0]
    exceeds = offered is not None and capacity is not None and offered >= limits.OFFERED_MARGIN * capacity[0]
    if waits and queue is not None:
        texts.append(_queue_words(case))
    if pure and load.mean_prompt_tokens:
        texts.append(
            f"With {amount(load.mean_output_tokens or 0)} output tokens for {amount(load.mean_prompt_tokens)} prompt "
            "tokens the load is nearly all prefill."
        )
        texts += _closed_loop(case, figures)
    if offered is not None and load.requests_per_s is not None:
        text = (
            f"Offered: {load.requests_per_s:g} requests/s of {amount(load.mean_computed_prompt_tokens or 0)} prompt "
            f"tokens, {amount(offered)} tokens/s of prefill"
        )
        text += f", against {amount(capacity[0])} ({capacity[1]})." if capacity is not None else "."
        texts.append(text)
    late = _late_first_tokens(case) if queue is None else NOTHING
    if late.bottleneck is not None:
        return late
    if not texts:
        return _slow_first_token(case)
    blocked = queue is not None and queue.is_lasting and queue.gate in ("seats", "kv", "both", "standstill", "other")
    if blocked or not (waits or exceeds or (pure and _is_crowded(case))):
        return NOTHING
    texts += _not_the_gate(case)
    return found(
        "prefill_compute_bound", _confidence(case, waits, pure, exceeds), texts, _REFUTED, figures, (), _ask(case)
    )


_MUCH, _LITTLE = frozenset(("many", "high", "growing")), frozenset(("few", "low", "no", "near zero", "empty"))


def _is_said(case: Case) -> bool:
    """Somebody says in words that many wait although few run and the KV cache has room."""
    stated, kv = case.evidence.stated, case.figures.highest("kv_usage")
    seats, running = case.settings.max_num_seqs, case.figures.highest("num_running")
    if seats is not None and running is not None and running >= limits.SEATS_FREE * seats:
        return False
    return (
        stated.get("num_waiting") in _MUCH
        and (stated.get("kv_usage") in _LITTLE if kv is None else kv < limits.KV_ROOM)
        and stated.get("num_running") in _LITTLE | {None}
    )


def _from_words(case: Case) -> Ruling:
    texts = ["Requests are said to wait while KV usage is low and few run: neither blocks nor seats hold them back."]
    figures: dict[str, float | str | bool] = {}
    if (offered := offered_prefill_tokens_per_s(case)) is not None:
        figures["offered_prefill_tps"] = offered
        texts.append(f"Offered are {amount(offered)} prompt tokens/s.")
    return found("prefill_compute_bound", "medium", texts, _REFUTED, figures, (), (PROMPT_THROUGHPUT, RUNNING))


def _late_first_tokens(case: Case) -> Ruling:
    """A closed loop of prompts with few output tokens, whose requests pass most of their time before the first token.

    Without gauges of the engine; blocks and seats that are known to hold all clients are no gate.
    """
    load, figures = case.figures.load, case.figures
    prompt, output, clients = load.mean_computed_prompt_tokens, load.mean_output_tokens, load.concurrency
    ttft = figures.value("mean_ttft_ms", "p50_ttft_ms", "median_ttft_ms")
    if figures.highest("num_running") is not None or not prompt or output is None or ttft is None:
        return NOTHING
    if not clients or clients < 2 or ttft < 1e3 * WAITED_TTFT_S or prompt < _PROMPTS_RULE * output:
        return NOTHING
    seats, expected = case.settings.max_num_seqs, expected_kv_usage(figures)
    if (seats is not None and clients > seats) or (expected is not None and expected > limits.KV_TIGHT):
        return NOTHING
    rate, share = load.completed_per_s or clients / (ttft / 1e3 + _decode_s(case, output)), _ttft_share(case, ttft)
    capacity = _capacity(case)
    computed = rate * prompt
    if capacity is not None and computed < _BUSY_SHARE * capacity[0]:
        return NOTHING
    if capacity is None and share < _BUSY_SHARE:
        return NOTHING
    texts = [
        f"{clients} clients wait {span(ttft / 1e3)} for a first token, {percent(min(1.0, share))} of a request's time, "
        f"and {percent(prompt / (prompt + output))} of all tokens are prompt tokens.",
        f"{amount(computed)} prompt tokens/s are computed"
        + (f", of {amount(capacity[0])} that are possible ({capacity[1]})." if capacity is not None else "."),
    ]
    numbers: dict[str, float | str | bool] = {"prefill_tokens_per_s": computed, "loop": "closed"}
    return found("prefill_compute_bound", "medium", texts, _REFUTED, numbers, (), (RUNNING, PROMPT_THROUGHPUT))


def _decode_s(case: Case, output: float) -> float:
    gap = case.figures.value("mean_tpot_ms", "mean_itl_ms", "p50_tpot_ms", "median_itl_ms", "p50_itl_ms") or 0.0
    return max(0.0, output - 1) * gap / 1e3


def _ttft_share(case: Case, ttft_ms: float) -> float:
    """Part of a request's time that passes before its first token, from Little's law or from its other tokens' gaps."""
    load, total = case.figures.load, case.figures.value("mean_e2el_ms", "p50_e2el_ms", "median_e2el_ms")
    if total is None and load.completed_per_s and load.concurrency:
        total = 1e3 * load.concurrency / load.completed_per_s
    if total is None:
        total = ttft_ms + 1e3 * _decode_s(case, load.mean_output_tokens or 0.0)
    return ttft_ms / max(total, 1e-9)


def _confidence(case: Case, waits: bool, pure: bool, exceeds: bool) -> Confidence:
    queue = case.queue
    if waits and queue is not None:
        prompt = queue.prompt_tokens_per_s
        rules = prompt is not None and prompt >= limits.PREFILL_TOKEN_SHARE * (
            prompt + (queue.generation_tokens_per_s or 0)
        )
        if pure or exceeds or (rules and queue.kv_usage is not None and queue.seats is not None):
            return "strong"
        return "medium" if prompt is not None or queue.is_growing else "weak"
    if pure and case.figures.highest("num_running") is not None:
        return "strong"
    return "medium"


def _capacity(case: Case) -> tuple[float, str] | None:
    """Prompt tokens a second that the deployment computes, and how that is known."""
    queue, budget = case.queue, case.settings.max_num_batched_tokens
    measured = measured_prefill_tokens_per_s(case)
    if measured is not None and queue is not None and queue.is_lasting and queue.gate == "prefill":
        return measured, "measured while requests waited"
    if (alone := _single_stream(case)) is not None:
        return alone, "measured with a single stream"
    if case.physics is not None and budget is not None:
        return case.physics.prefill_tokens_per_s(min(budget, 1 << 16)), "by physics"
    return None


def _single_stream(case: Case) -> float | None:
    """Prompt tokens a second that one request of the same lengths gets by itself, where that was measured."""
    main = main_load(case.evidence)
    for load in case.evidence.loads:
        ttft = next((load.measured[key] for key in _FIRST_TOKEN if load.measured.get(key)), None)
        if load is main or load.concurrency != 1 or main is None or not ttft or not load.mean_prompt_tokens:
            continue
        is_same = load.mean_prompt_tokens == main.mean_prompt_tokens and load.settings == main.settings
        if is_same and load.mean_prompt_tokens >= _LONG_ENOUGH and not case.figures.load.prefix_hit_rate:
            return 1e3 * load.mean_prompt_tokens / ttft
    return None


def _is_crowded(case: Case) -> bool:
    """A closed loop whose prompts together fill the step budget."""
    load, budget, queue = case.figures.load, case.settings.max_num_batched_tokens, case.queue
    if queue is not None and queue.num_waiting >= max(1.0, queue.num_running):
        return True
    demand = (load.concurrency or 0) * (load.mean_computed_prompt_tokens or 0)
    return budget is not None and demand >= budget


def _closed_loop(case: Case, figures: dict[str, float | str | bool]) -> list[str]:
    """A fixed number of clients that send again as soon as they are answered."""
    load, budget = case.figures.load, case.settings.max_num_batched_tokens
    if load.concurrency is None or load.requests_per_s is not None:
        return []
    tokens = load.concurrency * (load.mean_computed_prompt_tokens or 0)
    figures |= {"loop": "closed", "offered_tokens_per_round": tokens}
    text = f"{load.concurrency} clients send again as soon as they are answered: {amount(tokens)} prompt tokens a round"
    text += f", for a budget of {budget:,} tokens a step ({tokens / budget:.1f} steps)." if budget else "."
    return [text]


def _queue_words(case: Case) -> str:
    queue = case.queue
    assert queue is not None
    text = f"{amount(queue.num_waiting)} requests wait while {amount(queue.num_running)} run"
    if queue.seats is not None:
        text += f" of {queue.seats} seats"
    if queue.kv_usage is not None:
        text += f", at KV usage {percent(queue.kv_usage)}"
    if queue.is_growing and queue.growth_per_s is not None:
        text += f"; the queue gains {60 * queue.growth_per_s:.1f} a minute"
    elif case.evidence.stated.get("num_waiting") == "growing":
        text += "; the queue is said to grow"
    if queue.prompt_tokens_per_s is not None:
        text += f"; {amount(queue.prompt_tokens_per_s)} prompt tokens/s are computed"
    return f"{text}."


def _not_the_gate(case: Case) -> list[str]:
    if case.queue is None or case.queue.kv_usage is None or case.queue.gate != "prefill":
        return []
    return ["Neither seats nor KV blocks hold requests back: scaling on KV usage would miss this."]


def _ask(case: Case) -> tuple[Missing, ...]:
    if case.figures.highest("num_running") is None:
        return (RUNNING, PROMPT_THROUGHPUT)
    return () if case.figures.highest("prompt_tokens_per_s") is not None else (PROMPT_THROUGHPUT,)


def _slow_first_token(case: Case) -> Ruling:
    """The objective on the first token is missed although nothing waits: computing the prompt takes that long."""
    missed, physics = case.violates("ttft"), case.physics
    prompt, budget = case.figures.load.mean_computed_prompt_tokens, case.settings.max_num_batched_tokens
    if missed is None or physics is None or not prompt or budget is None or (case.queue and case.queue.is_lasting):
        return NOTHING
    key, value, bound = missed
    rounds = ceil(prompt / budget)
    own_s = rounds * physics.mixed_step_s(max(1, round(prompt / rounds)))
    if 1e3 * own_s < 0.5 * value:
        return NOTHING
    text = (
        f"{key} is {amount(value)} ms for a bound of {amount(bound)} ms, and computing a prompt of {amount(prompt)} "
        f"tokens takes about {span(own_s)} by itself: nothing waits, the device needs that long."
    )
    return found("prefill_compute_bound", "medium", [text], _REFUTED, {"prefill_s": own_s})
