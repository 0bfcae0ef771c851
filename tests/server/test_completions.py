"""Text completions: kinds of prompts, echo, log probabilities."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.request import Request
from tests.server.support import EOS, MODEL, prompt_text, says, serving


def echo_script(request: Request) -> list[int]:
    """Says the prompt in capitals."""
    return list(prompt_text(request).upper().encode())


def test_a_whole_response_has_openais_shape() -> None:
    with serving(echo_script) as server:
        body = server.post("/v1/completions", model=MODEL, prompt="ab").json
        assert body.pop("id").startswith("cmpl-")
        assert isinstance(body.pop("created"), int) and body.pop("system_fingerprint")
        assert body == {
            "object": "text_completion",
            "model": MODEL,
            "choices": [{"index": 0, "text": "AB", "logprobs": None, "finish_reason": "stop", "stop_reason": None}],
            "usage": {
                "prompt_tokens": 2,
                "completion_tokens": 3,
                "total_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 0},
            },
        }


def test_max_tokens_defaults_to_sixteen() -> None:
    with serving(lambda request: [97] * 100) as server:
        for limit in ({}, {"max_tokens": None}):
            assert server.post("/v1/completions", prompt="ab", **limit).json["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("ab", ["AB"]),
        (["ab", "cd"], ["AB", "CD"]),
        ([97, 98], ["AB"]),
        ([[97, 98], [99]], ["AB", "C"]),
    ],
)
def test_kinds_of_prompts(prompt: Any, texts: list[str]) -> None:
    with serving(echo_script) as server:
        body = server.post("/v1/completions", prompt=prompt).json
        assert [choice["text"] for choice in body["choices"]] == texts


def test_choice_index_is_prompt_index_times_n_plus_i() -> None:
    def script(request: Request) -> list[int]:
        return [*prompt_text(request).encode(), 48 + (request.sampling.seed or 0)]

    with serving(script) as server:
        body = server.post("/v1/completions", prompt=["a", "b"], n=2, seed=0).json
        assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
            (0, "a0"),
            (1, "a1"),
            (2, "b0"),
            (3, "b1"),
        ]
        assert body["usage"]["prompt_tokens"] == 2, "each prompt counts once"


def test_echo_puts_the_prompt_before_each_choice() -> None:
    with serving(echo_script) as server:
        body = server.post("/v1/completions", prompt=["ab", "cd"], n=2, echo=True).json
        assert [choice["text"] for choice in body["choices"]] == ["abAB", "abAB", "cdCD", "cdCD"]
        events = server.post("/v1/completions", prompt=[97, 98], echo=True, stream=True).events
        assert "".join(choice["text"] for event in events for choice in event["choices"]) == "abAB"


def test_logprobs_are_aligned_lists_with_the_sampled_token_always_among_them() -> None:
    with serving(says("Ab")) as server:
        for count, expected in ((0, {"A": -0.5}), (1, {"A": -0.5}), (2, {"A": -0.5, "!": -9999.0})):
            logprobs = server.post("/v1/completions", prompt="x", logprobs=count).json["choices"][0]["logprobs"]
            assert logprobs["tokens"] == ["A", "b", "<eos>"]
            assert logprobs["token_logprobs"] == [-0.5] * 3
            assert logprobs["text_offset"] == [0, 1, 2]
            assert logprobs["top_logprobs"][0] == expected


def test_logprobs_of_a_stream_are_those_of_the_whole() -> None:
    with serving(says("Aö☃b")) as server:
        body = {"prompt": "x", "logprobs": 2}
        whole = server.post("/v1/completions", **body).json["choices"][0]["logprobs"]
        events = server.post("/v1/completions", **body, stream=True).events
        parts = [choice["logprobs"] for event in events for choice in event["choices"] if choice["logprobs"]]
        joined = {name: [item for part in parts for item in part[name]] for name in whole}
        assert joined == whole


def test_the_prompt_can_be_truncated_from_the_left() -> None:
    with serving(echo_script, max_model_len=64) as server:
        body = server.post("/v1/completions", prompt="abcdef", truncate_prompt_tokens=2).json
        assert body["choices"][0]["text"] == "EF" and body["usage"]["prompt_tokens"] == 2
        body = server.post("/v1/completions", prompt="z" * 500, truncate_prompt_tokens=-1, max_tokens=4).json
        assert body["usage"]["prompt_tokens"] == 60 and body["usage"]["completion_tokens"] == 4


def test_token_ids_are_returned_on_request() -> None:
    with serving(echo_script) as server:
        choice = server.post("/v1/completions", prompt="ab", return_token_ids=True).json["choices"][0]
        assert choice["prompt_token_ids"] == [97, 98] and choice["token_ids"] == [65, 66, EOS]
        events = server.post("/v1/completions", prompt="ab", return_token_ids=True, stream=True).events
        choices = [choice for event in events for choice in event["choices"]]
        assert choices[0]["prompt_token_ids"] == [97, 98]
        assert [token_id for choice in choices for token_id in choice["token_ids"]] == [65, 66, EOS]


def test_sampling_settings_reach_the_engine_under_their_own_names() -> None:
    seen = []

    def script(request: Request) -> list[int]:
        seen.append(request)
        return [EOS]

    settings = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "seed": 11,
        "ignore_eos": True,
        "min_tokens": 2,
    }
    with serving(script) as server:
        extra = {"logit_bias": {"5": -100}, "allowed_token_ids": [1, 2], "stop_token_ids": [3], "priority": -4}
        answer = server.post("/v1/completions", prompt="x", max_tokens=2, **settings, **extra)
        assert answer.status == 200
    (request,) = seen
    assert {name: getattr(request.sampling, name) for name in settings} == settings
    assert request.sampling.logit_bias == {5: -100.0}
    assert request.sampling.allowed_token_ids == frozenset({1, 2})
    assert request.sampling.stop_token_ids == frozenset({3}) and request.priority == -4


def test_the_clients_request_id_becomes_the_response_id() -> None:
    with serving(says("x")) as server:
        assert server.post("/v1/completions", prompt="x", request_id="mine").json["id"] == "cmpl-mine"
