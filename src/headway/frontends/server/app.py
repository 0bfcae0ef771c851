"""The HTTP application: routes, middleware, error handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from headway.errors import HeadwayError
from headway.frontends.server import completions, info
from headway.frontends.server.errors import handle_headway_error, handle_http_exception
from headway.frontends.server.middleware import RequestContext
from headway.frontends.server.service import Service

ROUTES = (
    Route("/v1/models", info.list_models, methods=["GET"]),
    Route("/v1/models/{model_id:path}", info.get_model, methods=["GET"]),
    Route("/v1/chat/completions", completions.chat_completions, methods=["POST"]),
    Route("/v1/completions", completions.completions, methods=["POST"]),
    Route("/health", info.health, methods=["GET"]),
    Route("/ping", info.health, methods=["GET", "POST"]),
    Route("/metrics", info.metrics, methods=["GET"]),
    Route("/version", info.version, methods=["GET"]),
    Route("/tokenize", info.tokenize, methods=["POST"]),
    Route("/detokenize", info.detokenize, methods=["POST"]),
)


def build_app(service: Service) -> Starlette:
    """The application over one service. Its lifespan starts and closes the engine."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        service.engine.start()
        try:
            yield
        finally:
            await service.engine.close()

    app = Starlette(
        routes=ROUTES,
        lifespan=lifespan,
        middleware=[Middleware(RequestContext, service=service)],
        exception_handlers={HeadwayError: handle_headway_error, HTTPException: handle_http_exception},
    )
    app.state.service = service
    return app
