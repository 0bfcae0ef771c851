"""Around every request: its id, its instant of receipt, the key that opens /v1, and our own mistakes."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.errors import AuthenticationError
from headway.frontends.server.errors import error_response, unexpected_response
from headway.frontends.server.service import Service

logger = logging.getLogger(__name__)

_MAX_ID_CHARS = 128


class RequestContext:
    """Notes when a request came in, gives it an `x-request-id` (the client's own, if it is sane), checks the key.

    An exception that nobody expected is logged and answered with 500.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._engine = service.engine
        self._key_digest = None if service.api_key is None else _digest(service.api_key)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope.setdefault("state", {}).update(received_at=self._engine.now(), created=int(time.time()))
        request_id = _request_id(headers.get("x-request-id"))

        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        if self._is_guarded(scope["path"]) and not self._has_key(headers):
            refusal = AuthenticationError(
                "The API key is missing or wrong.", hint="Send it as `Authorization: Bearer KEY`."
            )
            await error_response(refusal)(scope, receive, send_with_id)
            return
        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            logger.exception("%s %s failed", scope["method"], scope["path"][:100])
            if started:
                raise
            await unexpected_response(error)(scope, receive, send_with_id)

    def _is_guarded(self, path: str) -> bool:
        return self._key_digest is not None and (path == "/v1" or path.startswith("/v1/"))

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        assert self._key_digest is not None
        return hmac.compare_digest(_digest(key.strip()), self._key_digest) and scheme.lower() == "bearer"


def _digest(key: str) -> bytes:
    """Equal lengths, so that comparing takes the same time whatever the client sent."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _request_id(given: str | None) -> str:
    if given and len(given) <= _MAX_ID_CHARS and given.isascii() and given.isprintable():
        return given
    return uuid.uuid4().hex
