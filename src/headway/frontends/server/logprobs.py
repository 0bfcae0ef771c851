"""Log probabilities in OpenAI's two shapes. JSON has no infinity: an impossible token shows as -9999."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headway.frontends.server.protocol import ChatLogprob, ChatLogprobs, CompletionLogprobs, TopLogprob
from headway.text.tokenizer import Tokenizer

IMPOSSIBLE = -9999.0


class TokenLogprobs(Protocol):
    """What a sampler reports of one output token."""

    @property
    def token_id(self) -> int:
        """The token that was taken."""

    @property
    def logprob(self) -> float:
        """Its natural log probability."""

    @property
    def top(self) -> Sequence[tuple[int, float]]:
        """The most likely tokens and theirs, best first."""


@dataclass(frozen=True, slots=True)
class LogprobFormat:
    """How tokens are written. `num_top` alternatives are shown; `as_ids` writes `token_id:17` for a token's text."""

    tokenizer: Tokenizer
    num_top: int
    as_ids: bool = False

    def chat(self, entries: Sequence[TokenLogprobs]) -> ChatLogprobs:
        """The chat shape."""
        return ChatLogprobs([self._chat_entry(entry) for entry in entries])

    def completion(self, entries: Sequence[TokenLogprobs], first_offset: int) -> CompletionLogprobs:
        """The text-completion shape; the sampled token is listed even if it is not among the most likely.

        Args:
            first_offset: where the first token's text starts.
        """
        tokens = [self.text(entry.token_id) for entry in entries]
        offsets = [first_offset]
        for token in tokens:
            offsets.append(offsets[-1] + len(token))
        return CompletionLogprobs(
            tokens,
            [finite(entry.logprob) for entry in entries],
            [self._alternatives(entry) for entry in entries],
            offsets[:-1],
        )

    def text(self, token_id: int) -> str:
        """A token as logprobs show it."""
        return f"token_id:{token_id}" if self.as_ids else self.tokenizer.token_text(token_id)

    def _chat_entry(self, entry: TokenLogprobs) -> ChatLogprob:
        top = [
            TopLogprob(self.text(token_id), finite(logprob), list(self.tokenizer.token_bytes(token_id)))
            for token_id, logprob in entry.top[: self.num_top]
        ]
        token_bytes = list(self.tokenizer.token_bytes(entry.token_id))
        return ChatLogprob(self.text(entry.token_id), finite(entry.logprob), token_bytes, top)

    def _alternatives(self, entry: TokenLogprobs) -> dict[str, float]:
        shown = {self.text(token_id): finite(logprob) for token_id, logprob in entry.top[: self.num_top]}
        shown.setdefault(self.text(entry.token_id), finite(entry.logprob))
        return shown


def finite(logprob: float) -> float:
    """The number, or -9999 where it is minus infinity or not a number."""
    return logprob if logprob > IMPOSSIBLE else IMPOSSIBLE
