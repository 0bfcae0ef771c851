"""Which max_num_batched_tokens and max_num_seqs: step time against tokens in the step, and how many requests fit.

In the steady state of a busy server every running request makes one token a step, and a request that ends is replaced
by one whose prompt must be computed. With R running requests of P prompt and D output tokens that is R·P/D prompt
tokens a step. A step that carries a chunk takes longer; what share of the steps carries one follows from the budget.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.errors import ConfigError
from headway.executors.simulated.oracle import Chunk, LatencyOracle, StepShape
from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup
from headway.planner.deployment import Deployment
from headway.planner.lengths import LengthStats
from headway.planner.plan import Plan, make_plan

BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16384)
_KNEE = 0.90
"""Without a target: the smallest budget that reaches this share of the best throughput."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Limits in milliseconds: mean time per output token, longest gap between tokens, time to first token once
    scheduled. None: no limit."""

    tpot_ms: float | None = None
    itl_ms: float | None = None
    ttft_ms: float | None = None


@dataclass(frozen=True, slots=True)
class BudgetPoint:
    """One budget: what a busy server does with it.

    `step_ms` is a step of decodes only, `chunk_step_ms` one with a full chunk (the longest gap between tokens,
    as a burst of prompts fills it), `tpot_ms` the mean over both. `ttft_ms` is the prefill of one request of the mean
    length beside the decodes, without queueing.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    num_running: int
    num_gpu_blocks: int
    chunk_tokens: int
    chunk_share: float
    step_ms: float
    chunk_step_ms: float
    tpot_ms: float
    ttft_ms: float
    output_tokens_per_s: float
    meets_targets: bool
    limited_by: str


@dataclass(frozen=True, slots=True)
class BudgetAdvice:
    """The curve over budgets and the one to take; `reason` says why, in words."""

    points: tuple[BudgetPoint, ...]
    recommended: BudgetPoint
    provenance: str
    reason: str


def roofline_for(plan: Plan) -> LatencyOracle:
    """The roofline oracle of a planned deployment.

    Raises:
        ConfigError: the accelerator's bandwidth or arithmetic is not known.
    """
    deployment = plan.deployment
    return RooflineOracle(
        RooflineSetup(
            deployment.model,
            deployment.accelerator,
            tensor_parallel_size=deployment.tensor_parallel_size,
            pipeline_parallel_size=deployment.pipeline_parallel_size,
            quantization=deployment.quantization,
            kv_cache_dtype=deployment.kv_cache_dtype,
            engine_version=deployment.engine_version,
            graph_sizes=plan.resolved.defaults.cuda_graph_sizes,
        )
    )


def advise_budget(
    deployment: Deployment,
    lengths: LengthStats,
    targets: Targets,
    *,
    concurrency: int | None = None,
    oracle_for: Callable[[Plan], LatencyOracle] = roofline_for,
) -> BudgetAdvice:
    """Recommend a budget and seats for requests of these lengths.

    Args:
        concurrency: requests that are there at once; None for as many as fit.

    Raises:
        ConfigError: no budget leaves room for one request, or the oracle cannot price the deployment.
    """
    points: list[BudgetPoint] = []
    provenance = ""
    for budget in BUDGETS:
        plan = _plan_at(deployment, budget, lengths, concurrency)
        if plan is not None:
            oracle = oracle_for(plan)
            provenance = oracle.provenance
            points.append(_point(plan, oracle, lengths, targets, concurrency))
    if not points:
        raise ConfigError(
            f"No token budget leaves room for a request of {lengths.mean_prompt + lengths.mean_output:.0f} tokens.",
            hint="See `headway plan` for what would make it fit.",
        )
    recommended, reason = _choose(points, targets)
    return BudgetAdvice(tuple(points), recommended, provenance, reason)


def _plan_at(deployment: Deployment, budget: int, lengths: LengthStats, concurrency: int | None) -> Plan | None:
    """The plan with a budget, and with as many seats as its blocks hold requests of the mean length.

    Seats take memory too (sampling), so the two are settled in a few rounds.
    """
    seats, plan = min(256, budget, concurrency or 256), None
    try:
        for _ in range(3):
            plan = make_plan(replace(deployment, max_num_batched_tokens=budget, max_num_seqs=seats))
            settled = min(_capacity(plan, lengths, concurrency), budget)
            if settled in (0, seats):
                break
            seats = settled
    except ConfigError:
        return None
    return plan if plan is not None and _capacity(plan, lengths, concurrency) >= 1 else None


