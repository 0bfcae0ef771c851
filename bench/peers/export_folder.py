"""Write a GGUF model of the Llama family as a Hugging Face folder, so that peers without a GGUF reader get the same
weights, dequantised exactly to float32."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from headway.executors.torch import ModelSpec, locate_model, open_checkpoint

_LAYER_TENSORS = (
    *("input_layernorm", "post_attention_layernorm"),
    *(f"self_attn.{part}_proj" for part in "qkvo"),
    *(f"mlp.{part}_proj" for part in ("gate", "up", "down")),
)


def export_folder(model: str | None, folder: Path) -> None:
    """Write config.json and model.safetensors; the tokenizer is not needed where token ids are sent."""
    checkpoint = open_checkpoint(locate_model(model))
    spec = checkpoint.spec
    folder.mkdir(parents=True, exist_ok=True)
    names = ["model.embed_tokens.weight", "model.norm.weight"]
    names += [f"model.layers.{layer}.{name}.weight" for layer in range(spec.num_layers) for name in _LAYER_TENSORS]
    if not spec.tied_embeddings:
        names.append("lm_head.weight")
    save_file({name: checkpoint.read(name) for name in names}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(spec), indent=1))


def _config(spec: ModelSpec) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "hidden_act": "silu",
        "torch_dtype": "float32",
        "eos_token_id": min(spec.eos_token_ids, default=2),
        "bos_token_id": 1,
    }
