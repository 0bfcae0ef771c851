"""Requests against the KV pool: too large ones are refused, too many preempt each other, nobody hangs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from headway.core.events import Event, StepFinished
from tests.server.support import endless, eventually, read_until, serving

BLOCKS = 9  # eight of 16 tokens, and the null block


def test_a_prompt_larger_than_the_pool_is_refused_and_the_others_keep_running() -> None:
    """C19: such a prompt once hung a whole server."""
    with serving(endless, num_blocks=BLOCKS, max_model_len=1024, step_duration_s=0.002) as server:
        with server.connect("/v1/completions", {"prompt": "a", "max_tokens": 100, "stream": True}) as raw:
            received = raw.recv(65536)
            for length in (128, 129, 1000):
                answer = server.post("/v1/completions", prompt="x" * length, max_tokens=1)
                assert answer.status == 400 and answer.error["code"] == "context_length_exceeded"
                assert answer.error["param"] == "prompt"
                assert "8" in answer.error["message"] and str(length) in answer.error["message"]
            assert server.post("/v1/completions", prompt="y" * 100, max_tokens=1).status == 200
            read_until(raw, b"[DONE]", received=received)
        eventually(server.is_empty)


def test_a_request_that_would_outgrow_the_pool_ends_with_length() -> None:
    """Alone on eight blocks, it would otherwise preempt itself for ever."""
    with serving(endless, num_blocks=BLOCKS, max_model_len=1024) as server:
        body = server.post("/v1/completions", prompt="a" * 10, max_tokens=900).json
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["total_tokens"] == 128
        assert server.call("GET", "/v1/models").json["data"][0]["max_model_len"] == 128


def test_four_long_generations_on_eight_blocks_preempt_each_other_and_all_end() -> None:
    """F14."""
    with serving(endless, num_blocks=BLOCKS, max_num_seqs=4, max_model_len=1024) as server:

        def generate(index: int) -> tuple[int, str]:
            body = server.post("/v1/completions", prompt="ab"[index % 2] * (10 + index), max_tokens=100).json
            return body["usage"]["completion_tokens"], body["choices"][0]["text"]

        alone = [generate(index) for index in range(4)]
        assert server.metric("vllm:num_preemptions_total") == 0
        server.executor.gate.clear()
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(generate, index) for index in range(4)]
            eventually(lambda: server.service.engine.num_requests == 4)
            server.executor.gate.set()
            together = [future.result(timeout=30) for future in futures]
        assert together == alone, "a preemption changes nothing that a client sees"
        assert [num_tokens for num_tokens, _ in together] == [100] * 4
        assert server.metric("vllm:num_preemptions_total") > 0
        assert server.metric("vllm:request_num_preemptions_sum") == server.metric("vllm:num_preemptions_total")
        eventually(server.is_empty)


def test_sixty_four_streams_at_once_get_the_text_of_a_single_run() -> None:
    with serving(endless, num_blocks=200, max_model_len=256) as server:

        def text(index: int) -> str:
            events = server.post("/v1/completions", prompt="q" * (index + 1), max_tokens=60, stream=True).events
            return "".join(choice["text"] for event in events for choice in event["choices"])

        alone = [text(index) for index in range(64)]
        with ThreadPoolExecutor(64) as pool:
            assert list(pool.map(text, range(64))) == alone


def test_priority_lets_a_later_request_go_first() -> None:
    """Under the priority policy the lower number runs first."""
    order: list[int] = []

    def note_finished(event: Event) -> None:
        if isinstance(event, StepFinished):
            order.extend(output.request.priority for output in event.outputs if output.finish_reason is not None)

    with serving(endless, max_num_seqs=1, scheduling_policy="priority") as server:
        server.engine.listeners.append(note_finished)
        server.executor.gate.clear()

        def generate(priority: int) -> None:
            server.post("/v1/completions", prompt="p", max_tokens=2, priority=priority)

        with ThreadPoolExecutor(3) as pool:
            for count, priority in enumerate((0, 5, 1), start=1):
                pool.submit(generate, priority)
                eventually(lambda count=count: server.service.engine.num_requests == count)  # type: ignore[misc]
            eventually(lambda: len(server.engine.scheduler.running) == 1)
            server.executor.gate.set()
    assert order == [0, 1, 5]