def _capacity(plan: Plan, lengths: LengthStats, concurrency: int | None) -> int:
    """Requests of the mean length that fit at their end, so that none is preempted on average."""
    resident = int(plan.concurrency_at(max(1, round(lengths.mean_prompt + lengths.mean_output))))
    return min(resident, concurrency) if concurrency is not None else resident


def _point(
    plan: Plan, oracle: LatencyOracle, lengths: LengthStats, targets: Targets, concurrency: int | None
) -> BudgetPoint:
    budget = plan.resolved.defaults.max_num_batched_tokens
    prompts_per_token = lengths.mean_prompt / lengths.mean_output
    capacity = max(1, min(_capacity(plan, lengths, concurrency), plan.resolved.defaults.max_num_seqs))
    balanced = int(budget / (1 + prompts_per_token))
    most = running = max(1, min(capacity, balanced))
    if _meets(_measure(plan, oracle, lengths, 1, ""), targets):
        while running > 1 and not _meets(_measure(plan, oracle, lengths, running, ""), targets):
            running = max(1, running - max(1, running // 16))
    limit = "KV blocks" if capacity != concurrency else "concurrency"
    if running < most:
        limit = "latency target"
    elif running < capacity:
        limit = "token budget"
    point = _measure(plan, oracle, lengths, running, limit)
    return replace(point, meets_targets=_meets(point, targets))


def _measure(plan: Plan, oracle: LatencyOracle, lengths: LengthStats, running: int, limit: str) -> BudgetPoint:
    budget = plan.resolved.defaults.max_num_batched_tokens
    context = round(running * (lengths.mean_prompt + lengths.mean_output / 2))
    chunk = max(1, budget - running)

    def step_s(num_tokens: int) -> float:
        chunks = (Chunk(num_tokens, 0),) if num_tokens else ()
        time = oracle.step_time(StepShape(chunks, running, running, context, running))
        return time.device_s + time.host_s

    decode_s, chunk_s = step_s(0), step_s(chunk)
    share = min(1.0, running * lengths.mean_prompt / lengths.mean_output / chunk)
    tpot_s = share * chunk_s + (1 - share) * decode_s
    own_s = step_s(min(chunk, max(1, round(lengths.mean_prompt)))) * max(1.0, lengths.mean_prompt / chunk)
    return BudgetPoint(
        max_num_batched_tokens=budget,
        max_num_seqs=running,
        num_running=running,
        num_gpu_blocks=plan.num_gpu_blocks,
        chunk_tokens=chunk,
        chunk_share=share,
        step_ms=1000 * decode_s,
        chunk_step_ms=1000 * chunk_s,
        tpot_ms=1000 * tpot_s,
        ttft_ms=1000 * own_s,
        output_tokens_per_s=running / tpot_s,
        meets_targets=True,
        limited_by=limit,
    )


def _meets(point: BudgetPoint, targets: Targets) -> bool:
    pairs = (
        (point.tpot_ms, targets.tpot_ms),
        (point.chunk_step_ms, targets.itl_ms),
        (point.ttft_ms, targets.ttft_ms),
    )
    return all(limit is None or value <= limit for value, limit in pairs)


def _choose(points: list[BudgetPoint], targets: Targets) -> tuple[BudgetPoint, str]:
    fitting = [point for point in points if point.meets_targets]
    if not fitting:
        closest = min(points, key=lambda point: (point.tpot_ms, point.chunk_step_ms))
        return closest, "No budget meets the targets; this one comes closest."
    best = max(point.output_tokens_per_s for point in fitting)
    chosen = next(point for point in fitting if point.output_tokens_per_s >= _KNEE * best)
    reason = f"the smallest budget within {1 - _KNEE:.0%} of the best throughput"
    if targets != Targets():
        reason += " among those that meet the targets"
    return chosen, f"{reason[0].upper()}{reason[1:]}. What limits how many run: {chosen.limited_by}."
