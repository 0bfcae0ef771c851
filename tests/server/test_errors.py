"""Everything a client can get wrong: OpenAI's error object, the right status, and the server lives on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.config import ServerOptions
from headway.frontends.server.body import MAX_BODY_BYTES, UNSUPPORTED_FIELDS
from headway.frontends.server.protocol import ChatBody, CompletionBody
from tests.server.support import MODEL, LiveServer, eventually, read_until, says, serving

HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """One server for all: none of these requests may harm the next."""
    with serving(says("fine"), max_model_len=100, options=ServerOptions(max_queue=64)) as live:
        yield live
        assert live.post(TEXT, prompt="still there").status == 200
        eventually(live.is_empty)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": "hi"}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        (CHAT, {"messages": HI, "temperature": "hot"}, "temperature"),
        (CHAT, {"messages": HI, "temperature": -0.1}, "temperature"),
        (CHAT, {"messages": HI, "temperature": 2.5}, "temperature"),
        (CHAT, {"messages": HI, "top_p": 0}, "top_p"),
        (CHAT, {"messages": HI, "top_p": 1.5}, "top_p"),
        (CHAT, {"messages": HI, "top_k": -2}, "top_k"),
        (CHAT, {"messages": HI, "min_p": 2}, "min_p"),
        (CHAT, {"messages": HI, "repetition_penalty": 0}, "repetition_penalty"),
        (CHAT, {"messages": HI, "presence_penalty": 3}, "presence_penalty"),
        (CHAT, {"messages": HI, "frequency_penalty": -3}, "frequency_penalty"),
        (CHAT, {"messages": HI, "n": 0}, "n"),
        (CHAT, {"messages": HI, "n": 1000}, "n"),
        (CHAT, {"messages": HI, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HI, "max_completion_tokens": 0}, "max_completion_tokens"),
        (CHAT, {"messages": HI, "max_tokens": 1.5}, "max_tokens"),
        (CHAT, {"messages": HI, "min_tokens": -1}, "min_tokens"),
        (CHAT, {"messages": HI, "min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        (CHAT, {"messages": HI, "seed": 2**64}, "seed"),
        (CHAT, {"messages": HI, "stop": [""]}, "stop"),
        (CHAT, {"messages": HI, "stop": [1]}, "stop[0]"),
        (CHAT, {"messages": HI, "stop": ["x"] * 100}, "stop"),
        (CHAT, {"messages": HI, "top_logprobs": 3}, "top_logprobs"),
        (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"messages": HI, "logprobs": 5}, "logprobs"),
        (CHAT, {"messages": HI, "logit_bias": {"5": 101}}, "logit_bias"),
        (CHAT, {"messages": HI, "logit_bias": {"five": 1}}, "logit_bias"),
        (CHAT, {"messages": HI, "stop_token_ids": [-1]}, "stop_token_ids"),
        (CHAT, {"messages": HI, "allowed_token_ids": []}, "allowed_token_ids"),
        (CHAT, {"messages": HI, "allowed_token_ids": [100000]}, "allowed_token_ids"),
        (CHAT, {"messages": HI, "stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": HI, "tools": []}, "tools"),
        (CHAT, {"messages": HI, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        (CHAT, {"messages": HI, "tool_choice": "required"}, "tool_choice"),
        (CHAT, {"messages": HI, "tool_choice": "whatever"}, "tool_choice"),
        (CHAT, {"messages": HI, "functions": [{"name": "f"}]}, "functions"),
        (CHAT, {"messages": HI, "response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"messages": HI, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        (CHAT, {"messages": HI, "guided_choice": ["a"]}, "guided_choice"),
        (CHAT, {"messages": HI, "bad_words": ["x"]}, "bad_words"),
        (CHAT, {"messages": HI, "chat_template": "{{ x }}"}, "chat_template"),
        (CHAT, {"messages": HI, "echo": True}, "echo"),
        (
            CHAT,
            {"messages": HI, "continue_final_message": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        (CHAT, {"messages": HI, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (CHAT, {"messages": HI, "chat_template_kwargs": {"add_generation_prompt": 1}}, "chat_template_kwargs"),
        (TEXT, {}, "prompt"),
        (TEXT, {"prompt": []}, "prompt"),
        (TEXT, {"prompt": [[]]}, "prompt"),
        (TEXT, {"prompt": ["a", 1]}, "prompt"),
        (TEXT, {"prompt": {"text": "a"}}, "prompt"),
        (TEXT, {"prompt": [5, 100000]}, "prompt"),
        (TEXT, {"prompt": [-1]}, "prompt"),
        (TEXT, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (TEXT, {"prompt": "a", "suffix": "b"}, "suffix"),
        (TEXT, {"prompt": "a", "best_of": 2}, "best_of"),
        (TEXT, {"prompt": "a", "logprobs": 21}, "logprobs"),
        (TEXT, {"prompt": "a", "logprobs": -1}, "logprobs"),
        (TEXT, {"prompt": "a", "echo": True, "logprobs": 1}, "logprobs"),
        (TEXT, {"prompt": "a", "prompt_logprobs": 0}, "prompt_logprobs"),
        (TEXT, {"prompt": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        (TEXT, {"prompt": "a", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        (TEXT, {"prompt": ["a"] * 65}, "prompt"),
    ],
)
def test_a_bad_field_is_named(server: LiveServer, path: str, body: dict[str, Any], param: str) -> None:
    for stream in ({}, {"stream": True}) if "stream_options" not in body else ({},):
        answer = server.call("POST", path, {**body, **stream})
        assert answer.status == 400, answer.text
        assert answer.error["type"] == "invalid_request_error" and answer.error["param"] == param


@pytest.mark.parametrize(
    "extra",
    [{name: value} for name, inert in UNSUPPORTED_FIELDS.items() for value in inert]
    + [
        {"user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "auto", "parallel_tool_calls": False},
        {"reasoning_effort": "low", "verbosity": "low", "safety_identifier": "x", "prompt_cache_key": "k"},
        {"never_heard_of_it": 1},
        {"best_of": 1},
        {"temperature": None, "stop": None, "logit_bias": None, "stream": None, "n": None, "top_k": None},
    ],
)
def test_a_field_that_changes_nothing_is_accepted(server: LiveServer, extra: dict[str, Any]) -> None:
    answer = server.post(CHAT, messages=HI, **extra)
    assert answer.status == 200, answer.text
    assert answer.json["choices"][0]["message"]["content"] == "fine"


def test_a_prompt_that_is_too_long_gets_the_numbers(server: LiveServer) -> None:
    for path, body in ((TEXT, {"prompt": "x" * 100}), (CHAT, {"messages": [{"role": "user", "content": "x" * 200}]})):
        answer = server.call("POST", path, body)
        assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
        assert "100 tokens" in answer.error["message"]
    assert "has 100 tokens" in server.post(TEXT, prompt="x" * 100).error["message"]
    assert server.post(TEXT, prompt="x" * 99).json["usage"]["completion_tokens"] == 1


def test_an_empty_prompt_is_refused_where_it_gives_no_token(server: LiveServer) -> None:
    """G05: an empty prompt once killed an engine for everybody."""
    for prompt in ("", [""], ["a", ""]):
        answer = server.post(TEXT, prompt=prompt, max_tokens=20, temperature=0)
        assert answer.status == 400 and answer.error["type"] == "invalid_request_error"
        assert server.post(TEXT, prompt="a").status == 200


def test_a_logit_bias_outside_the_vocabulary_is_refused_and_harms_nobody(server: LiveServer) -> None:
    """G10."""
    with server.connect(TEXT, {"prompt": "hi"}) as raw:
        for bias in ({"191222": -100, "99999": 5}, {"-1": 1}):
            answer = server.post(CHAT, messages=HI, logit_bias=bias)
            assert answer.status == 400 and answer.error["param"] == "logit_bias"
        read_until(raw, b"200 OK")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b"\xff\xfe", b'{"a": NaN}', b"[1]", b"null", b"1e999", b"[" * 9999]
)
def test_a_body_that_is_no_json_object_is_refused(server: LiveServer, body: bytes) -> None:
    answer = server.call("POST", CHAT, body)
    assert answer.status == 400 and answer.error["type"] == "invalid_request_error"


def test_a_lone_surrogate_is_refused(server: LiveServer) -> None:
    assert server.call("POST", TEXT, b'{"prompt": "\\ud800"}').status == 400


def test_the_body_must_be_declared_as_json(server: LiveServer) -> None:
    for media_type in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = server.call("POST", CHAT, b'{"messages": []}', {"Content-Type": media_type})
        assert answer.status == 415 and answer.error["type"] == "invalid_request_error"
    fine = server.call("POST", TEXT, b'{"prompt": "a"}', {"Content-Type": "Application/JSON; charset=utf-8"})
    assert fine.status == 200


def test_a_body_that_is_too_long_is_refused_unread(server: LiveServer) -> None:
    with server.connect(TEXT, {"prompt": "warm up"}) as raw:
        read_until(raw, b"200 OK")
    answer = server.call("POST", TEXT, b"", {"Content-Length": str(MAX_BODY_BYTES + 1)})
    assert answer.status == 413 and answer.error["type"] == "invalid_request_error"


def test_an_unknown_model_is_404_with_openais_code(server: LiveServer) -> None:
    for answer in (
        server.post(CHAT, model="gpt-4", messages=HI),
        server.post(TEXT, model="gpt-4", prompt="a"),
        server.call("GET", "/v1/models/gpt-4"),
    ):
        assert answer.status == 404 and answer.error["code"] == "model_not_found"
        assert answer.error["message"] == "The model `gpt-4` does not exist."


def test_unknown_paths_and_methods(server: LiveServer) -> None:
    assert server.call("GET", "/v2/everything").status == 404
    assert server.call("GET", "/v2/everything").error["type"] == "invalid_request_error"
    answer = server.call("GET", CHAT)
    assert answer.status == 405 and answer.error["param"] is None
    assert answer.headers["allow"] == "POST"


def test_what_an_error_echoes_is_bounded(server: LiveServer) -> None:
    """A 4 KB body once made a server answer 23 MB."""
    long = "x" * 100_000
    for path, body in (
        (TEXT, {"prompt": "a", "model": long}),
        (TEXT, {"prompt": "a", "logit_bias": {long: 1}}),
        (TEXT, {"prompt": "a", "stop": [long, ""]}),
        (CHAT, {"messages": [{"role": long, "content": "a"}]}),
        (CHAT, {"messages": HI, "chat_template_kwargs": {long: 1, "messages": 1}}),
    ):
        answer = server.call("POST", path, body)
        assert 400 <= answer.status < 500 and len(answer.body) < 1500
    assert len(server.call("GET", "/v1/models/" + "y" * 5000).body) < 1500


def test_the_queue_is_bounded_and_says_when_to_come_back() -> None:
    with serving(says("x"), options=ServerOptions(max_queue=2), max_num_seqs=1) as live:
        live.executor.gate.clear()
        raws = [live.connect(TEXT, {"prompt": "a"}) for _ in range(1)]
        eventually(lambda: len(live.engine.scheduler.running) == 1)
        raws += [live.connect(TEXT, {"prompt": "a"}) for _ in range(2)]
        eventually(lambda: live.service.engine.num_waiting == 2)
        answer = live.post(TEXT, prompt="a")
        assert answer.status == 429 and answer.error["code"] == "rate_limit_exceeded"
        assert int(answer.headers["retry-after"]) >= 1
        live.executor.gate.set()
        for raw in raws:
            with raw:
                read_until(raw, b"200 OK")
        assert live.post(TEXT, prompt="a").status == 200


def test_the_key_guards_v1_and_nothing_else() -> None:
    with serving(says("x"), options=ServerOptions(api_key="sesame")) as live:
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "sesame"},
            {"Authorization": "Basic sesame"},
        ):
            for method, path in (("GET", "/v1/models"), ("POST", TEXT), ("GET", "/v1/nowhere")):
                answer = live.call(method, path, None, headers)
                assert answer.status == 401, path
                assert answer.error["code"] == "invalid_api_key"
                assert answer.error["type"] == "authentication_error"
                assert answer.headers["www-authenticate"] == "Bearer"
        right = {"Authorization": "Bearer sesame"}
        assert live.call("GET", "/v1/models", None, right).status == 200
        assert live.call("POST", TEXT, {"prompt": "a"}, right).status == 200
        for path in ("/health", "/metrics", "/version", "/ping"):
            assert live.call("GET", path).status == 200


def test_every_response_carries_a_request_id(server: LiveServer) -> None:
    for headers in ({}, {"x-request-id": "bad\tid"}, {"x-request-id": "x" * 500}):
        given_id = server.call("GET", "/nowhere", None, headers).headers["x-request-id"]
        assert len(given_id) == 32 and given_id not in headers.values()
    assert server.call("GET", "/health", None, {"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(sorted({*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__, *UNSUPPORTED_FIELDS}))


@given(path=st.sampled_from([CHAT, TEXT, "/tokenize", "/detokenize"]), body=st.dictionaries(NAMES, JSON, max_size=4))
def test_no_body_gets_a_server_error(server: LiveServer, path: str, body: dict[str, Any]) -> None:
    base = {"messages": HI} if path == CHAT else {"prompt": "a"} if path == TEXT else {}
    for document in (body, {**base, **body}, {**body, **base}):
        answer = server.call("POST", path, json.dumps(document).encode())
        assert answer.status in (200, 400, 404), answer.text
        assert answer.status == 200 or answer.error["message"]


@given(data=st.binary(max_size=60))
def test_no_bytes_get_a_server_error(server: LiveServer, data: bytes) -> None:
    assert server.call("POST", CHAT, data).status == 400


def test_the_model_may_be_named_or_left_out(server: LiveServer) -> None:
    assert server.post(TEXT, prompt="a").json["model"] == MODEL
    assert server.post(TEXT, prompt="a", model=MODEL).json["model"] == MODEL
