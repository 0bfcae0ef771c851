"""Small GGUF files for tests, and each tensor type's definition written out value by value.

The definitions are independent of the gguf package: plain loops over the block layouts that llama.cpp documents
(ggml-common.h), slow and simple.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.torch_executor.tiny_models import TinyModel

Bytes = NDArray[np.uint8]
Values = NDArray[np.float32]

_ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_PARTS = {
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


def write_model(
    path: Path,
    model: TinyModel,
    kind: str = "F32",
    *,
    metadata: Mapping[str, Any] | None = None,
    extra_tensors: Mapping[str, Values] | None = None,
    raw_tensors: Mapping[str, tuple[Bytes, str]] | None = None,
    leave_out: str = "",
) -> Path:
    """Write a tiny model as llama.cpp's converter would.

    Args:
        kind: type of the matrices; vectors stay F32.
        metadata: keys to change or add; None removes one.
        raw_tensors: tensors (by GGUF name) to write as given blocks of a given type instead.
    """
    config = model.reference.config
    architecture = _ARCHITECTURES[config.model_type]
    keys = _metadata(config, architecture) | dict(metadata or {})
    writer = gguf.GGUFWriter(path, keys.pop("general.architecture", architecture))
    for key, value in keys.items():
        if value is not None:
            _add_key(writer, key, value)
    raw = dict(raw_tensors or {})
    for name, parameter in model.reference.state_dict().items():
        values: Values = parameter.numpy()
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            values = _interleaved(values, config.head_dim)
        name = _gguf_name(name)
        if name == leave_out or (name == "output.weight" and config.tie_word_embeddings):
            continue
        blocks, stored = raw.get(name, (values, kind if values.ndim == 2 else "F32"))
        _add_tensor(writer, name, blocks, stored, quantised=name in raw)
    for name, values in (extra_tensors or {}).items():
        _add_tensor(writer, name, values, "F32")
    _finish(writer)
    return path


def write_tensor(path: Path, name: str, blocks: NDArray[Any], kind: str, columns: int) -> Path:
    """A llama file with only one layer's tensor in it (and embeddings, without which it would not open)."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in {
        "llama.block_count": 1,
        "llama.embedding_length": columns,
        "llama.feed_forward_length": len(blocks),
        "llama.attention.head_count": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.context_length": 64,
    }.items():
        _add_key(writer, key, value)
    _add_tensor(writer, "token_embd.weight", np.zeros((8, columns), dtype=np.float32), "F32")
    _add_tensor(writer, name, blocks, kind, quantised=kind not in ("F32", "F16"))
    _finish(writer)
    return path


def _metadata(config: Any, architecture: str) -> dict[str, Any]:
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim if hasattr(config, "head_dim") else 16,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    return {f"{architecture}.{key}": value for key, value in values.items()} | {"tokenizer.ggml.eos_token_id": 0}


def _add_key(writer: Any, key: str, value: Any) -> None:
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
    add(key, value)


