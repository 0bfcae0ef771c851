"""The decoder: one forward pass over the flat rows of a whole step."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from headway.executors.torch.batch import StepBatch
from headway.executors.torch.kv_cache import PagedKVCache
from headway.executors.torch.rotary import Rotary, rotate_in_place
from headway.executors.torch.spec import ModelSpec
from headway.executors.torch.weights import DecoderWeights, LayerWeights


class Decoder(Protocol):
    """A forward pass; the seam at which a native implementation takes the place of this one."""

    def forward(self, batch: StepBatch, cache: PagedKVCache) -> Tensor:
        """Compute a step: store keys and values of all rows, return logits [num_sampled_rows, vocab_size]."""


class TorchDecoder:
    """Exact forward pass in torch operations, with no loop over requests outside attention."""

    def __init__(self, spec: ModelSpec, weights: DecoderWeights) -> None:
        self._spec = spec
        self._weights = weights
        self._rotary = Rotary(spec.head_dim, spec.rope_theta, spec.rope_scaling, weights.embedding.device)

    def forward(self, batch: StepBatch, cache: PagedKVCache) -> Tensor:
        """See `Decoder.forward`."""
        hidden = F.embedding(batch.token_ids, self._weights.embedding)
        rotations = self._rotary.rotations(batch.positions)
        last = self._spec.num_layers - 1
        for index, layer in enumerate(self._weights.layers):
            mixed = self._attend(index, layer, self._norm(hidden, layer.input_norm), rotations, batch, cache)
            if index == last:
                # From here on a row matters to itself alone, and only the sampled ones are wanted.
                hidden, mixed = hidden[batch.sampled_rows], mixed[batch.sampled_rows]
            layer.output.add_to(hidden, mixed)
            gate_up = layer.gate_up(self._norm(hidden, layer.post_attention_norm))
            gate, up = gate_up.chunk(2, dim=-1)
            layer.down.add_to(hidden, F.silu(gate).mul_(up))
        return self._weights.head(self._norm(hidden, self._weights.final_norm))

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        rows: Tensor,
        rotations: Tensor,
        batch: StepBatch,
        cache: PagedKVCache,
    ) -> Tensor:
        """Queries, keys and values of normed rows; keys and values into the cache; → [num_rows, q_size]."""
        spec = self._spec
        qkv = layer.qkv(rows)
        if layer.query_norm is not None and layer.key_norm is not None:
            self._norm_heads(qkv[:, : spec.q_size], layer.query_norm)
            self._norm_heads(qkv[:, spec.q_size : spec.q_size + spec.kv_size], layer.key_norm)
        rotate_in_place(_heads(qkv[:, : spec.q_size + spec.kv_size], spec.head_dim), rotations)
        # All of the step's keys go in before any is read: a request may share a block that another one fills now.
        cache.write(index, batch.kv_rows, qkv[:, spec.q_size :])
        work = batch.attention[spec.layer_windows[index]]
        if len(work) == 1:
            return work[0].run(qkv, cache, index)
        parts = torch.split(qkv, batch.row_counts)
        return torch.cat([piece.run(part, cache, index) for piece, part in zip(work, parts, strict=True)])

    def _norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(rows, (rows.shape[-1],), weight, self._spec.rms_norm_eps)

    def _norm_heads(self, heads: Tensor, weight: Tensor) -> None:
        """Norm each head of [num_rows, num_heads * head_dim], in place."""
        split = _heads(heads, self._spec.head_dim)
        split.copy_(self._norm(split, weight))


def _heads(rows: Tensor, head_dim: int) -> Tensor:
    """View [num_rows, num_heads * head_dim] as [num_rows, num_heads, head_dim]."""
    return rows.view(rows.shape[0], -1, head_dim)
