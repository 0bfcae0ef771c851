"""The tokenizer that a GGUF file carries in its metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from headway.errors import ModelLoadError
from headway.extras import require
from headway.text.pretokenizers import word_split
from headway.text.sentencepiece import sentencepiece_backend

_BESIDE = "Put the model's tokenizer.json in the same folder; it is then used instead."


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, as the GGUF specification numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class GgufVocabulary:
    """`tokenizer.*` metadata of one GGUF file; `None` or empty where the file is silent."""

    path: Path
    model: str
    pre: str
    tokens: list[str]
    token_types: list[int]
    scores: list[float]
    merges: list[str]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    unknown_token_id: int | None
    adds_bos: bool | None
    adds_eos: bool | None
    adds_space_prefix: bool | None
    chat_template: str | None

    @classmethod
    def read(cls, path: Path, reader: Any | None = None) -> GgufVocabulary:
        """Read the vocabulary; `reader` is an open `gguf.GGUFReader` of the same file, if there is one.

        Raises:
            ModelLoadError: not a readable GGUF file, or one without a vocabulary.
        """
        fields: Mapping[str, Any] = (reader if reader is not None else open_reader(path)).fields

        def value(key: str) -> Any:
            field = fields.get(f"tokenizer.{key}")
            return None if field is None else field.contents()

        tokens, model = value("ggml.tokens"), value("ggml.model")
        if not tokens or model is None:
            raise ModelLoadError(f"{path} holds no vocabulary.", hint=_BESIDE)
        eos = [value(f"ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
        return cls(
            path=path,
            model=model,
            pre=value("ggml.pre") or "default",
            tokens=tokens,
            token_types=value("ggml.token_type") or [TokenType.NORMAL] * len(tokens),
            scores=value("ggml.scores") or [],
            merges=value("ggml.merges") or [],
            bos_token_id=value("ggml.bos_token_id"),
            eos_token_ids=tuple(token_id for token_id in eos if token_id is not None),
            unknown_token_id=value("ggml.unknown_token_id"),
            adds_bos=value("ggml.add_bos_token"),
            adds_eos=value("ggml.add_eos_token"),
            adds_space_prefix=value("ggml.add_space_prefix"),
            chat_template=value("chat_template"),
        )

    def backend(self) -> Any:
        """Build the `tokenizers.Tokenizer` that this vocabulary describes.

        Raises:
            ModelLoadError: the kind of vocabulary, or its pre-tokenizer, is not supported.
        """
        if self.model == "gpt2":
            backend, adds_bos = self._byte_level_backend()
        elif self.model == "llama":
            backend, adds_bos = self._sentencepiece_backend(), True
        else:
            raise ModelLoadError(
                f"{self.path} has a vocabulary of kind {self.model!r}; supported are 'gpt2' and 'llama'.",
                hint=_BESIDE,
            )
        self._add_marked_tokens(backend)
        self._add_post_processor(backend, adds_bos if self.adds_bos is None else self.adds_bos)
        return backend

    def _byte_level_backend(self) -> tuple[Any, bool]:
        tokenizers = require("tokenizers")
        split = word_split(self.pre)
        if not self.merges:
            raise ModelLoadError(f"{self.path} has a BPE vocabulary without merges.", hint=_BESIDE)
        merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in self.merges)]
        try:
            bpe = tokenizers.models.BPE(vocab=self._ids(), merges=merges, ignore_merges=split.ignore_merges)
        except Exception as error:  # the library raises bare Exception for a merge outside the vocabulary
            raise ModelLoadError(f"{self.path} has a damaged vocabulary: {error}.", hint=_BESIDE) from error
        backend = tokenizers.Tokenizer(bpe)
        if split.nfc:
            backend.normalizer = tokenizers.normalizers.NFC()
        backend.pre_tokenizer = split.pre_tokenizer()
        backend.decoder = tokenizers.decoders.ByteLevel()
        return backend, split.adds_bos

    def _sentencepiece_backend(self) -> Any:
        if len(self.scores) != len(self.tokens):
            raise ModelLoadError(f"{self.path} has a SentencePiece vocabulary without scores.", hint=_BESIDE)
        mergeable = [
            token_type in (TokenType.NORMAL, TokenType.UNUSED, TokenType.USER_DEFINED)
            for token_type in self.token_types
        ]
        return sentencepiece_backend(
            self._ids(),
            self.scores,
            mergeable,
            unknown_token=None if self.unknown_token_id is None else self.tokens[self.unknown_token_id],
            adds_space_prefix=self.adds_space_prefix is not False,
        )

    def _ids(self) -> dict[str, int]:
        ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(ids) != len(self.tokens):
            raise ModelLoadError(f"{self.path} lists a token twice in its vocabulary.", hint=_BESIDE)
        return ids

    def _add_marked_tokens(self, backend: Any) -> None:
        """Control tokens (special) and user-defined ones (plain) are matched whole, before any splitting."""
        added_token = require("tokenizers").AddedToken
        for wanted, add in (
            (TokenType.CONTROL, backend.add_special_tokens),
            (TokenType.USER_DEFINED, backend.add_tokens),
        ):
            special = wanted is TokenType.CONTROL
            add(
                [
                    added_token(token, normalized=False, special=special)
                    for token, token_type in zip(self.tokens, self.token_types, strict=True)
                    if token_type == wanted
                ]
            )

    def _add_post_processor(self, backend: Any, adds_bos: bool) -> None:
        bos = self.bos_token_id if adds_bos else None
        eos = self.eos_token_ids[0] if self.adds_eos and self.eos_token_ids else None
        if bos is None and eos is None:
            return
        marked = [(self.tokens[token_id], token_id) for token_id in (bos, eos) if token_id is not None]
        parts = [self.tokens[bos]] if bos is not None else []
        parts.append("$A")
        parts += [self.tokens[eos]] if eos is not None else []
        backend.post_processor = require("tokenizers").processors.TemplateProcessing(
            single=parts, special_tokens=marked
        )


def open_reader(path: Path) -> Any:
    """Open a GGUF file.

    Raises:
        ModelLoadError: missing, truncated, or not a GGUF file.
    """
    gguf = require("gguf")
    if not path.is_file():
        raise ModelLoadError(f"There is no file {path}.", hint="Give the path of a GGUF file.")
    try:
        return gguf.GGUFReader(path)
    except (
        Exception
    ) as error:  # the reader fails in many ways on damaged files: ValueError, IndexError, UnicodeDecodeError
        raise ModelLoadError(
            f"{path} is not a readable GGUF file ({type(error).__name__}: {str(error)[:200]}).",
            hint="Download it again; it may be truncated.",
        ) from error
