"""The same workload under several batching policies: capacity, offered load, and a replay each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from headway.core.engine import Engine
from headway.core.request import Content, Request, SyntheticContent, TokenContent
from headway.core.sampling import SamplingParams
from headway.errors import WorkloadError
from headway.frontends.replay import OnProgress, ReplayResult, replay
from headway.report.slo import Slo
from headway.workload import TraceRequest, Workload, at_rate, draw_prompt, request_rate

EngineMaker = Callable[[str], Engine]
"""Makes an idle engine for a policy: a scheduler, KV pool and clock of its own, on shared weights."""

CAPACITY_POLICY = "chunked"
"""Capacity is measured under the policy that wastes least, so that one offered load is meant for all."""


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Makes requests out of lengths.

    Args:
        vocabulary: token ids that prompts are drawn from, by `seed`; None gives requests without ids, for
            simulation.
    """

    vocabulary: Sequence[int] | None
    seed: int = 0

    def arrivals(self, workload: Workload, engine: Engine) -> list[tuple[float, Request]]:
        """(arrival, request) for `replay`, each with exactly the trace's lengths: end-of-sequence is ignored.

        Raises:
            WorkloadError: a request longer than the engine's limit or its whole KV pool; names it.
        """
        limit, block_size = engine.scheduler.config.max_model_len, engine.scheduler.kv.block_size
        check_fits(workload, limit, engine.scheduler.kv.pool.num_usable_blocks * block_size)
        arrivals: list[tuple[float, Request]] = []
        for index, item in enumerate(workload.requests):
            request_id = item.request_id or f"request-{index}"
            sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=item.num_output_tokens)
            content = self._content(index, item, request_id, block_size)
            request = Request(request_id, content, item.num_prompt_tokens, sampling, limit)
            arrivals.append((item.arrival_s, request))
        return arrivals

    def _content(self, index: int, item: TraceRequest, request_id: str, block_size: int) -> Content:
        if self.vocabulary is None:
            return SyntheticContent(request_id, item.keys_at(block_size))
        return TokenContent(draw_prompt(item, index, self.vocabulary, self.seed), block_size)


def check_fits(workload: Workload, max_model_len: int, pool_tokens: int) -> None:
    """Refuse a workload with a request longer than the model's limit, or than the whole KV cache.

    Raises:
        WorkloadError: names the first such request, and the numbers.
    """
    limit = min(max_model_len, pool_tokens)
    for index, item in enumerate(workload.requests):
        if item.num_prompt_tokens + item.num_output_tokens > limit:
            holder = "the longest sequence allowed" if max_model_len <= pool_tokens else "the whole KV cache"
            raise WorkloadError(
                f"Request {index + 1} of the workload has {item.num_prompt_tokens} + {item.num_output_tokens} tokens, "
                f"more than {holder} ({limit}).",
                hint="Shorten requests with --length-divisor, or raise --max-model-len or --kv-cache-memory-bytes.",
            )


def run_policy(
    make_engine: EngineMaker,
    policy: str,
    workload: Workload,
    prompts: PromptSource,
    *,
    slo: Slo | None = None,
    on_progress: OnProgress | None = None,
) -> ReplayResult:
    """Replay a workload on a fresh engine under a policy; the engine is closed afterwards.

    Raises:
        WorkloadError: a request that the engine can never hold.
    """
    engine = make_engine(policy)
    try:
        arrivals = prompts.arrivals(workload, engine)
        return replay(engine, arrivals, concurrency=workload.concurrency, slo=slo, on_progress=on_progress)
    finally:
        engine.close()


def measure_capacity(
    make_engine: EngineMaker,
    workload: Workload,
    prompts: PromptSource,
    *,
    on_progress: OnProgress | None = None,
) -> ReplayResult:
    """Replay a workload with all requests sent at once, under `CAPACITY_POLICY`; its `request_throughput` is
    the capacity.

    The end of the run, when few requests are left to batch, is in it, so it is a cautious figure.
    """
    at_once = Workload([replace(request, arrival_s=0.0) for request in workload.requests])
    return run_policy(make_engine, CAPACITY_POLICY, at_once, prompts, on_progress=on_progress)


def offer(workload: Workload, requests_per_s: float) -> Workload:
    """The same requests at another rate of arrival, bursts kept."""
    return replace(workload, requests=at_rate(workload.requests, requests_per_s))


def offered_rate(workload: Workload) -> float | None:
    """Requests a second that an open loop offers; None for a closed one, whose rate is the engine's answer."""
    return request_rate(workload.requests) if workload.loop == "open" else None


def expected_reservation_waste(requests: Sequence[TraceRequest], max_model_len: int) -> float:
    """KV waste of reserving `max_model_len` for each request, from lengths alone: 1 - mean length / maximum
    length.

    A request with P prompt and N output tokens lives N steps: the one that computes the prompt holds P
    tokens, and each of the N - 1 decode steps one more, so over its life it holds P + (N - 1) / 2 on average.
    Mean length is the average over all (request, step) pairs, that is, requests weighted by N. This is what
    the pool shows when each step counts by the requests live in it.
    """
    num_steps = sum(request.num_output_tokens for request in requests)
    held = math.fsum(
        request.num_output_tokens * (request.num_prompt_tokens + (request.num_output_tokens - 1) / 2)
        for request in requests
    )
    return 1.0 - held / num_steps / max_model_len


def result_row(policy: str, result: ReplayResult, workload: Workload, facts: Mapping[str, object]) -> dict[str, object]:
    """One object of `bench --json`: the keys of `vllm bench serve`, then ours.

    Ours: `policy`, `loop` ("open" or "closed"), `interrupted`, the extra keys of `ReplayResult.summary`, and
    `facts`.
    """
    rate = offered_rate(workload)
    row: dict[str, object] = {
        "policy": policy,
        "label": policy,
        "num_prompts": len(workload.requests),
        "request_rate": "inf" if rate is None or math.isinf(rate) else rate,
        "max_concurrency": workload.concurrency,
        "loop": workload.loop,
    }
    return row | dict(facts) | dict(result.summary) | {"interrupted": result.interrupted}
