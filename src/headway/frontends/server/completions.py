"""`POST /v1/chat/completions` and `POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headway.frontends.generation import Generation
from headway.frontends.server.body import UNSUPPORTED_CHAT_FIELDS, parse, read_json, refuse_unsupported
from headway.frontends.server.connection import EventStream, watching
from headway.frontends.server.logprobs import LogprobFormat
from headway.frontends.server.params import (
    Prompt,
    chat_sampling,
    check_stream_options,
    completion_prompts,
    completion_sampling,
    make_requests,
)
from headway.frontends.server.protocol import (
    AssistantMessage,
    ChatBody,
    ChatChoice,
    ChatResponse,
    CompletionBody,
    CompletionChoice,
    CompletionResponse,
    GenerationBody,
)
from headway.frontends.server.reply import SYSTEM_FINGERPRINT, Choice, Reply, make_reply, usage_of
from headway.frontends.server.service import Service, service_of
from headway.frontends.server.streams import ChatStream, CompletionStream, StreamFormatter

_Build = Callable[[Reply, Sequence[Choice]], msgspec.Struct]


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    document = await read_json(request)
    refuse_unsupported(document, UNSUPPORTED_CHAT_FIELDS)
    body = parse(document, ChatBody)
    service.check_model(body.model)
    check_stream_options(body)
    sampling = chat_sampling(body)
    token_ids = await service.encode_chat(
        body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
        template_kwargs=body.chat_template_kwargs,
    )
    prompts = [Prompt(token_ids, "messages")]
    requests = make_requests(service.engine, body, sampling, prompts, request.state.received_at)
    logprobs = _logprob_format(service, body, sampling.logprobs)
    reply = make_reply("chatcmpl", request.state.created, service.model_name, body, requests, logprobs)
    return await _respond(request, service, body, reply, ChatStream, _chat_response)


async def completions(request: Request) -> Response:
    """Continue prompts."""
    service = service_of(request)
    document = await read_json(request)
    refuse_unsupported(document)
    body = parse(document, CompletionBody)
    service.check_model(body.model)
    check_stream_options(body)
    sampling = completion_sampling(body)
    prompts, echoes = [], []
    for prompt in completion_prompts(body):
        if isinstance(prompt, str):
            token_ids = await service.encode(prompt, body.add_special_tokens is not False)
        else:
            token_ids = prompt
        prompts.append(Prompt(token_ids, "prompt"))
    requests = make_requests(service.engine, body, sampling, prompts, request.state.received_at)
    if body.echo:
        per_prompt = requests[:: requests[0].num_choices]
        echoes = [service.tokenizer.decode(item.prompt_token_ids) for item in per_prompt]
    logprobs = _logprob_format(service, body, sampling.logprobs)
    reply = make_reply("cmpl", request.state.created, service.model_name, body, requests, logprobs, echoes)
    return await _respond(request, service, body, reply, CompletionStream, _completion_response)


def _logprob_format(service: Service, body: GenerationBody, num_top: int | None) -> LogprobFormat | None:
    if num_top is None:
        return None
    return LogprobFormat(service.tokenizer, num_top, bool(body.return_tokens_as_token_ids))


async def _respond(
    request: Request,
    service: Service,
    body: GenerationBody,
    reply: Reply,
    stream: type[StreamFormatter],
    build: _Build,
) -> Response:
    """Submit, then stream or collect."""
    generation = service.engine.submit(reply.requests)
    if body.stream:
        return EventStream(generation, stream(reply), service.sse_keep_alive_s)
    async with watching(request.receive, generation):
        choices = await _collect(generation, len(reply.requests))
    return Response(msgspec.json.encode(build(reply, choices)), media_type="application/json")


async def _collect(generation: Generation, num_requests: int) -> list[Choice]:
    choices = [Choice() for _ in range(num_requests)]
    async for index, delta in generation:
        choices[index].add(delta)
    return choices


def _chat_response(reply: Reply, choices: Sequence[Choice]) -> ChatResponse:
    response = ChatResponse(
        id=reply.reply_id,
        created=reply.created,
        model=reply.model,
        choices=[
            ChatChoice(
                index=index,
                message=AssistantMessage(content=choice.text),
                logprobs=None if reply.logprobs is None else reply.logprobs.chat(choice.logprobs),
                finish_reason=choice.finish_reason or "stop",
                stop_reason=choice.stop_reason,
                token_ids=choice.token_ids if reply.return_token_ids else msgspec.UNSET,
            )
            for index, choice in enumerate(choices)
        ],
        usage=usage_of(reply, choices),
        system_fingerprint=SYSTEM_FINGERPRINT,
    )
    if reply.return_token_ids:
        response.prompt_token_ids = reply.prompt_token_ids(0)
    return response


def _completion_response(reply: Reply, choices: Sequence[Choice]) -> CompletionResponse:
    return CompletionResponse(
        id=reply.reply_id,
        created=reply.created,
        model=reply.model,
        choices=[
            CompletionChoice(
                index=index,
                text=reply.echo(index) + choice.text,
                logprobs=None if reply.logprobs is None else reply.logprobs.completion(choice.logprobs, 0),
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                token_ids=choice.token_ids if reply.return_token_ids else msgspec.UNSET,
                prompt_token_ids=reply.prompt_token_ids(index) if reply.return_token_ids else msgspec.UNSET,
            )
            for index, choice in enumerate(choices)
        ],
        usage=usage_of(reply, choices),
        system_fingerprint=SYSTEM_FINGERPRINT,
    )
