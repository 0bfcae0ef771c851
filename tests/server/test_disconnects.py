"""Clients that go away: their requests end, their blocks come back, whatever they were waiting for."""

from __future__ import annotations

import random
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headway.core.request import FinishReason
from tests.server.support import LiveServer, endless, eventually, read_until, says, serving

LONG: dict[str, Any] = {"prompt": "x" * 40, "max_tokens": 900, "ignore_eos": True}


def hang_up(raw: socket.socket, *, reset: bool = False) -> None:
    """Close a connection, politely or not."""
    if reset:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raw.close()


def gauges(server: LiveServer) -> tuple[float, ...]:
    """Requests running, requests waiting, KV usage."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return tuple(server.metric(f"vllm:{name}") for name in names)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_running_request_ends_when_its_client_leaves(stream: bool, reset: bool) -> None:
    """G11: after the first chunk of a stream, or while waiting for a whole response."""
    with serving(endless, step_duration_s=0.005) as server:
        raw = server.connect("/v1/completions", {**LONG, "stream": stream})
        if stream:
            read_until(raw, b"data: ")
        eventually(lambda: server.engine.stats.num_generation_tokens > 3)
        assert gauges(server)[0] == 1 and gauges(server)[2] > 0
        hang_up(raw, reset=reset)
        eventually(lambda: gauges(server) == (0, 0, 0), timeout_s=1)
        assert server.is_empty()
        assert server.engine.stats.num_generation_tokens < 800, "it did not run to its end"


def test_a_queued_request_leaves_the_queue_when_its_client_leaves() -> None:
    """G11: the request never ran."""
    with serving(endless, max_num_seqs=1, step_duration_s=0.005) as server:
        first = server.connect("/v1/completions", {**LONG, "stream": True})
        read_until(first, b"data: ")
        second = server.connect("/v1/completions", LONG)
        third = server.connect("/v1/completions", {**LONG, "stream": True})
        eventually(lambda: gauges(server)[:2] == (1, 2))
        hang_up(second)
        hang_up(third)
        eventually(lambda: gauges(server)[:2] == (1, 0), timeout_s=1)
        hang_up(first)
        eventually(lambda: gauges(server) == (0, 0, 0), timeout_s=1)


def test_all_choices_end_when_their_client_leaves() -> None:
    with serving(endless, step_duration_s=0.005) as server:
        raw = server.connect("/v1/completions", {**LONG, "prompt": ["a", "b"], "n": 3, "stream": True})
        eventually(lambda: gauges(server)[0] == 6)
        hang_up(raw)
        eventually(server.is_empty, timeout_s=1)
        assert server.metric("vllm:request_success_total") == 6


def test_a_client_that_leaves_while_sending_harms_nobody() -> None:
    with serving(says("x")) as server:
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
        )
        hang_up(raw)
        assert server.post("/v1/completions", prompt="a").status == 200
        assert server.is_empty()


def test_a_client_that_stops_reading_does_not_stop_the_others() -> None:
    """Its output is kept for it; the engine goes on."""
    with serving(endless) as server, server.connect("/v1/completions", {**LONG, "stream": True, "logprobs": 2}):
        for _ in range(3):
            assert server.post("/v1/completions", prompt="a", max_tokens=50).status == 200
        eventually(server.is_empty)


@pytest.mark.slow
def test_a_thousand_requests_with_random_aborts_leave_every_block_free() -> None:
    """Streams and whole responses, short and long, hung up at any moment, under preemption."""
    rng = random.Random(7)
    plans = [
        (rng.random(), rng.randbytes(30).hex()[: rng.randint(1, 60)], rng.randint(1, 40), rng.random())
        for _ in range(1000)
    ]

    with serving(endless, num_blocks=40, max_model_len=128, max_num_seqs=16, step_duration_s=0.0005) as server:

        def client(plan: tuple[float, str, int, float]) -> None:
            kind, prompt, max_tokens, patience = plan
            body = {"prompt": prompt, "max_tokens": max_tokens, "stream": kind < 0.6, "ignore_eos": True}
            raw = server.connect("/v1/completions", body)
            raw.settimeout(30)
            if patience > 0.5:
                read_until(raw, b"[DONE]", b'"usage"')
            elif patience > 0.25:
                raw.recv(256)
            hang_up(raw, reset=kind < 0.3)

        with ThreadPoolExecutor(24) as pool:
            list(pool.map(client, plans))
        eventually(server.is_empty)
        eventually(lambda: gauges(server) == (0, 0, 0))
        server.engine.scheduler.check_integrity()
        stats = server.engine.stats
        assert stats.num_preemptions > 0, "the pool is meant to be too small"
        assert stats.finished[FinishReason.ABORT] > 50 and stats.finished[FinishReason.LENGTH] > 400
        # A client that resets its connection at once may be gone before its request has been read.
        assert 800 < server.metric("vllm:request_success_total") <= 1000
        assert server.post("/v1/completions", prompt="a", max_tokens=1).status == 200
