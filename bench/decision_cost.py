"""Cost of one scheduling decision: ours and vLLM's own, in one run.

Microseconds of CPU time for schedule() and update() together, in steady decode with prefix caching on and outputs made;
building the model runner's answer is left out on both sides. vLLM's classes run in an environment of their own
($HEADWAY_VLLM_PYTHON, or one made under ~/.cache/headway); the two sides take turns, a batch of steps each.

    python -m bench.decision_cost
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
SIZES = (8, 64, 256, 1024)
BLOCK_SIZE = 16
PROMPT_TOKENS = 200
NUM_STEPS = 200
ROUNDS = 8
WARM_UP_STEPS = 40


class Side(Protocol):
    """One scheduler in steady decode."""

    def setup(self, num_running: int, log_stats: bool) -> None:
        """Start anew with so many requests, all past their prompts."""

    def run(self, num_steps: int) -> list[float]:
        """Take steps. Returns CPU microseconds of schedule() and update() for each."""


def _prompts(num_running: int) -> list[list[int]]:
    return [list(range(i * PROMPT_TOKENS, (i + 1) * PROMPT_TOKENS)) for i in range(num_running)]


def _limits(num_running: int) -> tuple[int, int]:
    """Tokens that each request may generate, and blocks that hold everything."""
    max_tokens = WARM_UP_STEPS + NUM_STEPS + 100
    return max_tokens, 2 + num_running * (-(-(PROMPT_TOKENS + max_tokens) // BLOCK_SIZE))


class OurSide:
    """headway's Scheduler with token ids, as under a real model."""

    def setup(self, num_running: int, log_stats: bool) -> None:
        """See `Side`."""
        from headway.config import CacheConfig, SchedulerConfig
        from headway.core.request import Request, TokenContent
        from headway.core.sampling import SamplingParams
        from headway.core.scheduler import Scheduler

        max_tokens, num_blocks = _limits(num_running)
        limits = SchedulerConfig(num_running, max(8192, num_running), 8192)
        self.scheduler = Scheduler(limits, CacheConfig(num_blocks, BLOCK_SIZE), engine_version="0.32.0")
        self.scheduler.stats.samples_kv = log_stats
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        for i, ids in enumerate(_prompts(num_running)):
            content = TokenContent(ids, BLOCK_SIZE)
            self.scheduler.add(Request(f"r{i}", content, len(ids), sampling, 8192, arrived_at=float(i)))
        while len(self.scheduler.running) < num_running or self._has_prefill():
            self.run(1)
        self.run(WARM_UP_STEPS)

    def _has_prefill(self) -> bool:
        return any(request.num_output_tokens == 0 for request in self.scheduler.running)

    def run(self, num_steps: int) -> list[float]:
        """See `Side`."""
        from headway.core.plan import NOTHING, Emission, StepResult

        clock, schedule, update = time.thread_time, self.scheduler.schedule, self.scheduler.update
        took = []
        for step in range(num_steps):
            started = clock()
            plan = schedule(0.0)
            decided = clock()
            emissions = [Emission(1, [100 + step]) if item.samples else NOTHING for item in plan.scheduled]
            result = StepResult(plan.step_id, emissions, 0.0)
            answered = clock()
            outputs = update(plan, result, 0.0)
            took.append(1e6 * (decided - started + clock() - answered))
            del outputs
        return took


class VllmSide:
    """vLLM's Scheduler, in its own environment."""

    def __init__(self) -> None:
        from tests.conformance.vllm_release import DEFAULTS, Release

        self.defaults = DEFAULTS
        self.release = Release()

    def setup(self, num_running: int, log_stats: bool) -> None:
        """See `Side`."""
        max_tokens, num_blocks = _limits(num_running)
        settings = self.defaults | {
            "max_num_seqs": num_running,
            "max_num_batched_tokens": max(8192, num_running),
            "num_blocks": num_blocks,
            "enable_prefix_caching": True,
        }
        self.scheduler = self.release.scheduler(settings, log_stats=log_stats)
        self.requests = {}
        for i, ids in enumerate(_prompts(num_running)):
            row = {"id": f"r{i}", "prompt_token_ids": ids, "max_tokens": max_tokens}
            request = self.release.request(row, i, BLOCK_SIZE)
            self.requests[request.request_id] = request
            self.scheduler.add_request(request)
        while any(request.num_output_tokens == 0 for request in self.requests.values()):
            self.run(1)
        self.run(WARM_UP_STEPS)

    def run(self, num_steps: int) -> list[float]:
        """See `Side`."""
        clock, schedule, update = time.thread_time, self.scheduler.schedule, self.scheduler.update_from_output
        took = []
        for step in range(num_steps):
            started = clock()
            output = schedule()
            decided = clock()
            ids = list(output.num_scheduled_tokens)
            done = [self.requests[i].num_computed_tokens >= self.requests[i].num_tokens for i in ids]
            result = self.release.result(ids, [[100 + step] if samples else [] for samples in done])
            answered = clock()
            outputs = update(output, result)
            took.append(1e6 * (decided - started + clock() - answered))
            del outputs
        return took


