"""Endpoints about the server and the model: models, health, version, metrics, tokenize, detokenize."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from headway import __version__
from headway.errors import RequestError
from headway.frontends.server.body import parse, read_json
from headway.frontends.server.errors import error_response
from headway.frontends.server.protocol import (
    DetokenizeBody,
    DetokenizeResponse,
    ModelCard,
    ModelList,
    TokenizeBody,
    TokenizeResponse,
)
from headway.frontends.server.service import Service, service_of

METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def _json(payload: object) -> Response:
    return Response(msgspec.json.encode(payload), media_type="application/json")


def _card(service: Service) -> ModelCard:
    return ModelCard(
        id=service.model_name,
        created=service.created,
        root=service.model_root,
        max_model_len=service.engine.max_sequence_len,
    )


async def list_models(request: Request) -> Response:
    """`GET /v1/models`."""
    return _json(ModelList(data=[_card(service_of(request))]))


async def get_model(request: Request) -> Response:
    """`GET /v1/models/{id}`; the id may hold slashes."""
    service = service_of(request)
    service.check_model(request.path_params["model_id"])
    return _json(_card(service))


async def health(request: Request) -> Response:
    """`GET /health` and `/ping`: 200 with an empty body while requests are served, else 503."""
    refusal = service_of(request).engine.refusal
    return Response() if refusal is None else error_response(refusal)


async def version(request: Request) -> Response:
    """`GET /version`."""
    return _json({"version": __version__})


async def metrics(request: Request) -> Response:
    """`GET /metrics`, in Prometheus' text format."""
    return Response(service_of(request).metrics.render(), media_type=METRICS_MEDIA_TYPE)


async def tokenize(request: Request) -> Response:
    """`POST /tokenize`: a prompt, or messages by the chat template."""
    service = service_of(request)
    body = parse(await read_json(request), TokenizeBody)
    service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("Give either prompt or messages.", param="prompt")
    if body.prompt is not None:
        tokens = await service.encode(body.prompt, body.add_special_tokens is not False)
    else:
        tokens = await service.encode_chat(
            body.messages or [],
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            template_kwargs=body.chat_template_kwargs,
        )
    strings = [service.tokenizer.token_text(token_id) for token_id in tokens] if body.return_token_strs else None
    return _json(TokenizeResponse(len(tokens), service.engine.max_sequence_len, tokens, strings))


async def detokenize(request: Request) -> Response:
    """`POST /detokenize`; special tokens are shown."""
    service = service_of(request)
    body = parse(await read_json(request), DetokenizeBody)
    service.check_model(body.model)
    vocab_size = service.engine.limits.vocab_size
    wrong = next((token_id for token_id in body.tokens if token_id >= vocab_size), None)
    if wrong is not None:
        raise RequestError(f"tokens has id {wrong}, but the vocabulary has ids 0 to {vocab_size - 1}.", param="tokens")
    return _json(DetokenizeResponse(service.tokenizer.decode(body.tokens, skip_special_tokens=False)))
