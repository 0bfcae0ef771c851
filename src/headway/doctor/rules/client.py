"""The engine waits for its clients: a benchmark that does not drive it, or time that passes outside."""

from __future__ import annotations

from headway.doctor.diagnosis import Confidence
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent, span
from headway.doctor.rules.missing import CONCURRENCY, RUNNING
from headway.doctor.rules.physics import is_fast_card

_ARRIVED_SHARE = 0.7
"""A benchmark's start and end lower its rate by less than the rest."""
_AT_ONCE_S = 1.0
_NEARLY_ALL = 0.95
"""Share of the highest throughput from which further requests at once only make steps longer."""
_REFUTED = [
    "Requests that wait in the engine while the client measures.",
    "num_requests_running near the client's concurrency throughout.",
]


def judge(case: Case) -> Ruling:
    """Signs that the limit lies before the engine."""
    if case.queue is not None and case.queue.is_lasting:
        return NOTHING
    for rule in (_missing_requests, _missing_arrivals, _outside_time, _slow_for_the_card, _too_few_streams):
        ruling = rule(case)
        if ruling.bottleneck is not None:
            return ruling
    return NOTHING


def _missing_requests(case: Case) -> Ruling:
    """The client says that many requests are open; the engine sees far fewer."""
    concurrency, running = case.figures.load.concurrency, case.figures.mean("num_running")
    if concurrency is None or running is None or concurrency < 4:
        return NOTHING
    inside = running + (case.figures.mean("num_waiting") or 0.0)
    if inside > limits.CLIENT_SHARE * concurrency:
        return NOTHING
    text = (
        f"The client keeps {concurrency} requests open, but only {amount(inside)} are in the engine on average: the "
        "rest is on its way, in the client's own work, or behind a limit of connections or a proxy."
    )
    return found("client_bound", "strong", [text], _REFUTED, {"in_engine": inside, "concurrency": float(concurrency)})


def _missing_arrivals(case: Case) -> Ruling:
    """An open loop that offers far more than what completes, yet nothing waits in the engine and it answers at once."""
    offered, served = case.figures.load.requests_per_s, case.figures.load.completed_per_s
    waiting, ttft = case.figures.highest("num_waiting"), case.figures.value("p99_ttft_ms", "mean_ttft_ms")
    if offered is None or served is None or waiting is None or waiting >= 1 or case.figures.load.concurrency:
        return NOTHING
    if served >= _ARRIVED_SHARE * offered or ttft is None or ttft >= 1e3 * _AT_ONCE_S:
        return NOTHING
    texts = [
        f"{offered:g} requests/s are meant to be offered, {served:g} complete, and none waits in the engine: the rest "
        "never reaches it in time.",
        f"The first token comes after {span(ttft / 1e3)}.",
    ]
    return found("client_bound", "medium", texts, _REFUTED, {"offered_requests_per_s": offered})


def _outside_time(case: Case) -> Ruling:
    """The client's time to first token is far longer than the engine's own."""
    totals = case.evidence.totals
    histogram = totals.histograms.get("ttft_s") if totals is not None else None
    inside = histogram.quantile(0.5) if histogram is not None else None
    seen = next(
        (
            load.measured[key] / 1e3
            for load in case.evidence.loads
            for key in ("median_ttft_ms", "p50_ttft_ms")
            if key in load.measured
        ),
        None,
    )
    if inside is None or seen is None or seen < limits.CLIENT_TTFT_RATIO * inside or seen - inside < 0.1:
        return NOTHING
    text = (
        f"The client waits {span(seen)} for the first token (P50), the engine has it after {span(inside)}: "
        f"{span(seen - inside)} pass in the client, the network, a proxy or the API server."
    )
    return found("client_bound", "strong", [text], _REFUTED, {"ttft_outside_s": seen - inside})


