"""Token ids → text, as they are generated."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from headway.errors import RequestError
from headway.text.stops import StopMatcher
from headway.text.tokenizer import Tokenizer

_LONGEST_UTF8_TAIL = 3


class IncrementalDetokenizer:
    """Turns one request's output tokens into text deltas that never have to be taken back.

    A delta never ends inside a UTF-8 character, inside the text of a special token (or another marker that is one
    token), or inside what may still become a stop string. Nothing else is held back. All deltas together are
    `Tokenizer.decode` of the tokens, cut at the first stop string to complete; how the tokens are spread over calls
    makes no difference to the text, the stop, or the counts.

    Args:
        tokenizer: the model's tokenizer.
        stop: stop strings, none of them empty. Of several, the one that completes first ends the text; of two that
            complete at the same character, the longer one.
        include_stop_str: keep the stop string in the text. Then nothing is held back for it either.
        skip_special_tokens: leave special tokens out of the text.
        min_tokens: a stop string counts only if a later token than this many completes it.
        prompt_token_ids: what the output continues. It decides whether a leading space belongs to the text, and a
            character begun by the prompt's last bytes is finished by the output.

    Raises:
        RequestError: a stop string is empty.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        if not all(stop):
            raise RequestError("A stop string is empty.", param="stop")
        self._tokenizer = tokenizer
        self._include_stop_str = include_stop_str
        self._min_tokens = min_tokens
        self._skipped_ids = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._matcher = StopMatcher(stop)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._markers: list[tuple[int, int]] = []
        """Spans of marker tokens in the held text."""
        self._num_tokens = 0
        self._stop_reason: str | None = None
        self._finished = False
        self._drops_leading_space = self._prime(prompt_token_ids) and tokenizer.strips_leading_space

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended the text, once one has."""
        return self._stop_reason

    @property
    def num_tokens(self) -> int:
        """Tokens taken so far; with a stop, those up to and including the one that completed it."""
        return self._num_tokens

    @property
    def num_tokens_to_stop(self) -> int | None:
        """Tokens up to and including the one that completed the stop string; None while there is none."""
        return None if self._stop_reason is None else self._num_tokens

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next output tokens; return the text that is now certain, which may be empty.

        Tokens after the one that completes a stop string are ignored, and so are all after `finish`.
        """
        deltas = []
        for token_id in token_ids:
            if self._finished:
                break
            self._num_tokens += 1
            if token_id in self._skipped_ids:
                continue
            text = self._utf8.decode(self._tokenizer.token_bytes(token_id))
            is_marker = token_id in self._tokenizer.added_token_ids
            deltas.append(self._advance(text, len(self._tokenizer.token_text(token_id)) if is_marker else 0))
        return "".join(deltas)

    def finish(self) -> str:
        """End the text: return what was held back, an incomplete character as U+FFFD. Later calls return nothing."""
        if self._finished:
            return ""
        delta = self._advance(self._utf8.decode(b"", final=True)) + self._held
        self._finished = True
        self._held = ""
        return delta

    def _prime(self, prompt_token_ids: Sequence[int]) -> bool:
        """Start the decoder inside the character that the prompt leaves open; whether the text starts afresh."""
        tail = b""
        starts_text = True
        for token_id in reversed(prompt_token_ids):
            starts_text = starts_text and token_id in self._tokenizer.special_token_ids
            if token_id not in self._skipped_ids:
                tail = self._tokenizer.token_bytes(token_id) + tail
            if not starts_text and len(tail) >= _LONGEST_UTF8_TAIL:
                break
        self._utf8.decode(tail)
        return starts_text

    def _advance(self, text: str, marker_length: int = 0) -> str:
        """Take decoded text, of which the last `marker_length` characters are one marker; return what is certain."""
        if self._drops_leading_space and text:
            self._drops_leading_space = False
            text = text.removeprefix(" ")
        if not text:
            return ""
        num_held = len(self._held)
        self._held += text
        if marker_length:
            self._markers.append((len(self._held) - marker_length, len(self._held)))
        match = self._matcher.feed(text, armed=self._num_tokens > self._min_tokens)
        if match is None:
            return self._release(len(self._held) - (0 if self._include_stop_str else self._matcher.num_pending))
        self._stop_reason = match.stop
        self._finished = True
        end = num_held + match.end
        delta = self._held[: end if self._include_stop_str else end - len(match.stop)]
        self._held = ""
        return delta

    def _release(self, end: int) -> str:
        """Take the first `end` characters off the held text, or fewer where that would cut a marker in two."""
        for start, marker_end in self._markers:
            if start < end < marker_end:
                end = start
        self._markers = [(start - end, marker_end - end) for start, marker_end in self._markers if marker_end > end]
        delta, self._held = self._held[:end], self._held[end:]
        return delta
