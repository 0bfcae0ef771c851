"""config.json of a Hugging Face model folder → ModelSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.errors import ModelLoadError
from headway.executors.torch.rotary import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling
from headway.executors.torch.spec import ModelSpec

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_DEFAULT_ROPE_THETA = 10_000.0
_REFUSED_UNLESS = {"hidden_act": "silu", "mlp_bias": False, "partial_rotary_factor": 1.0, "quantization_config": None}
"""Settings that change the arithmetic in ways not written here, with the one value that is."""


def read_spec(folder: Path) -> ModelSpec:
    """Read config.json (and generation_config.json, if there is one) of a model folder.

    Raises:
        ModelLoadError: not JSON, a setting is missing or of the wrong kind, or the architecture is not supported.
    """
    config = _read_json(folder / "config.json")
    architecture = _architecture(config, folder)
    for key, value in _REFUSED_UNLESS.items():
        if config.get(key, value) not in (value, None):
            raise ModelLoadError(f"{folder}: {key} {_short(config[key])} is not supported.", hint=_supported_hint())
    try:
        return _spec(config, architecture, _eos_token_ids(folder, config))
    except KeyError as error:
        raise ModelLoadError(
            f"{folder}/config.json has no {error.args[0]!r}.", hint="Is it a causal language model's config?"
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelLoadError(
            f"{folder}/config.json has a setting of the wrong kind: {error}.", hint="Check the file."
        ) from None


def _spec(config: Mapping[str, Any], architecture: str, eos_token_ids: frozenset[int]) -> ModelSpec:
    num_layers, num_heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    hidden_size = int(config["hidden_size"])
    rope = _rope_settings(config)
    scaling = _rope_scaling(rope, config)
    attention_bias = bool(config.get("attention_bias", False))
    return ModelSpec(
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or hidden_size // num_heads),
        intermediate_size=int(config["intermediate_size"]),
        vocab_size=int(config["vocab_size"]),
        rms_norm_eps=float(config["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or _DEFAULT_ROPE_THETA),
        rope_scaling=scaling,
        max_position_embeddings=_max_position_embeddings(int(config["max_position_embeddings"]), scaling),
        layer_windows=_layer_windows(config, architecture, num_layers),
        qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
        output_bias=attention_bias and architecture != "Qwen2ForCausalLM",
        qk_norm=architecture == "Qwen3ForCausalLM",
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        eos_token_ids=eos_token_ids,
    )


def _architecture(config: Mapping[str, Any], folder: Path) -> str:
    named = config.get("architectures") or [config.get("model_type", "unknown")]
    for architecture in named:
        if architecture in SUPPORTED_ARCHITECTURES:
            return str(architecture)
    raise ModelLoadError(f"{folder}: architecture {_short(named[0])} is not supported.", hint=_supported_hint())


def _layer_windows(config: Mapping[str, Any], architecture: str, num_layers: int) -> tuple[int | None, ...]:
    """Which layers slide: Mistral's all do; Qwen's do by layer_types or above max_window_layers, if switched on."""
    window = config.get("sliding_window")
    if window is None or architecture == "LlamaForCausalLM":
        return (None,) * num_layers
    window = int(window)
    if architecture == "MistralForCausalLM":
        return (window,) * num_layers
    if not config.get("use_sliding_window", False):
        return (None,) * num_layers
    if config.get("layer_types"):
        kinds = list(config["layer_types"])
        if len(kinds) != num_layers:
            raise ValueError(f"layer_types names {len(kinds)} layers of {num_layers}")
        return tuple(window if kind == "sliding_attention" else None for kind in kinds)
    first = int(config.get("max_window_layers", 0))
    return tuple(window if layer >= first else None for layer in range(num_layers))


def _rope_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """One dictionary from both layouts: `rope_parameters`, or `rope_theta` beside `rope_scaling`."""
    settings: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        settings |= {name: value for name, value in (config.get(key) or {}).items() if value is not None}
    return settings


def _rope_scaling(rope: Mapping[str, Any], config: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("default", "none"):
        if any(isinstance(value, dict) for value in rope.values()):
            raise ModelLoadError("Rotary settings that differ by layer are not supported.", hint=_supported_hint())
        return None
    original = rope.get("original_max_position_embeddings", config.get("max_position_embeddings"))
    if kind == "linear":
        return LinearScaling(float(rope["factor"]))
    if kind == "llama3":
        return Llama3Scaling(
            float(rope["factor"]), float(rope["low_freq_factor"]), float(rope["high_freq_factor"]), int(original)
        )
    if kind == "yarn" and "mscale" not in rope:
        attention_factor = rope.get("attention_factor")
        return YarnScaling(
            factor=float(rope["factor"]),
            original_max_position_embeddings=int(original),
            beta_fast=float(rope.get("beta_fast", 32)),
            beta_slow=float(rope.get("beta_slow", 1)),
            attention_factor=None if attention_factor is None else float(attention_factor),
            truncate=bool(rope.get("truncate", True)),
        )
    raise ModelLoadError(
        f"Rotary scaling of kind {_short(kind)} is not supported.", hint="Supported: none, linear, llama3, yarn."
    )


def _max_position_embeddings(claimed: int, scaling: RopeScaling | None) -> int:
    """The stretched length, as vLLM derives it: linear and YaRN multiply; Llama 3's claim includes the stretch."""
    if isinstance(scaling, LinearScaling):
        return int(claimed * scaling.factor)
    if isinstance(scaling, YarnScaling):
        return int(scaling.original_max_position_embeddings * scaling.factor)
    return claimed


def _eos_token_ids(folder: Path, config: Mapping[str, Any]) -> frozenset[int]:
    generation = folder / "generation_config.json"
    sources = [config, _read_json(generation)] if generation.is_file() else [config]
    ids: set[int] = set()
    for source in sources:
        given = source.get("eos_token_id")
        ids |= set(given if isinstance(given, list) else [] if given is None else [given])
    return frozenset(ids)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read: {error}.", hint="Is the file complete?") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} is not a JSON object.", hint="Is the file complete?")
    return content


def _supported_hint() -> str:
    return f"Supported: dense models of {', '.join(SUPPORTED_ARCHITECTURES)}."


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
