"""Errors on the wire: OpenAI's error object with the right status, never longer than a client can stand."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from headway.errors import (
    EngineDeadError,
    HeadwayError,
    InputError,
    QueueFullError,
)
from headway.frontends.server.protocol import ErrorBody, ErrorInfo

_MAX_MESSAGE_CHARS = 500
_MAX_PARAM_CHARS = 100
_RETRY_AFTER_S = "1"


class RouteNotFoundError(InputError):
    """No such path."""

    http_status: ClassVar[int] = 404


class MethodNotAllowedError(InputError):
    """The path exists, the method does not."""

    http_status: ClassVar[int] = 405


class BodyTooLargeError(InputError):
    """The body is longer than the server reads."""

    http_status: ClassVar[int] = 413


class MediaTypeError(InputError):
    """The body is not declared as JSON."""

    http_status: ClassVar[int] = 415


class ClientGoneError(HeadwayError):
    """The client closed the connection; nobody reads the answer."""

    http_status: ClassVar[int] = 499


def shorten(text: str, limit: int = _MAX_MESSAGE_CHARS) -> str:
    """The text, cut in the middle to at most `limit` characters: what a client sent is never echoed at length."""
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def error_body(error: HeadwayError) -> bytes:
    """The error object as JSON."""
    param = None if error.param is None else shorten(error.param, _MAX_PARAM_CHARS)
    return msgspec.json.encode(ErrorBody(ErrorInfo(shorten(str(error)), error.error_type, param, error.code)))


def error_response(error: HeadwayError) -> Response:
    """The error as an HTTP response."""
    headers = {}
    if isinstance(error, QueueFullError | EngineDeadError):
        headers["Retry-After"] = _RETRY_AFTER_S
    if error.http_status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(error_body(error), error.http_status, headers, "application/json")


async def handle_headway_error(request: Request, error: Exception) -> Response:
    """Starlette handler for our own errors."""
    assert isinstance(error, HeadwayError)
    return error_response(error)


async def handle_http_exception(request: Request, error: Exception) -> Response:
    """Starlette handler for what the router itself refuses."""
    assert isinstance(error, HTTPException)
    wrapped: HeadwayError
    if error.status_code == 405:
        wrapped = MethodNotAllowedError(f"{request.method} is not allowed on {shorten(request.url.path, 100)}.")
    elif error.status_code == 404:
        wrapped = RouteNotFoundError(f"There is no {shorten(request.url.path, 100)} here.")
    else:
        wrapped = HeadwayError(str(error.detail))
    response = error_response(wrapped)
    response.headers.update(error.headers or {})
    return response


def unexpected_response(error: Exception) -> Response:
    """The response to our own mistakes: the client learns the kind, the log has the rest."""
    return error_response(HeadwayError(f"The server failed on this request ({type(error).__name__})."))
