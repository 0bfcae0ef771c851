"""A running server is read with GET, within bounds, and every failure has its reason."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from headway.errors import InputError
from headway.evidence import live
from headway.evidence.live import is_url, metrics_address, scrape_live

ASKED: list[tuple[str, str]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answers by path."""
        ASKED.append((self.command, self.path))
        if self.path == "/slow":
            time.sleep(1.0)
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
            self.end_headers()
            return
        self.send_response(404 if self.path == "/gone" else 401 if self.path == "/locked" else 200)
        self.end_headers()
        body = b"x" * 4096 if self.path == "/huge" else f"vllm:num_requests_running {len(ASKED)}.0\n".encode()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def server() -> Iterator[str]:
    """A server on a free port."""
    ASKED.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_port}"
        finally:
            httpd.shutdown()
            thread.join()


def test_two_scrapes_with_get_alone() -> None:
    with server() as url:
        first, second = scrape_live(url, interval_s=0.01)
    assert ASKED == [("GET", "/metrics")] * 2
    assert first.text.endswith("1.0\n") and second.text.endswith("2.0\n") and second.at_s > first.at_s


@pytest.mark.parametrize(
    ("path", "words"),
    [("/gone", "404"), ("/locked", "sends no credentials"), ("/away", "not allowed"), ("/huge", "more than")],
)
def test_answers_that_are_refused(path: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_BYTES", 1000)
    with server() as url, pytest.raises(InputError, match=words):
        scrape_live(url + path, num_scrapes=1)


def test_a_server_that_does_not_answer_in_time() -> None:
    with server() as url, pytest.raises(InputError, match="cannot be read"):
        scrape_live(url + "/slow", num_scrapes=1, timeout_s=0.1)


def test_nobody_listens() -> None:
    with pytest.raises(InputError, match="cannot be read"):
        scrape_live("http://127.0.0.1:9/metrics", num_scrapes=1, timeout_s=1.0)


def test_addresses() -> None:
    assert metrics_address("http://h:8000") == metrics_address("http://h:8000/") == "http://h:8000/metrics"
    assert metrics_address("https://h/llm/metrics?x=1") == "https://h/llm/metrics?x=1"
    assert is_url("http://h") and not is_url("file:///etc/passwd") and not is_url("metrics.prom")
    for bad in ("http://", "http://h:port", "ftp://h", "http://[::1"):
        with pytest.raises(InputError, match="not an http address"):
            metrics_address(bad)
