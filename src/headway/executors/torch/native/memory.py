"""Memory in huge pages: a step reads all weights, and small pages would be looked up one by one."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

_ALIGNMENT_BYTES = 64
_HUGE_PAGE_BYTES = 2 << 20
_CHUNK_BYTES = 32 << 20


def huge_zeros(size: int) -> Tensor:
    """Zeros [size], uint8, that begin where a huge page may; pages that are never touched cost no memory.

    The system decides whether pages are huge.
    """
    memory = mmap.mmap(-1, size + _HUGE_PAGE_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without them says so by an error.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    everything = torch.frombuffer(memory, dtype=torch.uint8)
    start = -everything.data_ptr() % _HUGE_PAGE_BYTES
    return everything[start : start + size]


class Arena:
    """Gives out pieces of large chunks of memory; a chunk lives as long as one of its pieces.

    Args:
        chunk_bytes: of one chunk; a larger piece gets its own.
    """

    def __init__(self, chunk_bytes: int = _CHUNK_BYTES) -> None:
        self._chunk_bytes = chunk_bytes
        self._rest = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Zeros [size], uint8, at an address that is a multiple of 64."""
        padded = -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        if padded > len(self._rest):
            self._rest = huge_zeros(max(padded, self._chunk_bytes))
        piece, self._rest = self._rest[:size], self._rest[padded:]
        return piece
