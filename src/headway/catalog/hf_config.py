"""A Hugging Face config.json → ModelArchitecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from headway.catalog.architecture import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LatentAttention,
    Layer,
    Mixer,
    ModelArchitecture,
    StateSpace,
)
from headway.catalog.quantization import Quantization, read_quantization, with_narrow_experts
from headway.errors import ConfigError

_TIED_BY_DEFAULT = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "falcon", "gpt2", "cohere")
_UNGATED = ("gpt2", "gpt_neox", "falcon", "phi", "opt", "bloom", "nemotron", "starcoder2", "nemotron_h", "gpt_bigcode")
_QKV_BIAS = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "gpt2", "phi", "gpt_bigcode")
_CYCLE_OF_SIX = ("gemma3", "gemma3_text", "gemma4", "gemma4_text")

_Config = Mapping[str, Any]


def architecture_from_config(config: _Config, *, model_id: str, source: str = "config.json") -> ModelArchitecture:
    """Read the facts that count from a model's config.json.

    Raises:
        ConfigError: a needed setting is missing or of the wrong kind, or it is no decoder-only language model.
    """
    try:
        return _read(config, model_id, source)
    except KeyError as error:
        raise ConfigError(
            f"{model_id}: the config has no {error.args[0]!r}.", hint="Is it a causal language model's config.json?"
        ) from None
    except (TypeError, ValueError, AttributeError, ZeroDivisionError, IndexError) as error:
        raise ConfigError(
            f"{model_id}: a setting of the config is of the wrong kind: {error}.", hint="Check the file."
        ) from None


def _read(config: _Config, model_id: str, source: str) -> ModelArchitecture:
    text = _language_part(config)
    if config.get("is_encoder_decoder"):
        raise ConfigError(f"{model_id} is an encoder-decoder model, which is not supported.")
    num_layers = int(_first(text, "num_hidden_layers", "n_layer", "n_layers", default=0) or _listed_layers(text))
    mixers = _mixers(text, num_layers)
    ffns = _ffns(text, num_layers)
    quantization = config.get("quantization_config") or text.get("quantization_config")
    length = _max_model_len(text)
    return ModelArchitecture(
        id=model_id,
        architecture=_architecture(config),
        layers=tuple(Layer(mixer, ffn) for mixer, ffn in zip(mixers, ffns, strict=True)),
        hidden_size=int(_first(text, "hidden_size", "n_embd", "d_model")),
        vocab_size=int(text["vocab_size"]),
        tie_word_embeddings=_tied(config, text),
        dtype=_dtype(config, text),
        max_model_len=length,
        quantization=_quantization(config, quantization, num_layers),
        vision_params=_vision_params(config),
        num_mtp_layers=int(_first(text, "num_nextn_predict_layers", "mtp_num_hidden_layers", default=0) or 0),
        num_kv_shared_layers=int(text.get("num_kv_shared_layers") or 0),
        extra_params=_per_layer_embeddings(text, num_layers),
        num_residual_streams=int(text.get("hc_mult") or 1),
        source=source,
    )


def _language_part(config: _Config) -> _Config:
    for key in ("text_config", "llm_config", "language_config"):
        part = config.get(key)
        if isinstance(part, Mapping):
            return part
    return config


def _architecture(config: _Config) -> str | None:
    named = config.get("architectures")
    return str(named[0]) if named else None


def _first(config: _Config, *names: str, default: Any = ...) -> Any:
    for name in names:
        if config.get(name) is not None:
            return config[name]
    if default is ...:
        raise KeyError(names[0])
    return default


def _listed_layers(text: _Config) -> int:
    for key in ("layers_block_type", "layer_types", "hybrid_override_pattern", "block_configs"):
        if text.get(key):
            return len(text[key])
    raise KeyError("num_hidden_layers")


def _tied(config: _Config, text: _Config) -> bool:
    for settings in (config, text):
        if settings.get("tie_word_embeddings") is not None:
            return bool(settings["tie_word_embeddings"])
    return text.get("model_type") in _TIED_BY_DEFAULT or config.get("model_type") in _TIED_BY_DEFAULT


def _dtype(config: _Config, text: _Config) -> str:
    name = _first(config, "torch_dtype", "dtype", default=None) or _first(text, "torch_dtype", "dtype", default=None)
    dtype = str(name or "bfloat16").removeprefix("torch.")
    return "bfloat16" if dtype in ("float32", "float") else dtype  # vLLM narrows float32 models to 16 bits.


def _quantization(config: _Config, settings: _Config | None, num_layers: int) -> Quantization | None:
    if settings is None:
        return None
    if config.get("expert_dtype") == "fp4":
        nvidia = str(settings.get("moe_quant_algo") or "").lower() == "nvfp4"
        return with_narrow_experts("nvfp4" if nvidia else "mxfp4")
    return read_quantization(settings, num_layers)


def _max_model_len(text: _Config) -> int | None:
    claimed = _first(text, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", default=None)
    if claimed is None:
        return None
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    factor = float(rope.get("factor") or 1.0)
    if kind == "yarn" and rope.get("original_max_position_embeddings"):
        return int(rope["original_max_position_embeddings"] * factor)
    if kind in ("linear", "dynamic") and "gemma" not in str(text.get("model_type")):
        return int(claimed * factor)
    return int(claimed)


# --- mixers ---------------------------------------------------------------------------------------------------------


def _mixers(text: _Config, num_layers: int) -> list[Mixer | None]:
    if text.get("compress_ratios"):
        return _compressed(text, num_layers)
    if text.get("block_configs"):
        return [_nas_attention(text, block["attention"]) for block in text["block_configs"]]
    kinds = _mixer_kinds(text, num_layers)
    made: dict[str, Mixer | None] = {kind: _mixer(text, kind) for kind in dict.fromkeys(kinds)}
    return [made[kind] for kind in kinds]


def _mixer_kinds(text: _Config, num_layers: int) -> list[str]:
    """One word a layer: full, sliding, chunked, state or none."""
    pattern = text.get("hybrid_override_pattern") or text.get("layers_block_type")
    if pattern:
        words = {"M": "state", "mamba": "state", "*": "full", "attention": "full", "linear_attention": "state"}
        return [words.get(item, "none") for item in pattern]
    if text.get("linear_attn_config"):
        full = set(text["linear_attn_config"]["full_attn_layers"])
        return ["full" if layer + 1 in full else "state" for layer in range(num_layers)]
    if text.get("hybrid_layer_pattern"):
        return ["sliding" if item else "full" for item in text["hybrid_layer_pattern"]]
    if text.get("layer_types"):
        words = {"sliding_attention": "sliding", "chunked_attention": "chunked", "linear_attention": "state"}
        return [words.get(item, "full") for item in text["layer_types"]][:num_layers]
    if text.get("full_attention_interval"):
        return _every(num_layers, int(text["full_attention_interval"]), "state")
    model_type = str(text.get("model_type"))
    if model_type.startswith("llama4") and text.get("attention_chunk_size"):
        return _every(num_layers, 4, "chunked")
    if model_type in _CYCLE_OF_SIX:
        return _every(num_layers, int(text.get("sliding_window_pattern") or 6), "sliding")
    if model_type == "gemma2":
        return _every(num_layers, 2, "sliding")
    if text.get("sliding_window") and text.get("use_sliding_window", model_type in ("mistral", "phi3", "mixtral")):
        first = int(text.get("max_window_layers") or 0) if "use_sliding_window" in text else 0
        return ["sliding" if layer >= first else "full" for layer in range(num_layers)]
    return ["full"] * num_layers


def _every(num_layers: int, interval: int, other: str) -> list[str]:
    """The last of each `interval` layers is full attention."""
    return ["full" if layer % interval == interval - 1 else other for layer in range(num_layers)]


def _mixer(text: _Config, kind: str) -> Mixer | None:
    if kind == "none":
        return None
    if kind == "state":
        return _state_space(text)
    if text.get("kv_lora_rank"):
        return _latent(text)
    heads = int(_first(text, "num_attention_heads", "n_head", "num_heads"))
    head_dim = int(text.get("head_dim") or _first(text, "hidden_size", "n_embd", "d_model") // heads)
    kv_heads = int(_first(text, "num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads))
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        kv_heads = 1
    v_head_dim = int(text.get("v_head_dim") or head_dim)
    if kind == "full" and text.get("global_head_dim"):
        head_dim = v_head_dim = int(text["global_head_dim"])
        kv_heads = int(text.get("num_global_key_value_heads") or kv_heads)
    if kind == "sliding" and text.get("swa_num_key_value_heads"):
        heads, kv_heads = int(text["swa_num_attention_heads"]), int(text["swa_num_key_value_heads"])
        head_dim, v_head_dim = int(text["swa_head_dim"]), int(text.get("swa_v_head_dim") or text["swa_head_dim"])
    window = None
    if kind != "full":
        window = int(text["attention_chunk_size"] if kind == "chunked" else text["sliding_window"])
    model_type = str(text.get("model_type"))
    bias = bool(text.get("attention_bias")) or model_type in _QKV_BIAS
    return Attention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        kind="full" if kind == "full" else "sliding" if kind == "sliding" else "chunked",
        window=window,
        qkv_bias=bias,
        output_bias=bool(text.get("attention_bias")),
        output_gate=bool(text.get("attn_output_gate")) or model_type.startswith(("qwen3_next", "qwen3_5")),
    )


def _latent(text: _Config) -> LatentAttention:
    return LatentAttention(
        num_heads=int(text["num_attention_heads"]),
        kv_lora_rank=int(text["kv_lora_rank"]),
        qk_nope_head_dim=int(text["qk_nope_head_dim"]),
        qk_rope_head_dim=int(text["qk_rope_head_dim"]),
        v_head_dim=int(text["v_head_dim"]),
        q_lora_rank=int(text["q_lora_rank"]) if text.get("q_lora_rank") else None,
        num_index_heads=int(text.get("index_n_heads") or 0),
        index_head_dim=int(text.get("index_head_dim") or 0),
        index_topk=int(text.get("index_topk") or 0),
        output_gate=bool(text.get("mla_use_output_gate")),
    )


def _compressed(text: _Config, num_layers: int) -> list[Mixer | None]:
    """DeepSeek V4 has an index where four tokens make an entry; other configs with these keys are not modelled."""
    heads = int(text["num_attention_heads"])
    if not text.get("o_lora_rank") or not {int(ratio) for ratio in text["compress_ratios"]} <= {0, 1, 4, 128}:
        return [CompressedAttention(heads)] * num_layers
    plain = CompressedAttention(
        num_heads=heads,
        head_dim=int(text["head_dim"]),
        rope_head_dim=int(text["qk_rope_head_dim"]),
        window=int(text["sliding_window"]),
        q_lora_rank=int(text["q_lora_rank"]),
        o_lora_rank=int(text["o_lora_rank"]),
        num_output_groups=int(text["o_groups"]),
    )
    coarse = replace(plain, ratio=128)
    fine = replace(
        plain, ratio=4, num_index_heads=int(text["index_n_heads"]), index_head_dim=int(text["index_head_dim"])
    )
    made = {0: plain, 1: plain, 4: fine, 128: coarse}
    ratios = [int(ratio) for ratio in text["compress_ratios"]][:num_layers]
    return [made[ratio] for ratio in ratios + [0] * (num_layers - len(ratios))]


def _state_space(text: _Config) -> StateSpace:
    state_dtype = str(text.get("mamba_ssm_cache_dtype") or text.get("mamba_ssm_dtype") or "auto")
    if text.get("linear_attn_config"):
        linear = text["linear_attn_config"]
        heads, dim = int(linear["num_heads"]), int(linear["head_dim"])
        return StateSpace("kda", heads, heads, dim, dim, int(linear["short_conv_kernel_size"]), "float32")
    if text.get("linear_num_key_heads"):
        return StateSpace(
            "gated_delta",
            num_key_heads=int(text["linear_num_key_heads"]),
            num_value_heads=int(text["linear_num_value_heads"]),
            key_head_dim=int(text["linear_key_head_dim"]),
            value_head_dim=int(text["linear_value_head_dim"]),
            conv_kernel=int(text["linear_conv_kernel_dim"]),
            state_dtype=state_dtype,
        )
    return StateSpace(
        "mamba2",
        num_key_heads=int(_first(text, "n_groups", "mamba_n_groups")),
        num_value_heads=int(_first(text, "mamba_num_heads", "mamba_n_heads")),
        key_head_dim=int(_first(text, "ssm_state_size", "mamba_d_state")),
        value_head_dim=int(_first(text, "mamba_head_dim", "mamba_d_head")),
        conv_kernel=int(_first(text, "conv_kernel", "mamba_d_conv")),
        state_dtype=state_dtype,
    )


def _nas_attention(text: _Config, block: _Config) -> Attention | None:
    """One layer of a model whose layers were chosen one by one (Nemotron-NAS)."""
    if block.get("no_op") or block.get("replace_with_linear"):
        return None
    heads = int(text["num_attention_heads"])
    head_dim = int(text.get("head_dim") or text["hidden_size"] // heads)
    return Attention(heads, heads // int(block["n_heads_in_group"]), head_dim, head_dim)


# --- feed-forward parts ---------------------------------------------------------------------------------------------


def _ffns(text: _Config, num_layers: int) -> list[FeedForward | None]:
    gated = text.get("model_type") not in _UNGATED
    if text.get("block_configs"):
        return [_nas_ffn(text, block["ffn"]) for block in text["block_configs"]]
    pattern = text.get("hybrid_override_pattern") or text.get("layers_block_type")
    experts = _experts(text, gated)
    if pattern and text.get("model_type") == "nemotron_h":
        made = {"E": experts, "moe": experts, "-": _dense(text, gated), "mlp": _dense(text, gated)}
        return [made.get(item) for item in pattern]
    if experts is None:
        return [_dense(text, gated)] * num_layers
    flags = _expert_layers(text, num_layers)
    dense = None if all(flags) else _dense(text, gated)
    return [experts if flag else dense for flag in flags]


def _expert_layers(text: _Config, num_layers: int) -> list[bool]:
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, Sequence) and not isinstance(frequency, str):
        return [bool(flag) for flag in frequency]
    if text.get("moe_layers_enum"):
        listed = {int(item) for item in str(text["moe_layers_enum"]).split(",")}
        return [layer in listed for layer in range(num_layers)]
    step = int(_first(text, "interleave_moe_layer_step", "decoder_sparse_step", default=1) or 1)
    if step > 1:
        return [layer % step == step - 1 for layer in range(num_layers)]
    first = int(text.get("first_k_dense_replace") or 0)
    dense = set(text.get("mlp_only_layers") or ())
    every = int(frequency or 1)
    return [layer >= first and layer % every == 0 and layer not in dense for layer in range(num_layers)]


def _experts(text: _Config, gated: bool) -> ExpertFeedForward | None:
    count = _first(
        text, "n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "n_experts", default=0
    )
    if not count or not int(count) or int(count) == 1:
        return None
    width = int(_first(text, "moe_intermediate_size", "expert_intermediate_size", "intermediate_size"))
    shared = _first(text, "moe_shared_expert_intermediate_size", "shared_expert_intermediate_size", default=None)
    if shared is None:
        shared = int(_first(text, "n_shared_experts", "num_shared_experts", default=0) or 0) * width
        shared = int(text.get("share_expert_dim") or shared)
    model_type = str(text.get("model_type"))
    if model_type.startswith("llama4"):
        shared = width
    return ExpertFeedForward(
        num_experts=int(count),
        experts_per_token=int(
            _first(
                text, "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts", "moe_k", default=1
            )
        ),
        intermediate_size=width,
        shared_intermediate_size=int(shared),
        dense_intermediate_size=int(text["intermediate_size"]) if model_type.startswith("gemma4") else 0,
        latent_size=int(text["moe_latent_size"]) if text.get("moe_latent_size") else None,
        gated=gated,
    )


def _dense(text: _Config, gated: bool) -> DenseFeedForward | None:
    width = _first(
        text, "intermediate_size_mlp", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=0
    )
    if not width:
        hidden = _first(text, "hidden_size", "n_embd", default=0)
        width = 4 * int(hidden) if not gated else 0
    return DenseFeedForward(int(width), gated) if width else None


def _nas_ffn(text: _Config, block: _Config) -> DenseFeedForward | None:
    if block.get("no_op") or block.get("replace_with_linear"):
        return None
    width = int(2 * float(block["ffn_mult"]) * int(text["hidden_size"]) / 3)
    return DenseFeedForward(-(-width // 256) * 256)


# --- the rest -------------------------------------------------------------------------------------------------------


def _vision_params(config: _Config) -> int | None:
    """An estimate from the tower's own shape; None where a tower exists whose shape is not given."""
    tower = config.get("vision_config")
    if tower is None:
        return None if config.get("audio_config") else 0
    depth = _first(tower, "depth", "num_hidden_layers", "layers", "vt_num_hidden_layers", default=None)
    hidden = _first(tower, "hidden_size", "vt_hidden_size", default=None)
    width = _first(tower, "intermediate_size", "vt_intermediate_size", default=None)
    if not (depth and hidden and width):
        return None
    return int(depth) * (4 * int(hidden) ** 2 + 2 * int(hidden) * int(width))


def _per_layer_embeddings(text: _Config, num_layers: int) -> int:
    width = text.get("hidden_size_per_layer_input")
    rows = text.get("vocab_size_per_layer_input") or text.get("vocab_size")
    return int(width) * int(rows) * num_layers if width and rows else 0
