"""Small random models of each supported family, made and saved by transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

VOCAB_SIZE = 256
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 96,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    # Wide enough that logits differ by whole units: a mistake shows, and ties are rare.
    "initializer_range": 0.25,
    "eos_token_id": 0,
    "bos_token_id": None,
    "pad_token_id": None,
}


def _rope(kind: str, **settings: float) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 10_000.0, **settings}


CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-bias-tied": ("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
    "llama-llama3-rope": (
        "Llama",
        {
            "rope_parameters": _rope(
                "llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            )
        },
    ),
    "llama-linear-rope": ("Llama", {"rope_parameters": _rope("linear", factor=4.0)}),
    "llama-yarn-rope": (
        "Llama",
        {"rope_parameters": _rope("yarn", factor=4.0, original_max_position_embeddings=64)},
    ),
    "qwen2": ("Qwen2", {}),
    "qwen2-some-layers-slide": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 32}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-sliding": ("Mistral", {"sliding_window": 24}),
}


@dataclass(frozen=True)
class TinyModel:
    """A model folder and what transformers computes from it."""

    name: str
    folder: Path
    reference: Any

    @torch.inference_mode()
    def logits(self, token_ids: list[int]) -> Tensor:
        """Transformers' logits at all positions; [num_tokens, vocab_size]."""
        result: Tensor = self.reference(torch.tensor([token_ids])).logits[0]
        return result


def make(name: str, folder: Path, **changes: Any) -> TinyModel:
    """Build the model of that name with fixed random weights, and save it as safetensors.

    Args:
        changes: of `save_pretrained`'s arguments.
    """
    family, settings = CONFIGS[name]
    config = getattr(transformers, f"{family}Config")(**(_COMMON | settings))
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # Transformers starts biases at 0 and norms at 1, where leaving them out would change nothing.
            if parameter_name.endswith("bias"):
                parameter.normal_(0.0, 0.5)
            elif "norm" in parameter_name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(folder, **changes)
    return TinyModel(name, folder, model)
