"""From a path to a model in memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from headway.config import ModelFacts
from headway.errors import ConfigError
from headway.executors.torch.checkpoint import locate_model, open_checkpoint
from headway.executors.torch.forward import ForwardPass, TorchForward
from headway.executors.torch.gguf_checkpoint import GGUFCheckpoint
from headway.executors.torch.gguf_file import GGUFFile
from headway.executors.torch.kv_cache import PagedKVCache
from headway.executors.torch.model import TorchDecoder
from headway.executors.torch.native import KernelEngine, KernelsUnavailableError
from headway.executors.torch.native.forward import NativeForward
from headway.executors.torch.native.kv_cache import NativeKVCache
from headway.executors.torch.native.weights import QuantizedWeights, quantize_weights
from headway.executors.torch.spec import ModelSpec
from headway.executors.torch.weights import DecoderWeights, load_weights

_DTYPES = {"float32": torch.float32}
KV_CACHE_DTYPES = ("auto", "float32", "float16")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedModel:
    """Packed weights, and the threads that compute with them."""

    weights: QuantizedWeights
    engine: KernelEngine


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A model on its device, and the facts that configuring an engine needs.

    Args:
        path: where it was found; its tokenizer is there too.
        name: what to call it unless the user says otherwise.
        arithmetic: exact weights, or packed ones and the kernels that compute with them.
        dtype, kv_dtype: of activations, and of keys and values.
        gguf: the opened file if it is one; its `fields` hold the tokenizer, so that nobody need open it again.
    """

    path: Path
    name: str
    spec: ModelSpec
    arithmetic: DecoderWeights | QuantizedModel
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    gguf: GGUFFile | None = None

    @property
    def weights(self) -> DecoderWeights:
        """The exact weights; only of a model loaded without quantisation."""
        assert isinstance(self.arithmetic, DecoderWeights), "the exact weights of a quantised model are not kept"
        return self.arithmetic

    def forward_pass(self, num_blocks: int, block_size: int) -> ForwardPass:
        """A forward pass with a KV cache of its own.

        Raises:
            ConfigError: this arithmetic cannot work with such blocks.
        """
        spec = self.spec
        if isinstance(self.arithmetic, QuantizedModel):
            cache = NativeKVCache(spec, num_blocks, block_size, self.kv_dtype)
            return NativeForward(spec, self.arithmetic.weights, self.arithmetic.engine, cache)
        paged = PagedKVCache(
            spec.num_layers,
            num_blocks,
            block_size,
            spec.num_kv_heads,
            spec.head_dim,
            device=self.device,
            dtype=self.kv_dtype,
        )
        return TorchForward(spec, TorchDecoder(spec, self.arithmetic), paged)

    @property
    def max_model_len(self) -> int:
        """Longest sequence that the model was made for."""
        return self.spec.max_position_embeddings

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that one token keeps."""
        return self.spec.kv_bytes_per_token(self.kv_dtype.itemsize)

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
    quantization: str | None = None,
    kv_cache_dtype: str = "auto",
    isa: str | None = None,
) -> LoadedModel:
    """Load a model into memory.

    Args:
        path: a Hugging Face folder or a GGUF file; None is the bundled model.
        device: "auto" takes CUDA where there is one, else the CPU.
        num_threads: threads of one CPU step, for the whole process; None leaves torch's own choice, all cores.
        quantization: None is exact; "int8" computes with bytes, on the CPU, if the kernels can be had: otherwise it
            warns once and stays exact.
        kv_cache_dtype: "float32", "float16" (int8 only) or "auto": float16 where it can be.
        isa: instruction set of the kernels; None is the best there is.

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
    if quantization not in (None, "int8"):
        raise ConfigError(
            f"quantization {quantization!r} is not supported by the real engine.", hint="Supported: int8."
        )
    engine = _kernels(chosen, isa) if quantization == "int8" else None
    located = locate_model(path)
    checkpoint = open_checkpoint(located)
    return LoadedModel(
        path=located,
        name=checkpoint.name,
        spec=checkpoint.spec,
        arithmetic=QuantizedModel(quantize_weights(checkpoint, engine), engine)
        if engine is not None
        else load_weights(checkpoint, chosen),
        device=chosen,
        dtype=_DTYPES[dtype],
        kv_dtype=_kv_dtype(kv_cache_dtype, engine is not None),
        gguf=checkpoint.file if isinstance(checkpoint, GGUFCheckpoint) else None,
    )


def _kernels(device: torch.device, isa: str | None) -> KernelEngine | None:
    if device.type != "cpu":
        raise ConfigError("int8 runs on the CPU alone.", hint="Use --device cpu.")
    try:
        return KernelEngine(torch.get_num_threads(), isa)
    except KernelsUnavailableError as error:
        if isa is not None:
            raise ConfigError(str(error)) from error
        _warn_once(str(error))
        return None


@cache
def _warn_once(reason: str) -> None:
    _logger.warning(
        "int8 is not available: %s The exact float32 path runs instead, several times slower. Install a C++ compiler "
        "(g++ or clang++) and start again, or run `headway kernels build` to see what it says.",
        reason,
    )


def _kv_dtype(name: str, is_native: bool) -> torch.dtype:
    if name not in KV_CACHE_DTYPES:
        raise ConfigError(
            f"kv_cache_dtype {name!r} is not supported by the real engine.",
            hint=f"Supported: {', '.join(KV_CACHE_DTYPES)}.",
        )
    if name == "float16" and not is_native:
        raise ConfigError("A float16 KV cache needs the int8 path.", hint="Add --quantization int8, or leave it out.")
    return torch.float16 if is_native and name != "float32" else torch.float32


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
