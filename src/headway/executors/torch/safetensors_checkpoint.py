"""A Hugging Face model folder: config.json with one safetensors file, or several and an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from headway.errors import ModelLoadError
from headway.executors.torch.checkpoint import Checkpoint, no_weights_error
from headway.executors.torch.huggingface_config import read_spec

_INDEX_NAME = "model.safetensors.index.json"
_READABLE = (torch.float32, torch.float16, torch.bfloat16)


class SafetensorsCheckpoint(Checkpoint):
    """Tensors are read from memory-mapped files, one at a time.

    Raises:
        ModelLoadError: config or weights are missing, damaged or not supported, or a shard is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.name = folder.resolve().name
        self.spec = read_spec(folder)
        self._files: dict[str, Any] = {}
        """The open file that holds each tensor."""
        for path in _shards(folder):
            opened = _open(path)
            self._files |= dict.fromkeys(opened.keys(), opened)

    def has(self, name: str) -> bool:
        """See `Checkpoint.has`."""
        return name in self._files

    def read(self, name: str) -> Tensor:
        """See `Checkpoint.read`."""
        tensor: Tensor = self._files[name].get_tensor(name)
        if tensor.dtype not in _READABLE:
            raise ModelLoadError(
                f"Tensor {name!r} of {self.name} has type {tensor.dtype}, which is not supported.",
                hint="Supported: float32, float16, bfloat16.",
            )
        return tensor.to(torch.float32, copy=True)


def _shards(folder: Path) -> list[Path]:
    index = folder / _INDEX_NAME
    if index.is_file():
        return _indexed_shards(index)
    files = sorted(folder.glob("*.safetensors"))
    if (folder / "model.safetensors") in files:
        return [folder / "model.safetensors"]
    if not files:
        raise no_weights_error(folder)
    if any("-of-" in file.name for file in files):
        raise ModelLoadError(f"{folder} has weight shards but no {_INDEX_NAME}.", hint="Download it too.")
    return files


def _indexed_shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        paths = [index.parent / name for name in names]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ModelLoadError(f"{index} cannot be read as an index of shards.", hint="Download it again.") from None
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelLoadError(
            f"{index.parent} lacks {len(missing)} of {len(paths)} weight shards: {missing[0]}.",
            hint="Download the missing files.",
        )
    return paths


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelLoadError(
            f"{path} is truncated or damaged ({error}).", hint="Download it again and compare its size."
        ) from None
