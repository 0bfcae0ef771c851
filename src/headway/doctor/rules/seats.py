"""All seats are taken while blocks are free: max_num_seqs is the gate."""

from __future__ import annotations

from headway.doctor.diagnosis import Confidence
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent
from headway.doctor.rules.missing import RUNNING
from headway.doctor.rules.queueing import Queue
from headway.doctor.rules.standstill import may_be_adapters
from headway.doctor.rules.sweep import Plateau, find_plateau
from headway.evidence.figure_names import words_of

_LEAST_DEFAULT = 128
"""No release of vLLM takes fewer seats by itself."""


def judge(case: Case) -> Ruling:
    """The seat limit, from the queue, from a sweep over concurrencies, or from the load's concurrency alone."""
    queue = case.queue
    if queue is not None and queue.is_lasting and queue.gate in ("seats", "both"):
        return _seen(case, queue)
    if queue is not None and queue.is_lasting and queue.gate == "other" and not case.evidence.facts.lora_waiting:
        if may_be_adapters(case):
            return NOTHING
        return _by_elimination(case, queue)
    excluded = _excluded(case)
    if excluded is not None:
        return excluded
    if case.figures.highest("num_running") is None:
        plateau = find_plateau(case.evidence)
        if plateau is not None and plateau.waits:
            return _from_sweep(case, plateau)
        return _arithmetic(case)
    return NOTHING


def _seen(case: Case, queue: Queue) -> Ruling:
    seats = queue.seats or round(queue.num_running)
    kv = queue.kv_usage
    texts = [f"{amount(queue.num_running)} of {seats} seats are taken and {amount(queue.num_waiting)} requests wait."]
    figures: dict[str, float | str | bool] = {"max_num_seqs": float(seats), "num_waiting": queue.num_waiting}
    if queue.is_seats_inferred:
        texts.append(f"max_num_seqs is not known; the running requests are pinned at {seats}.")
    if kv:
        texts.append(f"KV usage is {percent(kv)}: blocks for about {amount(seats / kv)} such requests.")
        figures |= {"kv_usage": kv, "seats_that_kv_allows": seats / kv}
        demand = seats + queue.num_waiting
        figures["kv_usage_at_demand"] = kv * demand / seats
    if rate := queue.generation_tokens_per_s:
        figures["tokens_per_s_per_request"] = rate / max(1.0, queue.num_running)
        texts.append(f"Each running request gets {rate / max(1.0, queue.num_running):.1f} tokens/s now.")
    if gain := seat_gain(case, seats):
        figures["throughput_gain_by_physics"] = gain
    confidence: Confidence = "strong"
    if queue.gate == "both" or queue.is_seats_inferred or queue.num_waiting < limits.QUEUE_DEPTH_SHARE * seats:
        confidence = "medium"
    return found("waiting_queue_stall", confidence, texts, _REFUTED, figures)


def _by_elimination(case: Case, queue: Queue) -> Ruling:
    """Tokens are generated, no prompt is computed, blocks are free, and requests wait all the same."""
    text = (
        f"{amount(queue.num_waiting)} requests wait while {amount(queue.num_running)} run; no prompt is computed, and "
        f"KV usage is {percent(queue.kv_usage or 0.0)}: something other than blocks and prefill keeps them out."
    )
    texts, confidence = [text], "medium"
    if queue.seats is not None:
        texts.append(f"Of {queue.seats} seats {amount(queue.seats - queue.num_running)} are free.")
        confidence = "weak"
    discriminate = (
        "seats: running stays at one number, whatever waits",
        "adapters: vllm:lora_requests_info lists waiting adapters, and max_loras of them run",
        "grammars or a KV connector: vllm:num_requests_waiting_by_reason, or the log at debug level",
    )
    sure: Confidence = "weak" if confidence == "weak" else "medium"
    return found("waiting_queue_stall", sure, texts, _REFUTED, {"num_waiting": queue.num_waiting}, discriminate)


_REFUTED = [
    "Running below max_num_seqs while requests wait.",
    "KV usage at 90 % or more, or preemptions: then blocks are the gate and more seats make it worse.",
    "Total throughput that does not rise when max_num_seqs does: then the device itself is the limit.",
]


def seat_gain(case: Case, seats: int) -> float | None:
    """Throughput with twice the seats over that with these, by physics; None where it is not known."""
    load, physics = case.figures.load, case.physics
    budget = case.settings.max_num_batched_tokens
    if physics is None or budget is None or load.mean_prompt_tokens is None or not load.mean_output_tokens:
        return None
    prompt = load.mean_computed_prompt_tokens or 0.0
    now = physics.output_tokens_per_s(seats, prompt, load.mean_output_tokens, max(budget, 2 * seats))
    twice = physics.output_tokens_per_s(2 * seats, prompt, load.mean_output_tokens, max(budget, 4 * seats))
    return twice / now


