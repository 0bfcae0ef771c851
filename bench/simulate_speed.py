"""How fast a simulation runs, on one core.

    python bench/simulate_speed.py --trace ../shared/data/traces/azure2023_conv.csv.gz
    python bench/simulate_speed.py --million

The first: all requests of the trace at 6.45 requests/s, Llama-3-8B on one A100-80GB, prefix caching off, with
fast-forward and without, in turns, so that a busy machine slows both alike; the medians and their ratio are printed.
(The model is named 3.1: the layers are the same, and its limit holds the longest requests of the trace.)
The second: one million requests of 256 prompt and 128 output tokens, Poisson arrivals at 70 % of the throughput that
the same deployment reaches with all at once; with its peak memory. Times are CPU times of this process.
"""

from __future__ import annotations

import argparse
import math
import platform
import resource
import statistics
import sys
import time

from headway.simulation.options import DeploymentOptions, ResolvedDeployment
from headway.simulation.run import SimulatedWorkload, SimulationResult, simulate
from headway.simulation.workload_options import WorkloadOptions

_RATE = 6.45
_MILLION = 1_000_000
_LOAD = 0.7
_CAPACITY_REQUESTS = 4000


def main() -> None:
    """Run what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trace", help="trace to replay, such as azure2023_conv.csv.gz")
    parser.add_argument("--million", action="store_true", help="simulate one million generated requests")
    parser.add_argument("--rounds", type=int, default=3, help="repetitions of each way")
    parser.add_argument("--latency", default="roofline", help="oracle, as for headway simulate")
    parser.add_argument("--async-scheduling", action="store_true", help="as vLLM does by default since 0.14")
    arguments = parser.parse_args()
    deployment = DeploymentOptions(
        model="llama-3.1-8b",
        gpu="a100",
        max_model_len=16384,
        latency=arguments.latency,
        enable_prefix_caching=False,
        async_scheduling=arguments.async_scheduling,
    ).resolve()
    print(f"Python {platform.python_version()} on {platform.machine()}; {deployment.name}, {arguments.latency}")
    if arguments.trace is not None:
        compare(deployment, arguments.trace, arguments.rounds)
    if arguments.million:
        million(deployment)


def compare(deployment: ResolvedDeployment, trace: str, rounds: int) -> None:
    """The trace with fast-forward and without, in turns."""
    workload, facts = WorkloadOptions(trace=trace, request_rate=_RATE).open()
    seconds: dict[bool, list[float]] = {True: [], False: []}
    results: dict[bool, SimulationResult] = {}
    for _ in range(rounds):
        for fast in (True, False):
            started = time.process_time()
            results[fast] = _run(deployment, workload, fast)
            seconds[fast].append(time.process_time() - started)
    for fast, name in ((True, "fast-forward"), (False, "every step")):
        median = statistics.median(seconds[fast])
        steps = results[fast].summary["num_steps"] or 0
        rates = ", ".join(f"{facts.num_requests / value:,.0f}" for value in seconds[fast])
        print(
            f"{name:<13} {facts.num_requests / median:>8,.0f} requests/s, {steps / median:>9,.0f} steps/s, "
            f"{median:.2f} s (rounds: {rates})"
        )
    ratio = statistics.median(seconds[False]) / statistics.median(seconds[True])
    fast_summary, slow_summary = results[True].summary, results[False].summary
    differing = [
        key
        for key, value in slow_summary.items()
        if value is not None and not math.isclose(value, fast_summary[key] or 0.0, rel_tol=1e-9)
    ]
    print(f"ratio         {ratio:.1f}; figures that differ by more than 1e-9: {', '.join(differing) or 'none'}")
    if differing:
        sys.exit("fast-forward changed a figure")


def million(deployment: ResolvedDeployment) -> None:
    """A million requests at 70 % of capacity."""
    saturated, _ = _short_requests(_CAPACITY_REQUESTS, None).open()
    capacity = _run(deployment, saturated, fast=True).summary["request_throughput"]
    assert capacity is not None
    rate = _LOAD * capacity
    options = _short_requests(_MILLION, rate)
    started, cpu = time.perf_counter(), time.process_time()
    result = _run(deployment, options.open()[0], fast=True)
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    summary = result.summary
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{_MILLION:,} requests at {rate:.1f} of {capacity:.1f} requests/s: {wall_s:.0f} s ({cpu_s:.0f} s of CPU), "
        f"{_MILLION / cpu_s:,.0f} requests/s, peak {peak_gb:.2f} GB; {summary['num_steps']:,} steps, "
        f"{summary['mean_num_running']:.0f} running on average"
    )


def _short_requests(num_prompts: int, rate: float | None) -> WorkloadOptions:
    return WorkloadOptions(num_prompts=num_prompts, request_rate=rate, prompt_tokens="256", output_tokens="128")


def _run(deployment: ResolvedDeployment, workload: SimulatedWorkload, fast: bool) -> SimulationResult:
    return simulate(deployment.deployment, workload, fast_forward=fast)


if __name__ == "__main__":
    main()
