"""Finding models, and what the catalogue's facts add up to."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from headway.catalog import Attention, StateSpace, find_model, list_models
from headway.catalog.parameters import all_parts, count_parameters, rank_weight_bytes
from headway.catalog.quantization import Quantization
from headway.errors import ConfigError

LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
}


def test_the_catalogue_holds_at_least_150_models_and_each_can_be_read() -> None:
    """Every record gives layers, a parameter count and a source."""
    names = list_models()
    assert len(names) >= 150
    for name in names:
        model = find_model(name)
        assert model.source and model.num_layers > 0 and model.num_params() > 0


@pytest.mark.parametrize(
    ("name", "billions", "active"),
    [
        ("meta-llama/Llama-3.1-8B", 8.03, 8.03),
        ("Qwen/Qwen2.5-7B-Instruct", 7.616, 7.616),
        ("meta-llama/Llama-3.2-1B", 1.236, 1.236),
        ("deepseek-ai/DeepSeek-R1", 671.0, 37.6),
        ("openai/gpt-oss-120b", 116.8, 5.7),
        ("Qwen/Qwen3-30B-A3B", 30.5, 3.35),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6, 3.6),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 49.9, 49.9),
        ("Qwen/Qwen1.5-14B-Chat", 14.17, 14.17),
        ("databricks/dbrx-instruct", 131.6, 36.5),
        ("facebook/opt-6.7b", 6.66, 6.66),
    ],
)
def test_parameters_add_up_to_the_published_counts(name: str, billions: float, active: float) -> None:
    """Dense, tied, MoE, latent-attention, hybrid and searched architectures, within half a percent."""
    model = find_model(name)
    assert model.num_params() / 1e9 == pytest.approx(billions, rel=0.005)
    assert model.num_params(active=True) / 1e9 == pytest.approx(active, rel=0.01)


def test_parts_add_up_and_a_tied_head_is_counted_once() -> None:
    """Llama 3.2 1B ties its embeddings: there is no head among its parts."""
    counts = count_parameters(find_model("meta-llama/Llama-3.2-1B"))
    assert sum(counts.by_part.values()) == counts.total
    assert "head" not in counts.by_part


@pytest.mark.parametrize(
    ("name", "kv_dtype", "tp", "kib"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "auto", 1, 56),
        ("meta-llama/Llama-3.1-8B", "auto", 1, 128),
        ("meta-llama/Llama-3.1-8B", "fp8", 1, 64),
        ("Qwen/Qwen3-8B", "auto", 1, 144),
        ("meta-llama/Llama-3.1-70B", "auto", 2, 160),
        ("meta-llama/Llama-3.1-70B", "fp8", 1, 160),
        ("meta-llama/Llama-3.1-70B", "auto", 16, 40),
        ("meta-llama/Llama-2-7b-hf", "auto", 1, 512),
        ("tiiuae/falcon-7b", "auto", 4, 8),
        ("deepseek-ai/DeepSeek-R1", "auto", 8, 68.625),
    ],
)
def test_kv_bytes_per_token(name: str, kv_dtype: str, tp: int, kib: float) -> None:
    """GQA, MHA, MQA and MLA; with more GPUs than KV heads a head is copied, and a latent vector is never split."""
    assert find_model(name).kv_bytes_per_token(kv_dtype, tp) == kib * 1024


def test_only_layers_that_keep_every_token_count_when_windows_are_left_out() -> None:
    """gpt-oss slides in every other layer; Qwen3.5 keeps KV in every fourth and a state in the others."""
    gpt_oss = find_model("openai/gpt-oss-120b")
    assert gpt_oss.kv_bytes_per_token(windowed=False) * 2 == gpt_oss.kv_bytes_per_token()
    hybrid = find_model("Qwen/Qwen3.5-27B")
    assert hybrid.kv_bytes_per_token("fp8", 2) == 16 * 2 * 2 * 256
    assert hybrid.state_bytes_per_request() > 0
    assert sum(count for mixer, count in hybrid.mixer_counts.items() if isinstance(mixer, StateSpace)) == 48


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama-3.3-70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("LLAMA-3-8B", "meta-llama/Meta-Llama-3-8B"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
        ("gpt-oss-20b", "openai/gpt-oss-20b"),
    ],
)
def test_short_names(name: str, found: str) -> None:
    """The last part of an id, in any case, with or without suffixes that keep the shape."""
    assert find_model(name).id == found


def test_a_variant_takes_the_base_facts_and_says_so() -> None:
    """A quantized fine-tune of another owner has the same shape; the weights' format is read from its name."""
    model = find_model("TechxGenus/Meta-Llama-3-70B-Instruct-AWQ")
    assert model.quantization is not None and model.quantization.method == "awq"
    assert "meta-llama/Meta-Llama-3-70B" in model.notes[0]


@pytest.mark.parametrize("name", ["Qwen/Qwen3.7-27B FP8", "Qwen/Qwen1.5-20B-Chat", "foo/bar-9b"])
def test_an_unknown_model_is_unknown(name: str) -> None:
    """A nearby version is never taken for the model that was asked for."""
    with pytest.raises(ConfigError, match="not in the catalogue"):
        find_model(name)


def test_the_nearest_names_are_offered() -> None:
    """A typing mistake gets a suggestion."""
    with pytest.raises(ConfigError, match="Qwen/Qwen3-8B"):
        find_model("qwen3-8bx")


