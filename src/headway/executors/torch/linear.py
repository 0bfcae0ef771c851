"""The one place where activations meet weight matrices; other arithmetics plug in behind the same two methods."""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Projection(Protocol):
    """Rows times a weight matrix: [num_rows, in_features] → [num_rows, out_features]."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Project rows into a new tensor."""

    def add_to(self, residual: Tensor, rows: Tensor) -> None:
        """Project rows and add the result to `residual`, in place."""


class Linear:
    """Exact projection in the weights' own type.

    Args:
        weight: [out_features, in_features].
        bias: [out_features], if any.
    """

    __slots__ = ("_transposed", "bias", "weight")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self._transposed = weight.t()

    def __call__(self, rows: Tensor) -> Tensor:
        """See `Projection.__call__`."""
        return F.linear(rows, self.weight, self.bias)

    def add_to(self, residual: Tensor, rows: Tensor) -> None:
        """See `Projection.add_to`; the sum is fused into the multiplication."""
        residual.addmm_(rows, self._transposed)
        if self.bias is not None:
            residual.add_(self.bias)
