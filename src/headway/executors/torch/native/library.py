"""The C interface of the kernel library, by ctypes. `csrc/headway.h` says what each field means."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headway.executors.torch.native.compilation import KernelsUnavailableError, build
from headway.executors.torch.native.memory import Arena

_ABI = 2
COLUMNS = 32
"""Outputs in a panel of packed weights."""
GROUP = 32
"""Consecutive inputs that share a scale."""
ISAS = ("avx512", "avx2", "portable")


class MatrixStruct(ctypes.Structure):
    """`HeadwayMatrix`."""

    _fields_ = (
        *((name, c_void_p) for name in ("panels", "bias")),
        *((name, c_int32) for name in ("num_panels", "num_groups", "num_levels")),
    )


class LayerStruct(ctypes.Structure):
    """`HeadwayLayer`."""

    _fields_ = (
        *((name, c_void_p) for name in ("input_norm", "post_attention_norm", "query_norm", "key_norm")),
        *((name, MatrixStruct) for name in ("qkv", "output", "gate_up", "down")),
        ("window", c_int32),
    )


class ModelStruct(ctypes.Structure):
    """`HeadwayModel`."""

    _fields_ = (
        *((name, c_int32) for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")),
        *((name, c_int32) for name in ("intermediate_size", "vocab_size")),
        ("norm_epsilon", c_float),
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("head", MatrixStruct),
        ("layers", POINTER(LayerStruct)),
    )


class CacheStruct(ctypes.Structure):
    """`HeadwayCache`."""

    _fields_ = (("blocks", c_void_p), ("layer_bytes", c_uint64), ("block_size", c_int32), ("is_half", c_int32))


class StepStruct(ctypes.Structure):
    """`HeadwayStep`."""

    _fields_ = (
        *((name, c_int32) for name in ("num_rows", "num_spans", "num_sampled", "num_logit_rows")),
        *((name, c_void_p) for name in ("token_ids", "cosines", "sines", "spans", "tables")),
        *((name, c_void_p) for name in ("sampled_rows", "logits", "best_tokens")),
    )


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A matrix as the kernels read it; `csrc/kernels.h` says how panels lie."""

    panels: Tensor
    num_panels: int
    num_groups: int
    num_levels: int

    def struct(self, bias: int | None = None) -> MatrixStruct:
        """The C view; valid while `panels` is alive.

        Args:
            bias: address of float32 [num_panels * 32].
        """
        return MatrixStruct(self.panels.data_ptr(), bias, self.num_panels, self.num_groups, self.num_levels)


@cache
def load_library(path: Path | None = None) -> ctypes.CDLL:
    """Load the library, compiling it first if need be; HEADWAY_KERNELS names one to take instead.

    Raises:
        KernelsUnavailableError: it cannot be compiled or loaded.
    """
    given = os.environ.get("HEADWAY_KERNELS")
    chosen = path or (Path(given) if given else build())
    try:
        library = ctypes.CDLL(str(chosen))
        if library.headway_abi() != _ABI:
            raise KernelsUnavailableError(f"{chosen} is of another version.")
    except (OSError, AttributeError) as error:
        raise KernelsUnavailableError(f"The kernel library {chosen} cannot be loaded: {error}.") from error
    _declare(library)
    return library


def _declare(library: ctypes.CDLL) -> None:
    signatures: dict[str, tuple[Any, Sequence[Any]]] = {
        "headway_best_isa": (c_char_p, ()),
        "headway_levels": (c_int32, (c_void_p, c_void_p, c_int32, c_int32)),
        "headway_packed_bytes": (c_size_t, (c_int32, c_int32, c_int32)),
        "headway_pack": (None, (c_void_p, c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p)),
        "headway_open": (c_void_p, (c_int32, c_char_p)),
        "headway_close": (None, (c_void_p,)),
        "headway_forward": (None, (c_void_p, POINTER(ModelStruct), POINTER(CacheStruct), POINTER(StepStruct))),
        "headway_multiply": (None, (c_void_p, c_void_p, c_int32, POINTER(MatrixStruct), c_void_p)),
        "headway_quantize": (None, (c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p, c_void_p)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, tuple(arguments)


class KernelEngine:
    """Threads, scratch memory and an instruction set. One call at a time.

    Args:
        num_threads: of one step, the calling thread included.
        isa: one of `ISAS`; None is the best that the processor has.

    Raises:
        KernelsUnavailableError: no library, or not this instruction set here.
    """

    def __init__(self, num_threads: int, isa: str | None = None) -> None:
        self._library = load_library()
        self._handle = self._library.headway_open(num_threads, isa.encode() if isa else None)
        if not self._handle:
            raise KernelsUnavailableError(f"This processor has no {isa}.")
        self.isa = isa or self._library.headway_best_isa().decode()
        self.num_threads = num_threads

    def close(self) -> None:
        """Stop the threads and free the scratch memory."""
        if self._handle:
            self._library.headway_close(self._handle)
            self._handle = None

    def pack(self, weight: Tensor, *, gated: bool = False, arena: Arena | None = None) -> PackedWeight:
        """Turn weights [num_outputs, num_inputs], float32, into panels: levels, and a scale for every 32 inputs.

        Sixteen levels where the weights have no more, otherwise 256.

        Args:
            gated: outputs are gates, then ups; they are interleaved, so that a panel has both.
            arena: where the panels are put; None is memory of their own.
        """
        num_outputs, num_inputs = weight.shape
        contiguous = weight.contiguous()
        num_levels = self._library.headway_levels(self._handle, contiguous.data_ptr(), num_outputs, num_inputs)
        size = self._library.headway_packed_bytes(num_outputs, num_inputs, num_levels)
        panels = (arena or Arena(size)).take(size)
        self._library.headway_pack(
            *(self._handle, contiguous.data_ptr(), num_outputs, num_inputs, num_levels, int(gated), panels.data_ptr())
        )
        return PackedWeight(panels, -(-num_outputs // COLUMNS), num_inputs // GROUP, num_levels)

    def quantize(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What a product sees of rows [num_rows, num_inputs]: bytes, scales and sums of bytes of each group."""
        num_rows, num_inputs = rows.shape
        results = (
            torch.empty(num_rows, num_inputs, dtype=torch.int8),
            torch.empty(num_rows, num_inputs // GROUP),
            torch.empty(num_rows, num_inputs // GROUP, dtype=torch.int32),
        )
        self._library.headway_quantize(
            self._handle, rows.data_ptr(), num_rows, num_inputs, *(tensor.data_ptr() for tensor in results)
        )
        return results

    def multiply(self, rows: Tensor, weight: PackedWeight) -> Tensor:
        """Rows [num_rows, num_inputs] times a packed matrix → [num_rows, num_panels * 32]."""
        out = torch.empty(len(rows), weight.num_panels * COLUMNS)
        matrix = weight.struct()
        self._library.headway_multiply(self._handle, rows.data_ptr(), len(rows), byref(matrix), out.data_ptr())
        return out

    def forward(self, model: ModelStruct, cache: CacheStruct, step: StepStruct) -> None:
        """Run one step; other Python threads may run meanwhile."""
        self._library.headway_forward(self._handle, byref(model), byref(cache), byref(step))
