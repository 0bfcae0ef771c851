"""How quantized weights are stored: bits for each weight, scales included, and which parts stay in 16 bits."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.errors import ConfigError

LINEAR_PARTS = ("attention", "dense", "experts", "shared_experts", "state")
"""Parts made of matrix products. Embeddings, the head, routers and norms are not quantized unless said."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """A weight format.

    `bits` counts the scales' share; `part_bits` are those of parts that differ. `padding` is (intermediate, hidden):
    what the kernel rounds an expert's matrices up to. `is_modelled` is False for mixtures of formats, whose size must
    be read from the files.
    """

    method: str
    bits: float
    parts: tuple[str, ...] = LINEAR_PARTS
    padding: tuple[int, int] | None = None
    is_modelled: bool = True
    part_bits: tuple[tuple[str, float], ...] = ()

    def bits_of(self, part: str) -> float | None:
        """Bits for each weight of a part; None where it stays in 16 bits."""
        return dict(self.part_bits).get(part, self.bits) if part in self.parts else None


_INT4_GROUP_128 = 4 + (16 + 4) / 128
"""A 16-bit scale and a 4-bit zero point for each 128 weights."""

_METHODS: dict[str, Quantization] = {
    "fp8": Quantization("fp8", 8.0),
    "fbgemm_fp8": Quantization("fbgemm_fp8", 8.0),
    "int8": Quantization("int8", 8.0),
    "awq": Quantization("awq", _INT4_GROUP_128),
    "gptq": Quantization("gptq", _INT4_GROUP_128),
    "w4a16": Quantization("w4a16", _INT4_GROUP_128),
    "bitsandbytes": Quantization("bitsandbytes", 4 + 32 / 64),
    "nvfp4": Quantization("nvfp4", 4 + 8 / 16),
    "mxfp4": Quantization("mxfp4", 4 + 8 / 32, ("experts",), (128, 256)),
    "mixed": Quantization("mixed", 0.0, (), is_modelled=False),
}
"""Scale layouts are the formats' own: OCP MX (32), NVFP4 (16), AutoAWQ and GPTQ group 128, bitsandbytes block 64.
The padding of mxfp4 is that of vLLM's kernels for Hopper (intermediate to 128, hidden to 256)."""

_ALIASES = {
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
    "gpt_oss_mxfp4": "mxfp4",
    "gptq_int4": "gptq",
    "int4": "w4a16",
    "fp4": "nvfp4",
    "w8a8": "int8",
    "ptpc_fp8": "fp8",
    "deepseek_v4_fp8": "fp8",
    "bnb": "bitsandbytes",
}


def named_quantization(name: str) -> Quantization | None:
    """The format of a vLLM flag value such as `awq_marlin`; None for "none" (16 bits).

    Raises:
        ConfigError: not a known format.
    """
    key = name.lower().replace("-", "_")
    key = _ALIASES.get(key, key)
    if key in ("none", "auto", "bf16", "fp16", "bfloat16", "float16"):
        return None
    try:
        return _METHODS[key]
    except KeyError:
        known = ", ".join(sorted({*_METHODS, *_ALIASES} - {"mixed"}))
        raise ConfigError(f"Quantization {name!r} is unknown.", hint=f"Known: none, {known}.") from None


def read_quantization(config: Mapping[str, Any], num_layers: int) -> Quantization | None:
    """The format that a `quantization_config` describes; mixtures and unknown ones come back as not modelled."""
    method = str(config.get("quant_method") or "").lower()
    algorithm = str(config.get("quant_algo") or "").upper()
    if algorithm in ("MIXED_PRECISION", "W4A8_AWQ"):
        narrow = str(config.get("moe_quant_algo") or "").lower()
        return with_narrow_experts(narrow) if method == "fp8" and narrow in _METHODS else _METHODS["mixed"]
    if algorithm == "NVFP4":
        return _without_excluded(_METHODS["nvfp4"], config, num_layers)
    if algorithm.startswith("FP8"):
        return _without_excluded(_METHODS["fp8"], config, num_layers)
    if method == "compressed-tensors":
        return _without_excluded(_compressed_tensors(config), config, num_layers)
    bits = int(config.get("bits") or config.get("w_bit") or 4)
    if method in ("awq", "gptq", "auto-round", "auto_round"):
        group = int(config.get("group_size") or config.get("q_group_size") or 128)
        return Quantization(method, bits + (16 + bits) / group if group > 0 else float(bits))
    if method == "bitsandbytes":
        return Quantization(method, 8.0) if config.get("load_in_8bit") else _METHODS["bitsandbytes"]
    if method in _METHODS:
        return _without_excluded(_METHODS[method], config, num_layers)
    return Quantization(method or "unknown", 0.0, (), is_modelled=False)


def with_narrow_experts(method: str) -> Quantization:
    """FP8 throughout, but for experts in another format."""
    return replace(_METHODS["fp8"], part_bits=(("experts", _METHODS[method].bits),))


def _compressed_tensors(config: Mapping[str, Any]) -> Quantization:
    groups = list((config.get("config_groups") or {}).values())
    if len(groups) != 1 or not isinstance(groups[0].get("weights"), Mapping):
        return Quantization("compressed-tensors", 0.0, (), is_modelled=False)
    weights = groups[0]["weights"]
    bits = float(weights.get("num_bits") or 8)
    layout = str(groups[0].get("format") or config.get("format") or "")
    if layout.startswith("nvfp4"):
        return _METHODS["nvfp4"]
    group = weights.get("group_size")
    if group and int(group) > 0:
        bits += (8 if layout.startswith("mxfp4") else 16) / int(group)
    return Quantization("compressed-tensors", bits)


_LAYER = re.compile(r"layers\\?\.(\d+)\\?\.")
_FEW_LAYERS = 1 / 8
"""A part that is named for no more of the layers than this is counted as quantized: its first or last ones only."""


def _without_excluded(quantization: Quantization, config: Mapping[str, Any], num_layers: int) -> Quantization:
    """Drop parts that the configuration leaves in 16 bits, be it in all layers or in those of their kind."""
    patterns = [
        str(item)
        for key in ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
        for item in config.get(key) or ()
    ]
    if not patterns or not quantization.parts:
        return quantization
    layers: dict[str, set[str]] = defaultdict(set)
    for pattern in patterns:
        layer = _LAYER.search(pattern)
        for part in _named_parts(pattern.removesuffix("*").removesuffix(".").lower()):
            layers[part].add("all" if layer is None else layer[1])
    dropped = {part for part, which in layers.items() if "all" in which or len(which) > _FEW_LAYERS * num_layers}
    return replace(quantization, parts=tuple(part for part in quantization.parts if part not in dropped))


def _named_parts(text: str) -> Iterator[str]:
    if text.endswith("self_attn") or "self_attn.q_proj" in text or "self_attn.(q" in text:
        yield "attention"
    if text.endswith(("linear_attn", "mixer")) or "linear_attn." in text:
        yield "state"
    if "shared_expert" in text and "gate" not in text.rsplit(".", 1)[-1]:
        yield "shared_experts"
