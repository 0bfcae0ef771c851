"""Tokenizers out of GGUF metadata: the bundled model exactly, other vocabularies by reference algorithms."""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import ModelLoadError, RequestError
from headway.text import Tokenizer
from headway.text.gguf_vocab import GgufVocabulary, TokenType
from tests.text.support import (
    CORPUS,
    ReferenceBpe,
    bundled_tokenizer,
    bundled_vocabulary,
    reference_sentencepiece,
    small_bpe,
    spm_tokenizer,
    spm_vocabulary,
    transformers_tokenizer,
    write_gguf,
)

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
PIECES = st.sampled_from([*CORPUS, *"aZ é你😀1½²\n\t'.", "  ", "\r\n", "123", "<|im_end|>", "<|im_end"])
LACKING = "\x04\x06\x13\x14\x16\x1d"
"""Characters whose bytes the bundled vocabulary does not have; so are those from U+40000 to U+BFFFF."""
MIXED_TEXT = st.lists(PIECES, max_size=6).map("".join) | st.text(max_size=20)


@cache
def reference_of_bundled() -> ReferenceBpe:
    vocabulary = bundled_vocabulary()
    specials = [t for t, kind in zip(vocabulary.tokens, vocabulary.token_types, strict=True) if kind == 3]
    return ReferenceBpe(vocabulary.tokens, vocabulary.merges, specials, [r"\p{N}", GPT2])


def test_bundled_model_has_its_published_vocabulary_and_special_tokens() -> None:
    tokenizer = bundled_tokenizer()
    assert tokenizer.vocab_size == 49152
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, frozenset({0, 2}))
    assert tokenizer.special_token_ids == frozenset(range(17))
    assert tokenizer.chat_template is not None


@pytest.mark.slow
@pytest.mark.parametrize("text", CORPUS)
def test_bundled_encoding_equals_plain_byte_pair_encoding(text: str) -> None:
    assert bundled_tokenizer().encode(text) == reference_of_bundled().encode(text)


@settings(max_examples=150, deadline=None)
@given(MIXED_TEXT)
def test_bundled_encoding_equals_plain_byte_pair_encoding_on_mixtures(text: str) -> None:
    assert bundled_tokenizer().encode(text) == reference_of_bundled().encode(text)


@settings(max_examples=100, deadline=None)
@given(MIXED_TEXT)
def test_bundled_encoding_equals_transformers(text: str) -> None:
    assert bundled_tokenizer().encode(text) == transformers_tokenizer().backend_tokenizer.encode(text).ids


@settings(max_examples=200, deadline=None)
@given(MIXED_TEXT)
def test_bundled_text_survives_the_round_trip(text: str) -> None:
    tokenizer = bundled_tokenizer()
    known = "".join(char for char in text if char not in LACKING and not 0x40000 <= ord(char) < 0xC0000)
    assert tokenizer.decode(tokenizer.encode(known), skip_special_tokens=False) == known


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 49151) | st.integers(0, 400), max_size=30), st.booleans())
def test_decoding_equals_transformers_on_any_ids(ids: list[int], skip: bool) -> None:
    expected = transformers_tokenizer().backend_tokenizer.decode(ids, skip_special_tokens=skip)
    assert bundled_tokenizer().decode(ids, skip_special_tokens=skip) == expected


def test_token_bytes_of_one_character_in_three_tokens() -> None:
    tokenizer = bundled_tokenizer()
    ids = tokenizer.encode("你")
    assert b"".join(map(tokenizer.token_bytes, ids)) == "你".encode()
    assert len(ids) > 1
    assert tokenizer.token_text(ids[0]) == "\N{REPLACEMENT CHARACTER}"
    assert tokenizer.token_text(2) == "<|im_end|>"


def test_ids_past_the_vocabulary_are_empty_and_negative_ones_refused() -> None:
    """Embeddings may be padded past the vocabulary, so a model with random weights can sample such ids."""
    tokenizer = bundled_tokenizer()
    assert tokenizer.token_bytes(49152) == b""
    assert tokenizer.decode([49152, 2**40]) == ""
    with pytest.raises(RequestError, match="negative"):
        tokenizer.decode([-1])


def test_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(RequestError, match="position 1"):
        bundled_tokenizer().encode("a\ud800")


def small_gguf(path: Path, pre: str | None = "smollm", **fields: Any) -> Path:
    tokens, merges = small_bpe()
    tokens = [*tokens, "<|im_start|>", "<|im_end|>", "<think>"]
    types = [TokenType.NORMAL] * (len(tokens) - 3) + [TokenType.CONTROL] * 2 + [TokenType.USER_DEFINED]
    defaults: dict[str, Any] = {
        "ggml__merges": merges,
        "ggml__token_type": [int(kind) for kind in types],
        "ggml__pre": pre,
        "ggml__bos_token_id": len(tokens) - 3,
        "ggml__eos_token_id": len(tokens) - 2,
    }
    return write_gguf(path, tokens, **(defaults | fields))


WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("pre", "patterns"),
    [
        ("gpt-2", [GPT2]),
        (None, [GPT2]),
        ("smollm", [r"\p{N}", GPT2]),
        ("starcoder", [r"\p{N}", GPT2]),
        ("llama-bpe", [WORD % r"\p{N}{1,3}"]),
        ("qwen2", [WORD % r"\p{N}"]),
        ("deepseek-r1-qwen", [WORD % r"\p{N}"]),
        ("tekken", [TEKKEN]),
    ],
)
def test_each_named_pre_tokenizer_splits_as_its_family_does(tmp_path: Path, pre: str, patterns: list[str]) -> None:
    tokenizer = Tokenizer.from_gguf(small_gguf(tmp_path / "m.gguf", pre, ggml__add_bos_token=False))
    tokens, merges = small_bpe()
    names = ["<|im_start|>", "<|im_end|>", "<think>"]
    reference = ReferenceBpe([*tokens, *names], merges, names, patterns)
    for text in [*CORPUS, "a<think>b</think>"]:
        expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert tokenizer.encode(text) == reference.encode(expected), text


@pytest.mark.parametrize(
    ("pre", "flag", "adds"),
    [("smollm", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False), ("smollm", True, True)],
)
def test_bos_follows_the_flag_and_else_the_family(tmp_path: Path, pre: str, flag: bool | None, adds: bool) -> None:
    tokenizer = Tokenizer.from_gguf(small_gguf(tmp_path / "m.gguf", pre, ggml__add_bos_token=flag))
    assert (tokenizer.encode("the")[0] == tokenizer.bos_token_id) is adds
    assert tokenizer.encode("the", add_special_tokens=False)[0] != tokenizer.bos_token_id


def test_user_defined_tokens_are_whole_but_not_special(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_gguf(small_gguf(tmp_path / "m.gguf"))
    ids = tokenizer.encode("<think>")
    assert len(ids) == 1
    assert ids[0] in tokenizer.added_token_ids - tokenizer.special_token_ids
    assert tokenizer.decode(ids) == "<think>"


def test_end_of_turn_token_of_the_template_ends_generation_even_if_metadata_names_another(tmp_path: Path) -> None:
    path = small_gguf(tmp_path / "m.gguf", ggml__eos_token_id=5, chat_template="{{ messages[0].content }}<|im_end|>")
    tokens, _ = small_bpe()
    assert Tokenizer.from_gguf(path).eos_token_ids == frozenset({5, len(tokens) + 1})


def test_unknown_pre_tokenizer_names_itself_and_a_tokenizer_json_beside_replaces_it(tmp_path: Path) -> None:
    path = small_gguf(tmp_path / "m.gguf", "martian")
    with pytest.raises(ModelLoadError, match=r"'martian'.*tokenizer\.json"):
        Tokenizer.from_gguf(path)
    GgufVocabulary.read(small_gguf(tmp_path / "ok.gguf")).backend().save(str(tmp_path / "tokenizer.json"))
    beside = Tokenizer.from_gguf(path)
    assert beside.encode("the cat") == Tokenizer.from_gguf(tmp_path / "ok.gguf").encode("the cat")
    assert beside.eos_token == "<|im_end|>"


def test_tokenizer_json_beside_that_is_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", ["a", "b"], model="rwkv")
    GgufVocabulary.read(small_gguf(tmp_path / "ok.gguf")).backend().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelLoadError, match="has ids up to 402, but the model's vocabulary ends at 1"):
        Tokenizer.from_gguf(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "rwkv"}, "kind 'rwkv'"),
        ({"ggml__merges": None}, "without merges"),
        ({"ggml__merges": ["nothing such"]}, "damaged vocabulary"),
        ({"model": "llama"}, "without scores"),
        ({"ggml__eos_token_id": 4000}, "special token id 4000"),
    ],
)
def test_unusable_vocabularies_are_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        Tokenizer.from_gguf(small_gguf(tmp_path / "m.gguf", **fields))


def test_files_that_are_no_gguf_or_cut_short_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="no file"):
        Tokenizer.from_gguf(tmp_path / "absent.gguf")
    (tmp_path / "text.gguf").write_text("hello, I am not a model")
    with pytest.raises(ModelLoadError, match="not a readable GGUF"):
        Tokenizer.from_gguf(tmp_path / "text.gguf")
    whole = small_gguf(tmp_path / "whole.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelLoadError, match="not a readable GGUF"):
        Tokenizer.from_gguf(tmp_path / "cut.gguf")
    write_gguf(tmp_path / "empty.gguf", [])
    with pytest.raises(ModelLoadError, match="no vocabulary"):
        Tokenizer.from_gguf(tmp_path / "empty.gguf")


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab the你é😀\nX", max_size=24))
def test_sentencepiece_vocabulary_joins_by_score_and_falls_back_to_bytes(text: str) -> None:
    tokens, scores, types = spm_vocabulary()
    ids = {token: index for index, token in enumerate(tokens)}
    tokenizer = spm_tokenizer()
    assert tokenizer.encode(text) == [1, *reference_sentencepiece(text, ids, scores, types)]
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_sentencepiece_file_is_read_whole(tmp_path: Path) -> None:
    tokens, scores, types = spm_vocabulary()
    path = write_gguf(
        tmp_path / "m.gguf",
        tokens,
        model="llama",
        ggml__scores=scores,
        ggml__token_type=types,
        ggml__bos_token_id=1,
        ggml__eos_token_id=2,
        ggml__unknown_token_id=0,
    )
    tokenizer = Tokenizer.from_gguf(path)
    assert tokenizer.encode("the aab</s>") == spm_tokenizer().encode("the aab</s>")
    assert tokenizer.eos_token_ids == frozenset({2})
