"""Weights as the kernels want them: packed bytes, and the C structures that point to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from headway.errors import ConfigError
from headway.executors.torch.checkpoint import Checkpoint
from headway.executors.torch.linear import Linear
from headway.executors.torch.native.library import (
    COLUMNS,
    GROUP,
    KernelEngine,
    LayerStruct,
    MatrixStruct,
    ModelStruct,
)
from headway.executors.torch.native.memory import Arena
from headway.executors.torch.spec import ModelSpec
from headway.executors.torch.weights import LayerWeights, read_head, read_layer

_LANES = 16
_MAX_HEAD_DIM = 256


@dataclass(slots=True, eq=False)
class QuantizedWeights:
    """Packed weights of a decoder. `model` points into `tensors`, which keeps them alive."""

    model: ModelStruct
    num_logit_columns: int
    """Width of a row of logits as the kernels write it: the vocabulary, and padding to whole panels."""
    tensors: list[Any] = field(default_factory=list)


def check_kernels_fit(spec: ModelSpec) -> None:
    """Refuse shapes that the kernels are not made for.

    Raises:
        ConfigError: which number, and why.
    """
    for name, multiple in (
        ("hidden_size", GROUP),
        ("intermediate_size", GROUP),
        ("q_size", GROUP),
        ("head_dim", _LANES),
    ):
        if getattr(spec, name) % multiple:
            raise ConfigError(
                f"int8 needs a model whose {name} is a multiple of {multiple}, not {getattr(spec, name)}.",
                hint="Leave --quantization out.",
            )
    if spec.head_dim > _MAX_HEAD_DIM:
        raise ConfigError(f"int8 takes heads of up to {_MAX_HEAD_DIM} dimensions, not {spec.head_dim}.")


def quantize_weights(checkpoint: Checkpoint, engine: KernelEngine) -> QuantizedWeights:
    """Read, pack and drop one layer after the other, so that the exact weights are never all in memory.

    Raises:
        ModelLoadError: a tensor is missing, mis-shaped or unreadable. ConfigError: see `check_kernels_fit`.
    """
    spec = checkpoint.spec
    check_kernels_fit(spec)
    packer = _Packer(engine)
    cpu = torch.device("cpu")
    layers = (LayerStruct * spec.num_layers)()
    for index in range(spec.num_layers):
        layers[index] = packer.layer(read_layer(checkpoint, index, cpu), spec.layer_windows[index])
    embedding, final_norm, head = read_head(checkpoint, cpu)
    packed_head = packer.matrix(head)
    model = ModelStruct(
        num_layers=spec.num_layers,
        hidden_size=spec.hidden_size,
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate_size=spec.intermediate_size,
        vocab_size=spec.vocab_size,
        norm_epsilon=spec.rms_norm_eps,
        embedding=packer.pointer(embedding),
        final_norm=packer.pointer(final_norm),
        head=packed_head,
        layers=layers,
    )
    packer.kept.append(layers)
    return QuantizedWeights(model, packed_head.num_panels * COLUMNS, packer.kept)


class _Packer:
    """Packs matrices and keeps what pointers point to."""

    def __init__(self, engine: KernelEngine) -> None:
        self._engine = engine
        self._arena = Arena()
        self.kept: list[Any] = []

    def pointer(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        contiguous = tensor.contiguous()
        self.kept.append(contiguous)
        return contiguous.data_ptr()

    def matrix(self, linear: Linear, *, gated: bool = False) -> MatrixStruct:
        packed = self._engine.pack(linear.weight, gated=gated, arena=self._arena)
        self.kept.append(packed.panels)
        bias = linear.bias
        if bias is not None:
            bias = F.pad(bias, (0, packed.num_panels * COLUMNS - len(bias)))
        return packed.struct(self.pointer(bias))

    def layer(self, weights: LayerWeights, window: int | None) -> LayerStruct:
        return LayerStruct(
            input_norm=self.pointer(weights.input_norm),
            post_attention_norm=self.pointer(weights.post_attention_norm),
            query_norm=self.pointer(weights.query_norm),
            key_norm=self.pointer(weights.key_norm),
            qkv=self.matrix(weights.qkv),
            output=self.matrix(weights.output),
            gate_up=self.matrix(weights.gate_up, gated=True),
            down=self.matrix(weights.down),
            window=window or 0,
        )
