"""How costs grow: prefill with tokens, decode with the batch, and the host's part of a step with waiting requests.

    python -m bench.cost_growth [--only prefill,decode,waiting] [--json FILE] [--svg bench/img/cost_growth.svg]
    python -m bench.cost_growth --draw FILE     redraws and prints what --json kept

prefill: a prompt of N tokens in chunks of 256, on kernels that are timed, so that attention (which grows with the
square of N) can be told apart: what remains must be linear. decode: a step of N requests at context 128, beside the
time that reading the weights alone and multiplying alone take by the ceilings measured in the same run: flat while
reading is the longer of the two. waiting: processor time of `Engine.step` with one request running and N waiting, on
the simulated executor and on the real one with the forward pass left out, while what the queue lacks is a seat or KV
blocks; and of taking a waiting request out again, as when its client hangs up.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, cast

import torch

from bench.engine_steps import Subject, work_of
from bench.log_plots import Panel, write_panels
from bench.native.library import measure_ceilings
from bench.roofline_cpu import best_product
from headway.config import CacheConfig, SchedulerConfig
from headway.core.arrivals import Arrival, Finish, Inbox
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.executors.base import Executor
from headway.executors.simulated.constant import ConstantOracle
from headway.executors.simulated.executor import SimulatedExecutor
from headway.executors.torch import LoadedModel, TorchExecutor
from headway.executors.torch.batch import RequestRows
from headway.executors.torch.forward import Scores

_LENGTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_CHUNK = 256
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
_CONTEXT = 128
_NUM_WAITING = (1, 10, 100, 1000, 10_000)
_PROMPT, _BLOCK_SIZE = 64, 16
_STEPS_OF_BATCH, _BATCHES = 50, 20
_ABORTS = 100

Row = dict[str, float]


# ---------------------------------------------------------------- prefill


def prefill() -> list[Row]:
    """Milliseconds of prompts, the median of some; attention is the threads' mean time in that kernel."""
    subject = Subject(timed=True)
    rows = []
    for length in _LENGTHS:
        runs = subject.prompt(length, chunk=_CHUNK, repeats=max(3, 1024 // length))
        totals = [sum(step.seconds for step in run) for run in runs]
        attention = [sum(step.kernel_s["attend"] for step in run) / subject.num_threads for run in runs]
        rest = [whole - part for whole, part in zip(totals, attention, strict=True)]
        rows.append(
            {
                "tokens": length,
                "total_ms": 1e3 * statistics.median(totals),
                "attention_ms": 1e3 * statistics.median(attention),
                "rest_ms": 1e3 * statistics.median(rest),
            }
        )
    return rows


# ---------------------------------------------------------------- decode


def decode() -> list[Row]:
    """Milliseconds of steps, the median of some, and the two bounds."""
    subject = Subject()
    ceilings, best = measure_ceilings(subject.num_threads), best_product(subject.engine)
    rows = []
    for size in _SIZES:
        steps = subject.decodes(size, context=_CONTEXT)
        work = work_of(subject.model.weights, steps[len(steps) // 2].shares)
        rows.append(
            {
                "batch": size,
                "step_ms": 1e3 * statistics.median(step.seconds for step in steps),
                "reading_ms": 1e3 * (work.weight_bytes + work.kv_bytes) / ceilings.memory,
                "multiplying_ms": 1e3 * work.product_ops / best,
            }
        )
    return rows


# ---------------------------------------------------------------- waiting


class _NoForward:
    """A model and its forward pass, without arithmetic: the best token is always the same."""

    kv_bytes_per_token = 0
    cache = None

    def forward_pass(self, num_blocks: int, block_size: int) -> _NoForward:
        """See `LoadedModel`."""
        return self

    def run(self, requests: Sequence[RequestRows]) -> Scores:
        """See `ForwardPass`."""
        return Scores(torch.empty(0, 0), [7] * sum(rows.num_sampled for rows in requests))


def _real_executor(num_blocks: int) -> Executor:
    return TorchExecutor(cast(LoadedModel, _NoForward()), num_blocks, _BLOCK_SIZE)


def _simulated_executor(num_blocks: int) -> Executor:
    return SimulatedExecutor(ConstantOracle(decode_ms=1.0), filler_token_id=7)


def crowded(
    make_executor: Callable[[int], Executor], lacks: str, num_waiting: int, scheduling_policy: str = "fcfs"
) -> tuple[Engine, Inbox]:
    """An engine with one request running, and so many waiting for what it lacks: `seats` or `blocks`."""
    num_steps = _STEPS_OF_BATCH * (_BATCHES + 2)
    longest = _PROMPT + num_steps
    # For seats, there are blocks for all that run; for blocks, just enough for the one that runs, and prompts so long
    # that no other fits beside it.
    num_blocks = 4096 if lacks == "seats" else 2 + -(-longest // _BLOCK_SIZE)
    num_seats, waiting_prompt = (1, _PROMPT) if lacks == "seats" else (256, longest - _BLOCK_SIZE)
    config = SchedulerConfig(num_seats, 8192, longest, scheduling_policy=scheduling_policy)
    scheduler = Scheduler(config, CacheConfig(num_blocks, _BLOCK_SIZE), engine_version="0.32.0")
    inbox = Inbox()
    engine = Engine(scheduler, make_executor(num_blocks), VirtualClock(), inbox)
    ids = list(range(num_waiting + 1 + waiting_prompt))
    sampling = SamplingParams(temperature=0.0, max_tokens=num_steps, ignore_eos=True)
    for index, length in enumerate([_PROMPT, *[waiting_prompt] * num_waiting]):
        content = TokenContent(ids[index : index + length], _BLOCK_SIZE)
        inbox.put(Arrival(Request(str(index), content, length, sampling, longest, arrived_at=float(index))))
    engine.step()
    assert (len(scheduler.running), len(scheduler.waiting)) == (1, num_waiting)
    assert not num_waiting or scheduler.waits_for == lacks
    return engine, inbox


def step_us(engine: Engine) -> float:
    """Processor microseconds of a step: the median over batches of steps of their mean."""
    means = []
    for _ in range(_BATCHES):
        begun = time.thread_time()
        for _ in range(_STEPS_OF_BATCH):
            engine.step()
        means.append(1e6 * (time.thread_time() - begun) / _STEPS_OF_BATCH)
    return statistics.median(means)


def abort_us(engine: Engine, inbox: Inbox) -> float:
    """Processor microseconds that a step takes longer for each waiting request that is taken out in it."""
    usual = step_us(engine)
    ids = [request.request_id for request in list(engine.scheduler.waiting)[: 2 * _ABORTS : 2]]
    for request_id in ids:
        inbox.put(Finish(request_id))
    begun = time.thread_time()
    engine.step()
    return (1e6 * (time.thread_time() - begun) - usual) / len(ids)


def waiting() -> list[Row]:
    """Processor microseconds, by what is waited for and by executor."""
    executors = {"simulated": _simulated_executor, "real": _real_executor}
    rows = []
    for count in _NUM_WAITING:
        row: Row = {"waiting": count}
        for name, make in executors.items():
            for lacks in ("seats", "blocks"):
                engine, _ = crowded(make, lacks, count)
                gc.collect()
                row[f"{name}_{lacks}_us"] = step_us(engine)
        for policy in ("fcfs", "priority"):
            engine, inbox = crowded(_simulated_executor, "seats", count, policy)
            gc.collect()
            row[f"abort_{policy}_us"] = abort_us(engine, inbox)
        rows.append(row)
    return rows


# ---------------------------------------------------------------- what is printed and drawn


def exponent(rows: Sequence[Row], x: str, y: str, least: float) -> float:
    """Slope of log y over log x by least squares, from x = `least` on: 1 is linear, 0 is flat."""
    points = [(math.log(row[x]), math.log(row[y])) for row in rows if row[x] >= least]
    return statistics.linear_regression(*zip(*points, strict=True)).slope


def _table(rows: Sequence[Row]) -> list[str]:
    names = list(rows[0])
    lines = ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|---" * len(names) + "|"]
    for row in rows:
        cells = (f"{row[name]:,.0f}" if name == names[0] else f"{row[name]:,.2f}" for name in names)
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _line(rows: Sequence[Row], x: str, y: str) -> list[tuple[float, float]]:
    return [(row[x], max(row[y], 1e-3)) for row in rows]


def _prefill_panel(rows: Sequence[Row]) -> Panel:
    names = {"all": "total_ms", "attention": "attention_ms", "all but attention": "rest_ms"}
    lines = {name: _line(rows, "tokens", key) for name, key in names.items()}
    return Panel("Prefill", "tokens of the prompt", "ms", lines)


def _decode_panel(rows: Sequence[Row]) -> Panel:
    names = {"a step": "step_ms", "reading alone": "reading_ms", "multiplying alone": "multiplying_ms"}
    lines = {name: _line(rows, "batch", key) for name, key in names.items()}
    return Panel("Decode", "requests of the step", "ms", lines, dashed=("reading alone", "multiplying alone"))


def _waiting_panel(rows: Sequence[Row]) -> Panel:
    names = {
        "real engine without its forward pass, for a seat": "real_seats_us",
        "real engine without its forward pass, for blocks": "real_blocks_us",
        "simulated executor, for a seat": "simulated_seats_us",
        "simulated executor, for blocks": "simulated_blocks_us",
        "taking one out of the queue": "abort_fcfs_us",
    }
    lines = {name: _line(rows, "waiting", key) for name, key in names.items()}
    return Panel("The host's part of a step", "requests that wait", "µs of processor time", lines)


_PARTS: dict[str, Callable[[], list[Row]]] = {"prefill": prefill, "decode": decode, "waiting": waiting}
_PANELS: dict[str, Callable[[Sequence[Row]], Panel]] = {
    "prefill": _prefill_panel,
    "decode": _decode_panel,
    "waiting": _waiting_panel,
}


def _print(figures: dict[str, Any]) -> None:
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, {figures['date']}")
    for name in _PARTS:
        if name not in figures:
            continue
        print(f"\n{name}")
        for line in _table(figures[name]):
            print(line)
    if "prefill" in figures:
        slopes = [f"{exponent(figures['prefill'], 'tokens', key, _CHUNK):.2f}" for key in ("rest_ms", "attention_ms")]
        print(f"\nFrom {_CHUNK} tokens on, time grows with the power {slopes[0]} of tokens apart from attention,")
        print(f"and attention with {slopes[1]}.")
    if "waiting" in figures:
        keys = ("real_seats_us", "real_blocks_us", "simulated_seats_us", "simulated_blocks_us")
        ratios = [figures["waiting"][-1][key] / figures["waiting"][0][key] for key in keys]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"\nA step with {_NUM_WAITING[-1]:,} waiting takes {spread} times that with one.")


def main() -> None:
    """Measure or read, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(_PARTS), help="default: %(default)s")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--draw", type=Path, help="a file that --json wrote")
    args = parser.parse_args()
    if args.draw:
        figures = json.loads(args.draw.read_text())
    else:
        figures = {"date": str(date.today()), **{name: _PARTS[name]() for name in args.only.split(",")}}
    _print(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1))
    if args.svg:
        panels = [draw(figures[name]) for name, draw in _PANELS.items() if name in figures]
        write_panels(args.svg, "How costs grow", panels)


if __name__ == "__main__":
    main()
