"""One long prompt takes the steps' budget and holds up the short ones behind it."""

from __future__ import annotations

from math import ceil

from headway.doctor.diagnosis import Confidence
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, Values, amount, found
from headway.doctor.rules.prefill import WAITED_TTFT_S
from headway.evidence.figure_names import words_of
from headway.evidence.quantities import quantity

_LEAST_LONG = 1000.0
"""Tokens: a smaller number counts prompts."""


def judge(case: Case) -> Ruling:
    """Half of the requests are quick and a few take ages: they stand behind a long prompt."""
    load, (ratio, slowest_s, words) = case.figures.load, _tail(case)
    rounds, prompt_words = _rounds(case)
    mixed = bool(
        load.longest_prompt_tokens
        and load.median_prompt_tokens
        and load.longest_prompt_tokens >= limits.LONG_PROMPT_RATIO * load.median_prompt_tokens
    )
    is_felt = slowest_s >= WAITED_TTFT_S or case.violates("ttft", "e2el") is not None
    is_tail = ratio >= limits.TAIL_RATIO and is_felt
    lasting = case.queue is not None and case.queue.is_lasting and case.queue.share >= limits.BURST_SHARE
    if (
        rounds is None
        or rounds < limits.LONG_PROMPT_ROUNDS
        or not is_tail
        or (lasting and case.queue and case.queue.is_growing)
    ):
        return NOTHING
    threshold = case.settings.long_prefill_token_threshold or 0
    figures: Values = {"signature": "p50 flat, p99 up", "tail_ratio": ratio, "rounds_for_prompt": float(ceil(rounds))}
    texts = [words, prompt_words]
    if case.settings.is_sglang:
        texts.append(
            "SGLang computes one prompt at a time in chunks: the mechanism that would share a step among prompts is "
            "missing; neither a smaller chunk nor a larger prefill limit changes the shares."
        )
    elif threshold > 0:
        texts.append(f"long_prefill_token_threshold is {threshold} already.")
    else:
        texts.append("long_prefill_token_threshold is off, so that a long prompt takes all that decodes leave.")
    confidence: Confidence = "strong" if mixed or load.median_prompt_tokens is None else "medium"
    return found(
        "long_prompt_hol",
        confidence,
        texts,
        ["Slow requests that come without a long prompt in the engine at the same time.", "A P50 that rises as well."],
        figures,
    )


def _tail(case: Case) -> tuple[float, float, str]:
    """The largest ratio of P99 to P50 of a latency within one run, that P99 in seconds, and how to say it.

    The whole latency stands in for the time to first token: the long requests' own is long whoever waits for them.
    """
    runs = [{key: item.value for key, item in case.figures.measured.items()}]
    runs += [dict(run.measured) for run in case.evidence.loads]
    best, slowest_s, words = 0.0, 0.0, ""
    for run in runs:
        for name in ("ttft",) if "p99_ttft_ms" in run else ("ttft", "e2el"):
            low = run.get(f"p50_{name}_ms", run.get(f"median_{name}_ms"))
            high = run.get(f"p99_{name}_ms")
            if low and high and high / low > best:
                best, slowest_s = high / low, high / 1e3
                words = f"p50_{name}_ms is {amount(low)} ms and p99_{name}_ms {amount(high)} ms, {best:.0f} times it."
    return best, slowest_s, words


_LONG = frozenset(("long", "longest", "max", "maximum", "largest", "biggest", "huge"))


def _stated_longest(case: Case) -> float | None:
    """Tokens of the longest prompts, where somebody says so: `long_prompts: 642k-912k tokens`."""
    found: list[float] = []
    for name, value in case.evidence.stated.items():
        words = set(words_of(name.rpartition(".")[2]))
        amount_told = quantity(value)
        if words & _LONG and words & {"prompt", "prompts", "input"} and amount_told is not None:
            found.append(amount_told.high or amount_told.value)
    return max((tokens for tokens in found if tokens >= _LEAST_LONG), default=None)


def _rounds(case: Case) -> tuple[float | None, str]:
    """Steps that the longest prompt takes the budget for."""
    budget = case.settings.max_num_batched_tokens
    longest = case.figures.load.longest_prompt_tokens
    if longest is None:
        longest = _stated_longest(case)
    if longest is None:
        longest = max((run.mean_prompt_tokens or 0.0 for run in case.evidence.loads), default=0.0)
    stated = [value for name, value in case.evidence.stated.items() if name.rpartition(".")[2] == "rounds"]
    if stated and isinstance(stated[0], int | float):
        return float(stated[0]), f"A prompt of {amount(longest)} tokens takes {stated[0]:g} rounds, as stated."
    if not longest or not budget:
        return None, ""
    return longest / budget, (
        f"A prompt of {amount(longest)} tokens takes {ceil(longest / budget)} steps of {budget:,}; a short one that "
        "arrives meanwhile gets no token before it is done."
    )
