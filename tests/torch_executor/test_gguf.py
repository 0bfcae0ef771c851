"""GGUF files: every supported tensor type, llama.cpp's row order, metadata, and damaged files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headway.errors import ModelLoadError
from headway.executors.torch import load, open_checkpoint
from headway.executors.torch.gguf_checkpoint import SUPPORTED_TENSOR_TYPES
from headway.executors.torch.rotary import FrequencyFactors, LinearScaling, YarnScaling
from tests.torch_executor import gguf_files
from tests.torch_executor.support import Runner, random_ids
from tests.torch_executor.tiny_models import VOCAB_SIZE, TinyModel

Models = Callable[[str], TinyModel]


def refusal(path: Path) -> ModelLoadError:
    """The error of loading it: one line, and a hint."""
    with pytest.raises(ModelLoadError) as caught:
        load(path, device="cpu")
    assert "\n" not in str(caught.value) and caught.value.hint
    return caught.value


@pytest.mark.parametrize("name", ["llama", "llama-bias-tied", "qwen2", "qwen3", "mistral"])
def test_float_file_equals_transformers(name: str, tiny: Models, tmp_path: Path) -> None:
    """The same model written as llama.cpp would (names, row order of the llama architecture) gives the same logits."""
    model = tiny(name)
    path = gguf_files.write_model(tmp_path / f"{name}-F32.gguf", model)
    loaded = load(path, device="cpu")
    assert (loaded.name, loaded.eos_token_ids) == (name, frozenset({0}))
    token_ids = random_ids(40, VOCAB_SIZE)
    difference = float((Runner(loaded).logits(token_ids) - model.logits(token_ids)).abs().max())
    assert difference <= 1e-3


@pytest.mark.parametrize("kind", SUPPORTED_TENSOR_TYPES)
def test_tensor_type_is_dequantised_exactly(kind: str, tmp_path: Path) -> None:
    """Random blocks of each type load as the values that the format's definition gives."""
    rows, columns = 16, 512
    blocks = gguf_files.random_blocks(kind, rows, columns)
    path = gguf_files.write_tensor(tmp_path / "model.gguf", "blk.0.ffn_up.weight", blocks, kind, columns)
    ours = open_checkpoint(path).read("model.layers.0.mlp.up_proj.weight")
    expected = gguf_files.REFERENCES[kind](blocks.view(np.uint8).reshape(rows, -1)).reshape(rows, columns)
    assert ours.dtype == torch.float32 and ours.shape == (rows, columns)
    assert expected.std() > 0
    np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q5_1"])
def test_quantised_model_runs(kind: str, tiny: Models, tmp_path: Path) -> None:
    """A whole model in a coarser type: logits move, and stay near."""
    model = tiny("llama")
    loaded = load(gguf_files.write_model(tmp_path / "model.gguf", model, kind), device="cpu")
    token_ids = random_ids(30, VOCAB_SIZE)
    expected = model.logits(token_ids)
    error = float((Runner(loaded).logits(token_ids) - expected).norm() / expected.norm())
    assert 0 < error < {"F16": 0.01, "BF16": 0.05, "Q8_0": 0.1, "Q5_1": 0.5}[kind]


def spec_with(path: Path, tiny: Models, metadata: dict[str, Any], tensors: dict[str, Any] | None = None) -> Any:
    """The spec of a llama file with these settings changed."""
    gguf_files.write_model(path, tiny("llama"), metadata=metadata, extra_tensors=tensors or {})
    return open_checkpoint(path).spec


def test_rotary_scaling_of_each_kind(tiny: Models, tmp_path: Path) -> None:
    """Frequency factors (Llama 3), linear and YaRN; others are refused."""
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    spec = spec_with(tmp_path / "a.gguf", tiny, {}, {"rope_freqs.weight": factors})
    assert spec.rope_scaling == FrequencyFactors(tuple(factors.tolist()))
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert spec_with(tmp_path / "b.gguf", tiny, linear).rope_scaling == LinearScaling(4.0)
    yarn = linear | {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 512}
    assert spec_with(tmp_path / "c.gguf", tiny, yarn).rope_scaling == YarnScaling(4.0, 512)
    with pytest.raises(ModelLoadError, match="longrope"):
        spec_with(tmp_path / "d.gguf", tiny, linear | {"llama.rope.scaling.type": "longrope"})


def test_frequency_factors_equal_llama3_scaling(tiny: Models, tmp_path: Path) -> None:
    """Llama 3's scaling, written into a tensor as llama.cpp's converter does, gives transformers' logits."""
    model = tiny("llama-llama3-rope")
    rotary = model.reference.model.rotary_emb
    plain = 1.0 / 10_000.0 ** (np.arange(0, 16, 2) / 16)
    factors = (plain / rotary.inv_freq.numpy()).astype(np.float32)
    path = gguf_files.write_model(tmp_path / "m.gguf", model, extra_tensors={"rope_freqs.weight": factors})
    token_ids = random_ids(200, VOCAB_SIZE)
    difference = float((Runner(load(path, device="cpu")).logits(token_ids) - model.logits(token_ids)).abs().max())
    assert difference <= 1e-3


