"""A deployment with prices that are round, and requests from a seed."""

from __future__ import annotations

from random import Random

from headway.config import CacheConfig, EngineConfig, SchedulerConfig
from headway.executors.simulated.constant import ConstantOracle
from headway.simulation.run import SimulatedDeployment
from headway.workload import TraceRequest

ORACLE = ConstantOracle(
    step_ms=1.0, prefill_us=40.0, decode_ms=9.0, decode_token_us=20.0, context_ns=300.0, host_ms=1.0
)


def make_deployment(
    *,
    seats: int = 16,
    budget: int = 256,
    blocks: int = 400,
    policy: str = "chunked",
    is_async: bool = False,
    ranks: int = 1,
    router: str = "least_loaded",
    oracle: ConstantOracle = ORACLE,
) -> SimulatedDeployment:
    scheduler = SchedulerConfig(seats, budget, 2048, async_scheduling=is_async)
    config = EngineConfig(policy, scheduler, CacheConfig(blocks, 16), "0.32.0", {})
    return SimulatedDeployment(config, oracle, ranks, router)


def make_requests(count: int, seed: int, rate: float = 5.0) -> list[TraceRequest]:
    rng, at = Random(seed), 0.0
    found = []
    for _ in range(count):
        at += rng.expovariate(rate)
        found.append(TraceRequest(at, rng.randrange(1, 600), rng.randrange(1, 80)))
    return found
