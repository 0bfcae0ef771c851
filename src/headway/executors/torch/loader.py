"""From a path to a model in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from headway.config import ModelFacts
from headway.errors import ConfigError
from headway.executors.torch.checkpoint import locate_model, open_checkpoint
from headway.executors.torch.gguf_checkpoint import GGUFCheckpoint
from headway.executors.torch.gguf_file import GGUFFile
from headway.executors.torch.spec import ModelSpec
from headway.executors.torch.weights import DecoderWeights, load_weights

_DTYPES = {"float32": torch.float32}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model on its device, and the facts that configuring an engine needs.

    Args:
        path: where it was found; its tokenizer is there too.
        name: what to call it unless the user says otherwise.
        gguf: the opened file if it is one; its `fields` hold the tokenizer, so that nobody need open it again.
    """

    path: Path
    name: str
    spec: ModelSpec
    weights: DecoderWeights
    device: torch.device
    dtype: torch.dtype
    gguf: GGUFFile | None = None

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the model was made for."""
        return self.spec.max_position_embeddings

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps."""
        return self.spec.kv_bytes_per_token(self.dtype.itemsize)

    @property
    def sliding_window(self) -> int | None:
        """See `ModelSpec.sliding_window`."""
        return self.spec.sliding_window

    @property
    def facts(self) -> ModelFacts:
        """What resolving engine options needs to know."""
        return ModelFacts(self.max_model_len, self.kv_bytes_per_token, self.sliding_window)

    @property
    def vocab_size(self) -> int:
        """Token ids run from 0 to vocab_size - 1."""
        return self.spec.vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a sequence, in the model's own opinion."""
        return self.spec.eos_token_ids


def load(
    path: str | Path | None = None,
    *,
    device: str = "auto",
    dtype: str = "float32",
    num_threads: int | None = None,
) -> LoadedModel:
    """Load a model into memory.

    Args:
        path: a Hugging Face folder or a GGUF file; None is the bundled model.
        device: "auto" takes CUDA where there is one, else the CPU.
        num_threads: threads of one CPU step, for the whole process; None leaves torch's own choice, all cores.

    Raises:
        ModelLoadError: the model is missing, damaged or not supported.
        ConfigError: there is no such device or dtype here.
    """
    chosen = _device(device)
    if dtype not in _DTYPES:
        raise ConfigError(f"dtype {dtype!r} is not supported.", hint=f"Supported: {', '.join(_DTYPES)}.")
    if num_threads is not None:
        if num_threads < 1:
            raise ConfigError(f"num_threads must be at least 1, not {num_threads}.")
        torch.set_num_threads(num_threads)
    located = locate_model(path)
    checkpoint = open_checkpoint(located)
    weights = load_weights(checkpoint, chosen)
    return LoadedModel(
        path=located,
        name=checkpoint.name,
        spec=checkpoint.spec,
        weights=weights,
        device=chosen,
        dtype=_DTYPES[dtype],
        gguf=checkpoint.file if isinstance(checkpoint, GGUFCheckpoint) else None,
    )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device {name!r} is unknown.", hint="Known: auto, cpu, cuda.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("This machine has no CUDA device that torch can use.", hint="Use --device cpu.")
    return device
