"""More is offered than any setting of this deployment can serve."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from headway.doctor.diagnosis import Confidence
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, found, percent
from headway.doctor.rules.pool import largest_pool_tokens
from headway.doctor.rules.prefill import WAITED_TTFT_S, measured_prefill_tokens_per_s, offered_prefill_tokens_per_s

_REPLICA_TARGET = 0.85
"""Load of a replica to plan for: Poisson arrivals above it queue for long even if the mean fits."""
_MOST_SEATS = 1024
_LEAST_RATES = 3


@dataclass(frozen=True, slots=True)
class Demand:
    """Requests a second offered, and completed at most; `source` says how the latter is known."""

    offered_per_s: float
    capacity_per_s: float
    source: str

    @property
    def ratio(self) -> float:
        """Offered over capacity."""
        return self.offered_per_s / self.capacity_per_s

    @property
    def replicas(self) -> int:
        """Copies of the deployment that the offered load needs."""
        return max(2, ceil(self.ratio / _REPLICA_TARGET))


def judge(case: Case) -> Ruling:
    """The queue grows at a load that no flag makes room for."""
    demand = demand_of(case)
    if demand is None or demand.ratio < limits.OFFERED_MARGIN:
        return NOTHING
    best = best_gain(case)
    texts = [
        f"Offered: {demand.offered_per_s:.2f} requests/s; served at most: {demand.capacity_per_s:.2f} "
        f"({demand.source}). That is {demand.ratio:.2f} times as much as it can do."
    ]
    queue = case.queue
    if queue is not None and queue.is_growing and queue.growth_per_s:
        texts.append(f"The queue gains {60 * queue.growth_per_s:.0f} requests a minute and does not settle.")
    confidence: Confidence = "medium"
    if best is not None:
        texts.append(
            f"With as many requests in a batch as blocks could ever hold, physics gives {best:.2f} times as much."
        )
        if best >= demand.ratio:
            return NOTHING
        confidence = "strong"
    elif queue is not None and queue.gate in ("seats", "kv", "both"):
        confidence = "weak"
    texts.append(f"{demand.replicas} replicas would carry it at {percent(_REPLICA_TARGET)} load or less each.")
    figures: dict[str, float | str | bool] = {
        "offered_requests_per_s": demand.offered_per_s,
        "capacity_requests_per_s": demand.capacity_per_s,
        "replicas_needed": float(demand.replicas),
        "min_replicas": float(ceil(demand.ratio)),
        "backlog_growth_per_s": demand.offered_per_s - demand.capacity_per_s,
    }
    count = case.figures.load.num_requests
    if count:
        drain_s = count / demand.capacity_per_s
        texts.append(f"{count:,} requests take {drain_s:,.0f} s to complete at that rate, however fast they come.")
        figures["backlog_drain_s"] = drain_s
    refuted = [
        "A queue that empties by itself under the same load.",
        "More completions a second with another setting under the same load.",
    ]
    return found("offered_load_too_high", confidence, texts, refuted, figures)


def demand_of(case: Case) -> Demand | None:
    """What is offered and what is served, where the evidence tells both."""
    load, queue = case.figures.load, case.queue
    offered_tokens = offered_prefill_tokens_per_s(case)
    prefill = measured_prefill_tokens_per_s(case)
    lasting = queue is not None and queue.is_lasting
    tokens = load.mean_computed_prompt_tokens
    if lasting and queue is not None and queue.gate == "prefill" and offered_tokens and prefill and tokens:
        return Demand(offered_tokens / tokens, prefill / tokens, "prefill rate measured while requests waited")
    served, growth = load.completed_per_s, (queue.growth_per_s or 0.0) if queue is not None else 0.0
    if lasting and queue is not None and served and (load.requests_per_s or queue.is_growing):
        offered = load.requests_per_s or served + growth
        return Demand(offered, served, "completed while requests waited")
    if load.requests_per_s and served and not case.figures.series and load.concurrency is None and _may_wait(case):
        return Demand(load.requests_per_s, served, "completed in the benchmark")
    return _from_rates(case) if not case.figures.series and load.concurrency is None and _may_wait(case) else None


def _from_rates(case: Case) -> Demand | None:
    """Runs at rising rates that tell only tokens a second: those of the lowest rate tell how many a request takes."""
    runs = sorted(
        (run.requests_per_s, rate)
        for run in case.evidence.loads
        if run.requests_per_s and run.concurrency is None and (rate := run.measured.get("output_throughput"))
    )
    if len(runs) < _LEAST_RATES or runs[0][0] == runs[-1][0]:
        return None
    (lowest, tokens_at_lowest), offered = runs[0], runs[-1][0]
    served = max(rate for _, rate in runs) * lowest / tokens_at_lowest
    return Demand(offered, served, f"tokens/s at most, in requests of the size seen at {lowest:g} requests/s")


def _may_wait(case: Case) -> bool:
    """Whether first tokens came so late that requests may have queued; a benchmark's tail alone lowers its rate."""
    slowest = case.figures.value("p99_ttft_ms", "p95_ttft_ms", "p90_ttft_ms", "mean_ttft_ms")
    return slowest is None or slowest >= 1e3 * WAITED_TTFT_S


def best_gain(case: Case) -> float | None:
    """Throughput at the largest batch that blocks could hold over that of the present one, by physics.

    Blocks in all the memory that flags can give them: a pool too small is no load too high.
    """
    load, physics, settings = case.figures.load, case.physics, case.settings
    running = case.queue.num_running if case.queue is not None else case.figures.mean("num_running")
    if physics is None or not running or load.mean_prompt_tokens is None or not load.mean_output_tokens:
        return None
    running = max(1.0, running)
    prompt, output = load.mean_computed_prompt_tokens or 0.0, load.mean_output_tokens
    pool = largest_pool_tokens(case)
    held = pool / (load.mean_prompt_tokens + output) if pool else _MOST_SEATS
    most = max(running, min(float(_MOST_SEATS), 2.5 * held))
    budget = settings.max_num_batched_tokens or 8192
    now = physics.output_tokens_per_s(round(running), prompt, output, max(budget, 2 * round(running)))
    then = physics.output_tokens_per_s(round(most), prompt, output, max(16384, 2 * round(most)))
    return max(1.0, then / now, then / output / served if (served := _wasted_on(case)) else 0.0)


def _wasted_on(case: Case) -> float | None:
    """Requests a second that complete although much is computed twice: what a batch of this size does is then more."""
    seen, served = case.figures.preemptions, case.figures.load.completed_per_s
    is_wasteful = seen is not None and (seen.per_request or 0.0) >= limits.PREEMPTED_OFTEN
    return served if is_wasteful and served else None
