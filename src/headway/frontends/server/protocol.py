"""Bodies of requests and responses, typed. Fields that are null count as not given."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType


class StreamOptions(Struct):
    """`stream_options`: what a stream reports besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(Struct, kw_only=True):
    """Fields that chat and text completions share, in vLLM's names. Ranges are checked by `SamplingParams`."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    user: str | None = None


class ChatBody(GenerationBody, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None


class TokenizeBody(Struct, kw_only=True):
    """`POST /tokenize`: either a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[Annotated[int, Meta(ge=0)]]
    model: str | None = None


class ErrorInfo(Struct):
    """OpenAI's error object; `code` is a string or null, never a number."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Struct):
    """Body of every response that is not a success, and of an error event in a stream."""

    error: ErrorInfo


class PromptTokensDetails(Struct):
    """Part of the prompt that came from the prefix cache."""

    cached_tokens: int


class Usage(Struct):
    """Token counts of a whole response; prompts count once however many choices they have."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(Struct):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    """One output token with its alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """Log probabilities in the chat shape."""

    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(Struct):
    """Log probabilities in the text-completion shape; lists are aligned."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class AssistantMessage(Struct, kw_only=True):
    """The generated message."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Struct):
    """One choice of a whole chat response."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(Struct, kw_only=True):
    """A whole chat response."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatDelta(Struct, omit_defaults=True):
    """What a chunk adds to the message; empty in the finish chunk."""

    role: str | None = None
    content: str | None = None


class ChatChunkChoice(Struct):
    """One choice in a chunk of a chat stream."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    """One event of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(Struct):
    """One choice of a text completion, whole or in a chunk."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionResponse(Struct, kw_only=True):
    """A text completion, whole or one event of its stream: both have the same `object`."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str


class ModelCard(Struct, kw_only=True):
    """One model in `/v1/models`."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "headway"
    root: str
    parent: None = None
    max_model_len: int


class ModelList(Struct, kw_only=True):
    """`GET /v1/models`."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(Struct):
    """Answer of `/tokenize`, in vLLM's shape."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(Struct):
    """Answer of `/detokenize`."""

    prompt: str
