"""Server-sent events: order of chunks, held-back text, usage, golden bytes."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import pytest

from headway.config import ServerOptions
from headway.core.request import Request
from tests.server.support import EOS, MODEL, LiveServer, endless, eventually, prompt_text, read_until, says, serving

HI = [{"role": "user", "content": "hi"}]

GOLDEN = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"tiny/scripted",'
    b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
    b'"usage":null,"system_fingerprint":"headway"}\n\n'
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"tiny/scripted",'
    b'"choices":[{"index":0,"delta":{"content":"h"},"logprobs":null,"finish_reason":null}],'
    b'"usage":null,"system_fingerprint":"headway"}\n\n'
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"tiny/scripted",'
    b'"choices":[{"index":0,"delta":{"content":"\xc3\xb6"},"logprobs":null,"finish_reason":null}],'
    b'"usage":null,"system_fingerprint":"headway"}\n\n'
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"tiny/scripted",'
    b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null}],'
    b'"usage":null,"system_fingerprint":"headway"}\n\n'
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":0,"model":"tiny/scripted","choices":[],'
    b'"usage":{"prompt_tokens":20,"completion_tokens":4,"total_tokens":24,'
    b'"prompt_tokens_details":{"cached_tokens":0}},"system_fingerprint":"headway"}\n\n'
    b"data: [DONE]\n\n"
)


def stream_chat(server: LiveServer, **body: Any) -> list[dict[str, Any]]:
    """Events of a chat stream, checked for what holds of every stream."""
    answer = server.post("/v1/chat/completions", messages=HI, stream=True, **body)
    assert answer.status == 200
    events = answer.events
    assert len({(event["id"], event["created"], event["model"]) for event in events}) == 1
    by_choice = defaultdict(list)
    for event in events:
        for choice in event["choices"]:
            by_choice[choice["index"]].append(choice)
    for choices in by_choice.values():
        first, *middle, last = choices
        assert first["delta"] == {"role": "assistant", "content": ""} and first["finish_reason"] is None
        assert last["delta"] == {} and last["finish_reason"] in ("stop", "length")
        for choice in middle:
            assert choice["finish_reason"] is None
            assert set(choice["delta"]) == {"content"} and choice["delta"]["content"], "no empty or null content"
    return events


def text_of(events: list[dict[str, Any]], index: int = 0) -> str:
    """All content of one choice."""
    choices = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def finish_reasons(events: list[dict[str, Any]]) -> list[str]:
    """The finish reasons sent, in order."""
    return [c["finish_reason"] for event in events for c in event["choices"] if c["finish_reason"] is not None]


def test_golden_bytes_of_a_stream() -> None:
    """Byte for byte but for id, time and version; half a character is never sent."""
    with serving(says("hö")) as server:
        answer = server.post("/v1/chat/completions", messages=HI, stream=True, stream_options={"include_usage": True})
        body = re.sub(rb'"chatcmpl-[0-9a-f]+"', b'"chatcmpl-0"', answer.body)
        body = re.sub(rb'"created":\d+', b'"created":0', body)
        body = re.sub(rb'"headway-[^"]+"', b'"headway"', body)
        assert body == GOLDEN
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"


def test_nothing_of_a_stop_string_that_spans_tokens_leaks() -> None:
    """G01: DEF, G, HI, J with the stop DEFGHIJ gives no text at all."""
    with serving(lambda request: [257, ord("G"), 258, ord("J"), 97], pieces=["DEF", "HI"]) as server:
        events = stream_chat(server, stop=["DEFGHIJ"])
        assert text_of(events) == "" and finish_reasons(events) == ["stop"]
        choice = server.post("/v1/chat/completions", messages=HI, stop=["DEFGHIJ"]).json["choices"][0]
        assert choice["message"]["content"] == "" and choice["stop_reason"] == "DEFGHIJ"


def test_text_that_only_looked_like_a_stop_string_is_sent() -> None:
    with serving(lambda request: [257, ord("G"), 97, 257], pieces=["DEF"]) as server:
        events = stream_chat(server, stop=["DEFGHIJ"])
        assert text_of(events) == "DEFGaDEF" and finish_reasons(events) == ["stop"]


def test_no_empty_chunks_while_text_is_held_back() -> None:
    """G03: a stop string once caused several empty first chunks. `stream_chat` refuses any empty content."""
    with serving(says("ABCDEX and ABCDEF never")) as server:
        events = stream_chat(server, stop=["ABCDEF"])
        assert text_of(events) == "ABCDEX and " and finish_reasons(events) == ["stop"]
        assert stream_chat(server, stop=["ABCDEX"])[1]["choices"][0]["finish_reason"] == "stop"


def test_the_stop_string_that_completes_first_wins() -> None:
    with serving(lambda request: [257], pieces=["one two three"]) as server:
        events = stream_chat(server, stop=["three", "two", "wo t"])
        assert text_of(events) == "one "
        assert events[-1]["choices"][0]["stop_reason"] == "two"


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": True}])
def test_no_usage_unless_it_was_asked_for(options: Any) -> None:
    """G09."""
    with serving(says("hi")) as server:
        events = stream_chat(server, stream_options=options)
        assert all("usage" not in event and event["choices"] for event in events)


def test_one_usage_chunk_with_no_choices_if_asked_for() -> None:
    """G09."""
    with serving(says("hi")) as server:
        *others, last = stream_chat(server, stream_options={"include_usage": True})
        assert all(event["usage"] is None and event["choices"] for event in others)
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
        assert last["usage"]["completion_tokens"] == 3


def test_continuous_usage_is_in_every_chunk() -> None:
    """G09."""
    with serving(says("hi")) as server:
        options = {"include_usage": True, "continuous_usage_stats": True}
        events = stream_chat(server, stream_options=options)
        assert [event["usage"]["completion_tokens"] for event in events] == [1, 1, 2, 3, 3]


def test_each_of_n_choices_gets_its_own_role_and_finish_chunk() -> None:
    """Servers have sent two finish chunks, or one for the last choice alone."""

    def script(request: Request) -> list[int]:
        return [97] * (1 + (request.sampling.seed or 0))

    with serving(script) as server:
        events = stream_chat(server, n=4, seed=0, stream_options={"include_usage": True})
        assert [text_of(events, index) for index in range(4)] == ["a", "aa", "aaa", "aaaa"]
        assert finish_reasons(events) == ["stop"] * 4
        assert events[-1]["usage"]["completion_tokens"] == 2 + 3 + 4 + 5


def test_text_completions_stream_under_their_own_object() -> None:
    def script(request: Request) -> list[int]:
        return list(prompt_text(request).upper().encode())

    with serving(script) as server:
        events = server.post("/v1/completions", prompt=["ab", "c"], stream=True, max_tokens=2).events
        assert {event["object"] for event in events} == {"text_completion"}
        choices = [choice for event in events for choice in event["choices"]]
        for index, text, reason in ((0, "AB", "length"), (1, "C", "stop")):
            mine = [choice for choice in choices if choice["index"] == index]
            assert "".join(choice["text"] for choice in mine) == text
            assert [choice["finish_reason"] for choice in mine[:-1]] == [None] * (len(mine) - 1)
            assert mine[-1]["text"] == "" and mine[-1]["finish_reason"] == reason


def test_a_cut_off_character_is_shown_as_such_at_the_end_and_not_before() -> None:
    with serving(lambda request: [0xE2, 0x98]) as server:
        assert text_of(stream_chat(server)) == "�"
        assert text_of(stream_chat(server, max_tokens=1)) == "�"


def test_comments_keep_an_idle_stream_open() -> None:
    with serving(says("x"), options=ServerOptions(sse_keep_alive_s=0.02)) as server:
        server.executor.gate.clear()
        with server.connect("/v1/completions", {"prompt": "hi", "stream": True}) as raw:
            received = b""
            while received.count(b": keep-alive\n\n") < 3:
                received += raw.recv(4096)
            server.executor.gate.set()
            received = read_until(raw, b"\r\n0\r\n\r\n", received=received)
        assert b"data: [DONE]\n\n" in received


def test_a_failure_under_way_is_told_in_the_stream_and_done_follows() -> None:
    with serving(endless, step_duration_s=0.001) as server:
        with server.connect("/v1/completions", {"prompt": "hi", "stream": True, "max_tokens": 1000}) as raw:
            received = raw.recv(4096)
            eventually(lambda: server.engine.stats.num_generation_tokens > 0)
            server.executor.failure = RuntimeError("out of memory")
            received = read_until(raw, b"\r\n0\r\n\r\n", received=received)
        events = [line for line in received.split(b"\r\n") if line.startswith(b"data: ")]
        assert b'{"error":{"message":"The engine failed while working on this request' in events[-1]
        assert events[-1].endswith(b"data: [DONE]\n\n")


def test_end_of_sequence_alone_gives_a_role_and_a_finish_chunk() -> None:
    with serving(lambda request: [EOS]) as server:
        events = stream_chat(server)
        assert [event["choices"][0]["delta"] for event in events] == [{"role": "assistant", "content": ""}, {}]
        assert {event["model"] for event in events} == {MODEL}