def test_metadata_of_the_bundled_file(bundled: Any) -> None:
    """SmolLM2-135M-Instruct, as its authors describe it."""
    spec = bundled.spec
    assert (bundled.name, bundled.max_model_len, bundled.vocab_size) == ("SmolLM2-135M-Instruct", 8192, 49152)
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads) == (30, 576, 9, 3)
    assert bundled.kv_bytes_per_token == 46080 and bundled.eos_token_ids == {2}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"llama.expert_count": 8}, "llama"),
        ({"llama.rope.dimension_count": 8}, "only some dimensions"),
        ({"llama.attention.value_length": 8}, "value width"),
        ({"llama.block_count": None}, "llama.block_count"),
    ],
)
def test_unsupported_metadata(metadata: dict[str, Any], message: str, tiny: Models, tmp_path: Path) -> None:
    """Other architectures, mixtures of experts, partial rotation, and missing keys."""
    path = gguf_files.write_model(tmp_path / "model.gguf", tiny("llama"), metadata=metadata)
    assert message in refusal(path).message


def test_unsupported_tensor_type(tiny: Models, tmp_path: Path) -> None:
    """A type that gguf knows and this engine does not."""
    blocks = np.zeros((128, 96 // 32 * 18), dtype=np.uint8)
    path = tmp_path / "model.gguf"
    gguf_files.write_model(path, tiny("llama"), raw_tensors={"blk.0.ffn_up.weight": (blocks, "IQ4_NL")})
    error = refusal(path)
    assert "IQ4_NL" in error.message and "Q4_K" in (error.hint or "")


def test_tensor_type_of_the_future(tiny: Models, tmp_path: Path) -> None:
    """A type that not even the gguf package knows."""
    path = gguf_files.write_model(tmp_path / "model.gguf", tiny("llama"))
    data = bytearray(path.read_bytes())
    name = b"blk.0.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = (4000).to_bytes(4, "little")
    path.write_bytes(data)
    assert "unknown type" in refusal(path).message


@pytest.mark.parametrize("share", [0.0, 0.00005, 0.002, 0.004, 0.01, 0.5, 0.999])
def test_truncated_file(share: float, tiny: Models, tmp_path: Path) -> None:
    """Cut within the magic, the metadata, the tensor list or the data."""
    path = gguf_files.write_model(tmp_path / "model.gguf", tiny("llama"))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    assert "truncated" in refusal(path).message


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (0, b"JUNK", "not a GGUF file"),
        (4, (1).to_bytes(4, "little"), "version 1"),
        (8, (2**40).to_bytes(8, "little"), "truncated"),
        (16, (2**40).to_bytes(8, "little"), "truncated"),
        (24, (2**63).to_bytes(8, "little"), "truncated"),
    ],
)
def test_damaged_header(at: int, data: bytes, message: str, tiny: Models, tmp_path: Path) -> None:
    """Another magic or version, and counts and lengths beyond the file, which must neither hang nor fill memory."""
    path = gguf_files.write_model(tmp_path / "model.gguf", tiny("llama"))
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)
    assert message in refusal(path).message


@pytest.mark.slow
def test_metadata_equals_the_gguf_packages_reader(bundled: Any) -> None:
    """Every key of the bundled file (vocabulary, merges, numbers) and every tensor, as gguf.GGUFReader reads them."""
    reader = gguf.GGUFReader(bundled.path)
    theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert {key: field.contents() for key, field in bundled.gguf.fields.items()} == theirs
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert set(tensors) == set(bundled.gguf.tensors)
    for name in ("token_embd.weight", "blk.3.ffn_down.weight", "output_norm.weight"):
        expected = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        np.testing.assert_array_equal(bundled.gguf.tensors[name].values(), expected)


def test_missing_and_misshaped_tensors(tiny: Models, tmp_path: Path) -> None:
    """Both are named by the name that the engine uses."""
    path = gguf_files.write_model(tmp_path / "a.gguf", tiny("llama"), leave_out="blk.2.attn_k.weight")
    assert "model.layers.2.self_attn.k_proj.weight" in refusal(path).message
    path = gguf_files.write_model(tmp_path / "b.gguf", tiny("llama"), metadata={"llama.feed_forward_length": 64})
    assert "mlp.down_proj" in refusal(path).message or "mlp.gate_proj" in refusal(path).message


def test_folder_with_gguf_files(tiny: Models, tmp_path: Path) -> None:
    """A folder is enough where it holds one; with two the user must say which."""
    gguf_files.write_model(tmp_path / "a-Q8_0.gguf", tiny("llama"), "Q8_0")
    assert load(tmp_path, device="cpu").name == "a"
    gguf_files.write_model(tmp_path / "b.gguf", tiny("llama"))
    assert "2 GGUF files" in refusal(tmp_path).message


def test_random_blocks_cover_each_type() -> None:
    """The references are independent of the gguf package; where it can quantise, both agree on a round trip."""
    values: NDArray[np.float32] = np.random.default_rng(0).standard_normal((4, 256), dtype=np.float32)
    for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"):
        blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        restored = gguf_files.REFERENCES[kind](blocks)
        assert np.abs(restored.reshape(values.shape) - values).max() < 0.5
