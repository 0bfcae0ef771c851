"""One request between a frontend and the engine: checked on its way in, turned into text on its way out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.core.engine import Engine
from headway.core.plan import RequestOutput
from headway.core.request import FinishReason, Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.errors import ContextLengthError, RequestError
from headway.text.detokenizer import IncrementalDetokenizer
from headway.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a request must respect, and what ends it."""

    max_model_len: int
    block_size: int
    vocab_size: int
    eos_token_ids: frozenset[int] = frozenset()
    ends_by_itself: bool = False
    """Whether the executor must see that a request has no max_tokens, to end it before the context is full."""


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt, one choice.

    `received_at` is the instant of receipt on the engine's clock; latencies are counted from it (default: submission).
    `num_choices` is how many choices the client asked for, for the statistics.
    """

    prompt_token_ids: Sequence[int]
    sampling: SamplingParams
    priority: int = 0
    cache_salt: str | None = None
    received_at: float | None = None
    prompt_param: str = "prompt"
    num_choices: int = 1


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step brought one request. `text` may be empty: characters may be incomplete or held back."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Any, ...] | None
    """One entry a token, as the sampler made them; None if none were asked for."""
    num_output_tokens: int
    """Up to and including this step."""
    num_cached_tokens: int
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class RequestStream:
    """One request and its text."""

    __slots__ = ("_detokenizer", "num_output_tokens", "request", "spec")

    def __init__(self, spec: GenerationRequest, request: Request, detokenizer: IncrementalDetokenizer) -> None:
        self.spec = spec
        self.request = request
        self.num_output_tokens = 0
        self._detokenizer = detokenizer

    def advance(self, output: RequestOutput) -> Delta:
        """Turn a step's tokens into text, up to the first stop string."""
        detokenizer, finish_reason = self._detokenizer, output.finish_reason
        ids = tuple(output.token_ids or ())
        num_before = detokenizer.num_tokens
        # The token that ended the request is no text, unless the client wants to see stops.
        hides_last = finish_reason is FinishReason.STOP and not self.spec.sampling.include_stop_str_in_output
        text = detokenizer.push(ids[:-1] if hides_last else ids)
        if detokenizer.stop_reason is not None:
            ids = ids[: detokenizer.num_tokens - num_before]
        elif finish_reason is not None:
            text += detokenizer.finish()
        stop_reason = self.request.stop_reason if finish_reason is not None else None
        if detokenizer.stop_reason is not None:
            finish_reason, stop_reason = FinishReason.STOP, detokenizer.stop_reason
        self.num_output_tokens += len(ids)
        return Delta(
            text=text,
            token_ids=ids,
            logprobs=None if output.logprobs is None else tuple(output.logprobs[: len(ids)]),
            num_output_tokens=self.num_output_tokens,
            num_cached_tokens=self.request.num_cached_tokens,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
        )


def open_stream(
    request_id: str, spec: GenerationRequest, engine: Engine, tokenizer: Tokenizer, limits: ModelLimits
) -> RequestStream:
    """Check a request against everything that could keep it from running. The engine is not changed.

    Raises:
        RequestError: it could never run. ContextLengthError: its prompt is too long.
    """
    sampling, token_ids = spec.sampling, spec.prompt_token_ids
    check_prompt(token_ids, limits, spec.prompt_param)
    sampling.check_vocabulary(limits.vocab_size)
    request = Request(
        request_id,
        TokenContent(token_ids, limits.block_size, spec.cache_salt),
        len(token_ids),
        sampling,
        min(limits.max_model_len, engine.scheduler.longest_sequence),
        eos_token_ids=limits.eos_token_ids,
        arrived_at=engine.clock.now() if spec.received_at is None else spec.received_at,
        priority=spec.priority,
    )
    try:
        engine.check(request)
    except RequestError as error:
        error.param = spec.prompt_param
        raise
    detokenizer = IncrementalDetokenizer(
        tokenizer,
        stop=sampling.stop,
        include_stop_str=sampling.include_stop_str_in_output,
        skip_special_tokens=sampling.skip_special_tokens,
        min_tokens=sampling.min_tokens,
        prompt_token_ids=token_ids,
    )
    return RequestStream(spec, request, detokenizer)


def check_prompt(token_ids: Sequence[int], limits: ModelLimits, param: str) -> None:
    """Refuse a prompt that cannot be run.

    Raises:
        RequestError: empty, or with an id that the model does not have.
        ContextLengthError: no room is left to generate.
    """
    if not token_ids:
        raise RequestError("The prompt has no tokens.", param=param)
    if len(token_ids) >= limits.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your prompt has "
            f"{len(token_ids)} tokens, which leaves no room to generate.",
            hint="Shorten the prompt.",
            param=param,
        )
    lowest, highest = min(token_ids), max(token_ids)
    if lowest < 0 or highest >= limits.vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise RequestError(
            f"The prompt has token id {wrong}, but the vocabulary has ids 0 to {limits.vocab_size - 1}.",
            param=param,
        )
