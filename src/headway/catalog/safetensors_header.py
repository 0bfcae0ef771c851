"""Sizes of weights from the headers of safetensors files; the weights themselves are not read."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.catalog.architecture import ModelArchitecture
from headway.errors import ConfigError

INDEX = "model.safetensors.index.json"
_MAX_HEADER_BYTES = 100_000_000
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_DRAFT = re.compile(r"(?:^|\.)mtp(?:_block)?\.")


def stored_weight_bytes(folder: Path, model: ModelArchitecture, *, is_float32: bool = False) -> int | None:
    """Bytes of the tensors that vLLM loads from a folder's safetensors files; None where there are none.

    Left out are layers beyond the model's own (for drafting) and an output head that is the embedding again. Where the
    index names files that are not there, its total counts. vLLM narrows float32 models to 16 bits (`is_float32`).

    Raises:
        ConfigError: a file that is cut short or is not safetensors.
    """
    files, total = _files(folder)
    if total is not None:
        return total // 2 if is_float32 else total
    if not files:
        return None
    size = 0
    for path in files:
        for name, entry in _entries(path):
            layer = _LAYER.search(name)
            extra = _DRAFT.search(name) or (layer is not None and int(layer[1]) >= model.num_layers)
            if extra or (model.tie_word_embeddings and name.endswith("lm_head.weight")):
                continue
            first, last = entry["data_offsets"]
            size += (last - first) // (2 if is_float32 and entry.get("dtype") == "F32" else 1)
    return size


def _files(folder: Path) -> tuple[list[Path], int | None]:
    """The files to read, or the index's total where some are missing."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / INDEX
    if index.is_file():
        named, total = _read_index(index)
        if all((folder / name).is_file() for name in named):
            return [folder / name for name in named], None
        return [], total
    others = [path for path in files if not path.name.startswith("consolidated")]
    return others or files, None


def _read_index(path: Path) -> tuple[list[str], int]:
    try:
        index = json.loads(path.read_text(encoding="utf-8"))
        return sorted(set(index["weight_map"].values())), int(index["metadata"]["total_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a readable safetensors index: {error}.") from None


def _entries(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MAX_HEADER_BYTES:
                raise ValueError(f"a header of {size} bytes")
            header = json.loads(file.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = entry["data_offsets"]
                if not 0 <= int(first) <= int(last):
                    raise ValueError(f"the offsets of {name}")
                yield name, entry
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not a readable safetensors file: {error}.") from None
