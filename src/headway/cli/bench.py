"""`headway bench`: replay a workload on the real model under each batching policy, and compare."""

from __future__ import annotations

from typing import Any

import click

from headway.cli.options import options_from, options_of
from headway.config import EngineOptions
from headway.frontends.bench_options import BenchOptions


@click.command()
@click.option("--model", help="Hugging Face folder or GGUF file; default: the bundled model.", metavar="PATH")
@options_from(BenchOptions)
@options_from(EngineOptions, exclude=("policy",))
def bench(model: str | None, **params: Any) -> None:
    """Replay a workload on the real model under each batching policy and print one table.

    Time to first token (TTFT) counts from a request's arrival, gaps between tokens (ITL; TPOT is their mean in one
    request) from one step's end to another's, as `vllm bench serve` defines them. KV waste is the share of the slots in
    blocks that live requests hold which hold no computed token, measured from the pool at every step.

    \b
    Examples:
        headway bench
        headway bench --trace azure2023_conv.csv.gz --num-prompts 200 --length-divisor 4 --load 0.7
        headway bench --policies continuous,chunked --request-rate 2 --slo ttft_ms=2000,itl_ms=200 --json -
    """
    from headway.cli.bench_run import BenchRun

    run: BenchRun = BenchRun(model, options_of(BenchOptions, params), options_of(EngineOptions, params))
    if run.execute():
        raise click.Abort
