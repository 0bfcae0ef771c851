"""Listening: sockets, signals, the start-up banner, an orderly end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from headway.errors import ConfigError
from headway.frontends.async_engine import AsyncEngine
from headway.frontends.server.status import Emit, StatusReporter

SHUTDOWN_GRACE_S = 5.0
"""How long requests in flight may go on after the signal to stop."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address; port 0 picks a free one. Connections are accepted once the server listens.

    Raises:
        ConfigError: the address cannot be used.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"port must be between 0 and 65535, not {port}.")
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise ConfigError(
            f"Cannot listen on {host} port {port}: {error.strerror or error}.", hint="Choose another --port or --host."
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """The address to open, with the real port; a wildcard address shows as loopback."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


_POLL_S = 0.05
_LAST_WORDS_S = 0.5
"""After a second SIGINT: how long clients have to take the error that ends their stream."""

KEEP_ALIVE_S = 75
"""How long an idle connection is kept: longer than clients pool theirs, so that none is closed under a request."""


class Server(uvicorn.Server):
    """uvicorn's server, ended in an orderly way: streams in flight finish or are told why they end.

    Args:
        engine: drained before connections are closed.
        on_ready: called once connections are accepted.
        status: reports while the server runs.
        on_stop: told in words that the end has begun, if requests are in flight.
    """

    def __init__(
        self,
        app: Starlette,
        engine: AsyncEngine,
        *,
        on_ready: Callable[[], None] = lambda: None,
        status: StatusReporter | None = None,
        on_stop: Emit = lambda line: None,
        grace_s: float = SHUTDOWN_GRACE_S,
    ) -> None:
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="on",
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            # A margin, for connections that do not end although their requests have.
            timeout_graceful_shutdown=int(grace_s) + 5,
        )
        super().__init__(config)
        self._engine = engine
        self._on_ready = on_ready
        self._status = status
        self._reporting: asyncio.Task[None] | None = None
        self._on_stop = on_stop
        self._grace_s = grace_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()
            if self._status is not None:
                self._reporting = asyncio.create_task(self._status.run())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See `uvicorn.Server`."""
        num_requests = len(self._engine.engine.scheduler.requests)
        if num_requests:
            noun = "request" if num_requests == 1 else "requests"
            self._on_stop(f"Stopping: {num_requests} {noun} in flight may take {self._grace_s:g} s to end.")
        if self._reporting is not None:
            self._reporting.cancel()
        drain = asyncio.create_task(self._engine.drain(self._grace_s))
        ending = asyncio.create_task(super().shutdown(sockets))
        while not ending.done() and not self.force_exit:
            await asyncio.wait([ending], timeout=_POLL_S)
        if self.force_exit:
            drain.cancel()
            await self._cut_short()
        await ending
        await asyncio.gather(drain, return_exceptions=True)

    async def _cut_short(self) -> None:
        """End requests with an error, then cut what is still connected: tasks left to be cancelled print tracebacks."""
        await self.lifespan.shutdown()  # closes the engine; uvicorn leaves this out
        for _ in range(2):
            if self.server_state.tasks:
                await asyncio.wait(list(self.server_state.tasks), timeout=_LAST_WORDS_S)
            for connection in list(self.server_state.connections):
                connection.transport.abort()

    def request_stop(self) -> None:
        """Begin the orderly end; safe from any thread."""
        self.should_exit = True


def serve(
    app: Starlette,
    engine: AsyncEngine,
    listener: socket.socket,
    on_ready: Callable[[], None],
    emit: Emit | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, then return; a second SIGINT does not wait for requests in flight.

    Args:
        emit: gets a line about the engine every ten seconds; None logs nothing.
    """
    status = StatusReporter(engine.engine, emit) if emit is not None else None
    server = Server(app, engine, on_ready=on_ready, status=status, on_stop=emit or (lambda line: None))
    # uvicorn raises the signals that it caught once more at its end, for these handlers.
    previous = {number: signal.signal(number, _ignore) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        listener.close()


def _ignore(number: int, frame: FrameType | None) -> None:
    """The signal has been acted upon."""
