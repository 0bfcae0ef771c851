"""The seam between executor and arithmetic: rows of requests in, logits or best tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from headway.executors.torch.batch import RequestRows, build_batch
from headway.executors.torch.kv_cache import PagedKVCache
from headway.executors.torch.model import Decoder
from headway.executors.torch.native.kv_cache import NativeKVCache
from headway.executors.torch.spec import ModelSpec


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """What a step says of its sampled rows, in the order of the requests.

    Args:
        logits: [num_logit_rows, vocab_size], of requests that want them.
        best_token_ids: the token with the largest logit for each row of the other requests.
    """

    logits: Tensor
    best_token_ids: Sequence[int]


class ForwardPass(Protocol):
    """Computes steps and keeps their keys and values."""

    @property
    def cache(self) -> PagedKVCache | NativeKVCache:
        """Where keys and values are."""

    def run(self, requests: Sequence[RequestRows]) -> Scores:
        """Compute a step. If it raises, the same step may be run again."""


class TorchForward:
    """Exact arithmetic in torch operations."""

    def __init__(self, spec: ModelSpec, decoder: Decoder, cache: PagedKVCache) -> None:
        self.cache = cache
        self._decoder = decoder
        self._num_heads = spec.num_heads
        self._windows = frozenset(spec.layer_windows)

    def run(self, requests: Sequence[RequestRows]) -> Scores:
        """See `ForwardPass.run`."""
        batch = build_batch(requests, self.cache, self._num_heads, self._windows)
        logits = self._decoder.forward(batch, self.cache)
        wants = [rows.wants_logits for rows in requests for _ in range(rows.num_sampled)]
        if all(wants):
            return Scores(logits, ())
        best = logits.argmax(dim=-1).tolist()
        others = [int(token_id) for token_id, wanted in zip(best, wants, strict=True) if not wanted]
        return Scores(logits[[index for index, wanted in enumerate(wants) if wanted]], others)
