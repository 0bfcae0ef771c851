"""Blocks that nobody gives back: a leak, or requests that never end."""

from __future__ import annotations

from collections.abc import Iterator

from headway.doctor.figures import Series
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent, span
from headway.doctor.rules.kv_starvation import LEAK_OR_RUNAWAY, is_filling
from headway.evidence.engine import EngineSample

_MANY_TOKENS = 2048
"""Output tokens of one request within the time watched, without any request ending."""
_ENDLESS_TOKENS = 16384
"""Output tokens of one request: longer than answers, and than most reasoning before them."""
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
            and (sample.num_waiting == 0 or sample.kv_usage >= limits.KV_TIGHT)
            and not (sample.generation_tokens_per_s or 0) > 0
            and sample.kv_usage >= limits.LEAK_USAGE
        ]
        if len(held) >= limits.STALL_LEAST_SAMPLES:
            text = (
                f"{len(held)} samples show no request running, yet {percent(held[-1])} of the KV cache in "
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


def _longest_answers(case: Case) -> tuple[float, float, float] | None:
    """Tokens each, requests, and seconds of the longest stretch in which no request came or went, if it is endless.

    No request came where no prompt token was counted; none went where as many run as before.
    """
    best: tuple[float, float, float] | None = None
    for series in case.figures.series:
        for stretch in _unchanged(series):
            running, rate = stretch.samples[0].num_running or 0.0, stretch.mean("generation_tokens_per_s") or 0.0
            if running < 1 or stretch.duration_s <= 0:
                continue
            tokens = rate * stretch.duration_s / running
            if tokens >= _ENDLESS_TOKENS and (best is None or tokens > best[0]):
                best = (tokens, running, stretch.duration_s)
    return best


def _unchanged(series: Series) -> Iterator[Series]:
    """Stretches with the same number of running requests, none waiting, and no prompt tokens."""
    current: list[EngineSample] = []
    for sample in series.samples:
        is_quiet = sample.prompt_tokens_per_s == 0.0 and not sample.num_waiting and bool(sample.num_running)
        if current and not (is_quiet and sample.num_running == current[-1].num_running):
            yield Series(tuple(current))
            current = []
        if is_quiet:
            current.append(sample)
    if current:
        yield Series(tuple(current))


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
    endless = _longest_answers(case)
    if endless is not None:
        tokens, count, seconds = endless
        limit = settings.max_model_len
        is_long = tokens >= 2 * _ENDLESS_TOKENS or (limit is not None and tokens >= _LENGTH_SHARE * limit)
        text = (
            f"For {span(seconds)} the same {amount(count)} requests run: no prompt is counted. Each generates about "
            f"{amount(tokens)} tokens without an end."
        )
        return found("runaway_generation", "medium" if is_long else "weak", [text], refuted, {}, LEAK_OR_RUNAWAY)
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
