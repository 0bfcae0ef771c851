"""Text → token ids and back, for Hugging Face folders and GGUF files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.errors import ModelLoadError, RequestError
from headway.extras import require
from headway.text.gguf_vocab import GgufVocabulary
from headway.text.token_bytes import TokenSpelling

_END_OF_TURN = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>", "<|endofturn|>"}
)
_END_OF_TEXT = frozenset({"<|endoftext|>", "<|end_of_text|>", "</s>"})


class Tokenizer:
    """A model's tokenizer. Immutable after construction, and safe to share between threads.

    Build one with `from_folder`, `from_file` or `from_gguf`.

    Args:
        backend: a `tokenizers.Tokenizer`.
        bos_token_id: id that starts a text, if the model has one.
        eos_token_ids: ids that end a generation. Special tokens known to end a text or, where the chat template
            writes them, a turn are added to them.
        chat_template: Jinja source, or None for a model that knows no chat.
        eos_token_id: the id chat templates know as `eos_token`; by default the smallest of `eos_token_ids`.

    Raises:
        ModelLoadError: the tokenizer is of an unsupported kind, or a named id is outside the vocabulary.
    """

    def __init__(
        self,
        backend: Any,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
        eos_token_id: int | None = None,
    ) -> None:
        self._backend = backend
        self._spelling = TokenSpelling.from_decoder(backend.decoder)
        self._vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        added = backend.get_added_tokens_decoder()
        self._added_token_ids = frozenset(added)
        self._special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._bytes: dict[int, bytes] = {}
        self._chat_template = chat_template
        self._bos_token_id = bos_token_id
        named_eos = frozenset(eos_token_ids)
        self._eos_token_id = eos_token_id if eos_token_id is not None else min(named_eos, default=None)
        self._eos_token_ids = named_eos | self._known_end_ids()
        for token_id in (*named_eos, self._eos_token_id, bos_token_id):
            if token_id is not None and not 0 <= token_id < self._vocab_size:
                raise ModelLoadError(
                    f"The model names special token id {token_id}, but its vocabulary ends at {self._vocab_size - 1}."
                )

    @classmethod
    def from_file(cls, path: str | Path, config: str | Path | None = None) -> Tokenizer:
        """Load a `tokenizer.json`, and the special tokens and chat template of a `tokenizer_config.json`.

        Raises:
            ModelLoadError: a file is missing, damaged or of an unsupported kind.
        """
        return cls._from_parts(Path(path), _read_json(Path(config)) if config is not None else {}, [], None)

    @classmethod
    def from_folder(cls, folder: str | Path) -> Tokenizer:
        """Load the tokenizer of a Hugging Face model folder.

        Reads tokenizer.json (required), tokenizer_config.json, chat_template.jinja, and the end-of-sequence ids of
        generation_config.json, or of config.json where that is absent.

        Raises:
            ModelLoadError: tokenizer.json is missing, or a file is damaged or of an unsupported kind.
        """
        folder = Path(folder)
        config_path, template_path = folder / "tokenizer_config.json", folder / "chat_template.jinja"
        config = _read_json(config_path) if config_path.is_file() else {}
        eos_ids: list[int] = []
        for name in ("generation_config.json", "config.json"):
            if (folder / name).is_file():
                named = _read_json(folder / name).get("eos_token_id")
                eos_ids = [named] if isinstance(named, int) else list(named or [])
                break
        template = template_path.read_text(encoding="utf-8") if template_path.is_file() else None
        return cls._from_parts(folder / "tokenizer.json", config, eos_ids, template)

    @classmethod
    def from_gguf(cls, path: str | Path, reader: Any | None = None) -> Tokenizer:
        """Build the tokenizer that a GGUF file describes.

        A tokenizer.json in the same folder is used where the file's own vocabulary is not supported.

        Args:
            path: the GGUF file.
            reader: an open `gguf.GGUFReader` of it, if there is one; opening takes seconds.

        Raises:
            ModelLoadError: the file is unreadable, or its vocabulary is unsupported and no tokenizer.json lies beside.
        """
        path = Path(path)
        vocabulary = GgufVocabulary.read(path, reader)
        beside = path.parent / "tokenizer.json"
        try:
            backend = vocabulary.backend()
        except ModelLoadError:
            if not beside.is_file():
                raise
            backend = _load_backend(beside)
        tokenizer = cls(
            backend,
            bos_token_id=vocabulary.bos_token_id,
            eos_token_ids=vocabulary.eos_token_ids,
            chat_template=vocabulary.chat_template,
            eos_token_id=vocabulary.eos_token_ids[0] if vocabulary.eos_token_ids else None,
        )
        if tokenizer.vocab_size > len(vocabulary.tokens):
            raise ModelLoadError(
                f"{beside} has ids up to {tokenizer.vocab_size - 1}, but the model's vocabulary ends at "
                f"{len(vocabulary.tokens) - 1}.",
                hint="It belongs to another model.",
            )
        return tokenizer

    @classmethod
    def _from_parts(
        cls, path: Path, config: Mapping[str, Any], eos_ids: Sequence[int], template: str | None
    ) -> Tokenizer:
        backend = _load_backend(path)

        def special_id(name: str) -> int | None:
            token = config.get(name)
            text = token.get("content") if isinstance(token, dict) else token
            return None if text is None else backend.token_to_id(text)

        eos_token_id = special_id("eos_token")
        return cls(
            backend,
            bos_token_id=special_id("bos_token"),
            eos_token_ids=[*eos_ids, *([] if eos_token_id is None else [eos_token_id])],
            chat_template=template if template is not None else _template_of(config),
            eos_token_id=eos_token_id,
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written out in it are recognised.

        Args:
            text: any valid Unicode text.
            add_special_tokens: add what the model expects around a text (a BOS token, say). Pass False for the output
                of a chat template, which writes them itself.

        Raises:
            RequestError: the text holds a lone surrogate and so is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"The text is not valid Unicode: lone surrogate at position {error.start}.", param="prompt"
            ) from error
        # The library holds the interpreter's lock while it encodes one text, but not while it encodes a batch.
        ids: list[int] = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of a token sequence. Bytes that are not UTF-8 become U+FFFD; ids past the vocabulary are empty.

        Raises:
            RequestError: an id is negative.
        """
        kept = (i for i in ids if not (skip_special_tokens and i in self._special_token_ids))
        text = b"".join(map(self.token_bytes, kept)).decode(errors="replace")
        return text[1:] if self._spelling.strips_leading_space and text.startswith(" ") else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text; empty for an id past the vocabulary.

        Raises:
            RequestError: the id is negative.
        """
        cached = self._bytes.get(token_id)
        if cached is not None:
            return cached
        if token_id < 0:
            raise RequestError(f"Token id {token_id} is negative.", param="tokens")
        token = self._backend.id_to_token(token_id) if token_id < self._vocab_size else None
        if token is None:
            return b""
        return self._bytes.setdefault(token_id, self._spelling.to_bytes(token))

    def token_text(self, token_id: int) -> str:
        """One token as text, special tokens included; a part of a character shows as U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id. The model's embedding may have more rows, for padding."""
        return self._vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end a generation: end of text and, for chat models, end of turn."""
        return self._eos_token_ids

    @property
    def bos_token_id(self) -> int | None:
        """Id of the token that starts a text, if the model has one."""
        return self._bos_token_id

    @property
    def special_token_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out."""
        return self._special_token_ids

    @property
    def added_token_ids(self) -> frozenset[int]:
        """Ids of tokens matched whole in a text: the special ones, and plain markers such as `<think>`."""
        return self._added_token_ids

    @property
    def strips_leading_space(self) -> bool:
        """Whether a text's first space is the encoder's own, to be left out when decoding from the start."""
        return self._spelling.strips_leading_space

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the model's chat template, if it has one."""
        return self._chat_template

    @property
    def bos_token(self) -> str | None:
        """Text of the BOS token, as chat templates write it."""
        return None if self._bos_token_id is None else self._backend.id_to_token(self._bos_token_id)

    @property
    def eos_token(self) -> str | None:
        """Text of the EOS token, as chat templates write it."""
        return None if self._eos_token_id is None else self._backend.id_to_token(self._eos_token_id)

    def _known_end_ids(self) -> frozenset[int]:
        """Special tokens that end a text or a turn whatever the metadata says.

        Converted and fine-tuned models often name one of the two only, and then generate on and on.
        """
        template = self._chat_template or ""
        names = _END_OF_TEXT | {name for name in _END_OF_TURN if name in template}
        ids = (self._backend.token_to_id(name) for name in names)
        return frozenset(token_id for token_id in ids if token_id in self._special_token_ids)


def _load_backend(path: Path) -> Any:
    if not path.is_file():
        raise ModelLoadError(
            f"There is no {path.name} in {path.parent}.",
            hint="headway reads tokenizer.json; transformers' save_pretrained() writes one.",
        )
    try:
        return require("tokenizers").Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelLoadError(f"{path} is not a readable tokenizer.json: {str(error)[:200]}.") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {str(error)[:200]}.") from error
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path} must hold a JSON object.")
    return data


def _template_of(config: Mapping[str, Any]) -> str | None:
    """The default template; a model with several lists them by name."""
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {item["name"]: item["template"] for item in template}
        return named.get("default")
    return template
