"""The bytes that each token stands for.

Llama-family vocabularies come in two spellings. Byte-level BPE writes every byte as one printable character
(a space is `Ġ`); SentencePiece writes text, with `▁` for a space and `<0x0A>` for a byte that is in no piece. In both
a text is the concatenation of its tokens' bytes, read as UTF-8. Streaming and whole decoding both rest on that, and
therefore agree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from headway.errors import ModelLoadError

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte, as character → byte.

    Printable Latin-1 characters stand for themselves; the other 68 bytes take the code points from 256 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if chr(byte) not in alphabet]
    alphabet.update((chr(256 + index), byte) for index, byte in enumerate(others))
    return alphabet


@dataclass(frozen=True, slots=True)
class TokenSpelling:
    """How a vocabulary spells bytes.

    Args:
        alphabet: byte-level alphabet, or None for a SentencePiece vocabulary.
        space: character that stands for a space (SentencePiece), or None.
        byte_fallback: `<0xNN>` pieces are bytes.
        strips_leading_space: a text's first space was put there by the encoder and is not part of the text.
    """

    alphabet: dict[str, int] | None = None
    space: str | None = None
    byte_fallback: bool = False
    strips_leading_space: bool = False

    def to_bytes(self, token: str) -> bytes:
        """Bytes of one token, given its spelling in the vocabulary."""
        if self.alphabet is not None:
            try:
                return bytes([self.alphabet[char] for char in token])
            except KeyError:
                return token.encode()
        if self.byte_fallback and (match := _BYTE_PIECE.fullmatch(token)):
            return bytes.fromhex(match[1])
        return (token.replace(self.space, " ") if self.space else token).encode()

    @classmethod
    def from_decoder(cls, decoder: Any) -> TokenSpelling:
        """Read the spelling off the decoder of a `tokenizers.Tokenizer`.

        Raises:
            ModelLoadError: the decoder is of a kind that does not concatenate token bytes.
        """
        steps = [] if decoder is None else list(_flatten(json.loads(decoder.__getstate__())))
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return cls(alphabet=byte_alphabet())
        if not steps or any(kind not in _SENTENCEPIECE_STEPS for kind in kinds):
            raise ModelLoadError(
                f"The tokenizer's decoder is of an unsupported kind ({' + '.join(kinds) or 'none'}).",
                hint="Byte-level BPE and SentencePiece-style tokenizers are supported.",
            )
        space, strips = None, False
        for step in steps:
            if step["type"] == "Metaspace":
                space = step["replacement"]
                strips = step.get("prepend_scheme", "always") != "never"
            elif step["type"] == "Replace" and step["content"] == " ":
                space = step["pattern"]["String"]
            elif step["type"] == "Strip":
                strips = step["start"] > 0
        return cls(space=space, byte_fallback="ByteFallback" in kinds, strips_leading_space=strips)


_SENTENCEPIECE_STEPS = frozenset({"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})


def _flatten(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _flatten(step)
    else:
        yield decoder
