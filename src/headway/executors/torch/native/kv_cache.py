"""Keys and values for the kernels: half or single precision, keys of a block transposed."""

from __future__ import annotations

import math

import torch

from headway.errors import ConfigError
from headway.executors.torch.native.library import CacheStruct
from headway.executors.torch.native.memory import huge_zeros
from headway.executors.torch.spec import ModelSpec

_LANES = 16


class NativeKVCache:
    """The KV tensors of all layers: [num_blocks + 1, 2 (key, value), num_kv_heads, block_size * head_dim] each.

    A block's keys are stored [head_dim, block_size], its values [block_size, head_dim]. The last block takes what
    padding rows write.

    Raises:
        ConfigError: the block size is not a multiple of 16.
    """

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        if block_size % _LANES:
            raise ConfigError(
                f"int8 needs a block size that is a multiple of {_LANES}, not {block_size}.",
                hint=f"Use --block-size {-(-block_size // _LANES) * _LANES}.",
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.padding_block_id = num_blocks
        shape = (spec.num_layers, num_blocks + 1, 2, spec.num_kv_heads, block_size * spec.head_dim)
        everything = huge_zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
        self.layers = everything.unbind()
        """One tensor a layer; see the class's docstring for its shape."""
        self.struct = CacheStruct(
            blocks=everything.data_ptr(),
            layer_bytes=everything[0].nbytes,
            block_size=block_size,
            is_half=int(dtype == torch.float16),
        )
