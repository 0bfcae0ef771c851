"""The metrics of a running server: read with GET, and nothing else."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPMessage
from typing import IO

from headway.errors import InputError

TIMEOUT_S = 5.0
INTERVAL_S = 10.0
"""Between two scrapes: rates need both, and engines print their own figures as often."""
MAX_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class LiveScrape:
    """One answer, and when it came on a clock that does not jump."""

    text: str
    at_s: float


def is_url(text: str) -> bool:
    """Whether a text is the address of a server rather than the name of a file."""
    return text.startswith(("http://", "https://"))


def scrape_live(
    url: str, *, num_scrapes: int = 2, interval_s: float = INTERVAL_S, timeout_s: float = TIMEOUT_S
) -> list[LiveScrape]:
    """Get a server's metrics several times.

    Args:
        url: the server's address, or that of its metrics; without a path, /metrics is read.

    Raises:
        InputError: not an http address, no answer in time, or one that is no text of metrics.
    """
    address = metrics_address(url)
    scrapes: list[LiveScrape] = []
    for index in range(num_scrapes):
        if index:
            time.sleep(interval_s)
        scrapes.append(LiveScrape(_get(address, timeout_s), time.monotonic()))
    return scrapes


def metrics_address(url: str) -> str:
    """The address to read.

    Raises:
        InputError: not an http address.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        is_fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_fine = False
    if not is_fine:
        raise InputError(f"{url} is not an http address.", hint="Example: http://localhost:8000/metrics")
    return urllib.parse.urlunsplit(parts._replace(path="/metrics")) if parts.path in ("", "/") else url


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Follows a redirect to http addresses only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if not is_url(newurl):
            raise InputError(f"{req.full_url} redirects to {newurl}, which is not read.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _get(address: str, timeout_s: float) -> str:
    request = urllib.request.Request(address, headers={"Accept": "text/plain"}, method="GET")
    opener = urllib.request.build_opener(_SameServer)
    started = time.monotonic()
    parts: list[bytes] = []
    size = 0
    try:
        with opener.open(request, timeout=timeout_s) as answer:
            while piece := answer.read1(1 << 16):
                parts.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    raise InputError(f"{address} answers with more than {MAX_BYTES >> 20} MiB.")
                if time.monotonic() - started > 2 * timeout_s:
                    raise InputError(f"{address} did not finish its answer within {2 * timeout_s:g} s.")
    except urllib.error.HTTPError as error:
        error.close()
        raise InputError(f"{address} answers {error.code} {error.reason}.", hint=_hint(error.code)) from None
    except (urllib.error.URLError, OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"{address} cannot be read: {reason}.", hint=f"Is the server up? It has {timeout_s:g} s to answer."
        ) from None
    return b"".join(parts).decode("utf-8", errors="replace")


def _hint(code: int) -> str | None:
    if code in (401, 403):
        return "The doctor sends no credentials: save the metrics with curl and give the file."
    return "Is this the address of vLLM's /metrics?" if code == 404 else None
