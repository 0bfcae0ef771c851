"""What clients of `headway serve --executor sim` measure, and what `headway simulate` predicts for the same arrivals.

    python bench/simulated_server.py                       # 23 ms steps, some ten requests under way
    python bench/simulated_server.py --request-rate 30     # beyond what the server promises: look at its lag

The server runs in a process of its own. Two clients take turns: the `openai` package, and plain sockets that read
server-sent events as `vllm bench serve` does. Each request is sent at its instant of a Poisson process; the instants at
which a client really sent are then simulated, so that a late client is no error of the server. Prints the means and
tails of TTFT and of the gaps between tokens, measured and predicted, and the server's own lag.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import urlsplit

import openai

from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedWorkload, simulate
from headway.text.stand_in import StandInTokenizer
from headway.workload import TraceRequest

_MODEL = "llama-3.1-8b"
_WORDS = ("the", "of", "and", "to", "in", "is", "was", "for", "on", "are", "with", "his", "they", "this", "from", "had")


@dataclass(slots=True)
class Sent:
    """One request and what its client saw: instants on the client's clock, the first of them when it was sent."""

    prompt: str
    num_prompt_tokens: int
    num_output_tokens: int
    sent_at: float = 0.0
    chunks_at: list[float] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        """From sending to the first text."""
        return (self.chunks_at[0] - self.sent_at) * 1e3

    @property
    def itls_ms(self) -> list[float]:
        """Gaps between texts."""
        return [(b - a) * 1e3 for a, b in zip(self.chunks_at, self.chunks_at[1:], strict=False)]


Client = Callable[[Sent], Coroutine[Any, Any, None]]
MakeClient = Callable[[str], AbstractAsyncContextManager[Client]]


def main() -> None:
    """Serve, load, simulate, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpu", default="l40s")
    parser.add_argument("--num-prompts", type=int, default=60, help="requests of a client and round")
    parser.add_argument("--request-rate", type=float, default=6.0)
    parser.add_argument("--prompt-tokens", default="50-900", help="shortest and longest prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-async-scheduling", action="store_true")
    arguments = parser.parse_args()
    switch = ["--no-async-scheduling"] if arguments.no_async_scheduling else []
    command = ["serve", "--executor", "sim", "--model", _MODEL, "--gpu", arguments.gpu, "--port", "0", *switch]
    server = subprocess.Popen(
        [Path(sys.executable).with_name("headway"), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        url = wait_for(server)
        options = DeploymentOptions(
            model=_MODEL, gpu=arguments.gpu, async_scheduling=False if arguments.no_async_scheduling else None
        )
        totals: dict[str, list[tuple[list[Sent], dict[str, float | int | None]]]] = {}
        for round_index in range(arguments.rounds):
            for name, make in (("openai", openai_client), ("sockets", socket_client)):
                # No prompt twice, or the prefix cache would have it.
                seed = f"{name} {round_index}"
                requests = make_requests(arguments.num_prompts, arguments.prompt_tokens, seed)
                asyncio.run(send_all(url, make, requests, arguments.request_rate, seed=round_index))
                totals.setdefault(name, []).append((requests, predict(options, requests)))
        for name, runs in totals.items():
            print_comparison(name, runs)
        print_lag(url)
    finally:
        server.terminate()
        server.wait(20)


def wait_for(server: subprocess.Popen[str]) -> str:
    """The address in the banner, which comes once connections are accepted."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return found.group()
    raise SystemExit("the server did not start")


def make_requests(count: int, lengths: str, seed: str) -> list[Sent]:
    """Prompts of words that are each a token of the stand-in tokenizer; outputs of 32 to 96 tokens."""
    rng, tokenizer = random.Random(seed), StandInTokenizer()
    shortest, longest = map(int, lengths.split("-"))
    requests = []
    for _ in range(count):
        prompt = " ".join(rng.choices(_WORDS, k=rng.randint(shortest, longest)))
        requests.append(Sent(prompt, len(tokenizer.encode(prompt)), rng.randrange(32, 97)))
    return requests


