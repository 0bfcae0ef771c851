"""A tokenizer for servers that simulate: no files, about as many tokens as a real one makes, equal texts equal ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from zlib import crc32

from headway.errors import RequestError
from headway.text.tokenizer import Tokenizer

FILLER_TOKEN_ID = 1
"""What a simulated model says, over and over."""
END_TOKEN_ID = 2

_NUM_RESERVED = 16
_PIECE = re.compile(r"\s*[^\W\d_]{1,6}|\s*\d{1,3}|\s*[^\w\s]|\s*_|\s+")
_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


class StandInTokenizer(Tokenizer):
    """Cuts text into pieces of up to six letters, three digits or one sign; each piece has an id by its checksum.

    Ids that stand for no piece seen so far decode to the filler word.
    """

    def __init__(self, vocab_size: int = 32_000) -> None:
        self._size = vocab_size
        self._pieces: dict[int, bytes] = {END_TOKEN_ID: b""}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """See `Tokenizer.encode`."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RequestError(f"The text is not valid Unicode at position {error.start}.", param="prompt") from None
        ids = []
        for piece in _PIECE.findall(text):
            data = piece.encode()
            token_id = _NUM_RESERVED + crc32(data) % (self._size - _NUM_RESERVED)
            self._pieces.setdefault(token_id, data)
            ids.append(token_id)
        return ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """See `Tokenizer.decode`."""
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See `Tokenizer.token_bytes`."""
        if token_id < 0:
            raise RequestError(f"Token id {token_id} is negative.", param="tokens")
        return self._pieces.get(token_id, b" token")

    def token_text(self, token_id: int) -> str:
        """See `Tokenizer.token_text`."""
        return self.token_bytes(token_id).decode(errors="replace")

    @property
    def vocab_size(self) -> int:
        """See `Tokenizer.vocab_size`."""
        return self._size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """See `Tokenizer.eos_token_ids`."""
        return frozenset({END_TOKEN_ID})

    @property
    def bos_token_id(self) -> int | None:
        """None: nothing starts a text."""
        return None

    @property
    def special_token_ids(self) -> frozenset[int]:
        """See `Tokenizer.special_token_ids`."""
        return frozenset({END_TOKEN_ID})

    @property
    def added_token_ids(self) -> frozenset[int]:
        """See `Tokenizer.added_token_ids`."""
        return frozenset()

    @property
    def strips_leading_space(self) -> bool:
        """False: the first space is the text's own."""
        return False

    @property
    def chat_template(self) -> str | None:
        """Role and content, a line each."""
        return _TEMPLATE

    @property
    def bos_token(self) -> str | None:
        """None."""
        return None

    @property
    def eos_token(self) -> str | None:
        """None."""
        return None
