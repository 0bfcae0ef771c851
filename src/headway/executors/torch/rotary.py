"""Rotary position embedding: how fast each pair of dimensions turns, and the known ways to slow it down.

Queries and keys are kept with the two halves of each head interleaved (dimension j beside j + head_dim / 2), so that a
pair is one complex number and the rotation is one complex multiplication. Attention scores do not change when query
and key dimensions are permuted alike; `interleave_halves` is applied once, to the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float

    def apply(self, frequencies: Tensor, theta: float) -> Tensor:
        """Scaled frequencies; [head_dim / 2]."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """Each frequency is divided by its own factor (GGUF's `rope_freqs.weight`, which carries Llama 3's scaling)."""

    factors: tuple[float, ...]

    def apply(self, frequencies: Tensor, theta: float) -> Tensor:
        """Scaled frequencies; [head_dim / 2]."""
        return frequencies / torch.tensor(self.factors, dtype=torch.float32)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's rule: long waves are slowed by `factor`, short ones kept, and those between are blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    def apply(self, frequencies: Tensor, theta: float) -> Tensor:
        """Scaled frequencies; [head_dim / 2]."""
        turns = self.original_max_position_embeddings * frequencies / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return kept * frequencies + (1 - kept) * frequencies / self.factor


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): a ramp over dimensions between kept and slowed frequencies, and longer vectors."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True

    def apply(self, frequencies: Tensor, theta: float) -> Tensor:
        """Scaled frequencies; [head_dim / 2]."""
        num_pairs = frequencies.numel()
        low, high = (self._pair_turning(turns, theta, num_pairs) for turns in (self.beta_fast, self.beta_slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * num_pairs - 1)
        if low == high:
            high += 0.001
        slowed = ((torch.arange(num_pairs, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
        return slowed * frequencies / self.factor + (1 - slowed) * frequencies

    @property
    def vector_scale(self) -> float:
        """Factor on rotated queries and on rotated keys."""
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0

    def _pair_turning(self, turns: float, theta: float, num_pairs: int) -> float:
        """Index of the pair (fractional) that turns so many times over the original context."""
        return num_pairs * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / math.log(theta)


RopeScaling = LinearScaling | FrequencyFactors | Llama3Scaling | YarnScaling


class Rotary:
    """Rotations by position.

    Args:
        head_dim: even.
        theta: base of the geometric sequence of frequencies.
        scaling: how the frequencies are changed, if they are.
    """

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None, device: torch.device) -> None:
        frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        if scaling is not None:
            frequencies = scaling.apply(frequencies, theta)
        self.frequencies = frequencies.to(device)
        """Radians per position; [head_dim / 2], float32."""
        self._scale = scaling.vector_scale if isinstance(scaling, YarnScaling) else 1.0

    def rotations(self, positions: Tensor) -> Tensor:
        """Complex factors for rows at the given positions; [num_rows] → [num_rows, 1, head_dim / 2]."""
        angles = positions.to(torch.float32)[:, None] * self.frequencies
        return torch.polar(torch.full_like(angles, self._scale), angles).unsqueeze(1)


def rotate_in_place(heads: Tensor, rotations: Tensor) -> None:
    """Turn interleaved heads [num_rows, num_heads, head_dim] by rotations [num_rows, 1, head_dim / 2]."""
    num_rows, num_heads, head_dim = heads.shape
    torch.view_as_complex(heads.view(num_rows, num_heads, head_dim // 2, 2)).mul_(rotations)


def interleave_halves(weight: Tensor, head_dim: int) -> Tensor:
    """Reorder rows of a query or key projection (or its bias, or a norm over one head) for `rotate_in_place`.

    Within each head, row j becomes 2j, and row j + head_dim / 2 becomes 2j + 1.
    """
    halves = weight.reshape(-1, 2, head_dim // 2, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)


def separate_halves(weight: Tensor, head_dim: int) -> Tensor:
    """The inverse of `interleave_halves`."""
    pairs = weight.reshape(-1, head_dim // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)
