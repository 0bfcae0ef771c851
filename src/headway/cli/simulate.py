"""`headway simulate`: predict what a deployment does with a workload, without a GPU."""

from __future__ import annotations

from typing import Any

import click

from headway.cli.options import options_from, options_of
from headway.simulation.options import DeploymentOptions
from headway.simulation.output_options import OutputOptions
from headway.simulation.workload_options import WorkloadOptions


@click.command()
@options_from(DeploymentOptions)
@options_from(WorkloadOptions)
@options_from(OutputOptions)
def simulate(**params: Any) -> None:
    """Run the scheduler under a virtual clock, with step times from a latency oracle, and print one table.

    The scheduler is the one that serves, and takes vLLM's flags. Every metric is that of `vllm bench serve`; ± is the
    oracle's own error on measurements, carried to the metric. The same arguments give the same result. TTFT is
    the time to first token, TPOT the time per output token after it, ITL the gap between two tokens, E2EL the time from
    arrival to the last token.

    \b
    Examples:
        headway simulate --model llama-3.3-70b --gpu h100 --tensor-parallel-size 2 --quantization fp8 \\
            --num-prompts 640 --concurrency 64 --prompt-tokens 1024 --output-tokens 1024
        headway simulate --model llama-3-8b --gpu a100 --trace azure2023_conv.csv.gz --request-rate 6.45
        headway simulate --latency constant:prefill_us=30,decode_ms=12 --num-gpu-blocks-override 1800 \\
            --max-model-len 16384 --request-rate 40 --compare-policies
    """
    from headway.cli.simulate_run import SimulateRun

    SimulateRun(
        options_of(DeploymentOptions, params), options_of(WorkloadOptions, params), options_of(OutputOptions, params)
    ).execute()
