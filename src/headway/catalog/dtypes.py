"""Sizes of number formats, by the names that vLLM's flags use."""

from __future__ import annotations

from headway.errors import ConfigError

_BYTES = {
    "float32": 4.0,
    "fp32": 4.0,
    "float": 4.0,
    "bfloat16": 2.0,
    "bf16": 2.0,
    "float16": 2.0,
    "fp16": 2.0,
    "half": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp8_inc": 1.0,
    "fp8_ds_mla": 1.0,
    "int8": 1.0,
    "int8_per_token_head": 1.0,
    "fp8_per_token_head": 1.0,
    "nvfp4": 0.5625,
}
"""nvfp4 stores 4 bits and one FP8 scale for each 16 numbers."""

KV_CACHE_DTYPES = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_ds_mla", "int8", "nvfp4")


def dtype_bytes(name: str, *, auto: str = "bfloat16") -> float:
    """Bytes of one number; "auto" stands for the model's own type.

    Raises:
        ConfigError: not a known format.
    """
    try:
        return _BYTES[auto if name == "auto" else name]
    except KeyError:
        raise ConfigError(
            f"{name!r} is not a known number format.", hint=f"Known: auto, {', '.join(_BYTES)}."
        ) from None
