"""The GGUF container: key-value metadata, and tensors that stay in the memory-mapped file until they are read.

Layout (little-endian): magic, version, number of tensors, number of keys; the keys with typed values; for each tensor
its name, dimensions (fastest first), type and offset; then, aligned, the data.

`gguf.GGUFReader` reads the same, but takes seconds for a vocabulary, because each string passes through several NumPy
calls. Tensor types, block sizes and dequantisation are the package's.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from headway.errors import ModelLoadError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 8
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""struct's letters for the value types that are plain numbers."""


@dataclass(frozen=True, slots=True)
class GGUFField:
    """The value of one key."""

    value: Any

    def contents(self) -> Any:
        """The value: a number, a string, or a list of either (named as in `gguf.ReaderField`)."""
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor:
    """One tensor, as stored.

    Args:
        shape: slowest dimension first, as NumPy has it; the file has it the other way round.
        tensor_type: name of the type ("F32", "Q4_1").
        stored: its bytes.
    """

    name: str
    shape: tuple[int, ...]
    tensor_type: str
    stored: NDArray[np.uint8]

    def values(self) -> NDArray[np.float32]:
        """Exact values as a new float32 array of `shape`."""
        kind = gguf.GGMLQuantizationType[self.tensor_type]
        if self.tensor_type in ("F32", "F16"):
            numbers = self.stored.view(np.float32 if self.tensor_type == "F32" else np.float16)
        else:
            numbers = gguf.quants.dequantize(self.stored.reshape(-1, self._row_bytes(kind)), kind)
        return np.array(numbers, dtype=np.float32).reshape(self.shape)

    def _row_bytes(self, kind: Any) -> int:
        num_values, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        return int(self.shape[-1] // num_values * num_bytes)


class GGUFFile:
    """An opened file.

    Raises:
        ModelLoadError: not GGUF, of another version, truncated, or a tensor's type is unknown to the gguf package.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data = _map(path)
        cursor = _Cursor(self._data, path)
        if cursor.bytes(4) != _MAGIC:
            raise ModelLoadError(f"{path} is not a GGUF file.", hint="Give a .gguf file or a model folder.")
        version = cursor.number("I")
        if version not in _VERSIONS:
            raise ModelLoadError(
                f"{path} has GGUF version {version}; supported are {_VERSIONS[0]} and {_VERSIONS[1]}.",
                hint="Convert it again; big-endian files are not supported.",
            )
        num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
        self.fields: dict[str, GGUFField] = {}
        """Values by key."""
        for _ in range(num_keys):
            key = cursor.string()
            self.fields[key] = GGUFField(cursor.value(cursor.number("I")))
        headers = [_TensorHeader.read(cursor) for _ in range(num_tensors)]
        alignment = self.fields["general.alignment"].value if "general.alignment" in self.fields else _DEFAULT_ALIGNMENT
        start = -(-cursor.offset // alignment) * alignment
        self.tensors: dict[str, GGUFTensor] = {header.name: self._tensor(header, start) for header in headers}
        """Tensors by name."""

    def _tensor(self, header: _TensorHeader, start: int) -> GGUFTensor:
        try:
            kind = gguf.GGMLQuantizationType(header.type_code)
        except ValueError:
            raise ModelLoadError(
                f"{self._path}: tensor {header.name!r} has unknown type {header.type_code}.",
                hint="The file may be newer than the installed gguf package.",
            ) from None
        num_values, num_bytes = gguf.GGML_QUANT_SIZES[kind]
        if header.shape[-1] % num_values:
            raise _truncated(self._path, f"rows of {header.name!r} are no whole blocks")
        first = start + header.offset
        last = first + int(np.prod(header.shape, dtype=object)) // num_values * num_bytes
        if last > len(self._data):
            raise _truncated(self._path, f"{header.name!r} ends at byte {last} of {len(self._data)}")
        return GGUFTensor(header.name, header.shape, kind.name, self._data[first:last])


@dataclass(frozen=True, slots=True)
class _TensorHeader:
    name: str
    shape: tuple[int, ...]
    type_code: int
    offset: int

    @classmethod
    def read(cls, cursor: _Cursor) -> _TensorHeader:
        name, num_dimensions = cursor.string(), cursor.number("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise _truncated(cursor.path, f"{name!r} has {num_dimensions} dimensions")
        shape = tuple(reversed(cursor.numbers("Q", num_dimensions)))
        return cls(name, shape, cursor.number("I"), cursor.number("Q"))


class _Cursor:
    """Reads values one after the other; running off the end is a ModelLoadError."""

    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self._view = data.data
        self.path = path
        self.offset = 0

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes."""
        end = self.offset + count
        if end > len(self._view):
            raise _truncated(self.path, f"the header needs byte {end} of {len(self._view)}")
        taken = bytes(self._view[self.offset : end])
        self.offset = end
        return taken

    def number(self, letter: str) -> Any:
        """The next number of the type that struct gives this letter."""
        return self.numbers(letter, 1)[0]

    def numbers(self, letter: str, count: int) -> Sequence[Any]:
        """Several numbers of one type."""
        return struct.unpack(f"<{count}{letter}", self.bytes(count * struct.calcsize(letter)))

    def string(self) -> str:
        """A string with its length in front; bytes that are no UTF-8 become replacement characters."""
        return self.bytes(self.number("Q")).decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        """A value of a type given by its code."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            item_kind, count = self.number("I"), self.number("Q")
            if item_kind in _SCALARS:
                return list(self.numbers(_SCALARS[item_kind], count))
            return [self.value(item_kind) for _ in range(count)]
        raise _truncated(self.path, f"value type {kind} does not exist")


def _map(path: Path) -> NDArray[np.uint8]:
    try:
        return np.memmap(path, dtype=np.uint8, mode="r")
    except ValueError:  # an empty file cannot be mapped
        raise _truncated(path, "it is empty") from None
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from None


def _truncated(path: Path, detail: str) -> ModelLoadError:
    return ModelLoadError(f"{path} is truncated or damaged ({detail}).", hint="Download it again and compare its size.")
