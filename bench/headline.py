"""The tables of docs/headline.md: what chunked prefill does for Llama 3.3 70B FP8 on H100 under mixed traffic.

    python bench/headline.py --traces azure2023_code.csv.gz,azure2023_conv.csv.gz

128 clients send the first requests of each trace, merged by arrival; the four policies run side by side, on one, two
and four GPUs and at several token budgets. Then single steps: the time of a 32k prompt, and of a full chunk beside
decodes. Prints Markdown.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from headway.config import BATCHING_POLICIES
from headway.errors import ConfigError
from headway.executors.simulated.oracle import Chunk, StepShape
from headway.report.summary import Summary
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedWorkload, simulate
from headway.simulation.workload_options import WorkloadOptions

GPUS = (1, 2, 4)
BUDGETS = (512, 2048, 4096, 8192)
_NUM_DECODES, _CONTEXT = 96, 1600


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", required=True, help="trace files, separated by commas")
    parser.add_argument("--num-prompts", type=int, default=500, help="requests of each trace")
    parser.add_argument("--concurrency", type=int, default=128)
    arguments = parser.parse_args()
    workload, _ = WorkloadOptions(
        trace=arguments.traces,
        num_prompts=arguments.num_prompts,
        concurrency=arguments.concurrency,
        skip_too_long=True,
    ).open()
    print_mixed(workload, arguments.concurrency)
    print_steps()


def deployment(num_gpus: int, budget: int | None, seats: int) -> DeploymentOptions:
    """As in the page. On one GPU a shorter limit, so that policies that reserve can hold a request at all."""
    longest = 16384 if num_gpus > 1 else 8192 if (budget or 0) < 8192 else 4096
    return DeploymentOptions(
        model="llama-3.3-70b",
        gpu="h100",
        tensor_parallel_size=num_gpus,
        quantization="fp8",
        kv_cache_dtype="fp8",
        max_model_len=longest,
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
    )


def print_mixed(workload: SimulatedWorkload, seats: int) -> None:
    """One row for each number of GPUs and budget."""
    print(
        "| GPUs | budget | KV tokens | naive | static | continuous | chunked | P99 ITL continuous | P99 ITL chunked |"
    )
    print("| --: " * 9 + "|")
    for num_gpus in GPUS:
        for budget in BUDGETS:
            options = deployment(num_gpus, budget, seats)
            try:
                found = {policy: _run(options, policy, workload) for policy in BATCHING_POLICIES}
            except ConfigError as error:
                print(f"| {num_gpus} | {budget:,} | {error.message} |")
                continue
            cache = options.resolve().deployment.config.cache
            tokens = (cache.num_blocks - 1) * cache.block_size
            rates = " | ".join(f"{found[policy]['output_throughput']:,.1f}" for policy in BATCHING_POLICIES)
            whole, cut = (float(found[policy]["p99_itl_ms"] or 0.0) for policy in ("continuous", "chunked"))
            speed = float(found["chunked"]["output_throughput"] or 0.0)
            share = speed / float(found["continuous"]["output_throughput"] or 1.0)
            alone = float(found["naive"]["output_throughput"] or 0.0) / speed
            ratios = f"P99 ITL ratio {cut / whole:.2f} at {share:.3f} of the throughput, naive {alone:.3f} of it"
            waits = " ".join(f"{found[policy]['mean_ttft_ms']:,.0f}" for policy in ("continuous", "chunked"))
            print(
                f"| {num_gpus} | {budget:,} | {tokens:,} | {rates} | {whole:,.0f} ms | {cut:,.0f} ms | {ratios} |",
                end="",
            )
            print(f" TTFT {waits} ms, running {found['chunked']['mean_num_running']:.0f}")


def _run(options: DeploymentOptions, policy: str, workload: SimulatedWorkload) -> Summary:
    if policy in ("naive", "static"):
        options = replace(options, async_scheduling=False)
    return simulate(options.resolve(policy).deployment, workload).summary


def print_steps() -> None:
    """Single steps, priced by the roofline."""
    print("\n| GPUs | 32k prompt | decodes alone | with 512 | with 2,048 | with 4,096 | with 8,192 |")
    print("| --: " * 7 + "|")
    for num_gpus in (*GPUS, 8):
        oracle = replace(deployment(num_gpus, 2048, 128), kv_cache_dtype="fp8").resolve().deployment.oracle
        prompt = oracle.step_time(StepShape((Chunk(32768, 0),), 0, 0, 0, 1)).device_s
        cells = [f"{prompt:.1f} s"]
        for chunk in (0, *BUDGETS):
            chunks = (Chunk(chunk - _NUM_DECODES, 0),) if chunk else ()
            context = _NUM_DECODES * _CONTEXT
            step = oracle.step_time(StepShape(chunks, _NUM_DECODES, _NUM_DECODES, context, _NUM_DECODES))
            cells.append(f"{step.device_s * 1e3:,.0f} ms")
        print(f"| {num_gpus} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
