"""Ways to run a loaded model in tests: the decoder alone on hand-made rows, or an engine with the real scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.config import REFERENCE_ENGINE_VERSION, CacheConfig, SchedulerConfig
from headway.core.arrivals import Arrival, TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.plan import RequestOutput, ScheduledRequest, StepPlan
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.executors.torch import LoadedModel, TorchExecutor
from headway.executors.torch.batch import RequestRows, build_batch
from headway.executors.torch.kv_cache import PagedKVCache
from headway.executors.torch.model import TorchDecoder

GREEDY = SamplingParams(temperature=0.0)
NEAR_TIE = 1e-3
"""Rounding may turn the order of two logits that are closer than this."""


def random_ids(count: int, vocab_size: int, seed: int = 0) -> list[int]:
    """Token ids without meaning."""
    generator = torch.Generator().manual_seed(seed)
    return [int(i) for i in torch.randint(0, vocab_size, (count,), generator=generator)]


class Runner:
    """A decoder with a cache, and requests whose blocks are given out one by one."""

    def __init__(self, model: LoadedModel, *, num_blocks: int = 2000, block_size: int = 16) -> None:
        self.model = model
        self.cache = PagedKVCache(
            model.spec.num_layers,
            num_blocks,
            block_size,
            model.spec.num_kv_heads,
            model.spec.head_dim,
            device=model.device,
            dtype=model.dtype,
        )
        self.decoder = TorchDecoder(model.spec, model.weights)
        # Not in order, so that a mistake in a table cannot go unnoticed.
        self._free: Iterator[int] = iter(np.random.default_rng(0).permutation(np.arange(1, num_blocks)).tolist())

    def table(self, num_tokens: int, shared: Sequence[int] = ()) -> list[int]:
        """A block table for so many tokens, which begins with blocks of another."""
        num_blocks = -(-num_tokens // self.cache.block_size)
        return [*shared, *(next(self._free) for _ in range(num_blocks - len(shared)))]

    @torch.inference_mode()
    def run(self, requests: Sequence[RequestRows]) -> Tensor:
        """One step; logits of the sampled rows."""
        batch = build_batch(requests, self.cache, self.model.spec.num_heads, set(self.model.spec.layer_windows))
        return self.decoder.forward(batch, self.cache)

    def logits(
        self, token_ids: Sequence[int], *, chunk: int | None = None, table: Sequence[int] | None = None, start: int = 0
    ) -> Tensor:
        """Logits at all positions from `start` on, computed alone, in chunks."""
        block_ids = np.array(self.table(len(token_ids)) if table is None else table)
        size = chunk or len(token_ids)
        parts = []
        for first in range(start, len(token_ids), size):
            ids = token_ids[first : first + size]
            parts.append(self.run([RequestRows(ids, first, block_ids, num_sampled=len(ids))]))
        return torch.cat(parts)


@dataclass
class Plans:
    """Hand-made plans for an executor: keeps the tables and the counters that a scheduler would."""

    executor: TorchExecutor
    next_block: int = 1
    step_id: int = 0
    tables: dict[str, list[int]] = field(default_factory=dict)

    def item(self, request: Request, num_tokens: int, **changes: Any) -> ScheduledRequest:
        """One request's share of the next plan: its next `num_tokens` tokens, in new blocks where needed."""
        start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        table = self.tables.setdefault(request.request_id, [])
        needed = -(-end // self.executor.cache.block_size) - len(table)
        new = list(range(self.next_block, self.next_block + max(0, needed)))
        self.next_block += len(new)
        table += new
        request.num_computed_tokens = end
        return ScheduledRequest(request, num_tokens, start, 0, 0, new, end >= request.num_tokens)._replace(**changes)

    def plan(self, items: Sequence[ScheduledRequest], **changes: Any) -> StepPlan:
        """The next plan; requests that start at position 0 are new."""
        self.step_id += 1
        new = [item.request for item in items if item.num_computed_tokens == 0]
        values: dict[str, Any] = {"new": new, "resumed": [], "preempted": [], "released_ids": []} | changes
        return StepPlan(step_id=self.step_id, scheduled=items, num_tokens=sum(i.num_tokens for i in items), **values)


def make_request(
    request_id: str, token_ids: Sequence[int], sampling: SamplingParams = GREEDY, *, block_size: int = 16
) -> Request:
    """A request with real tokens and no end-of-sequence ids."""
    return Request(request_id, TokenContent(token_ids, block_size), len(token_ids), sampling, 100_000)


def output_ids(request: Request) -> list[int]:
    """What a request has generated."""
    assert isinstance(request.content, TokenContent)
    return request.content.token_ids[request.num_prompt_tokens :]


def serve(
    model: LoadedModel,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[SamplingParams] | SamplingParams,
    *,
    num_blocks: int = 600,
    block_size: int = 16,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 256,
    policy: str = "chunked",
    async_scheduling: bool = False,
    enable_prefix_caching: bool = True,
) -> tuple[list[Request], list[RequestOutput], Engine]:
    """Run prompts that all arrive at once through the real scheduler; checks its invariants after every step."""
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=model.max_model_len,
            async_scheduling=async_scheduling,
        ),
        CacheConfig(
            num_blocks=num_blocks,
            block_size=block_size,
            enable_prefix_caching=enable_prefix_caching,
            sliding_window=model.sliding_window,
        ),
        policy=policy,
        engine_version=REFERENCE_ENGINE_VERSION,
    )
    each = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
    requests = [
        Request(f"r{i}", TokenContent(prompt, block_size), len(prompt), params, model.max_model_len)
        for i, (prompt, params) in enumerate(zip(prompts, each, strict=True))
    ]
    executor = TorchExecutor(model, num_blocks=num_blocks, block_size=block_size)
    depth = 2 if async_scheduling else 1
    source = TraceSource([(0.0, Arrival(request)) for request in requests])
    engine = Engine(scheduler, executor, VirtualClock(), source, max_in_flight=depth)
    outputs: list[RequestOutput] = []
    for step in engine.run():
        outputs += step
        scheduler.check_integrity()
    return requests, outputs, engine


def first_divergence(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first difference."""
    return next((i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), None)


def assert_greedy(prompt: Sequence[int], outputs: Sequence[int], reference_logits: Tensor) -> None:
    """Each output is the reference's best token after what came before, or within rounding of it.

    `reference_logits` are for prompt and outputs together; [num_tokens, vocab_size].
    """
    for index, token_id in enumerate(outputs):
        row = reference_logits[len(prompt) + index - 1]
        gap = float(row.max() - row[token_id])
        assert gap < NEAR_TIE, f"output {index} is {token_id}, {gap:.4f} below the reference's best"
