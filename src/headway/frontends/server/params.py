"""From a typed body to what the engine runs: sampling settings, prompts, one request a choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headway.core.sampling import SamplingParams
from headway.errors import RequestError
from headway.frontends.async_engine import AsyncEngine
from headway.frontends.request_stream import GenerationRequest, check_prompt
from headway.frontends.server.protocol import ChatBody, CompletionBody, GenerationBody

MAX_CHOICES = 128
MAX_STOP_STRINGS = 64
MAX_LOGPROBS = 20
DEFAULT_COMPLETION_TOKENS = 16

_PASSED_ON = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, and which field of the body they came from."""

    token_ids: Sequence[int]
    param: str


def chat_sampling(body: ChatBody) -> SamplingParams:
    """Sampling settings of a chat body.

    Raises:
        RequestError: a value out of range, with the field's name.
    """
    if body.top_logprobs is not None:
        if not 0 <= body.top_logprobs <= MAX_LOGPROBS:
            raise RequestError(f"top_logprobs must be between 0 and {MAX_LOGPROBS}.", param="top_logprobs")
        if not body.logprobs:
            raise RequestError("top_logprobs needs logprobs to be true.", param="top_logprobs")
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    try:
        return _sampling(body, getattr(body, name), logprobs)
    except RequestError as error:
        if error.param == "max_tokens":
            raise RequestError(error.message.replace("max_tokens", name), param=name) from None
        raise


def completion_sampling(body: CompletionBody) -> SamplingParams:
    """Sampling settings of a text-completion body.

    Raises:
        RequestError: a value out of range, with the field's name.
    """
    if body.echo and body.logprobs is not None:
        raise RequestError("echo together with logprobs is not supported.", hint="Leave one out.", param="logprobs")
    max_tokens = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    return _sampling(body, max_tokens, body.logprobs)


def make_requests(
    engine: AsyncEngine,
    body: GenerationBody,
    sampling: SamplingParams,
    prompts: Sequence[Prompt],
    received_at: float,
) -> list[GenerationRequest]:
    """One engine request for each choice: index = prompt index * n + i, and choice i draws with seed + i.

    `max_tokens` is cut to what the context leaves; without it, it is that, unless the executor ends such requests.

    Raises:
        RequestError: n out of range, or a prompt that cannot be run.
    """
    n = num_choices(body)
    if len(prompts) * n > engine.max_queue:
        raise RequestError(
            f"{len(prompts)} prompts with {n} choices each are more than the {engine.max_queue} that may wait.",
            param="n" if n > 1 else prompts[0].param,
        )
    requests = []
    for prompt in prompts:
        token_ids = _truncated(prompt, body.truncate_prompt_tokens, engine.limits.max_model_len, sampling.max_tokens)
        check_prompt(token_ids, engine.limits, prompt.param)
        room = max(1, engine.max_sequence_len - len(token_ids))
        max_tokens = room if sampling.max_tokens is None else min(sampling.max_tokens, room)
        fitted = replace(
            sampling,
            max_tokens=None if sampling.max_tokens is None and engine.limits.ends_by_itself else max_tokens,
            min_tokens=min(sampling.min_tokens, max_tokens),
        )
        requests += [
            GenerationRequest(
                token_ids,
                replace(fitted, seed=_shifted(fitted.seed, i)),
                priority=body.priority or 0,
                cache_salt=body.cache_salt,
                received_at=received_at,
                prompt_param=prompt.param,
                num_choices=n,
            )
            for i in range(n)
        ]
    return requests


def num_choices(body: GenerationBody) -> int:
    """`n`, checked.

    Raises:
        RequestError: out of range.
    """
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_CHOICES:
        raise RequestError(f"n must be between 1 and {MAX_CHOICES}.", param="n")
    return n


def completion_prompts(body: CompletionBody) -> list[str] | list[list[int]]:
    """The prompts of a text completion, all texts or all token ids.

    Raises:
        RequestError: no prompt, or a mixture.
    """
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    texts = [item for item in prompt if isinstance(item, str)]
    ids = [item for item in prompt if isinstance(item, int)]
    lists = [item for item in prompt if isinstance(item, list)]
    for kind in (texts, lists):
        if kind and len(kind) == len(prompt):
            return kind
    if ids and len(ids) == len(prompt):
        return [ids]
    what = "is an empty list" if not prompt else "mixes texts and token ids"
    raise RequestError(f"prompt {what}.", hint="Give a text, a list of texts, or (lists of) token ids.", param="prompt")


def check_stream_options(body: GenerationBody) -> None:
    """`stream_options` is for streams.

    Raises:
        RequestError: given without `stream`.
    """
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options is only allowed when stream is true.", param="stream_options")


def _sampling(body: GenerationBody, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
    given: dict[str, Any] = {name: value for name in _PASSED_ON if (value := getattr(body, name)) is not None}
    if body.seed is not None and not -(2**63) <= body.seed < 2**63:
        raise RequestError("seed must be a 64-bit integer.", param="seed")
    return SamplingParams(
        **given,
        stop=_stop_strings(body.stop),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        logit_bias=_logit_bias(body.logit_bias),
        allowed_token_ids=None if body.allowed_token_ids is None else frozenset(body.allowed_token_ids),
        max_tokens=max_tokens,
        logprobs=logprobs,
    )


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(f"stop has {len(strings)} strings; at most {MAX_STOP_STRINGS} are allowed.", param="stop")
    if not all(strings):
        raise RequestError("stop must not hold an empty string.", param="stop")
    return tuple(dict.fromkeys(strings))


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    result = {}
    for key, value in (bias or {}).items():
        try:
            result[int(key)] = value
        except ValueError:
            raise RequestError(
                f"logit_bias has the key {key[:40]!r}, which is no token id.", param="logit_bias"
            ) from None
    return result


def _truncated(prompt: Prompt, limit: int | None, max_model_len: int, max_tokens: int | None) -> Sequence[int]:
    """The last `limit` tokens; -1 keeps what fits beside the output."""
    if limit is None:
        return prompt.token_ids
    if not -1 <= limit <= max_model_len or limit == 0:
        raise RequestError(
            f"truncate_prompt_tokens must be -1 or between 1 and {max_model_len}.", param="truncate_prompt_tokens"
        )
    if limit == -1:
        limit = max(1, max_model_len - (max_tokens or 1))
    return prompt.token_ids[-limit:]


def _shifted(seed: int | None, i: int) -> int | None:
    """seed + i, wrapped to 64 bits."""
    return None if seed is None else (seed + i + 2**63) % 2**64 - 2**63
