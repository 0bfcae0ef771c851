"""The official client against the server, as users run it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from headway.config import ServerOptions
from headway.core.request import Request
from tests.server.support import MODEL, LiveServer, endless, eventually, prompt_text, serving


def script(request: Request) -> list[int]:
    """Says the last user message in capitals; never ends where it says 'forever'."""
    text = prompt_text(request)
    if "forever" in text:
        return list(endless(request))
    return list(text.rsplit("<user>", 1)[-1].split("\n")[0].upper().encode())


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """A server that wants a key."""
    with serving(script, options=ServerOptions(api_key="k"), step_duration_s=0.001) as live:
        yield live


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    """The client with the right key."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}])
    assert answer.choices[0].message.content == "HELLO" and answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.completion_tokens == 6
    assert answer.usage.prompt_tokens_details is not None


def test_chat_stream_with_usage_and_logprobs(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hellö"}],
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        top_logprobs=1,
        n=2,
    )
    texts, reasons, tokens, usage = ["", ""], [], 0, None
    for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
            tokens += len(choice.logprobs.content or []) if choice.logprobs else 0
    assert texts == ["HELLÖ", "HELLÖ"] and reasons == ["stop", "stop"]
    assert usage is not None and usage.completion_tokens == tokens == 14


def test_the_streaming_helper_accepts_the_stream(client: openai.OpenAI) -> None:
    """`chat.completions.stream` rebuilds the message from the chunks and checks them strictly."""
    with client.chat.completions.stream(model=MODEL, messages=[{"role": "user", "content": "hey"}]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "HEY" and final.choices[0].finish_reason == "stop"


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["<user>ab", "<user>c"], logprobs=1, echo=False)
    assert [choice.text for choice in answer.choices] == ["AB", "C"]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.tokens == ["A", "B", "<eos>"]
    chunks = list(client.completions.create(model=MODEL, prompt="<user>ab", stream=True))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "AB"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


def test_errors_are_the_clients_own_types(client: openai.OpenAI, server: LiveServer) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=[], temperature=3)
    assert bad.value.param == "temperature" and bad.value.code is None
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model=MODEL, prompt="x" * 2000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def test_closing_a_stream_frees_its_blocks(client: openai.OpenAI, server: LiveServer) -> None:
    """G11."""
    stream = client.completions.create(model=MODEL, prompt="<user>forever", max_tokens=900, stream=True)
    next(iter(stream))
    stream.close()
    eventually(server.is_empty, timeout_s=1)


def test_a_failure_under_way_raises_in_the_client() -> None:
    with (
        serving(endless, step_duration_s=0.002) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client,
    ):
        stream = client.completions.create(model=MODEL, prompt="x", max_tokens=900, stream=True)
        with pytest.raises(openai.APIError, match="The engine failed"):
            for _ in stream:
                server.executor.failure = RuntimeError("gone")
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model=MODEL, prompt="x")
