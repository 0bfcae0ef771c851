"""The server's life: information, health, a dying engine, an orderly end."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headway import __version__
from headway.config import ServerOptions
from headway.errors import ConfigError
from headway.frontends.server.run import bind, url_of
from headway.frontends.server.service import check_options
from headway.text import Tokenizer
from tests.server.support import EOS, MODEL, byte_tokenizer, endless, eventually, says, serving


def test_models_are_listed_and_found_by_a_name_with_a_slash() -> None:
    with serving(says("x"), max_model_len=321) as server:
        (card,) = server.call("GET", "/v1/models").json["data"]
        assert server.call("GET", "/v1/models").json["object"] == "list"
        assert card == server.call("GET", f"/v1/models/{MODEL}").json
        assert card["id"] == MODEL and card["object"] == "model" and card["owned_by"] == "headway"
        assert card["max_model_len"] == 321 and isinstance(card["created"], int)


def test_health_ping_and_version() -> None:
    with serving(says("x")) as server:
        health = server.call("GET", "/health")
        assert health.status == 200 and health.body == b""
        assert server.call("GET", "/ping").status == server.call("POST", "/ping").status == 200
        assert server.call("GET", "/version").json == {"version": __version__}


def test_tokenize_and_detokenize() -> None:
    with serving(says("x")) as server:
        body = server.post("/tokenize", prompt="hö", return_token_strs=True).json
        assert body == {"count": 3, "max_model_len": 1024, "tokens": [104, 195, 182], "token_strs": ["h", "�", "�"]}
        chat = {"messages": [{"role": "user", "content": "a"}]}
        assert bytes(server.post("/tokenize", **chat).json["tokens"]) == b"<user>a\n<assistant>"
        assert bytes(server.post("/tokenize", **chat, add_generation_prompt=False).json["tokens"]) == b"<user>a\n"
        assert server.post("/detokenize", tokens=[104, 195, 182, EOS]).json == {"prompt": "hö<eos>"}
        assert server.post("/detokenize", tokens=[100000]).error["param"] == "tokens"
        assert server.post("/detokenize", tokens=[-1]).error["param"] == "tokens[0]"
        assert server.post("/tokenize").status == server.post("/tokenize", prompt="a", **chat).status == 400


def test_a_long_prompt_is_encoded_like_a_short_one() -> None:
    """Long texts are encoded in a thread of their own."""
    text = "wörd " * 3000
    with serving(says("x")) as server:
        assert server.post("/tokenize", prompt=text).json["tokens"] == byte_tokenizer().encode(text)


def test_when_the_engine_dies_everybody_is_told_and_nothing_hangs() -> None:
    with serving(endless, step_duration_s=0.002, max_num_seqs=2) as server:
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(server.post, "/v1/completions", prompt="p", max_tokens=900) for _ in range(4)]
            eventually(lambda: len(server.engine.scheduler.requests) == 4)
            server.executor.failure = RuntimeError("the device is gone")
            for future in futures:
                answer = future.result(timeout=10)
                assert answer.status == 500 and answer.error["type"] == "server_error"
                assert "RuntimeError" in answer.error["message"]
        answer = server.post("/v1/completions", prompt="p")
        assert answer.status == 503 and "stopped" in answer.error["message"]
        assert server.post("/v1/completions", prompt="p", stream=True).status == 503
        assert server.call("GET", "/health").status == 503
        assert server.call("GET", "/metrics").status == 200
        assert server.metric("vllm:request_success_total") == 4


def test_an_output_that_cannot_be_processed_fails_its_request_alone() -> None:
    """A token id outside the vocabulary is a defect; its neighbour does not notice."""

    with serving(lambda request: [97] * 20 if request.num_prompt_tokens == 1 else [97, -5]) as server:
        server.executor.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            good, bad = (pool.submit(server.post, "/v1/completions", prompt=prompt) for prompt in ("a", "bb"))
            eventually(lambda: server.service.engine.num_requests == 2)
            server.executor.gate.set()
            assert good.result(10).json["choices"][0]["text"] == "a" * 16
            assert bad.result(10).status == 500
        eventually(server.is_empty)
        assert server.call("GET", "/health").status == 200


def failing(*args: object) -> list[int]:
    """A defect."""
    raise KeyError("secret")


def test_a_mistake_of_our_own_is_a_500_with_a_request_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client learns the kind of error, not its text; the next request is served."""
    with serving(says("x")) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Tokenizer, "encode", failing)
            answer = server.call("POST", "/v1/completions", {"prompt": "a"}, {"x-request-id": "r"})
        assert answer.status == 500 and answer.error["type"] == "server_error"
        assert "KeyError" in answer.error["message"] and "secret" not in answer.text
        assert answer.headers["x-request-id"] == "r"
        assert server.post("/v1/completions", prompt="a").status == 200


def test_the_end_is_orderly() -> None:
    """Streams in flight get an error and [DONE]; newcomers are refused; the port is free again."""
    received = b""
    with serving(endless, step_duration_s=0.01) as server:
        raw = server.connect("/v1/completions", {"prompt": "p", "max_tokens": 900, "stream": True})
        received += raw.recv(65536)
    raw.settimeout(10)
    with raw:
        while chunk := raw.recv(65536):
            received += chunk
    assert b'{"error":{"message":"The server shut down before this request was finished.' in received
    assert received.rstrip().endswith(b"0") and b"data: [DONE]" in received
    assert server.is_empty()
    assert not [thread for thread in threading.enumerate() if thread.name == "headway-engine"]
    with bind("127.0.0.1", server.port) as again:
        assert url_of(again) == server.url


def test_a_stream_that_can_finish_in_time_does() -> None:
    with serving(endless, step_duration_s=0.005) as server:
        raw = server.connect("/v1/completions", {"prompt": "p", "max_tokens": 10, "stream": True})
        received = raw.recv(65536)
    with raw:
        while chunk := raw.recv(65536):
            received += chunk
    assert b'"finish_reason":"length"' in received and b"error" not in received


def test_an_address_in_use_is_a_config_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="Cannot listen"):
        bind("127.0.0.1", taken.getsockname()[1])
    for host, port in (("127.0.0.1", 70000), ("no.such.host.invalid", 0)):
        with pytest.raises(ConfigError):
            bind(host, port)


@pytest.mark.parametrize(
    "bad", [{"api_key": ""}, {"served_model_name": ""}, {"max_queue": 0}, {"sse_keep_alive_s": -1.0}]
)
def test_http_settings_that_cannot_work_are_config_errors(bad: dict[str, Any]) -> None:
    """An empty key, say from an unset variable, must not look like protection."""
    with pytest.raises(ConfigError, match=next(iter(bad))):
        check_options(ServerOptions(**bad))


def test_the_served_name_is_the_one_that_clients_use() -> None:
    with serving(says("x"), options=ServerOptions(served_model_name="house")) as server:
        (card,) = server.call("GET", "/v1/models").json["data"]
        assert card["id"] == "house" and card["root"] == MODEL
        assert server.post("/v1/completions", model="house", prompt="a").json["model"] == "house"
        assert server.post("/v1/completions", model=MODEL, prompt="a").status == 404
        assert 'model_name="house"' in server.call("GET", "/metrics").text
