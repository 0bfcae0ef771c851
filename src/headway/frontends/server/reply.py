"""What all choices of one response share, and how their counts add up."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headway import __version__
from headway.frontends.request_stream import Delta, GenerationRequest
from headway.frontends.server.logprobs import LogprobFormat
from headway.frontends.server.protocol import GenerationBody, PromptTokensDetails, Usage

SYSTEM_FINGERPRINT = f"headway-{__version__}"


@dataclass(frozen=True, slots=True)
class Reply:
    """One response to be: identity, and what the client asked to see.

    `requests` holds one entry a choice, n for each prompt; `echoes` the texts to put before the choices, by prompt,
    empty without `echo`.
    """

    reply_id: str
    created: int
    model: str
    requests: Sequence[GenerationRequest]
    num_choices: int
    logprobs: LogprobFormat | None = None
    echoes: Sequence[str] = ()
    return_token_ids: bool = False
    include_usage: bool = False
    continuous_usage: bool = False

    def echo(self, index: int) -> str:
        """Prompt text to put before choice `index`."""
        return self.echoes[index // self.num_choices] if self.echoes else ""

    def prompt_token_ids(self, index: int) -> list[int]:
        """Prompt of choice `index`."""
        return list(self.requests[index].prompt_token_ids)


def make_reply(
    prefix: str,
    created: int,
    model: str,
    body: GenerationBody,
    requests: Sequence[GenerationRequest],
    logprobs: LogprobFormat | None,
    echoes: Sequence[str] = (),
) -> Reply:
    """A reply with an id of its own, or the client's `request_id`."""
    options = body.stream_options
    include_usage = bool(options and options.include_usage)
    return Reply(
        reply_id=f"{prefix}-{(body.request_id or uuid.uuid4().hex)[:64]}",
        created=created,
        model=body.model or model,
        requests=requests,
        num_choices=requests[0].num_choices,
        logprobs=logprobs,
        echoes=echoes,
        return_token_ids=bool(body.return_token_ids),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options and options.continuous_usage_stats),
    )


@dataclass(slots=True)
class Choice:
    """One choice as it grows. A stream empties `text`, `token_ids` and `logprobs` whenever it sends them."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    num_output_tokens: int = 0
    num_cached_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    started: bool = False
    text_offset: int = 0
    """Where the text of the next log probability starts."""

    def add(self, delta: Delta) -> None:
        """Take one step's output in."""
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.num_output_tokens = delta.num_output_tokens
        self.num_cached_tokens = delta.num_cached_tokens
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason.value
            self.stop_reason = delta.stop_reason

    def clear(self) -> None:
        """Forget what has been sent."""
        self.text, self.token_ids, self.logprobs = "", [], []


def usage_of(reply: Reply, choices: Sequence[Choice]) -> Usage:
    """Totals so far: each prompt once, each choice's output, prompt tokens from the cache as the first choice saw."""
    firsts = range(0, len(choices), reply.num_choices)
    num_prompt_tokens = sum(len(reply.requests[i].prompt_token_ids) for i in firsts)
    num_output_tokens = sum(choice.num_output_tokens for choice in choices)
    num_cached_tokens = sum(choices[i].num_cached_tokens for i in firsts)
    return Usage(
        num_prompt_tokens,
        num_output_tokens,
        num_prompt_tokens + num_output_tokens,
        PromptTokensDetails(num_cached_tokens),
    )