async def send_all(url: str, make: MakeClient, requests: Sequence[Sent], rate: float, seed: int) -> None:
    """Each at its own instant, whether or not others have been answered.

    One request before them, so that none pays for what a client loads at its first.
    """
    async with make(url) as client:
        await client(Sent("a", 1, 2))
        await _send_all(client, requests, rate, seed)


async def _send_all(client: Client, requests: Sequence[Sent], rate: float, seed: int) -> None:
    rng, at = random.Random(f"arrivals {seed}"), time.perf_counter() + 0.2
    tasks: list[asyncio.Task[None]] = []
    for request in requests:
        await asyncio.sleep(max(0.0, at - time.perf_counter()))
        tasks.append(asyncio.create_task(client(request)))
        at += rng.expovariate(rate)
    await asyncio.gather(*tasks)


@asynccontextmanager
async def openai_client(url: str) -> AsyncIterator[Client]:
    """The official package."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)

    async def send(request: Sent) -> None:
        request.sent_at = time.perf_counter()
        stream = await client.completions.create(
            model=_MODEL, prompt=request.prompt, max_tokens=request.num_output_tokens, stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].text:
                request.chunks_at.append(time.perf_counter())

    async with client:
        yield send


@asynccontextmanager
async def socket_client(url: str) -> AsyncIterator[Client]:
    """One connection a request; each server-sent event with text counts, as in `vllm bench serve`."""
    address = urlsplit(url)

    async def send(request: Sent) -> None:
        body = json.dumps(
            {"prompt": request.prompt, "max_tokens": request.num_output_tokens, "stream": True, "ignore_eos": True}
        ).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        request.sent_at = time.perf_counter()
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head.encode() + body)
        async for line in reader:
            if line.startswith(b"data: {") and b'"text":""' not in line:
                request.chunks_at.append(time.perf_counter())
        writer.close()

    yield send


def predict(options: DeploymentOptions, requests: Sequence[Sent]) -> dict[str, float | int | None]:
    """The summary of a simulation of what was sent when."""
    begin = min(request.sent_at for request in requests)
    trace = [TraceRequest(r.sent_at - begin, r.num_prompt_tokens, r.num_output_tokens) for r in requests]
    trace.sort(key=lambda request: request.arrival_s)
    return dict(simulate(options.resolve().deployment, SimulatedWorkload(trace)).summary)


def print_comparison(name: str, runs: Sequence[tuple[Sequence[Sent], dict[str, float | int | None]]]) -> None:
    """Means over all rounds."""
    requests = [request for sent, _ in runs for request in sent]
    gaps = sorted(gap for request in requests for gap in request.itls_ms)
    ttfts = sorted(request.ttft_ms for request in requests)
    tokens = sum(request.num_output_tokens for request in requests)
    seen = sum(len(request.chunks_at) for request in requests)
    spans = [max(r.chunks_at[-1] for r in sent) - min(r.sent_at for r in sent) for sent, _ in runs]
    print(f"{name}: {len(requests)} requests, {tokens} tokens in {seen} texts, {tokens / sum(spans):.0f} tokens/s")
    for key, measured in (
        ("mean_ttft_ms", mean(ttfts)),
        ("p99_ttft_ms", ttfts[int(0.99 * len(ttfts))]),
        ("mean_itl_ms", mean(gaps)),
        ("p99_itl_ms", gaps[int(0.99 * len(gaps))]),
        ("mean_num_running", float("nan")),
    ):
        predicted = mean(float(summary[key] or 0.0) for _, summary in runs)
        error = "" if measured != measured else f"  measured {measured:8.2f}  {measured / predicted - 1:+6.1%}"
        print(f"  {key:<17} predicted {predicted:8.2f}{error}")


def print_lag(url: str) -> None:
    """The server's own account of how late it was."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        lines = response.read().decode().splitlines()
    for line in lines:
        if line.startswith("headway:simulation_") and "_created" not in line:
            print(f"  {line}")


if __name__ == "__main__":
    main()
