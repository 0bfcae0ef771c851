"""The one place where exact activations meet exact weight matrices."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


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
        """Project rows [num_rows, in_features] into a new tensor [num_rows, out_features]."""
        return F.linear(rows, self.weight, self.bias)

    def add_to(self, residual: Tensor, rows: Tensor) -> None:
        """Project rows and add the result to `residual`, in place; the sum is fused into the multiplication."""
        residual.addmm_(rows, self._transposed)
        if self.bias is not None:
            residual.add_(self.bias)
