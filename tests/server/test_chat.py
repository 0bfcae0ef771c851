"""Chat completions, whole: shape, defaults, counts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headway.core.request import Request
from tests.server.support import EOS, MODEL, LiveServer, endless, prompt_text, says, serving

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


def test_a_whole_response_has_openais_shape() -> None:
    with serving(says("Hello!")) as server:
        before = int(time.time())
        answer = server.post("/v1/chat/completions", model=MODEL, messages=HI)
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        body = answer.json
        assert body.pop("id").startswith("chatcmpl-")
        assert before <= body.pop("created") <= time.time()
        assert body.pop("system_fingerprint").startswith("headway-")
        # "<user>hi\n" and "<assistant>", one token a byte; six bytes and the end-of-sequence token.
        assert body == {
            "object": "chat.completion",
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                    "logprobs": None,
                    "finish_reason": "stop",
                    "stop_reason": None,
                }
            ],
            "usage": {
                "prompt_tokens": 20,
                "completion_tokens": 7,
                "total_tokens": 27,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }


def test_without_max_tokens_the_context_is_filled() -> None:
    """G16: an undefined max_tokens once crashed an engine."""
    with serving(endless, max_model_len=64) as server:
        for limit in ({}, {"max_tokens": None}, {"max_tokens": 5000}):
            body = server.post("/v1/chat/completions", messages=HI, **limit).json
            assert body["usage"]["total_tokens"] == 64
            assert body["choices"][0]["finish_reason"] == "length"


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    with serving(endless) as server:
        body = server.post("/v1/chat/completions", messages=HI, max_tokens=9, max_completion_tokens=3).json
        assert body["usage"]["completion_tokens"] == 3


def test_messages_reach_the_model_through_the_template() -> None:
    """The role developer is a system role; text parts are joined; null content is empty."""
    seen: list[str] = []

    def script(request: Request) -> list[int]:
        seen.append(prompt_text(request))
        return [EOS]

    with serving(script) as server:
        messages = [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "c"},
        ]
        assert server.post("/v1/chat/completions", messages=messages).status == 200
        assert server.post("/v1/chat/completions", messages=HI, add_generation_prompt=False).status == 200
        final = [*HI, {"role": "assistant", "content": "Sure, "}]
        assert server.post("/v1/chat/completions", messages=final, continue_final_message=True).status == 200
    assert seen == [
        "<system>be brief\n<user>a\nb\n<assistant>\n<user>c\n<assistant>",
        "<user>hi\n",
        "<user>hi\n<assistant>Sure, ",
    ]


def test_a_model_without_a_template_says_so() -> None:
    with serving(says("x"), chat=False) as server:
        answer = server.post("/v1/chat/completions", messages=HI)
        assert answer.status == 400 and answer.error["param"] == "messages"
        assert server.post("/v1/completions", prompt="hi").status == 200


def test_n_choices_share_the_prompt_and_draw_with_seeds_of_their_own() -> None:
    """Choice i is the request that seed + i would give alone; usage counts the prompt once."""
    seeds: list[int | None] = []

    def script(request: Request) -> list[int]:
        seeds.append(request.sampling.seed)
        return [97 + (request.sampling.seed or 0) % 26]

    with serving(script) as server:
        body = server.post("/v1/chat/completions", messages=HI, n=3, seed=4).json
        assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
        assert [choice["message"]["content"] for choice in body["choices"]] == ["e", "f", "g"]
        assert body["usage"]["prompt_tokens"] == 20 and body["usage"]["completion_tokens"] == 6
        assert server.post("/v1/chat/completions", messages=HI, n=2, seed=2**63 - 1).status == 200
    assert seeds[:3] == [4, 5, 6] and set(seeds[3:]) == {2**63 - 1, -(2**63)}


def test_logprobs_name_tokens_and_bytes_and_hold_no_infinity() -> None:
    with serving(says("hö")) as server:
        body = server.post("/v1/chat/completions", messages=HI, logprobs=True, top_logprobs=2).json
        content = body["choices"][0]["logprobs"]["content"]
        assert len(content) == body["usage"]["completion_tokens"] == 4
        assert content[0] == {
            "token": "h",
            "logprob": -0.5,
            "bytes": [104],
            "top_logprobs": [
                {"token": "h", "logprob": -0.5, "bytes": [104]},
                {"token": "!", "logprob": -9999.0, "bytes": [33]},
            ],
        }
        assert bytes(value for entry in content[:3] for value in entry["bytes"]).decode() == "hö"
        body = server.post("/v1/chat/completions", messages=HI, logprobs=True).json
        assert body["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []
        body = server.post("/v1/chat/completions", messages=HI, logprobs=True, return_tokens_as_token_ids=True).json
        assert body["choices"][0]["logprobs"]["content"][0]["token"] == "token_id:104"


def test_token_ids_are_returned_on_request() -> None:
    with serving(says("ok")) as server:
        body = server.post("/v1/chat/completions", messages=HI, return_token_ids=True).json
        assert bytes(body["prompt_token_ids"]) == b"<user>hi\n<assistant>"
        assert body["choices"][0]["token_ids"] == [111, 107, EOS]


@pytest.mark.parametrize(
    ("extra", "text", "finish_reason", "stop_reason"),
    [
        ({"stop": "llo"}, "He", "stop", "llo"),
        ({"stop": ["xyz", "lo"]}, "Hel", "stop", "lo"),
        ({"stop": "llo", "include_stop_str_in_output": True}, "Hello", "stop", "llo"),
        ({"stop": "ell", "min_tokens": 5}, "Hello there", "stop", None),
        ({"stop_token_ids": [108]}, "He", "stop", 108),
        ({"stop_token_ids": [108], "include_stop_str_in_output": True}, "Hel", "stop", 108),
        ({"ignore_eos": True, "max_tokens": 13}, "Hello there", "length", None),
        ({"ignore_eos": True, "max_tokens": 12, "skip_special_tokens": False}, "Hello there<eos>", "length", None),
    ],
)
def test_what_ends_a_choice(
    extra: dict[str, Any], text: str, finish_reason: str, stop_reason: int | str | None
) -> None:
    with serving(says("Hello there")) as server:
        choice = server.post("/v1/chat/completions", messages=HI, **extra).json["choices"][0]
        assert choice["message"]["content"] == text
        assert (choice["finish_reason"], choice["stop_reason"]) == (finish_reason, stop_reason)


def test_text_and_usage_do_not_depend_on_how_far_the_engine_ran_past_a_stop_string() -> None:
    with serving(endless) as server:
        texts = set()
        for _ in range(5):
            body = server.post("/v1/chat/completions", messages=HI, stop="x", max_tokens=500).json
            texts.add((body["choices"][0]["message"]["content"], body["usage"]["completion_tokens"]))
        assert len(texts) == 1
        ((text, num_tokens),) = texts
        assert num_tokens == len(text) + 1, "up to and including the token that completed the stop"


def test_the_prefix_cache_shows_in_usage_unless_the_salt_differs() -> None:
    def cached(server: LiveServer, **extra: Any) -> int:
        usage = server.post("/v1/completions", prompt="p" * 50, max_tokens=1, **extra).json["usage"]
        count = usage["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(count, int)
        return count

    with serving(endless) as server:
        assert [cached(server), cached(server), cached(server, cache_salt="me"), cached(server, cache_salt="me")] == [
            *(0, 48),
            *(0, 48),
        ]
