"""Reading config.json: which layers attend how, and in which format the weights are."""

from __future__ import annotations

from typing import Any

import pytest

from headway.catalog import Attention, ExpertFeedForward, LatentAttention
from headway.catalog.hf_config import architecture_from_config
from headway.catalog.parameters import rank_weight_bytes
from headway.errors import ConfigError

BASE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
}


def kinds(**changes: Any) -> list[str]:
    """The attention kind of each layer."""
    model = architecture_from_config({**BASE, **changes}, model_id="m")
    return [layer.mixer.kind if isinstance(layer.mixer, Attention) else "other" for layer in model.layers]


def test_layer_types_are_taken_as_listed() -> None:
    """One word a layer."""
    listed = ["sliding_attention", "full_attention"] * 3
    assert kinds(layer_types=listed, sliding_window=128) == ["sliding", "full"] * 3


def test_gemma_3_slides_five_of_six_layers() -> None:
    """Without layer_types the family's own pattern holds."""
    assert kinds(model_type="gemma3_text", sliding_window=128) == ["sliding"] * 5 + ["full"]


def test_a_window_that_is_switched_off_does_not_count() -> None:
    """Qwen2 configs name a window and say use_sliding_window: false."""
    assert kinds(model_type="qwen2", sliding_window=128, use_sliding_window=False) == ["full"] * 6


def test_latent_attention_and_a_first_dense_layer() -> None:
    """DeepSeek: the first layers have a dense MLP, the others experts and a shared one."""
    config = {
        **BASE,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
    }
    model = architecture_from_config(config, model_id="m")
    assert all(isinstance(layer.mixer, LatentAttention) for layer in model.layers)
    assert [isinstance(layer.ffn, ExpertFeedForward) for layer in model.layers] == [False] + [True] * 5
    assert model.kv_bytes_per_token() == 6 * (16 + 8) * 2


def test_a_vision_tower_of_unknown_size_is_declared() -> None:
    """A tower whose shape is not given is None, not zero."""
    model = architecture_from_config({"text_config": BASE, "vision_config": {"model_type": "x"}}, model_id="m")
    assert model.vision_params is None


def test_fp8_leaves_the_embeddings_and_the_head_in_16_bits() -> None:
    """Only the matrices of the layers are narrower."""
    plain = architecture_from_config(BASE, model_id="m")
    fp8 = architecture_from_config({**BASE, "quantization_config": {"quant_method": "fp8"}}, model_id="m")
    table = 100 * 64
    assert rank_weight_bytes(plain) - rank_weight_bytes(fp8) == pytest.approx(
        plain.num_params() - 2 * table - 6 * 2 * 64, rel=1e-6
    )


def test_an_unmodelled_mixture_of_formats_refuses_to_guess() -> None:
    """The size of mixed formats must come from the files."""
    config = {**BASE, "quantization_config": {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}}
    with pytest.raises(ConfigError, match="mixes weight formats"):
        rank_weight_bytes(architecture_from_config(config, model_id="m"))


@pytest.mark.parametrize(
    ("ignored", "in_16_bits"),
    [
        (["lm_head"], False),
        (["lm_head", "model.layers.0.self_attn.q_proj"], False),
        ([f"model.layers.{layer}.self_attn.q_proj" for layer in range(6)], True),
        (["re:.*self_attn.*"], True),
        (["model.layers.*.self_attn*"], True),
        ([r"re:.*layers\.5\.self_attn.*"], True),
    ],
)
def test_a_part_that_is_left_in_16_bits_is_so_in_more_than_a_few_layers(ignored: list[str], in_16_bits: bool) -> None:
    """A first or last layer that is kept wide does not make all attention wide; one of six is not a few."""
    layers = 6 if in_16_bits else 24
    settings = {"quant_method": "fp8", "ignored_layers": ignored}
    config = {**BASE, "num_hidden_layers": layers, "quantization_config": settings}
    quantization = architecture_from_config(config, model_id="m").quantization
    assert quantization is not None and ("attention" not in quantization.parts) is in_16_bits


def test_yarn_stretches_the_length() -> None:
    """The original length times the factor, as vLLM derives it."""
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    assert architecture_from_config({**BASE, "rope_scaling": rope}, model_id="m").max_model_len == 2048


def test_an_encoder_decoder_model_is_refused() -> None:
    """Its cache is of another kind."""
    with pytest.raises(ConfigError, match="encoder-decoder"):
        architecture_from_config({**BASE, "is_encoder_decoder": True}, model_id="m")