def test_an_ambiguous_start_is_refused() -> None:
    """mistral-7b could be models of different shape."""
    with pytest.raises(ConfigError, match="could be"):
        find_model("mistral-7b")


def test_a_local_folder_counts_the_bytes_of_its_safetensors_headers(tmp_path: Path) -> None:
    """The header's offsets say how large the weights are, whatever the config says of their format."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    header = json.dumps({"w": {"dtype": "BF16", "shape": [10], "data_offsets": [0, 20]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(20))
    model = find_model(str(tmp_path))
    assert model.stored_bytes == 20
    assert model.weight_bytes() == 20
    assert model.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 2


def write_weights(path: Path, sizes: dict[str, int], dtype: str = "BF16") -> None:
    """A safetensors file of tensors of these bytes; only the header matters."""
    header, first = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": dtype, "shape": [size // 2], "data_offsets": [first, first + size]}
        first += size
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize("given", ["", "model-00001-of-00002.safetensors", "model.safetensors.index.json"])
def test_shards_are_added_up_whichever_of_the_files_is_named(tmp_path: Path, given: str) -> None:
    """The config beside them is read; what the index does not name is not loaded."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    write_weights(tmp_path / names[0], {"model.layers.0.a": 60})
    write_weights(tmp_path / names[1], {"model.layers.1.a": 40})
    write_weights(tmp_path / "consolidated.safetensors", {"a": 100})
    index = {
        "metadata": {"total_size": 100},
        "weight_map": {"model.layers.0.a": names[0], "model.layers.1.a": names[1]},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert find_model(str(tmp_path / given)).stored_bytes == 100


def test_an_index_whose_files_are_not_there_tells_the_size(tmp_path: Path) -> None:
    """A folder with the small files only is enough for a plan."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    index = {"metadata": {"total_size": 12345}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert find_model(str(tmp_path)).stored_bytes == 12345
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a readable safetensors index"):
        find_model(str(tmp_path))


def test_what_vllm_does_not_load_does_not_count(tmp_path: Path) -> None:
    """Drafting layers behind the model's own, and a head that is the embedding again."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_CONFIG, "tie_word_embeddings": True}))
    sizes = {"model.layers.1.a": 10, "model.layers.2.a": 20, "mtp.layers.0.a": 40, "lm_head.weight": 80}
    write_weights(tmp_path / "model.safetensors", sizes)
    assert find_model(str(tmp_path)).stored_bytes == 10


def test_a_float32_model_is_held_in_16_bits(tmp_path: Path) -> None:
    """vLLM narrows it: weights and KV take half of what is stored."""
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_CONFIG, "torch_dtype": "float32"}))
    write_weights(tmp_path / "model.safetensors", {"model.layers.1.a": 80}, "F32")
    model = find_model(str(tmp_path))
    assert model.stored_bytes == 40
    assert model.kv_bytes_per_token() == 2 * 2 * 2 * 16 * 2


def test_weights_without_a_config_are_not_guessed(tmp_path: Path) -> None:
    """A header has no heads; a file that is not there is named."""
    path = tmp_path / "model.safetensors"
    with pytest.raises(ConfigError, match="no such file"):
        find_model(str(path))
    write_weights(path, {"a": 10})
    with pytest.raises(ConfigError, match=r"no config\.json beside"):
        find_model(str(path))


def test_the_files_size_is_shared_as_the_parts_are(tmp_path: Path) -> None:
    """Half the layers hold the embedding or the head as well; both halves are the whole."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    write_weights(tmp_path / "model.safetensors", {"model.layers.1.a": 1_000_000})
    model = find_model(str(tmp_path))
    first = rank_weight_bytes(model, layers=model.layers[:1], last=False)
    second = rank_weight_bytes(model, layers=model.layers[1:], first=False)
    assert first + second == pytest.approx(1_000_000, abs=2)
    mixed = replace(model, quantization=Quantization("mixed", 0.0, (), is_modelled=False))
    assert rank_weight_bytes(mixed, tp=2) == pytest.approx(500_000, rel=0.01)


def test_more_ranks_than_kv_heads_each_hold_one() -> None:
    """KV projections are repeated: of 14 ranks each holds one of the two KV heads, not a seventh of one."""
    model = find_model("qwen2.5-0.5b")
    (mixer,) = model.mixer_counts
    assert isinstance(mixer, Attention) and mixer.num_kv_heads == 2
    plain = sum(part.split / 14 + part.copied for part in all_parts(model, model.layers, first=True, last=True))
    repeated = model.num_layers * model.hidden_size * 2 * mixer.head_dim * (1 - 2 / 14)
    assert rank_weight_bytes(model, tp=14) == pytest.approx(2 * (plain + repeated), abs=2)


def test_a_broken_safetensors_file_is_named(tmp_path: Path) -> None:
    """A file that is cut short is an error of the user's files, with its path."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_CONFIG))
    (tmp_path / "model.safetensors").write_bytes(b"\x05")
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        find_model(str(tmp_path))


def test_a_config_that_is_no_language_model_is_refused(tmp_path: Path) -> None:
    """The missing setting is named."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["Foo"], "num_hidden_layers": 2}))
    with pytest.raises(ConfigError, match="num_attention_heads"):
        find_model(str(path))


@pytest.mark.parametrize("text", ["[1]", "{", "nonsense"])
def test_a_config_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    """The file is named in the message."""
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        find_model(str(path))