def _excluded(case: Case) -> Ruling | None:
    """Running never came near the seats, or rose past the level at which requests waited before."""
    highest, seats = case.figures.highest("num_running"), case.settings.max_num_seqs
    if highest is None:
        return None
    if seats is not None and highest >= limits.SEATS_FREE * seats:
        return None
    if seats is None and (highest >= limits.SEATS_FREE * _LEAST_DEFAULT or (case.queue and case.queue.seats)):
        return None
    of = f"max_num_seqs is {seats}" if seats is not None else f"{_LEAST_DEFAULT}, the fewest that vLLM takes by itself"
    reason = f"At most {amount(highest)} requests run: seats are free ({of})."
    return Ruling(ruled_out={"waiting_queue_stall": reason, "max_num_seqs": reason})


def _from_sweep(case: Case, plateau: Plateau) -> Ruling:
    """Throughput is flat and the time to first token grows with the concurrency: requests queue behind a cap."""
    seats = case.settings.max_num_seqs
    texts = [plateau.words]
    confidence: Confidence = "medium" if plateau.is_hard else "weak"
    if plateau.is_hard:
        texts.append(
            f"Up to {plateau.concurrency} streams throughput grows in proportion and then stops at once: a cap on "
            f"concurrency near {plateau.concurrency}, not a device that saturates gradually."
        )
    if seats is not None and seats > 2 * plateau.concurrency and case.settings.is_sure_of("max_num_seqs"):
        texts.append(f"max_num_seqs is {seats}: the cap then lies in front of the engine (proxy, client, replica).")
        confidence = "weak"
    gain = None
    if case.physics is not None:
        low = case.physics.decode_step_s(plateau.concurrency, 1024)
        high = case.physics.decode_step_s(plateau.last_concurrency, 1024)
        gain = plateau.last_concurrency / plateau.concurrency * low / high
        texts.append(f"By physics {plateau.last_concurrency} streams should give {gain:.1f} times as much.")
    figures: dict[str, float | str | bool] = {
        "signature": "throughput flat while TTFT grows",
        "capacity_tokens_per_s": plateau.tokens_per_s,
        "concurrency_at_plateau": float(plateau.concurrency),
    }
    discriminate = (
        f"num_requests_running == {plateau.concurrency} under {plateau.last_concurrency} streams: a limit on seats",
        f"num_requests_running == {plateau.last_concurrency}: compute- or bandwidth-bound decode",
    )
    return found("waiting_queue_stall", confidence, texts, _REFUTED, figures, discriminate, (RUNNING,))


def _arithmetic(case: Case) -> Ruling:
    """No gauges: the client keeps more requests open than there are seats, and the blocks would hold them."""
    concurrency, seats = case.figures.load.concurrency or _at_once(case), case.settings.max_num_seqs
    if concurrency is None or seats is None or case.settings.is_sglang:
        return NOTHING
    if concurrency <= seats:
        reason = f"{concurrency} concurrent requests fit max_num_seqs {seats}."
        return Ruling(ruled_out={"waiting_queue_stall": reason, "max_num_seqs": reason})
    usage = _usage_of(case, seats)
    if usage is not None and usage > limits.KV_TIGHT:
        return NOTHING
    text = f"The client keeps {concurrency} requests open; max_num_seqs is {seats}, so that {concurrency - seats} wait."
    confidence: Confidence = "medium" if usage is not None else "weak"
    return found("waiting_queue_stall", confidence, [text], _REFUTED, {"max_num_seqs": float(seats)}, (), (RUNNING,))


def _usage_of(case: Case, seats: int) -> float | None:
    """KV usage of so many requests of the load, each at its full length; None where it is not known."""
    load, settings = case.figures.load, case.settings
    pool = settings.kv_tokens or settings.max_model_len
    if pool is None or load.mean_prompt_tokens is None or load.mean_output_tokens is None:
        return None
    return seats * (load.mean_prompt_tokens + load.mean_output_tokens) / pool


def _at_once(case: Case) -> int | None:
    """Requests of a benchmark that is said to send all of them at once."""
    load = case.figures.load
    is_infinite = any(
        isinstance(value, str) and value.strip().lower() in ("inf", "infinity") and "rate" in words_of(name)
        for name, value in case.evidence.stated.items()
    )
    return load.num_requests if is_infinite and load.requests_per_s is None else None