class RemoteSide:
    """`VllmSide` in a subprocess, driven by lines of JSON."""

    def __init__(self) -> None:
        from tests.conformance.live_oracle import vllm_python

        command = [str(vllm_python()), "-W", "ignore", "-m", "bench.decision_cost", "--vllm-side"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
        )
        self.version = self._ask({})

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise RuntimeError("the vLLM side ended: run `python -m bench.decision_cost --vllm-side` there to see why")

    def setup(self, num_running: int, log_stats: bool) -> None:
        """See `Side`."""
        self._ask({"setup": [num_running, log_stats]})

    def run(self, num_steps: int) -> list[float]:
        """See `Side`."""
        took: list[float] = self._ask({"run": num_steps})
        return took

    def close(self) -> None:
        """End the subprocess."""
        self._process.kill()
        self._process.communicate()


def serve_vllm_side() -> None:
    """Answer a `RemoteSide` on the standard streams."""
    side = VllmSide()
    for line in sys.stdin:
        question = json.loads(line)
        answer: Any = side.release.version
        if "setup" in question:
            side.setup(*question["setup"])
        elif "run" in question:
            answer = side.run(question["run"])
        print("answer " + json.dumps(answer), flush=True)


def measure(ours: Side, theirs: Side, num_running: int, log_stats: bool) -> tuple[list[float], list[float]]:
    """Both sides' CPU microseconds a step; they take turns, so that a busy spell of the machine hits both."""
    took: tuple[list[float], list[float]] = ([], [])
    for side in (ours, theirs):
        side.setup(num_running, log_stats)
    for _ in range(ROUNDS):
        for side, times in zip((ours, theirs), took, strict=True):
            times += side.run(NUM_STEPS // ROUNDS)
    return took


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: prints a table, or JSON."""
    parser = argparse.ArgumentParser(description="Cost of a scheduling decision, ours and vLLM's.")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="running requests (default %(default)s)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--vllm-side", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.vllm_side:
        serve_vllm_side()
        return
    rows = []
    theirs = RemoteSide()
    try:
        for num_running in map(int, options.sizes.split(",")):
            for log_stats in (True, False):
                rows.append(_row(num_running, log_stats, *measure(OurSide(), theirs, num_running, log_stats)))
    finally:
        theirs.close()
    if options.json:
        print(json.dumps({"vllm": theirs.version, "python": platform.python_version(), "rows": rows}))
        return
    print(f"vLLM {theirs.version}, Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()};")
    print(f"CPU microseconds a step, median (mean) of {NUM_STEPS} steps, taking turns every {NUM_STEPS // ROUNDS}")
    print(f"{'running':>8} {'statistics':>10} {'headway':>18} {'vLLM':>18} {'ratio':>7}")
    for row in rows:
        ours, vllm = (f"{row[s]['median']:.0f} ({row[s]['mean']:.0f})" for s in ("headway", "vllm"))
        print(f"{row['running']:>8} {row['statistics']:>10} {ours:>18} {vllm:>18} {row['ratio']:>7.1f}")


def _row(num_running: int, log_stats: bool, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    sides = {
        name: {"median": statistics.median(times), "mean": statistics.fmean(times)}
        for name, times in (("headway", ours), ("vllm", theirs))
    }
    ratio = sides["vllm"]["median"] / sides["headway"]["median"]
    return {"running": num_running, "statistics": "on" if log_stats else "off", **sides, "ratio": ratio}


if __name__ == "__main__":
    main()