def _add_tensor(writer: Any, name: str, values: NDArray[Any], kind: str, *, quantised: bool = False) -> None:
    stored = gguf.GGMLQuantizationType[kind]
    data = values if quantised or kind == "F32" else gguf.quants.quantize(np.ascontiguousarray(values), stored)
    writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=stored)


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _interleaved(weight: Values, head_dim: int) -> Values:
    """llama.cpp's row order of query and key: the two rows of a rotated pair side by side."""
    order = [head * head_dim + pair + half * head_dim // 2 for head in range(len(weight) // head_dim)
             for pair in range(head_dim // 2) for half in range(2)]  # fmt: skip
    return weight[order]


def _gguf_name(name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in top:
        return f"{top[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_PARTS[part]}.{kind}"


# ---------------------------------------------------------------- definitions of the tensor types

_BLOCK_BYTES = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q8_0": (32, 34),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Values and bytes of a block."""

_HALVES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
"""Where a block keeps its half-precision scales; elsewhere any bits will do."""


def random_blocks(kind: str, rows: int, columns: int) -> NDArray[Any]:
    """Rows of random blocks with sane scales, as the writer wants them."""
    random = np.random.default_rng(sum(map(ord, kind)))
    if kind in ("F32", "F16"):
        return random.standard_normal((rows, columns)).astype({"F32": np.float32, "F16": np.float16}[kind])
    if kind == "BF16":
        values = random.standard_normal((rows, columns), dtype=np.float32)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    num_values, num_bytes = _BLOCK_BYTES[kind]
    blocks: Bytes = random.integers(0, 256, (rows * columns // num_values, num_bytes), dtype=np.uint8)
    for offset in _HALVES[kind]:
        scales = random.uniform(0.01, 0.1, len(blocks)).astype(np.float16)
        blocks[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def _half(block: Bytes, offset: int) -> float:
    return float(block[offset : offset + 2].view(np.float16)[0])


def _nibble(packed: Bytes, index: int) -> int:
    """Value i of 32: the low halves of 16 bytes, then the high halves."""
    return int(packed[index % 16]) >> (4 * (index // 16)) & 15


def _fifth_bit(block: Bytes, offset: int, index: int) -> int:
    return int(block[offset + index // 8]) >> (index % 8) & 1


def _q8_0(block: Bytes) -> list[float]:
    return [_half(block, 0) * int(value) for value in block[2:].view(np.int8)]


def _q4_0(block: Bytes) -> list[float]:
    return [_half(block, 0) * (_nibble(block[2:], i) - 8) for i in range(32)]


def _q4_1(block: Bytes) -> list[float]:
    return [_half(block, 0) * _nibble(block[4:], i) + _half(block, 2) for i in range(32)]


def _q5_0(block: Bytes) -> list[float]:
    return [_half(block, 0) * (_nibble(block[6:], i) + 16 * _fifth_bit(block, 2, i) - 16) for i in range(32)]


def _q5_1(block: Bytes) -> list[float]:
    scale, least = _half(block, 0), _half(block, 2)
    return [scale * (_nibble(block[8:], i) + 16 * _fifth_bit(block, 4, i)) + least for i in range(32)]


def _six_bit_pair(packed: Bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of one of eight groups, six bits each, in twelve bytes."""
    if group < 4:
        return int(packed[group]) & 63, int(packed[group + 4]) & 63
    scale = (int(packed[group + 4]) & 15) | (int(packed[group - 4]) >> 6 << 4)
    least = (int(packed[group + 4]) >> 4) | (int(packed[group]) >> 6 << 4)
    return scale, least


def _q4_k(block: Bytes) -> list[float]:
    values = []
    for i in range(256):
        group = i // 32
        scale, least = _six_bit_pair(block[4:16], group)
        nibble = int(block[16 + 32 * (group // 2) + i % 32]) >> (4 * (group % 2)) & 15
        values.append(_half(block, 0) * scale * nibble - _half(block, 2) * least)
    return values


def _q5_k(block: Bytes) -> list[float]:
    values = []
    for i in range(256):
        group = i // 32
        scale, least = _six_bit_pair(block[4:16], group)
        nibble = int(block[48 + 32 * (group // 2) + i % 32]) >> (4 * (group % 2)) & 15
        fifth = int(block[16 + i % 32]) >> group & 1
        values.append(_half(block, 0) * scale * (nibble + 16 * fifth) - _half(block, 2) * least)
    return values


def _q6_k(block: Bytes) -> list[float]:
    values = []
    for i in range(256):
        half, within = divmod(i, 128)
        quarter, position = divmod(within, 32)
        low = int(block[64 * half + 32 * (quarter % 2) + position]) >> (4 * (quarter // 2)) & 15
        high = int(block[128 + 32 * half + position]) >> (2 * quarter) & 3
        scale = int(block[192 + i // 16 : 193 + i // 16].view(np.int8)[0])
        values.append(_half(block, 208) * scale * (low + 16 * high - 32))
    return values


def _by_block(kind: str, definition: Callable[[Bytes], list[float]]) -> Callable[[Bytes], Values]:
    def dequantise(rows: Bytes) -> Values:
        blocks = rows.reshape(-1, _BLOCK_BYTES[kind][1])
        return np.array([definition(block) for block in blocks], dtype=np.float32)

    return dequantise


REFERENCES: dict[str, Callable[[Bytes], Values]] = {
    "F32": lambda rows: rows.view(np.float32),
    "F16": lambda rows: rows.view(np.float16).astype(np.float32),
    "BF16": lambda rows: (rows.view(np.uint16).astype(np.uint32) << 16).view(np.float32),
} | {
    kind: _by_block(kind, definition)
    for kind, definition in {
        "Q8_0": _q8_0,
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "Q4_K": _q4_k,
        "Q5_K": _q5_k,
        "Q6_K": _q6_k,
    }.items()
}
"""Rows of blocks, as bytes → values."""
