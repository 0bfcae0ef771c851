"""The lines that a server logs about its engine, and what it says when it is stopped."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from headway.core.arrivals import Arrival, TraceSource
from headway.core.clock import VirtualClock
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.evidence.server_log import read_server_log
from headway.frontends.server.status import StatusReporter
from headway.simulation.options import DeploymentOptions

DEPLOYMENT = DeploymentOptions(
    latency="constant:prefill_us=10,decode_ms=5", num_gpu_blocks_override=100, max_model_len=512, max_num_seqs=2
)


def test_a_line_tells_what_the_engine_did_and_an_idle_engine_is_silent(tmp_path: Path) -> None:
    """The line is vLLM's, so that our own reader of logs takes it."""
    requests = [
        Arrival(Request(f"r{i}", SyntheticContent(f"r{i}"), 64, SamplingParams(max_tokens=20), 512)) for i in range(3)
    ]
    source = TraceSource([(0.0, request) for request in requests])
    engine = DEPLOYMENT.resolve().deployment.make_engine(source, fast_forward=False)
    assert isinstance(engine.clock, VirtualClock)
    lines: list[str] = []
    reporter = StatusReporter(engine, lines.append, 0.01)

    async def report() -> None:
        task = asyncio.create_task(reporter.run())
        for _ in range(5):
            engine.step()
        await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(report())
    assert len(lines) == 2, "the second tells that nothing happens any more, then there is silence"
    path = tmp_path / "server.log"
    path.write_text("\n".join(lines))
    first, second = read_server_log(path).samples
    assert (first.num_running, first.num_waiting) == (2, 1) and first.kv_usage and first.kv_usage > 0
    assert first.generation_tokens_per_s and second.generation_tokens_per_s == 0


@pytest.mark.slow
def test_a_stopped_server_says_what_it_waits_for() -> None:
    flags = ("--latency", DEPLOYMENT.latency, "--num-gpu-blocks-override", "100", "--max-model-len", "512")
    command = [sys.executable, "-m", "headway", "serve", "--executor", "sim", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stderr is not None
        url = next(line.split()[1] for line in server.stdout if line.startswith("URL:"))
        body = {"model": "simulated", "prompt": "a b c", "max_tokens": 400, "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=30) as response:
            lines = response.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            assert "Stopping: 1 request in flight" in server.stderr.readline()
            assert any("[DONE]" in line for line in lines), "what was in flight is finished"
        assert server.wait(timeout=30) == 0
