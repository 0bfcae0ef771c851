"""Running steps on the kernels in tests, and int8 arithmetic written down in plain torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from headway.executors.torch import LoadedModel
from headway.executors.torch.batch import RequestRows
from headway.executors.torch.forward import Scores
from headway.executors.torch.linear import Linear
from headway.executors.torch.native import KernelEngine, KernelsUnavailableError
from headway.executors.torch.native.library import ISAS
from headway.executors.torch.weights import DecoderWeights

GROUP = 32


def isas_here() -> list[str]:
    """The instruction sets that this processor can run, best first."""
    found = []
    for isa in ISAS:
        try:
            KernelEngine(1, isa).close()
        except KernelsUnavailableError:
            continue
        found.append(isa)
    return found


class NativeRunner:
    """A forward pass with blocks given out in no order."""

    def __init__(self, model: LoadedModel, *, num_blocks: int = 300, block_size: int = 16) -> None:
        self.forward = model.forward_pass(num_blocks, block_size)
        self.block_size = block_size
        self._free: Iterator[int] = iter(np.random.default_rng(0).permutation(np.arange(1, num_blocks)).tolist())

    def table(self, num_tokens: int, shared: Sequence[int] = ()) -> list[int]:
        """A block table for so many tokens, which begins with blocks of another."""
        num_blocks = -(-num_tokens // self.block_size)
        return [*shared, *(next(self._free) for _ in range(num_blocks - len(shared)))]

    def run(self, requests: Sequence[RequestRows]) -> Scores:
        """One step."""
        return self.forward.run(requests)

    def logits(
        self, token_ids: Sequence[int], *, chunk: int | None = None, table: Sequence[int] | None = None, start: int = 0
    ) -> Tensor:
        """Logits at all positions from `start` on, computed alone, in chunks."""
        block_ids = np.array(self.table(len(token_ids)) if table is None else table)
        size = chunk or len(token_ids)
        parts = []
        for first in range(start, len(token_ids), size):
            ids = token_ids[first : first + size]
            parts.append(self.run([RequestRows(ids, first, block_ids, num_sampled=len(ids))]).logits)
        return torch.cat(parts)


def fake_quantize(rows: Tensor) -> Tensor:
    """Rows [num_rows, width] as bytes times a scale for each 32 of them: what the kernels compute with."""
    groups = rows.reshape(len(rows), -1, GROUP)
    scales = groups.abs().amax(-1, keepdim=True) / 127
    return (torch.round(groups / scales.clamp(min=1e-30)) * scales).view_as(rows)


def fake_quantize_weight(weight: Tensor) -> Tensor:
    """Weights as 256 levels between the least and the largest of each 32 inputs."""
    groups = weight.reshape(len(weight), -1, GROUP)
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    # Multiplied by the inverse as the kernels do it: a weight that rounds the other way changes every row.
    levels = torch.round((groups - least) * (255 / (most - least).clamp(min=1e-30)))
    return (least + levels * ((most - least) / 255)).view_as(weight)


class FakeQuantized(Linear):
    """A projection of quantised rows by a quantised matrix, in float32."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(fake_quantize_weight(linear.weight), linear.bias)

    def __call__(self, rows: Tensor) -> Tensor:
        return super().__call__(fake_quantize(rows))

    def add_to(self, residual: Tensor, rows: Tensor) -> None:
        super().add_to(residual, fake_quantize(rows))


def fake_quantized(weights: DecoderWeights) -> DecoderWeights:
    """The same decoder with quantised products."""
    layers = [
        replace(
            layer,
            qkv=FakeQuantized(layer.qkv),
            output=FakeQuantized(layer.output),
            gate_up=FakeQuantized(layer.gate_up),
            down=FakeQuantized(layer.down),
        )
        for layer in weights.layers
    ]
    return replace(weights, layers=layers, head=FakeQuantized(weights.head))


def relative_error(ours: Tensor, theirs: Tensor) -> float:
    """Norm of the difference over the norm of the reference."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).norm() / theirs.norm())