def _slow_for_the_card(case: Case) -> Ruling:
    """Under 100 tokens/s on a card of the H100's class: look at the client before the engine."""
    rate, card, load = case.figures.value("output_throughput"), case.settings.accelerator, case.figures.load
    if not case.wants_throughput and not any("output_throughput" in run.measured for run in case.evidence.loads):
        return NOTHING  # a server at light load makes few tokens because few are asked for
    if rate is None or rate <= 0 or rate >= limits.SLOW_TOKENS_PER_S or not is_fast_card(card, limits.FAST_CARD_GBPS):
        return NOTHING
    if load.mean_output_tokens is not None and load.mean_output_tokens <= limits.PURE_PREFILL_OUTPUT_TOKENS:
        return NOTHING
    assert card is not None
    streams = load.concurrency or case.figures.mean("num_running")
    possible = None
    if case.physics is not None:
        possible = (streams or 1.0) / case.physics.decode_step_s(max(1, round(streams or 1.0)), 1024.0)
        if rate >= limits.CLIENT_SHARE * possible:
            return NOTHING
    running = case.figures.mean("num_running")
    confidence: Confidence = "medium" if running is not None and running <= 2 else "weak"
    text = (
        f"{amount(rate)} tokens/s on {card.id} is less than almost any client that sends several requests at once gets"
    )
    text += f"; physics gives about {amount(possible)} for {amount(streams or 1.0)} streams." if possible else "."
    texts = [text, "Look at the client first: is it sequential, does it stream, does it reuse connections?"]
    asked = () if running is not None else (CONCURRENCY, RUNNING)
    return found("client_bound", confidence, texts, _REFUTED, {"output_throughput": rate}, (), asked)


def _too_few_streams(case: Case) -> Ruling:
    """For throughput: a fixed number of clients below the seats, none waiting, and a batch that could be larger."""
    running, seats = case.figures.highest("num_running"), case.settings.max_num_seqs
    lowest = min(
        (value for series in case.figures.series if (value := series.lowest("num_running")) is not None), default=None
    )
    waiting, kv = case.figures.highest("num_waiting"), case.figures.highest("kv_usage")
    if not case.wants_throughput or not running or not seats or lowest is None or waiting is None or waiting > 0:
        return NOTHING
    enough = enough_streams(case)
    if enough is None and (running > seats / 2 or (kv is not None and kv > limits.CLIENT_SHARE)):
        return NOTHING
    if enough is not None and (rate_of(case, enough) or 0.0) < limits.WORTHWHILE_GAIN * (rate_of(case, running) or 1.0):
        return NOTHING
    text = (
        f"At most {amount(running)} of {seats} seats are ever taken and nothing waits"
        f"{f', with KV usage at most {percent(kv)}' if kv is not None else ''}: the client does not send more at once."
    )
    texts, figures = [text], {"num_running": running}
    if enough is not None:
        gain = (rate_of(case, enough) or 0.0) / (rate_of(case, running) or 1.0)
        texts.append(f"By physics {enough} requests at once give {gain:.1f} times the throughput; more add little.")
        figures |= {"streams_wanted": float(enough), "throughput_gain_by_physics": gain}
    return found("client_bound", "medium", texts, _REFUTED, figures)


def rate_of(case: Case, streams: float) -> float | None:
    """Generated tokens a second with so many requests at once, by physics."""
    load, budget = case.figures.load, case.settings.max_num_batched_tokens or 8192
    if case.physics is None or load.mean_prompt_tokens is None or not load.mean_output_tokens:
        return None
    count = max(1, round(streams))
    prompt = load.mean_computed_prompt_tokens or 0.0
    return case.physics.output_tokens_per_s(count, prompt, load.mean_output_tokens, max(budget, 2 * count))


def enough_streams(case: Case) -> int | None:
    """Requests at once that reach nearly the most throughput that seats and blocks allow; None where it is unknown."""
    load, seats, pool = case.figures.load, case.settings.max_num_seqs, case.settings.kv_tokens
    if seats is None or not pool or rate_of(case, 1) is None:
        return None
    held = pool / ((load.mean_prompt_tokens or 0.0) + (load.mean_output_tokens or 0.0))
    most = max(1, min(seats, int(limits.KV_TIGHT * held)))
    best, count = rate_of(case, most) or 0.0, 1
    while count < most and (rate_of(case, count) or 0.0) < _NEARLY_ALL * best:
        count *= 2
    return min(count, most)
