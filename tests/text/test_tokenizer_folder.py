"""Tokenizers of Hugging Face folders: which file says what, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from headway.errors import ModelLoadError
from headway.text import Tokenizer
from headway.text.token_bytes import TokenSpelling, byte_alphabet

decoders = tokenizers.decoders


def make_folder(folder: Path, **files: Any) -> Path:
    """A folder with a byte-level tokenizer.json and the given files (`generation_config={...}`)."""
    vocab = {char: index for index, char in enumerate(byte_alphabet())}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ["<|begin_of_text|>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>"]
    backend.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in names])
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_a_folder_with_nothing_but_a_tokenizer_still_loads(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path))
    assert tokenizer.decode(tokenizer.encode("héllo 你😀\n")) == "héllo 你😀\n"
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template) == (None, None, None)
    assert tokenizer.eos_token_ids == frozenset({257})
    assert tokenizer.vocab_size == 260


def test_end_ids_are_those_of_the_generation_config_the_eos_token_and_the_template(tmp_path: Path) -> None:
    make_folder(
        tmp_path,
        generation_config={"eos_token_id": [5, 6]},
        config={"eos_token_id": 9},
        tokenizer_config={
            "bos_token": {"content": "<|begin_of_text|>"},
            "eos_token": "<|endoftext|>",
            "chat_template": "x<|im_end|>",
        },
    )
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.eos_token_ids == frozenset({5, 6, 257, 258})
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|begin_of_text|>", "<|endoftext|>")


def test_config_json_names_the_end_id_where_no_generation_config_does(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(make_folder(tmp_path, config={"eos_token_id": 9}))
    assert tokenizer.eos_token_ids == frozenset({9, 257})


def test_chat_template_file_wins_over_the_config_and_a_list_gives_its_default(tmp_path: Path) -> None:
    listed = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    make_folder(tmp_path, tokenizer_config={"chat_template": listed})
    assert Tokenizer.from_folder(tmp_path).chat_template == "D"
    assert Tokenizer.from_file(tmp_path / "tokenizer.json").chat_template is None
    config_path = tmp_path / "tokenizer_config.json"
    assert Tokenizer.from_file(tmp_path / "tokenizer.json", config_path).chat_template == "D"
    (tmp_path / "chat_template.jinja").write_text("J é", encoding="utf-8")
    assert Tokenizer.from_folder(tmp_path).chat_template == "J é"


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"not a readable tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    make_folder(tmp_path, generation_config=[1])
    with pytest.raises(ModelLoadError, match="must hold a JSON object"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "generation_config.json").write_text("{,}")
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("decoder", [None, decoders.WordPiece(), decoders.Sequence([decoders.BPEDecoder()])])
def test_decoders_that_do_not_concatenate_bytes_are_refused(decoder: Any) -> None:
    with pytest.raises(ModelLoadError, match="decoder is of an unsupported kind"):
        TokenSpelling.from_decoder(decoder)


LLAMA = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)
GEMMA = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])


@pytest.mark.parametrize(
    ("decoder", "tokens"),
    [
        (decoders.ByteLevel(), ["Ġhello", "Ġ", "Ċ", "ä", "½", "ł", "<|x|>", "á", "你"]),
        (LLAMA, ["▁hello", "<0xE4>", "<0xBD>", "<0xA0>", "▁", "<0x0A>", "x▁y"]),
        (LLAMA, ["a", "▁b"]),
        (GEMMA, ["▁hello", "<0x0A>", "▁▁"]),
        (decoders.Metaspace(), ["▁hello", "▁there", "x"]),
        (decoders.Metaspace(prepend_scheme="never"), ["▁hello", "▁there"]),
    ],
)
def test_concatenated_token_bytes_equal_the_library_decoder(decoder: Any, tokens: list[str]) -> None:
    spelling = TokenSpelling.from_decoder(decoder)
    text = b"".join(map(spelling.to_bytes, tokens)).decode(errors="replace")
    assert (text.removeprefix(" ") if spelling.strips_leading_space else text) == decoder.decode(tokens)


def test_byte_alphabet_is_the_one_of_the_library() -> None:
    assert set(byte_alphabet()) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert decoders.ByteLevel().decode(["".join(byte_alphabet())[:94]]) == bytes(range(0x21, 0x7F)).decode()
