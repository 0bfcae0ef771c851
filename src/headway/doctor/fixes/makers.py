"""For each bottleneck the changes that may lift it, the smallest first. Values are specific, and not yet simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil

from headway.doctor.diagnosis import Bottleneck, BottleneckKind, Fix
from headway.doctor.fixes.memory import (
    fp8_cache,
    more_gpus,
    more_replicas,
    raise_utilization,
    smaller_weights,
    starved,
    too_little_memory,
)
from headway.doctor.fixes.outputs import cap_tokens
from headway.doctor.fixes.values import (
    change,
    chunk_below,
    kv_gain_words,
    least_budget,
    round_down,
    round_up,
)
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import Case, amount, percent
from headway.doctor.rules.communication import fewer_gpus
from headway.doctor.rules.load import demand_of
from headway.doctor.rules.pool import trial
from headway.doctor.rules.seats import seat_gain

_MOST_LORA_SLOTS = 64

Maker = Callable[[Case, Bottleneck], Iterator[Fix]]


# ---------------------------------------------------------------- seats


def _seats(case: Case, found: Bottleneck) -> Iterator[Fix]:
    settings, kind = case.settings, found.kind
    seen = case.queue.seats if case.queue is not None else None
    seats = seen if seen is not None and case.queue is not None and case.queue.is_seats_inferred else None
    seats = seats or settings.max_num_seqs or seen
    cap, demand = _kv_cap(found), _demand(case, found)
    if seats is not None and demand is not None and demand <= seats:
        yield from _cap_outside(case, found)
        return
    if seats is None and demand is None:
        return
    if seats is None or demand is None:
        seats = seats or round(float(found.figures.get("concurrency_at_plateau", 1.0)))
        demand = demand or 2 * seats
    budget = settings.max_num_batched_tokens or 1 << 30
    most = min(round_up(demand, 32) if demand > 32 else demand, cap, budget)
    values = [most] if most <= 2.5 * seats else [2 * seats, most]
    for to in values:
        if to > seats:
            yield change(
                "max_num_seqs",
                seats,
                to,
                _seat_reason(case, found, seats, to),
                kind,
                _seat_side(case, seats, to),
            )
    if cap < demand:
        yield from raise_utilization(case, kind)
        yield from fp8_cache(case, kind)
    yield from more_replicas(case, kind, "Each replica has its own seats and blocks.")


def _cap_outside(case: Case, found: Bottleneck) -> Iterator[Fix]:
    """Seats are there for all streams, yet fewer are served at once: the limit stands in front of the engine."""
    held, streams = found.figures.get("concurrency_at_plateau"), _demand(case, found)
    if isinstance(held, float) and streams is not None:
        reason = "Look for a limit on connections or concurrency in the client, the proxy or the gateway."
        yield change("client", round(held), streams, reason, found.kind)


def _kv_cap(found: Bottleneck) -> int:
    """Seats that the blocks hold at the present use of each, with a tenth to spare."""
    held = found.figures.get("seats_that_kv_allows")
    return int(0.9 * held) if isinstance(held, float) else 1 << 20


def _demand(case: Case, found: Bottleneck) -> int | None:
    """Requests that are there at once."""
    if case.queue is not None and case.queue.seats is not None:
        return ceil(case.queue.num_running + max(case.queue.num_waiting, case.queue.series.last("num_waiting") or 0.0))
    return max((load.concurrency for load in case.evidence.loads if load.concurrency), default=None)


def _seat_reason(case: Case, found: Bottleneck, seats: int, to: int) -> str:
    kv = found.figures.get("kv_usage")
    text = f"{to - seats} more requests run instead of waiting"
    return (
        f"{text}; KV usage goes to about {percent(min(1.0, kv * to / seats))}." if isinstance(kv, float) else f"{text}."
    )


def _seat_side(case: Case, seats: int, to: int) -> str:
    gain = seat_gain(case, seats)
    if gain is None:
        return "A larger batch makes each step longer: watch the time between tokens."
    return f"Physics: twice the seats give {gain:.2f} times the throughput, each step {2 / gain:.2f} times as long."


# ---------------------------------------------------------------- chunks and prompts


def _chunk(case: Case, found: Bottleneck) -> Iterator[Fix]:
    settings = case.settings
    budget, direction = settings.max_num_batched_tokens, found.figures.get("direction")
    if direction == "on":
        tokens = max(2048, least_budget(settings))
        reason = "Prompts are then computed in chunks beside the decodes."
        yield change(
            "enable_chunked_prefill", False, True, reason, found.kind, f"Set max_num_batched_tokens {tokens} with it."
        )
    elif direction == "up" and budget is not None:
        yield from _larger_chunk(case, found, budget)
    elif budget is not None:
        yield from _smaller_chunk(case, found, budget)


def _larger_chunk(case: Case, found: Bottleneck, budget: int) -> Iterator[Fix]:
    side = (
        "" if case.wants_throughput else "Each step with a full chunk takes longer: watch the P99 time between tokens."
    )
    for to in (4 * budget, 16384 if case.wants_throughput else 8192):
        to = min(max(to, 2048), 16384)
        if to <= budget:
            continue
        if (
            case.evidence.plan is not None
            and (plan := trial(case, max_num_batched_tokens=to)) is not None
            and not plan.fits
        ):
            continue
        reason = f"Prompts in fewer, fuller steps.{kv_gain_words(case, max_num_batched_tokens=to)}"
        yield change("max_num_batched_tokens", budget, to, reason, found.kind, side)
    if case.wants_throughput and case.settings.generation == "V0":
        reason = "Chunked prefill is not meant for offline throughput in V0: whole prompts keep the device full."
        yield change("enable_chunked_prefill", True, False, reason, found.kind)


def _smaller_chunk(case: Case, found: Bottleneck, budget: int) -> Iterator[Fix]:
    rate = found.figures.get("prefill_tokens_per_s")
    least = least_budget(case.settings)
    if not isinstance(rate, float):
        for to in (8192, 2048):
            if least <= to < budget:
                reason = f"Enough for prompts of any length in chunks.{kv_gain_words(case, max_num_batched_tokens=to)}"
                yield change("max_num_batched_tokens", budget, to, reason, found.kind)
        return
    bound = case.bound("p99_itl_ms", "mean_itl_ms", "p99_tpot_ms", "mean_tpot_ms")
    targets = (bound / 1e3,) if bound is not None else limits.ITL_TARGETS_S
    for target in targets:
        to = max(chunk_below(rate * target), least)
        if to < budget:
            reason = f"A step with a full chunk then takes about {to / rate:.2f} s, for a target of {target:g} s."
            side = f"A prompt takes {budget / to:.0f} times as many steps to its first token."
            yield change("max_num_batched_tokens", budget, to, reason, found.kind, side)
    yield from _seats_for_smaller_chunk(case, found, chunk_below(rate * targets[0]))


def _seats_for_smaller_chunk(case: Case, found: Bottleneck, wanted: int) -> Iterator[Fix]:
    """The budget cannot be below one token for each seat: fewer seats, where they are not in use, make room for it."""
    settings = case.settings
    seats, running = settings.max_num_seqs, case.figures.highest("num_running")
    if seats is None or running is None or wanted >= least_budget(settings):
        return
    to = round_down(wanted / (1 + settings.num_speculative_tokens), 8)
    if to >= max(8.0, 2 * running) and to < seats:
        reason = f"Every seat needs its tokens in a step: {seats} seats keep max_num_batched_tokens above {wanted:,}."
        side = f"Set max_num_batched_tokens {wanted} with it; at most {amount(running)} requests were seen running."
        yield change("max_num_seqs", seats, to, reason, found.kind, side)


def _prefill(case: Case, found: Bottleneck) -> Iterator[Fix]:
    settings, kind = case.settings, found.kind
    if settings.enable_prefix_caching is False:
        reason = "Shared prefixes (system prompts, earlier turns) are then computed once."
        yield change("enable_prefix_caching", False, True, reason, kind, "No gain where prompts share nothing.")
    closed = found.figures.get("loop") == "closed"
    if closed and (case.figures.load.mean_output_tokens or 0) <= limits.PURE_PREFILL_OUTPUT_TOKENS:
        reason = "A benchmark of one output token measures prefill alone: measure with the real output length."
        yield change(
            "client",
            f"output length {amount(case.figures.load.mean_output_tokens or 0)}",
            "real output length",
            reason,
            kind,
        )
    is_communication = found.figures.get("communication") is True
    if is_communication:
        yield from _fewer_gpus(case, found)
    reason = "Prefill is arithmetic: only more of it helps, and no setting of the scheduler makes any."
    yield from more_replicas(case, kind, reason)
    if not is_communication:
        yield from more_gpus(case, kind, "Each prompt is computed by twice the GPUs.")
    yield from _lower_rate(case, kind)
    yield from smaller_weights(case, kind)


def _lower_rate(case: Case, kind: BottleneckKind) -> Iterator[Fix]:
    demand = demand_of(case)
    if demand is not None and demand.ratio > 1:
        reason = "Shed load, or send the rest elsewhere: above this the queue grows without end."
        yield change(
            "request_rate", round(demand.offered_per_s, 3), round(0.85 * demand.capacity_per_s, 3), reason, kind
        )


def _long_prompts(case: Case, found: Bottleneck) -> Iterator[Fix]:
    settings, kind = case.settings, found.kind
    budget = settings.max_num_batched_tokens
    if not settings.is_sglang and budget is not None:
        to = max(64, chunk_below(budget / 4))
        reason = f"One prompt then takes at most {to:,} of the {budget:,} tokens of a step; short ones fit beside it."
        side = "Long prompts take longer to their own first token."
        now = settings.long_prefill_token_threshold
        if not now or now > to:
            yield change("long_prefill_token_threshold", now or 0, to, reason, kind, side)
    reason = "Send prompts beyond a length to a replica of their own: short ones never stand behind them."
    yield from more_replicas(case, kind, reason, 2 * settings.data_parallel_size)


# ---------------------------------------------------------------- decode and the rest


def _decode(case: Case, found: Bottleneck) -> Iterator[Fix]:
    if found.figures.get("communication") is True:
        yield from _fewer_gpus(case, found)
        return
    yield from _smaller_batch(case, found)
    yield from smaller_weights(case, found.kind)
    yield from more_gpus(case, found.kind, "Each GPU computes its part of every step.")
    yield from more_replicas(case, found.kind, "Fewer requests share each replica's arithmetic.")


def _fewer_gpus(case: Case, found: Bottleneck) -> Iterator[Fix]:
    """What the GPUs spend on all-reduces they keep if fewer of them split a layer."""
    size, smaller = case.settings.tensor_parallel_size, fewer_gpus(case)
    to = smaller.tensor_parallel_size if smaller is not None else size // 2
    if size < 2:
        return
    replicas = size // to * case.settings.data_parallel_size
    reason = (
        f"The same GPUs as {replicas} replicas (data_parallel_size {replicas}): all-reduces join fewer GPUs or none."
    )
    side = "Each replica has its own copy of the weights, so that less memory is left for KV blocks."
    yield change("tensor_parallel_size", size, to, reason, found.kind, side)


def _smaller_batch(case: Case, found: Bottleneck) -> Iterator[Fix]:
    """Where a bound on the time between tokens is missed: the largest batch whose step keeps it, by physics."""
    missed, physics = case.violates("itl", "tpot"), case.physics
    running = case.figures.highest("num_running") or case.figures.load.concurrency
    seats = case.settings.max_num_seqs
    if missed is None or physics is None or not running or running < limits.FEW_RUNNING or seats is None:
        return
    context = (case.figures.load.mean_prompt_tokens or 1024.0) + (case.figures.load.mean_output_tokens or 0.0) / 2
    scale = missed[1] / 1e3 / physics.decode_step_s(round(running), context)
    to = int(running)
    while to > limits.FEW_RUNNING and scale * physics.decode_step_s(to, context) > missed[2] / 1e3:
        to -= max(1, to // 16)
    to = round_down(to, 8)
    if limits.FEW_RUNNING <= to < min(seats, running):
        reason = f"A batch of {to} keeps {missed[0]} within {amount(missed[2])} ms by physics."
        yield change("max_num_seqs", seats, to, reason, found.kind, "The others wait: time to first token grows.")


def _impossible(case: Case, found: Bottleneck) -> Iterator[Fix]:
    settings = case.settings
    longest = found.figures.get("longest_admissible_tokens")
    pool = longest if isinstance(longest, float) else settings.kv_tokens
    if pool and (settings.max_model_len is None or settings.max_model_len > pool):
        to = round_down(pool, 256) if pool >= 4096 else int(pool)
        reason = "Requests that can never be scheduled are then refused at the door."
        yield change("max_model_len", settings.max_model_len, to, reason, found.kind, "Longer requests are refused.")
    version = settings.version
    if version is not None and (0, 19, 0) <= version < (0, 20, 2):
        reason = "Admission then asks for the next chunk's blocks only; this release asks for the whole sequence's."
        yield change("scheduler_reserve_full_isl", True, False, reason, found.kind, "Long requests may be preempted.")
    yield from raise_utilization(case, found.kind)


def _lora(case: Case, found: Bottleneck) -> Iterator[Fix]:
    wanted = found.figures.get("num_adapters")
    if isinstance(wanted, float):
        to = min(_MOST_LORA_SLOTS, int(wanted))
        reason = f"{to} adapters may then be in a batch at once."
        yield change(
            "max_loras", case.settings.max_loras, to, reason, found.kind, "Each slot takes memory from the KV cache."
        )


def _runaway(case: Case, found: Bottleneck) -> Iterator[Fix]:
    by_length = "finished_by_length" in found.figures
    yield from cap_tokens(case, found.kind, case.figures.load.mean_output_tokens if by_length else None)


def _offered(case: Case, found: Bottleneck) -> Iterator[Fix]:
    reason = "No setting of this deployment makes up for it: the load is larger than what its device can do."
    count = found.figures.get("replicas_needed")
    yield from more_replicas(
        case, found.kind, reason, int(count) * case.settings.data_parallel_size if isinstance(count, float) else None
    )
    yield from _lower_rate(case, found.kind)


def _client(case: Case, found: Bottleneck) -> Iterator[Fix]:
    load, seats = case.figures.load, case.settings.max_num_seqs
    now = load.concurrency or round(case.figures.mean("num_running") or 1)
    inside, wanted = found.figures.get("in_engine"), found.figures.get("streams_wanted")
    to = round(wanted) if isinstance(wanted, float) else max(2 * now, min(seats or 64, 64))
    if isinstance(inside, float):
        now, to = round(inside), now  # those that the client means to keep open
    reason = (
        "The engine waits for its clients. Keep so many requests open at once, stream, reuse connections, run the "
        "client on another machine; check proxies for a limit on connections."
    )
    yield change("client", now, to, reason, found.kind)


def _speculation(case: Case, found: Bottleneck) -> Iterator[Fix]:
    settings = case.settings
    name = "speculative_config"
    if settings.version is not None and settings.version < (0, 8, 2):
        name = "speculative_model"
    now = dict(settings.speculation) if settings.speculation else "on"
    yield change(name, now, None, "Decoding without drafts is faster here.", found.kind)


def _launches(case: Case, found: Bottleneck) -> Iterator[Fix]:
    reason = "CUDA graphs launch a whole step at once."
    side = "Graphs take memory and some minutes at start."
    yield change("enforce_eager", True, False, reason, found.kind, side)


MAKERS: Mapping[BottleneckKind, Maker] = {
    "kv_starvation": starved,
    "waiting_queue_stall": _seats,
    "prefill_compute_bound": _prefill,
    "long_prompt_hol": _long_prompts,
    "chunk_missized": _chunk,
    "decode_compute_bound": _decode,
    "hbm_bound": too_little_memory,
    "impossible_request_at_queue_head": _impossible,
    "lora_slots": _lora,
    "runaway_generation": _runaway,
    "offered_load_too_high": _offered,
    "client_bound": _client,
    "spec_decode_overhead": _speculation,
    "cpu_launch_bound": _launches,
}
"""An engine stall, a leak, and nothing at all have no setting to turn."""
