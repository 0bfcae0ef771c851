"""Models for the tests of the torch executor, made once a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch
from torch import Tensor

from headway.executors.torch import LoadedModel, load, locate_model
from tests.torch_executor import tiny_models
from tests.torch_executor.tiny_models import TinyModel


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """More threads gain nothing on models this small, and lose much where cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """Tiny models by name."""

    @cache
    def make(name: str) -> TinyModel:
        return tiny_models.make(name, tmp_path_factory.mktemp("tiny") / name)

    return make


@pytest.fixture(scope="session")
def loaded(tiny: Callable[[str], TinyModel]) -> Callable[[str], LoadedModel]:
    """The same models, loaded by the executor."""

    @cache
    def get(name: str) -> LoadedModel:
        return load(tiny(name).folder, device="cpu")

    return get


@pytest.fixture(scope="session")
def bundled() -> LoadedModel:
    """SmolLM2-135M-Instruct."""
    return load(None, device="cpu")


@pytest.fixture(scope="session")
def bundled_reference() -> Callable[[list[int]], Tensor]:
    """Transformers' logits for the bundled model, which it reads from the GGUF file with its own code."""
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
    )
    model = transformers.LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(str(locate_model(None)), return_tensors=True, model_to_load=model)["tensors"]
    missing = model.load_state_dict({name: torch.as_tensor(value) for name, value in tensors.items()}, strict=False)
    assert missing.missing_keys == ["lm_head.weight"] and not missing.unexpected_keys

    @torch.inference_mode()
    def logits(token_ids: list[int]) -> Tensor:
        result: Tensor = model(torch.tensor([token_ids])).logits[0]
        return result

    return logits
