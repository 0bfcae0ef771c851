"""The client's end: responses that stop working as soon as nobody listens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from headway.errors import HeadwayError
from headway.frontends.generation import Generation
from headway.frontends.server.errors import ClientGoneError
from headway.frontends.server.streams import KEEP_ALIVE, StreamFormatter

logger = logging.getLogger(__name__)

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


@asynccontextmanager
async def watching(receive: Receive, generation: Generation) -> AsyncIterator[None]:
    """While inside, a client that goes away ends the generation: it raises ClientGoneError and is aborted."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        generation.abort()
        generation.fail(ClientGoneError("The client closed the connection."))

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        generation.abort()


class EventStream(Response):
    """A response of server-sent events; a client that leaves aborts the generation.

    Args:
        keep_alive_s: send a comment when nothing has been sent for this long; 0 sends none.
    """

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, formatter: StreamFormatter, keep_alive_s: float) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._generation = generation
        self._formatter = formatter
        self._keep_alive_s = keep_alive_s or None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. Once begun, every failure is told in the stream."""
        async with watching(receive, self._generation):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            try:
                last = await self._send_events(send)
            except ClientGoneError:
                last = b""
            except HeadwayError as error:
                last = self._formatter.fail(error)
            except Exception as error:
                logger.exception("A stream failed")
                last = self._formatter.fail(HeadwayError(f"The stream failed ({type(error).__name__})."))
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_events(self, send: Send) -> bytes:
        """Send all events but the last ones, which are returned."""
        generation, formatter = self._generation, self._formatter
        while True:
            try:
                async with asyncio.timeout(self._keep_alive_s):
                    item = await generation.next()
            except TimeoutError:
                await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
                continue
            if item is None:
                return formatter.close()
            events = bytearray(formatter.advance(*item))  # a slow reader's backlog may be long: no copy at each item
            while (item := generation.next_ready()) is not None:
                events += formatter.advance(*item)
            if events:
                await send({"type": "http.response.body", "body": bytes(events), "more_body": True})
