"""Simulating long outputs in coarse steps, each of which stands for several; queue and cache stay what they are.

With a grain g, requests and KV pool are g times smaller and a step takes as long as the g steps that it stands for.
Seats, the budget of a step, clients and instants of arrival stay. So as many requests run, wait and share the pool at
any time, and what is lost is what happens within g steps: gaps between single tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headway.executors.simulated.oracle import (
    Chunk,
    DecodePricer,
    ErrorBar,
    LatencyOracle,
    Part,
    StepShape,
    StepTime,
)
from headway.report.summary import Summary
from headway.simulation.run import SimulatedDeployment
from headway.workload.trace import TraceRequest

_PER_TOKEN = ("tpot_ms", "itl_ms")
_PER_TIME = ("output_throughput", "total_token_throughput")
_COUNTS = ("num_steps", "total_input_tokens", "total_output_tokens", "prefix_cache_queries", "prefix_cache_hits")


def steps_of(shape: StepShape, grain: int, budget: int) -> list[tuple[int, StepShape]]:
    """The steps that a coarse one stands for: how many there are of each shape.

    Prompts fill as few of them as `budget` tokens a step allow, beside the decodes; the others only decode.
    """
    context = shape.num_context_tokens * grain
    num_tokens = shape.num_prefill_tokens * grain
    if not num_tokens:
        return [(grain, shape._replace(num_context_tokens=context))]
    full = min(grain, math.ceil(num_tokens / max(1, budget - shape.num_decode_tokens)))
    chunks = tuple(_chunk(chunk, grain, full) for chunk in shape.chunks)
    found = [(full, shape._replace(chunks=chunks, num_context_tokens=context))]
    if full < grain and shape.num_decodes:
        rest = StepShape((), shape.num_decodes, shape.num_decode_tokens, context, shape.num_decodes)
        found.append((grain - full, rest))
    return found


def _chunk(chunk: Chunk, grain: int, num_steps: int) -> Chunk:
    """A step's share of a prompt's tokens, with the past of the step in the middle."""
    whole = chunk.num_tokens * grain
    share = math.ceil(whole / num_steps)
    return Chunk(share, chunk.num_past_tokens * grain + (whole - share) // 2)


@dataclass(frozen=True, slots=True)
class CoarseOracle:
    """Another oracle's prices, for coarse steps; see `LatencyOracle`."""

    base: LatencyOracle
    grain: int
    budget: int

    @property
    def provenance(self) -> str:
        """See `LatencyOracle`."""
        return self.base.provenance

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        device_s = host_s = 0.0
        for count, fine in steps_of(shape, self.grain, self.budget):
            time = self.base.step_time(fine)
            device_s += count * time.device_s
            host_s += count * time.host_s
        return StepTime(device_s, host_s, self.base.provenance)

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """See `LatencyOracle`."""
        price, grain = self.base.decode_pricer(num_decodes), self.grain
        return lambda context: grain * price(grain * context)

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """See `LatencyOracle`."""
        return self.grain * self.base.host_time(num_tokens, num_requests)

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """See `LatencyOracle`."""
        return [
            part._replace(seconds=count * part.seconds)
            for count, fine in steps_of(shape, self.grain, self.budget)
            for part in self.base.explain(fine)
        ]

    def error_bar(self) -> ErrorBar | None:
        """See `LatencyOracle`."""
        return self.base.error_bar()


def coarse_deployment(deployment: SimulatedDeployment, grain: int) -> SimulatedDeployment:
    """The deployment whose steps stand for `grain` each."""
    if grain == 1:
        return deployment
    config, speculation = deployment.config, deployment.speculation
    cache, scheduler = config.cache, config.scheduler
    window = cache.sliding_window
    cache = replace(
        cache,
        num_blocks=max(2, 1 + (cache.num_blocks - 1) // grain),
        sliding_window=None if window is None else max(1, window // grain),
    )
    scheduler = replace(scheduler, max_model_len=max(2, scheduler.max_model_len // grain))
    if speculation is not None:
        speculation = replace(speculation, draft_s=speculation.draft_s * grain)
    return replace(
        deployment,
        config=replace(config, cache=cache, scheduler=scheduler),
        oracle=CoarseOracle(deployment.oracle, grain, config.scheduler.max_num_batched_tokens),
        speculation=speculation,
    )


def coarse_request(request: TraceRequest, grain: int) -> TraceRequest:
    """A request of `grain` times fewer tokens, which shares as much of its prompt with others."""
    if grain == 1:
        return request
    keys, key_tokens = request.block_keys, request.block_key_tokens
    if key_tokens:
        keys, key_tokens = keys[:: max(1, grain // key_tokens)], max(1, key_tokens // grain)
    return replace(
        request,
        num_prompt_tokens=max(1, request.num_prompt_tokens // grain),
        num_output_tokens=max(1, request.num_output_tokens // grain),
        block_keys=keys,
        block_key_tokens=key_tokens,
    )


def fine_summary(summary: Summary, grain: int) -> Summary:
    """The figures of a coarse simulation in tokens and steps as they are."""
    if grain == 1:
        return summary
    found = dict(summary)
    for key, value in summary.items():
        if value is None:
            continue
        if key.endswith(_PER_TOKEN):
            found[key] = value / grain
        elif key in _PER_TIME or key in _COUNTS:
            found[key] = value * grain
    return found
