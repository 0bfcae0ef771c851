"""Blocks that nobody gives back: a leak, or requests that never end."""

from __future__ import annotations

from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent
from headway.doctor.rules.kv_starvation import LEAK_OR_RUNAWAY, is_filling

_MANY_TOKENS = 2048
"""Output tokens of one request within the time watched, without any request ending."""
_LENGTH_SHARE = 0.5
_NEAR_LIMIT = 0.8
_LEAST_FINISHED = 5


def judge_leak(case: Case) -> Ruling:
    """Blocks are in use although nothing runs or waits."""
    for series in case.figures.series:
        held = [
            sample.kv_usage
            for sample in series.samples
            if sample.kv_usage is not None
            and sample.num_running == 0
            and sample.num_waiting == 0
            and not (sample.generation_tokens_per_s or 0) > 0
            and sample.kv_usage >= limits.LEAK_USAGE
        ]
        if len(held) >= limits.STALL_LEAST_SAMPLES:
            text = (
                f"{len(held)} samples show no request running or waiting, yet {percent(held[-1])} of the KV cache in "
                "use. Cached blocks that nobody uses count as free, so that an idle pool reads 0 %."
            )
            return found(
                "kv_leak",
                "strong",
                [text],
                [
                    "KV usage that returns to 0 a minute after the load stops.",
                    "A KV connector that holds blocks until another instance has fetched them.",
                ],
                {"kv_usage_idle": held[-1]},
                LEAK_OR_RUNAWAY,
            )
    return NOTHING


def judge_runaway(case: Case) -> Ruling:
    """Requests that generate on and on, until max_model_len ends them."""
    totals, settings = case.evidence.totals, case.settings
    refuted = ["Requests that end with finish reason `stop`.", "A client that sends max_tokens."]
    if totals is not None and settings.max_model_len:
        finished = sum(totals.finished.values())
        cut = totals.finished.get("length", 0.0)
        mean = (case.figures.load.mean_prompt_tokens or 0.0) + (case.figures.load.mean_output_tokens or 0.0)
        share_of_limit = mean / settings.max_model_len
        if finished >= _LEAST_FINISHED and cut >= _LENGTH_SHARE * finished and share_of_limit >= _NEAR_LIMIT:
            text = (
                f"{percent(cut / finished)} of {amount(finished)} requests end at their length limit, with "
                f"{amount(mean)} tokens on average: {percent(share_of_limit)} of max_model_len. Nothing else ends them."
            )
            return found("runaway_generation", "strong", [text], refuted, {"finished_by_length": cut / finished})
    ahead = is_filling(case)
    if ahead is None:
        return NOTHING
    running, rate = ahead.series.last("num_running"), ahead.series.mean("generation_tokens_per_s")
    if not running or not rate:
        return NOTHING
    each = rate * ahead.series.duration_s / running
    if case.figures.load.completed_per_s is None or each < _MANY_TOKENS:
        return NOTHING  # said as one of two explanations beside the starvation that it leads to
    text = (
        f"The same {amount(running)} requests generate {amount(rate)} tokens/s and fill the KV cache; hardly any ends "
        f"while watched ({amount(each)} tokens each)."
    )
    return found("runaway_generation", "medium", [text], refuted, {}, LEAK_OR_RUNAWAY)
