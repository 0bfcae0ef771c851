"""`headway fragmentation`: KV waste under contiguous reservation and under paging, on the same requests."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from headway.planner.fragmentation import KVUse
    from headway.workload.trace import TraceRequest


@click.command()
@click.option("--trace", type=click.Path(path_type=Path), help="A trace, or a CSV file of lengths.", metavar="FILE")
@click.option(
    "--prompt-tokens", default="1", show_default=True, help="Prompt lengths, without a trace.", metavar="SPEC"
)
@click.option(
    "--output-tokens",
    default="normal:mean=1500,std=600,max=8191",
    show_default=True,
    help="Output lengths, without a trace.",
    metavar="SPEC",
)
@click.option("--num-prompts", "num_requests", default=1000, show_default=True, help="Requests, at most.", metavar="N")
@click.option(
    "--shared-prefix-tokens", default=0, help="Tokens that all prompts begin with, without a trace.", metavar="TOKENS"
)
@click.option(
    "--max-model-len", type=int, help="Default: 8192, or the longest request's power of two.", metavar="TOKENS"
)
@click.option("--pool-tokens", type=int, help="Default: room for 16 requests of max_model_len.", metavar="TOKENS")
@click.option(
    "--block-sizes",
    default="1,8,16,32,64,128,256",
    show_default=True,
    help="Tokens in a block, to compare.",
    metavar="N,N",
)
@click.option("--seed", default=0, show_default=True, help="Seed of generated lengths.", metavar="N")
@click.option("--json", "as_json", is_flag=True, help="Print the shares as JSON.")
def fragmentation(**params: Any) -> None:
    """How much of a KV pool holds tokens: reserving contiguously against paging.

    The pool is kept under pressure: requests wait, and are admitted as soon as there is room. Shares are of the pool,
    averaged over the steps in which something waits. "At completion" is the share of its own slots that a request has
    filled when it ends.

    \b
    Examples:
        headway fragmentation
        headway fragmentation --trace azure2023_conv.csv.gz --num-prompts 2000
        headway fragmentation --prompt-tokens 700 --output-tokens 300 --shared-prefix-tokens 512
    """
    requests = _requests(params)
    longest = max(request.num_prompt_tokens + request.num_output_tokens for request in requests)
    max_model_len = params["max_model_len"] or max(8192, 1 << (longest - 1).bit_length())
    pool = params["pool_tokens"] or 16 * max_model_len
    results = _measure(requests, pool, max_model_len, _block_sizes(params["block_sizes"]))
    if params["as_json"]:
        rows = [{**asdict(result), "of_allocated": result.of_allocated} for result in results]
        document = {
            "schema": "headway.fragmentation/1",
            "num_requests": len(requests),
            "max_model_len": max_model_len,
            "pool_tokens": pool,
            "policies": rows,
        }
        click.echo(json.dumps(document, indent=2))
        return
    _print(results, len(requests), max_model_len, pool)


def _requests(params: dict[str, Any]) -> list[TraceRequest]:
    from headway.planner.lengths import described_lengths, read_lengths

    if params["trace"] is not None:
        return read_lengths(params["trace"], params["num_requests"])
    return described_lengths(
        params["prompt_tokens"],
        params["output_tokens"],
        params["num_requests"],
        shared_prefix=params["shared_prefix_tokens"],
        seed=params["seed"],
    )


def _block_sizes(text: str) -> list[int]:
    from headway.errors import ConfigError

    try:
        sizes = [int(part) for part in text.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ConfigError(f"{text!r} is not a list of block sizes.", hint="Example: 8,16,32.")
    return sizes


def _measure(requests: list[TraceRequest], pool: int, max_model_len: int, block_sizes: list[int]) -> list[KVUse]:
    from headway.planner.fragmentation import contiguous_use, paged_use

    results = [contiguous_use(requests, pool, max_model_len, kind) for kind in ("max", "pow2", "oracle")]
    results += [paged_use(requests, pool, max_model_len, size) for size in block_sizes]
    if any(request.block_keys for request in requests):
        results += [paged_use(requests, pool, max_model_len, size, sharing=True) for size in block_sizes]
    return results


def _print(results: list[KVUse], num_requests: int, max_model_len: int, pool: int) -> None:
    from headway.cli.console import make_console, print_next
    from headway.report.tables import new_table
    from headway.report.words import counted

    console = make_console()
    console.print(f"{counted(num_requests, 'request')}, max_model_len {max_model_len:,}, pool of {pool:,} tokens")
    table = new_table()
    for name in (
        "",
        "used",
        "reserved",
        "internal",
        "external",
        "at completion",
        "of allocated",
        "running",
        "preempted",
    ):
        table.add_column(name, justify="right" if name else "left")
    for result in results:
        shares = (result.used, result.reserved, result.internal, result.external)
        waited = result.mean_running > 0
        table.add_row(
            result.policy,
            *(f"{share:.1%}" if waited else "–" for share in shares),
            *(f"{share:.1%}" if share else "–" for share in (result.at_completion, result.of_allocated)),
            f"{result.mean_running:.1f}" if waited else "–",
            f"{result.num_preemptions:,}",
        )
    console.print(table)
    if any(result.mean_running == 0 for result in results):
        console.print("–: no request ever waited, so nothing can be said of a full pool; give more requests.")
    print_next(
        console, "headway plan llama-3.1-8b --gpu l40s --lengths 512/1500", "how many requests a real pool holds"
    )
