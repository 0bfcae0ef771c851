"""Weights in the shape in which the forward pass wants them: fused projections, rotary halves interleaved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.executors.torch.checkpoint import Checkpoint
from headway.executors.torch.linear import Linear
from headway.executors.torch.rotary import interleave_halves


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """One decoder layer. `qkv` gives queries, keys and values side by side; `gate_up` gives gate and up."""

    input_norm: Tensor
    qkv: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Linear
    post_attention_norm: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """All weights of a decoder, on one device."""

    embedding: Tensor
    layers: Sequence[LayerWeights]
    final_norm: Tensor
    head: Linear


def load_weights(checkpoint: Checkpoint, device: torch.device) -> DecoderWeights:
    """Read and fuse all weights, layer by layer, so that little more than the result is ever in memory.

    Raises:
        ModelLoadError: a tensor is missing, mis-shaped or unreadable.
    """
    embedding, final_norm, head = read_head(checkpoint, device)
    layers = [read_layer(checkpoint, layer, device) for layer in range(checkpoint.spec.num_layers)]
    return DecoderWeights(embedding, layers, final_norm, head)


def read_head(checkpoint: Checkpoint, device: torch.device) -> tuple[Tensor, Tensor, Linear]:
    """What is not in a layer: embedding, final norm, head. A tied head shares the embedding's memory.

    Raises:
        ModelLoadError: a tensor is missing, mis-shaped or unreadable.
    """
    spec = checkpoint.spec
    shape = (spec.vocab_size, spec.hidden_size)
    embedding = checkpoint.tensor("model.embed_tokens.weight", shape).to(device)
    head = embedding if spec.tied_embeddings else checkpoint.tensor("lm_head.weight", shape).to(device)
    return embedding, checkpoint.tensor("model.norm.weight", (spec.hidden_size,)).to(device), Linear(head)


def read_layer(checkpoint: Checkpoint, layer: int, device: torch.device) -> LayerWeights:
    """One layer's weights, fused.

    Raises:
        ModelLoadError: a tensor is missing, mis-shaped or unreadable.
    """
    return _LayerReader(checkpoint, layer, device).read()


class _LayerReader:
    """Reads the tensors of one layer."""

    def __init__(self, checkpoint: Checkpoint, layer: int, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._spec = checkpoint.spec
        self._prefix = f"model.layers.{layer}."
        self._device = device

    def read(self) -> LayerWeights:
        spec = self._spec
        return LayerWeights(
            input_norm=self._tensor("input_layernorm.weight", (spec.hidden_size,)).to(self._device),
            qkv=self._qkv(),
            query_norm=self._head_norm("self_attn.q_norm.weight"),
            key_norm=self._head_norm("self_attn.k_norm.weight"),
            output=self._output(),
            post_attention_norm=self._tensor("post_attention_layernorm.weight", (spec.hidden_size,)).to(self._device),
            gate_up=self._gate_up(),
            down=Linear(
                self._tensor("mlp.down_proj.weight", (spec.hidden_size, spec.intermediate_size)).to(self._device)
            ),
        )

    def _tensor(self, name: str, shape: Sequence[int]) -> Tensor:
        return self._checkpoint.tensor(self._prefix + name, shape)

    def _qkv(self) -> Linear:
        weight = self._joined_qkv("weight", self._spec.hidden_size)
        bias = self._joined_qkv("bias") if self._spec.qkv_bias else None
        return Linear(weight, bias)

    def _joined_qkv(self, kind: str, *columns: int) -> Tensor:
        q_size, kv_size, head_dim = self._spec.q_size, self._spec.kv_size, self._spec.head_dim
        parts = [
            interleave_halves(self._tensor(f"self_attn.q_proj.{kind}", (q_size, *columns)), head_dim),
            interleave_halves(self._tensor(f"self_attn.k_proj.{kind}", (kv_size, *columns)), head_dim),
            self._tensor(f"self_attn.v_proj.{kind}", (kv_size, *columns)),
        ]
        return torch.cat(parts).to(self._device)

    def _head_norm(self, name: str) -> Tensor | None:
        if not self._spec.qk_norm:
            return None
        head_dim = self._spec.head_dim
        return interleave_halves(self._tensor(name, (head_dim,)), head_dim).to(self._device)

    def _output(self) -> Linear:
        spec = self._spec
        weight = self._tensor("self_attn.o_proj.weight", (spec.hidden_size, spec.q_size)).to(self._device)
        if not spec.output_bias:
            return Linear(weight)
        return Linear(weight, self._tensor("self_attn.o_proj.bias", (spec.hidden_size,)).to(self._device))

    def _gate_up(self) -> Linear:
        shape = (self._spec.intermediate_size, self._spec.hidden_size)
        parts = [self._tensor(f"mlp.{part}_proj.weight", shape) for part in ("gate", "up")]
        return Linear(torch.cat(parts).to(self._device))
