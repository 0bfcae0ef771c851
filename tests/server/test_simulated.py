"""A server that simulates: OpenAI's wire, a real queue, tokens at a deployment's pace, its own lag in /metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headway.cli.serve_sim import make_simulated_service
from headway.config import ServerOptions
from headway.frontends.pacing import PacedClock
from headway.frontends.server.app import build_app
from headway.frontends.server.run import Server, bind, url_of
from headway.simulation.options import DeploymentOptions
from headway.text.stand_in import END_TOKEN_ID, FILLER_TOKEN_ID, StandInTokenizer
from tests.server.support import running


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A simulated deployment with steps of 2 ms, on a free port."""
    options = DeploymentOptions(
        latency="constant:prefill_us=20,decode_ms=2", num_gpu_blocks_override=500, max_model_len=4096
    )
    service = make_simulated_service(options.resolve(), ServerOptions())
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = Server(build_app(service), service.engine, on_ready=ready.set, grace_s=1.0)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    assert ready.wait(20)
    yield url_of(listener)
    server.request_stop()
    thread.join(20)
    listener.close()


def _post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        reply: dict[str, Any] = json.load(response)
    return reply


def test_a_reply_is_as_long_as_asked(url: str) -> None:
    """Filler words; the usage counts are those of a deployment."""
    reply = _post(url, "/v1/completions", {"prompt": [5] * 40, "max_tokens": 7})
    assert reply["choices"][0]["text"] == " token" * 7
    assert reply["choices"][0]["finish_reason"] == "length"
    assert (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"]) == (40, 7)


def test_a_chat_is_answered(url: str) -> None:
    """By the stand-in template; equal beginnings are found in the prefix cache."""
    body = {"messages": [{"role": "user", "content": "What is the capital of France? " * 20}], "max_tokens": 3}
    first, second = (_post(url, "/v1/chat/completions", body) for _ in range(2))
    assert first["choices"][0]["message"]["content"] == " token" * 3
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_chat_without_max_tokens_ends_by_itself(url: str) -> None:
    """After 256 tokens, the last an end-of-sequence token, as the banner says; a client's own limit wins."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on."}]}
    cases: list[tuple[dict[str, int], int, str]] = [
        ({}, 256, "stop"),
        ({"max_tokens": 300}, 300, "length"),
        ({"min_tokens": 270}, 270, "stop"),
    ]
    for limit, num_tokens, reason in cases:
        reply = _post(url, "/v1/chat/completions", chat | limit)
        assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (num_tokens, reason)


def test_a_second_ctrl_c_ends_at_once_and_quietly() -> None:
    """The stream in flight is told why it ends; nothing is printed but the first signal's line."""
    command = [sys.executable, "-m", "headway", "serve", "--executor", "sim", "--port", "0", "--max-model-len", "4096"]
    flags = ["--latency", "constant:prefill_us=20,decode_ms=20", "--num-gpu-blocks-override", "500"]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            url = next(line.split()[1] for line in process.stdout if line.startswith("URL:"))
            body = json.dumps({"prompt": [5] * 40, "max_tokens": 3000, "stream": True}).encode()
            request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=30) as stream:
                stream.readline()
                process.send_signal(signal.SIGINT)
                told = process.stderr.readline()
                process.send_signal(signal.SIGINT)
                rest = stream.read()
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert told.startswith("Stopping: 1 request") and errors == "" and process.returncode == 0
    assert b"shutting down" in rest and rest.endswith(b"data: [DONE]\n\n")


def test_the_lag_is_a_metric(url: str) -> None:
    """Beside vLLM's own names."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        text = response.read().decode()
    for name in ("vllm:num_requests_running", "headway:simulation_lag_seconds", "headway:simulation_late_steps_total"):
        assert f"\n{name}{{" in text


def test_a_policy_of_ones_own_that_fails_is_logged_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its file and line, not the frames of ours."""
    path = tmp_path / "mine.py"
    path.write_text(
        "from headway.core.policies import ChunkedPolicy\n"
        "class Mine(ChunkedPolicy):\n"
        "    def admit(self, num_running, max_num_seqs):\n"
        "        return self.nothing\n"
    )
    options = DeploymentOptions(
        latency="constant:decode_ms=1", num_gpu_blocks_override=50, max_model_len=512, policy=str(path)
    )
    service = make_simulated_service(options.resolve(), ServerOptions())
    with running(service) as url, pytest.raises(urllib.error.HTTPError):
        _post(url, "/v1/completions", {"prompt": [5] * 40, "max_tokens": 7})
    (record,) = caplog.records
    assert "has no attribute 'nothing'" in record.message and f"{path}, line 4" in record.message
    assert record.exc_info is None


def test_a_clock_that_cannot_keep_up_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty late steps in a row."""
    clock = PacedClock()
    with caplog.at_level(logging.WARNING):
        for _ in range(60):
            clock.finish_step(clock.now() - 1.0, 0.5)
    assert clock.num_late == 60 and clock.max_lag_s >= 0.5
    assert len(caplog.records) == 1 and "does not keep up" in caplog.text


def test_the_stand_in_tokenizer() -> None:
    """Gives back what it was given, and about as many tokens as a real one."""
    tokenizer = StandInTokenizer()
    text = "The quick brown fox jumps over 12345 lazy dogs; naïve café, snake_case!\n\tEnd."
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and ids == tokenizer.encode(text)
    assert 15 <= len(ids) <= 30
    assert tokenizer.decode([FILLER_TOKEN_ID, END_TOKEN_ID]) == " token"
