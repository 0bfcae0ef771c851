"""A GGUF file: tensors under llama.cpp's names, quantised or not, dequantised exactly to float32."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

from headway.errors import ModelLoadError
from headway.executors.torch.checkpoint import Checkpoint
from headway.executors.torch.gguf_file import GGUFFile
from headway.executors.torch.gguf_metadata import read_spec
from headway.executors.torch.rotary import separate_halves

SUPPORTED_TENSOR_TYPES = (
    "F32",
    "F16",
    "BF16",
    "Q8_0",
    "Q4_0",
    "Q4_1",
    "Q5_0",
    "Q5_1",
    "Q4_K",
    "Q5_K",
    "Q6_K",
)

_TOP_LEVEL_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_LAYER_NAME = re.compile(r"model\.layers\.(\d+)\.(.+)\.(weight|bias)")
_QUANTISATION_SUFFIX = re.compile(r"[.-](?:I?Q\d\w*|B?F16|F32)$", re.IGNORECASE)


class GGUFCheckpoint(Checkpoint):
    """Tensors are dequantised from the memory-mapped file, one at a time.

    Raises:
        ModelLoadError: not a GGUF file, truncated, or its architecture or a tensor type is not supported.
    """

    def __init__(self, path: Path) -> None:
        self.name = _QUANTISATION_SUFFIX.sub("", path.stem)
        self.file = GGUFFile(path)
        for name, tensor in self.file.tensors.items():
            if tensor.tensor_type not in SUPPORTED_TENSOR_TYPES:
                raise ModelLoadError(
                    f"{path}: tensor {name!r} has type {tensor.tensor_type}, which is not supported.",
                    hint=f"Supported: {', '.join(SUPPORTED_TENSOR_TYPES)}.",
                )
        self.spec = read_spec(self.file, path)

    def has(self, name: str) -> bool:
        """See `Checkpoint.has`."""
        return _gguf_name(name) in self.file.tensors

    def read(self, name: str) -> Tensor:
        """See `Checkpoint.read`."""
        tensor = torch.from_numpy(self.file.tensors[_gguf_name(name)].values())
        # llama.cpp keeps the query and key rows of this one architecture interleaved.
        if self.spec.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            tensor = separate_halves(tensor, self.spec.head_dim)
        return tensor


def _gguf_name(name: str) -> str:
    if name in _TOP_LEVEL_NAMES:
        return _TOP_LEVEL_NAMES[name]
    match = _LAYER_NAME.fullmatch(name)
    assert match is not None, name
    layer, part, kind = match.groups()
    return f"blk.{layer}.{_LAYER_NAMES[part]}.{kind}"
