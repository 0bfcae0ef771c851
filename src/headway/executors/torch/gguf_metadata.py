"""Key-value metadata of a GGUF file → ModelSpec."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.errors import ModelLoadError
from headway.executors.torch.gguf_file import GGUFField, GGUFFile, GGUFTensor
from headway.executors.torch.rotary import FrequencyFactors, LinearScaling, RopeScaling, YarnScaling
from headway.executors.torch.spec import ModelSpec

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_EOS_KEYS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
_ROPE_FACTORS_TENSOR = "rope_freqs.weight"


def read_spec(file: GGUFFile, path: Path) -> ModelSpec:
    """Read the architecture from the metadata, and from which tensors there are.

    Raises:
        ModelLoadError: a key is missing, or the architecture, or its rotary scaling, is not supported.
    """
    metadata, tensors = _Metadata(file.fields, path), file.tensors
    architecture = metadata.architecture
    if architecture not in SUPPORTED_ARCHITECTURES or metadata.get("expert_count", 0):
        raise ModelLoadError(
            f"{path}: architecture {architecture!r} is not supported.",
            hint=f"Supported: dense models of {', '.join(SUPPORTED_ARCHITECTURES)}.",
        )
    if "token_embd.weight" not in tensors:
        raise ModelLoadError(f"{path} has no token embeddings.", hint="Is it a part of a split file? Merge it first.")
    num_layers, num_heads = int(metadata["block_count"]), int(metadata["attention.head_count"])
    hidden_size = int(metadata["embedding_length"])
    window = metadata.get("attention.sliding_window", None)
    return ModelSpec(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=int(metadata.get("attention.head_count_kv", num_heads)),
        head_dim=_head_dim(metadata, hidden_size // num_heads),
        intermediate_size=int(metadata["feed_forward_length"]),
        vocab_size=int(tensors["token_embd.weight"].shape[0]),
        rms_norm_eps=float(metadata["attention.layer_norm_rms_epsilon"]),
        rope_theta=float(metadata.get("rope.freq_base", 10_000.0)),
        rope_scaling=_rope_scaling(metadata, tensors),
        max_position_embeddings=int(metadata["context_length"]),
        layer_windows=(int(window) if window else None,) * num_layers,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        qk_norm=architecture == "qwen3",
        tied_embeddings="output.weight" not in tensors,
        eos_token_ids=frozenset(int(file.fields[key].value) for key in _EOS_KEYS if key in file.fields),
    )


class _Metadata:
    """Keys of one architecture, without its prefix; a missing one is an error that names it."""

    def __init__(self, fields: Mapping[str, GGUFField], path: Path) -> None:
        self._fields = fields
        self._path = path
        self.architecture = str(self._read("general.architecture"))

    def __getitem__(self, key: str) -> Any:
        return self._read(f"{self.architecture}.{key}")

    def get(self, key: str, default: Any) -> Any:
        """The value of a key that may be absent."""
        field = self._fields.get(f"{self.architecture}.{key}")
        return default if field is None else field.value

    def _read(self, key: str) -> Any:
        if key not in self._fields:
            raise ModelLoadError(f"{self._path} has no key {key!r}.", hint="Is it a whole language model?")
        return self._fields[key].value

    def refuse(self, what: str, hint: str) -> ModelLoadError:
        """An error about this file."""
        return ModelLoadError(f"{self._path}: {what} is not supported.", hint=hint)


def _head_dim(metadata: _Metadata, default: int) -> int:
    head_dim = int(metadata.get("attention.key_length", default))
    if int(metadata.get("attention.value_length", head_dim)) != head_dim:
        raise metadata.refuse("a value width that differs from the key width", "Use another model.")
    if int(metadata.get("rope.dimension_count", head_dim)) != head_dim:
        raise metadata.refuse("a rotation of only some dimensions", "Use another model.")
    return head_dim


def _rope_scaling(metadata: _Metadata, tensors: Mapping[str, GGUFTensor]) -> RopeScaling | None:
    if _ROPE_FACTORS_TENSOR in tensors:
        return FrequencyFactors(tuple(float(factor) for factor in tensors[_ROPE_FACTORS_TENSOR].values()))
    kind = metadata.get("rope.scaling.type", "linear" if metadata.get("rope.scale_linear", 0) else "none")
    factor = float(metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear", 0)) or 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return LinearScaling(factor)
    if kind == "yarn":
        return YarnScaling(factor, int(metadata["rope.scaling.original_context_length"]))
    raise metadata.refuse(f"rotary scaling of kind {kind!r}", "Supported: none, linear, yarn and frequency factors.")
