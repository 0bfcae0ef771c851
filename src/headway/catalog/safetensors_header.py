"""Sizes of weights from the headers of safetensors files; the weights themselves are not read."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from headway.errors import ConfigError

_MAX_HEADER_BYTES = 100_000_000


def stored_weight_bytes(folder: Path) -> int | None:
    """Bytes of all tensors in a folder's safetensors files; None where there are none.

    Raises:
        ConfigError: a file that is cut short or is not safetensors.
    """
    files = sorted(folder.glob("*.safetensors"))
    return sum(_file_bytes(path) for path in files) if files else None


def _file_bytes(path: Path) -> int:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            header = json.loads(file.read(size))
        return sum(
            entry["data_offsets"][1] - entry["data_offsets"][0]
            for name, entry in header.items()
            if name != "__metadata__"
        )
    except (OSError, ValueError, struct.error, KeyError, TypeError, IndexError) as error:
        raise ConfigError(f"{path} is not a readable safetensors file: {error}.") from None
