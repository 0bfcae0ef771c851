"""Server-sent events: chunks in OpenAI's shape, in OpenAI's order.

For each choice: the role (chat only), then text, then exactly one chunk with the finish reason and no text. After the
last choice: the usage chunk if asked for, then `[DONE]`, which also follows an error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from headway.errors import HeadwayError
from headway.frontends.request_stream import Delta
from headway.frontends.server.errors import error_body
from headway.frontends.server.protocol import (
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatLogprobs,
    CompletionChoice,
    CompletionLogprobs,
    CompletionResponse,
    Usage,
)
from headway.frontends.server.reply import SYSTEM_FINGERPRINT, Choice, Reply, usage_of

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_encoder = msgspec.json.Encoder()


def event(payload: msgspec.Struct) -> bytes:
    """One event with a JSON payload."""
    return b"data: " + _encoder.encode(payload) + b"\n\n"


class StreamFormatter(ABC):
    """Turns the outputs of one response's choices into events."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.choices = [Choice() for _ in reply.requests]

    def advance(self, index: int, delta: Delta) -> bytes:
        """Events for one step of one choice: none while its text is held back."""
        choice = self.choices[index]
        choice.add(delta)
        events = b""
        if not choice.started:
            choice.started = True
            events += self.opening(index)
        if choice.text:
            events += self.text_event(index, choice)
            choice.clear()
        if choice.finish_reason is not None:
            events += self.finish_event(index, choice)
        return events

    def close(self) -> bytes:
        """Events after the last choice has ended."""
        return (self.usage_event(usage_of(self.reply, self.choices)) if self.reply.include_usage else b"") + DONE

    def fail(self, error: HeadwayError) -> bytes:
        """Events when the response cannot go on."""
        return b"data: " + error_body(error) + b"\n\n" + DONE

    @abstractmethod
    def opening(self, index: int) -> bytes:
        """What comes before a choice's first text."""

    @abstractmethod
    def text_event(self, index: int, choice: Choice) -> bytes:
        """The choice's text, with what belongs to its tokens."""

    @abstractmethod
    def finish_event(self, index: int, choice: Choice) -> bytes:
        """The choice's finish reason, with what belongs to tokens without text."""

    @abstractmethod
    def usage_event(self, usage: Usage) -> bytes:
        """The totals, with no choices."""

    def usage_field(self) -> Usage | msgspec.UnsetType | None:
        """`usage` of a chunk that is not the last: running totals, null, or absent, as asked for."""
        if self.reply.continuous_usage:
            return usage_of(self.reply, self.choices)
        return None if self.reply.include_usage else msgspec.UNSET

    def ids_field(self, choice: Choice) -> list[int] | msgspec.UnsetType:
        """`token_ids` of a chunk."""
        return choice.token_ids if self.reply.return_token_ids else msgspec.UNSET


class ChatStream(StreamFormatter):
    """`chat.completion.chunk` events."""

    def opening(self, index: int) -> bytes:
        """The role; with `return_token_ids`, the prompt too."""
        choice = ChatChunkChoice(index, ChatDelta(role="assistant", content=""))
        prompt = self.reply.prompt_token_ids(index) if self.reply.return_token_ids else msgspec.UNSET
        return self._event([choice], self.usage_field(), prompt)

    def text_event(self, index: int, choice: Choice) -> bytes:
        """See `StreamFormatter`."""
        delta = ChatDelta(content=choice.text)
        choices = [ChatChunkChoice(index, delta, self._logprobs(choice), token_ids=self.ids_field(choice))]
        return self._event(choices, self.usage_field())

    def finish_event(self, index: int, choice: Choice) -> bytes:
        """See `StreamFormatter`."""
        logprobs = self._logprobs(choice) if choice.logprobs else None
        choices = [
            ChatChunkChoice(
                index, ChatDelta(), logprobs, choice.finish_reason, choice.stop_reason, self.ids_field(choice)
            )
        ]
        return self._event(choices, self.usage_field())

    def usage_event(self, usage: Usage) -> bytes:
        """See `StreamFormatter`."""
        return self._event([], usage=usage)

    def _event(
        self,
        choices: list[ChatChunkChoice],
        usage: Usage | msgspec.UnsetType | None = msgspec.UNSET,
        prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET,
    ) -> bytes:
        reply = self.reply
        return event(
            ChatChunk(
                id=reply.reply_id,
                created=reply.created,
                model=reply.model,
                choices=choices,
                usage=usage,
                system_fingerprint=SYSTEM_FINGERPRINT,
                prompt_token_ids=prompt_token_ids,
            )
        )

    def _logprobs(self, choice: Choice) -> ChatLogprobs | None:
        return None if self.reply.logprobs is None else self.reply.logprobs.chat(choice.logprobs)


class CompletionStream(StreamFormatter):
    """`text_completion` events."""

    def opening(self, index: int) -> bytes:
        """The prompt's text with `echo`, its ids with `return_token_ids`; otherwise nothing."""
        echo = self.reply.echo(index)
        if not echo and not self.reply.return_token_ids:
            return b""
        choice = CompletionChoice(index, echo)
        if self.reply.return_token_ids:
            choice.token_ids = []
            choice.prompt_token_ids = self.reply.prompt_token_ids(index)
        return self._event([choice], self.usage_field())

    def text_event(self, index: int, choice: Choice) -> bytes:
        """See `StreamFormatter`."""
        choices = [CompletionChoice(index, choice.text, self._logprobs(choice), token_ids=self.ids_field(choice))]
        return self._event(choices, self.usage_field())

    def finish_event(self, index: int, choice: Choice) -> bytes:
        """See `StreamFormatter`."""
        logprobs = self._logprobs(choice) if choice.logprobs else None
        choices = [
            CompletionChoice(index, "", logprobs, choice.finish_reason, choice.stop_reason, self.ids_field(choice))
        ]
        return self._event(choices, self.usage_field())

    def usage_event(self, usage: Usage) -> bytes:
        """See `StreamFormatter`."""
        return self._event([], usage)

    def _event(self, choices: list[CompletionChoice], usage: Usage | msgspec.UnsetType | None) -> bytes:
        reply = self.reply
        return event(
            CompletionResponse(
                id=reply.reply_id,
                created=reply.created,
                model=reply.model,
                choices=choices,
                usage=usage,
                system_fingerprint=SYSTEM_FINGERPRINT,
            )
        )

    def _logprobs(self, choice: Choice) -> CompletionLogprobs | None:
        if self.reply.logprobs is None:
            return None
        logprobs = self.reply.logprobs.completion(choice.logprobs, choice.text_offset)
        choice.text_offset += sum(map(len, logprobs.tokens))
        return logprobs
