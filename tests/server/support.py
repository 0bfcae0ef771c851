"""A server on a real socket over a scripted engine: each test says which tokens come out."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from headway.config import REFERENCE_ENGINE_VERSION, CacheConfig, SchedulerConfig, ServerOptions
from headway.core.arrivals import Inbox
from headway.core.clock import WallClock
from headway.core.engine import Engine
from headway.core.plan import NOTHING, Emission, ScheduledRequest, StepPlan, StepResult
from headway.core.request import Request, TokenContent
from headway.core.scheduler import Scheduler
from headway.executors.base import SynchronousExecutor
from headway.frontends.request_stream import ModelLimits
from headway.frontends.server.app import build_app
from headway.frontends.server.run import Server, bind, url_of
from headway.frontends.server.service import Service, make_service
from headway.text.token_bytes import byte_alphabet
from headway.text.tokenizer import Tokenizer

MODEL = "tiny/scripted"
EOS = 256
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

Script = Callable[[Request], Sequence[int]]
"""Output token ids of a request; after them comes the end-of-sequence token, again and again."""


def byte_tokenizer(pieces: Sequence[str] = (), *, chat: bool = True) -> Tokenizer:
    """One token a byte (ids 0 to 255), the special token <eos> (256), then one token for each of `pieces`."""
    backend = Backend(models.BPE(vocab=byte_alphabet(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<eos>", special=True, normalized=False)])
    backend.add_tokens([AddedToken(piece, normalized=False) for piece in pieces])
    return Tokenizer(backend, eos_token_ids=[EOS], chat_template=TEMPLATE if chat else None)


class Top(NamedTuple):
    """What the scripted sampler reports of a token."""

    token_id: int
    logprob: float
    top: Sequence[tuple[int, float]]


class PromptedExecutor(SynchronousExecutor):
    """Emits the token of the script that the request's length asks for, so that preemptions change nothing."""

    def __init__(self, script: Script, step_duration_s: float = 0.0) -> None:
        self.script = script
        self.step_duration_s = step_duration_s
        self.gate = threading.Event()
        """Steps wait while this is clear."""
        self.gate.set()
        self.failure: Exception | None = None
        self._scripts: dict[str, Sequence[int]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        """One token for each request that samples."""
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        for request_id in plan.released_ids:
            self._scripts.pop(request_id, None)
        emissions = [self._emit(item) if item.samples else NOTHING for item in plan.scheduled]
        return StepResult(plan.step_id, emissions, self.step_duration_s, "scripted")

    def _emit(self, item: ScheduledRequest) -> Emission:
        request = item.request
        if request.request_id not in self._scripts:
            self._scripts[request.request_id] = self.script(request)
        script = self._scripts[request.request_id]
        token_id = script[request.num_output_tokens] if request.num_output_tokens < len(script) else EOS
        num_top = request.sampling.logprobs
        top = None if num_top is None else [Top(token_id, -0.5, [(token_id, -0.5), (33, float("-inf"))][:num_top])]
        return Emission(1, (token_id,), logprobs=top)


def prompt_text(request: Request) -> str:
    """The prompt's text, where it is plain bytes."""
    assert isinstance(request.content, TokenContent)
    ids = request.content.token_ids[: request.num_prompt_tokens]
    return bytes(token_id for token_id in ids if token_id < 256).decode(errors="replace")


def says(text: str) -> Script:
    """A script that is the same for all: the bytes of `text`."""
    return lambda request: list(text.encode())


def endless(request: Request) -> Sequence[int]:
    """A script that never ends of itself, different for each prompt length."""
    return [97 + (request.num_prompt_tokens + i) % 26 for i in range(5000)]


@dataclass
class LiveServer:
    """A running server and what is behind it."""

    url: str
    port: int
    service: Service
    executor: PromptedExecutor

    @property
    def engine(self) -> Engine:
        """The engine, for looking only."""
        return self.service.engine.engine

    def call(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One HTTP exchange; a `body` that is neither bytes nor None is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def post(self, path: str, **body: Any) -> Answer:
        """POST a JSON object."""
        return self.call("POST", path, body)

    def connect(self, path: str, body: dict[str, Any]) -> socket.socket:
        """Send a request over a raw socket and leave the answer unread."""
        data = json.dumps(body).encode()
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        raw.sendall(head.encode() + data)
        return raw

    def metric(self, name: str) -> float:
        """Sum of one metric's samples."""
        lines = self.call("GET", "/metrics").text.splitlines()
        values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " "))]
        assert values, f"no metric {name}"
        return sum(values)

    def is_empty(self) -> bool:
        """Whether no request runs or waits and every block is free."""
        pool = self.engine.scheduler.kv.pool
        return not self.engine.scheduler.requests and pool.num_free_blocks == pool.num_usable_blocks


class Answer(NamedTuple):
    """An HTTP response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object; its shape is checked."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str) and isinstance(error["type"], str)
        assert error["code"] is None or isinstance(error["code"], str)
        assert isinstance(error, dict)
        return error

    @property
    def events(self) -> list[dict[str, Any]]:
        """The JSON events of a stream; that it ends with [DONE] is checked."""
        lines = [line for line in self.text.split("\n\n") if line and not line.startswith(":")]
        assert lines[-1] == "data: [DONE]" and lines.count("data: [DONE]") == 1
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def read_until(raw: socket.socket, *markers: bytes, received: bytes = b"") -> bytes:
    """Read until one of the markers has come; everything read, `received` first."""
    while not any(marker in received for marker in markers):
        chunk = raw.recv(65536)
        assert chunk, f"the connection ended before {markers}: {received[-300:]!r}"
        received += chunk
    return received


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait for a condition; fail if it never comes."""
    pause = threading.Event()
    for _ in range(int(timeout_s / 0.005)):
        if condition():
            return
        pause.wait(0.005)
    assert condition(), "the condition did not come true in time"


@contextmanager
def serving(
    script: Script = endless,
    *,
    pieces: Sequence[str] = (),
    options: ServerOptions | None = None,
    num_blocks: int = 513,
    max_model_len: int = 1024,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 256,
    step_duration_s: float = 0.0,
    vocab_size: int | None = None,
    chat: bool = True,
    scheduling_policy: str = "fcfs",
) -> Iterator[LiveServer]:
    """A server on a free port for as long as the block lasts."""
    tokenizer = byte_tokenizer(pieces, chat=chat)
    limits = ModelLimits(max_model_len, 16, vocab_size or tokenizer.vocab_size, tokenizer.eos_token_ids)
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs, max_num_batched_tokens, max_model_len, scheduling_policy=scheduling_policy),
        CacheConfig(num_blocks),
        engine_version=REFERENCE_ENGINE_VERSION,
    )
    executor = PromptedExecutor(script, step_duration_s)
    inbox = Inbox()
    engine = Engine(scheduler, executor, WallClock(), inbox)
    service = make_service(engine, inbox, tokenizer, limits, model_name=MODEL, options=options)
    with running(service) as url:
        try:
            yield LiveServer(url, int(url.rsplit(":", 1)[1]), service, executor)
        finally:
            executor.gate.set()


@contextmanager
def running(service: Service, grace_s: float = 0.2) -> Iterator[str]:
    """Serve in a thread; yields the URL."""
    ready = threading.Event()
    listener = bind("127.0.0.1", 0)
    server = Server(build_app(service), service.engine, on_ready=ready.set, grace_s=grace_s)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        assert ready.wait(10), "the server did not start"
        yield url_of(listener)
    finally:
        server.request_stop()
        thread.join(30)
        listener.close()
        assert not thread.is_alive()
