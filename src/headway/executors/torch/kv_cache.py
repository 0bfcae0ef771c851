"""Keys and values in fixed-size blocks: one pool of blocks, in every layer.

A layer's tensor is [num_blocks, 2 (key, value), num_kv_heads, block_size, head_dim]: what one head reads of one block
is contiguous, so a gather of whole (block, key or value, head) units lands in the layout that batched matrix products
want. One block more than the pool has takes what padding rows write, so that they disturb nobody.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Indices = NDArray[np.int64]

_ALIGNMENT_BYTES = 64


class PagedKVCache:
    """The KV tensors of all layers.

    Args:
        num_blocks: size of the pool; block ids in tables run from 0 to num_blocks - 1.
        device, dtype: of the tensors.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.device = device
        self.padding_block_id = num_blocks
        shape = (num_layers, num_blocks + 1, 2, num_kv_heads, block_size, head_dim)
        self.layers = zeros(shape, device, dtype).unbind()
        """One tensor a layer; see the module's docstring for its shape."""
        self._rows = [layer.view(-1, head_dim) for layer in self.layers]
        self._units = [layer.view(-1, block_size * head_dim) for layer in self.layers]
        self._scratch = torch.empty(0, block_size * head_dim, device=device, dtype=dtype)

    def row_indices(self, block_ids: Indices, offsets: Indices) -> Tensor:
        """Where tokens at (block, offset within it) keep their keys and values, for `write`.

        [num_tokens] each → [num_tokens * 2 * num_kv_heads].
        """
        parts, heads = np.arange(2)[None, :, None], np.arange(self.num_kv_heads)[None, None, :]
        units = (block_ids[:, None, None] * 2 + parts) * self.num_kv_heads + heads
        return self._to_device(units * self.block_size + offsets[:, None, None])

    def unit_indices(self, tables: Indices) -> Tensor:
        """What to gather to read whole blocks, for `gather`: [num_requests, num_blocks_each] → flat."""
        parts = np.arange(2)[:, None, None, None]
        heads = np.arange(self.num_kv_heads)[None, None, :, None]
        return self._to_device((tables[None, :, None, :] * 2 + parts) * self.num_kv_heads + heads)

    def write(self, layer: int, rows: Tensor, keys_and_values: Tensor) -> None:
        """Store keys and values [num_tokens, 2 * num_kv_heads * head_dim] at `row_indices`."""
        self._rows[layer].index_copy_(0, rows, keys_and_values.reshape(-1, self.head_dim))

    def gather(self, layer: int, units: Tensor, num_requests: int) -> Tensor:
        """Copy the blocks at `unit_indices` side by side: [2, num_requests * num_kv_heads, num_tokens, head_dim].

        The result lives in a scratch buffer and is overwritten by the next gather.
        """
        if len(self._scratch) < len(units):
            self._scratch = self._scratch.new_empty(len(units), self._scratch.shape[1])
        gathered = torch.index_select(self._units[layer], 0, units, out=self._scratch[: len(units)])
        return gathered.view(2, num_requests * self.num_kv_heads, -1, self.head_dim)

    def _to_device(self, indices: Indices) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(indices).reshape(-1)).to(self.device)


def zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros; on the CPU, pages that are never touched cost no memory."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    num_bytes = int(np.prod(shape)) * dtype.itemsize
    buffer = np.zeros(num_bytes + _ALIGNMENT_BYTES, dtype=np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT_BYTES
    return torch.from_numpy(buffer[start : start + num_bytes]).view(dtype).view(shape)
