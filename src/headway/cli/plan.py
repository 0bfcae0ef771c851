"""`headway plan`: will it fit, how many KV tokens, which token budget."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli.options import ByteSize
from headway.config import REFERENCE_ENGINE_VERSION

if TYPE_CHECKING:
    from headway.planner.deployment import Deployment
    from headway.planner.lengths import LengthStats
    from headway.planner.startup_log import StartupLog
    from headway.planner.token_budget import BudgetAdvice

_NOT_FITTING = 2


@click.command()
@click.argument("model", required=False)
@click.option(
    "--gpu",
    help="Accelerator, such as h100 or l40s; one for each pipeline rank, by commas, if they differ.",
    metavar="NAME",
)
@click.option(
    "--tp",
    "--tensor-parallel-size",
    "tensor_parallel_size",
    default=1,
    show_default=True,
    metavar="N",
    help="GPUs that share each layer.",
)
@click.option(
    "--pp",
    "--pipeline-parallel-size",
    "pipeline_parallel_size",
    default=1,
    show_default=True,
    metavar="N",
    help="Ranks that the layers are spread over.",
)
@click.option(
    "--dp", "--data-parallel-size", "data_parallel_size", default=1, show_default=True, metavar="N", help="Replicas."
)
@click.option("--nnodes", default=1, show_default=True, help="Machines that hold the GPUs.", metavar="N")
@click.option("--enable-expert-parallel", is_flag=True, help="Spread the experts over all TP and DP ranks.")
@click.option("--pp-layer-partition", help="Layers of each pipeline rank, such as 16,32.", metavar="N,N")
@click.option("--quantization", help="Weight format: fp8, awq, nvfp4, …; default: the model's own.", metavar="NAME")
@click.option("--kv-cache-dtype", default="auto", show_default=True, help="auto, fp8, …", metavar="NAME")
@click.option("--max-model-len", type=int, help="Default: the model's own limit.", metavar="TOKENS")
@click.option("--max-num-seqs", type=int, help="Default: the version's.", metavar="N")
@click.option("--max-num-batched-tokens", type=int, help="Default: the version's.", metavar="TOKENS")
@click.option("--gpu-memory-utilization", type=float, help="Default: the version's.", metavar="X")
@click.option("--block-size", type=int, help="Default: the version's.", metavar="TOKENS")
@click.option("--enforce-eager", is_flag=True, help="No CUDA graphs.")
@click.option("--enable-chunked-prefill/--no-enable-chunked-prefill", default=None, help="Default: the version's.")
@click.option("--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="Default: the version's.")
@click.option("--disable-hybrid-kv-cache-manager", is_flag=True, help="Size sliding windows as full attention.")
@click.option("--kv-cache-memory-bytes", type=ByteSize(), help="Replaces the memory profile.", metavar="SIZE")
@click.option("--num-gpu-blocks-override", type=int, help="KV blocks, instead of the planned number.", metavar="N")
@click.option("--model-weights", type=ByteSize(), help="Size of all weights, where it is known.", metavar="SIZE")
@click.option("--offline", is_flag=True, help="The LLM class instead of `vllm serve`.")
@click.option(
    "--engine-version", default=REFERENCE_ENGINE_VERSION, show_default=True, help="vLLM release.", metavar="X.Y.Z"
)
@click.option("--hf-config", help="A config.json instead of MODEL; - reads it from stdin.", metavar="FILE")
@click.option("--trace", type=click.Path(path_type=Path), help="Real lengths, from a trace.", metavar="FILE")
@click.option("--lengths", help="Real lengths: PROMPT/OUTPUT such as 512/256, or a file.", metavar="SPEC")
@click.option("--concurrency", type=int, help="Requests that are there at once.", metavar="N")
@click.option("--tpot-ms", type=float, help="Target: mean time per output token.", metavar="MS")
@click.option("--itl-ms", type=float, help="Target: longest gap between tokens.", metavar="MS")
@click.option("--ttft-ms", type=float, help="Target: time to first token, once scheduled.", metavar="MS")
@click.option("--log", "log_path", help="A vLLM start-up log to set beside the plan; - reads stdin.", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON (see docs/planner.md).")
@click.option("--list-models", is_flag=True, help="Print the catalogue's models and stop.")
@click.option("--list-gpus", is_flag=True, help="Print the catalogue's accelerators and stop.")
def plan(**params: Any) -> None:
    """Plan MODEL's memory on a GPU: will it fit, how many KV tokens and blocks, and what to change.

    MODEL is a catalogue id or a part of one (llama-3.3-70b), a folder with config.json, or a config.json file. Exit
    codes: 0 it fits, 2 it does not, or the flags cannot be.

    \b
    Examples:
        headway plan llama-3.3-70b --gpu h100 --quantization fp8 --kv-cache-dtype fp8 --max-model-len 8192
        headway plan qwen3-8b --gpu l40s --lengths 512/256 --tpot-ms 30
        headway plan ./my-model --gpu a100-40gb --tp 2 --json
        headway plan --log vllm.log
    """
    if params["list_models"] or params["list_gpus"]:
        _print_catalogue(models=params["list_models"])
        return
    logs = _read_logs(params["log_path"])
    if logs and params["model"] is None and params["hf_config"] is None and params["gpu"] is None:
        _explain(logs, None, as_json=params["as_json"])
        return
    _run(params, logs)


def _run(params: dict[str, Any], logs: list[StartupLog]) -> None:
    from headway.cli.console import make_console, print_next, repeated
    from headway.planner.advice import at_lengths
    from headway.planner.fixes import find_fixes, find_gains
    from headway.planner.plan import make_plan
    from headway.planner.report import PlanAnswer, plan_as_dict, print_plan

    deployment = _deployment(params)
    planned = make_plan(deployment)
    fixes, no_help = find_fixes(planned)
    gains = find_gains(planned) if planned.fits else ()
    stats = _lengths(params)
    lengths = None if stats is None else at_lengths(planned, stats)
    advice = None if stats is None else _advice(deployment, stats, params)
    answer = PlanAnswer(planned, fixes, no_help, gains, lengths, advice)
    if params["as_json"]:
        document = plan_as_dict(answer)
        if logs:
            document |= {"log": _log_documents(logs, planned), "comparisons": _comparisons(logs)}
        click.echo(json.dumps(document, indent=2))
    else:
        console = make_console()
        print_plan(console, answer)
        if logs:
            _explain(logs, planned, as_json=False)
        if not planned.fits and fixes:
            flag = {"accelerator": "gpu"}.get(fixes[0].setting, fixes[0].setting.replace("_", "-"))
            print_next(console, repeated(f"--{flag} {fixes[0].value}"), "the first change of the list")
        if planned.fits:
            name, card = params["hf_config"] or params["model"], params["gpu"].partition(",")[0]
            print_next(console, f"headway simulate --model {name} --gpu {card}", "how fast; it takes the same flags")
    if not planned.fits:
        sys.exit(_NOT_FITTING)


def _deployment(params: dict[str, Any]) -> Deployment:
    from headway.catalog import find_accelerator, find_model
    from headway.errors import ConfigError
    from headway.planner.deployment import Deployment

    model = params["hf_config"] or params["model"]
    if model is None:
        raise ConfigError(
            "No model is given.", hint="Name one, or give --hf-config; --list-models shows the catalogue."
        )
    if params["hf_config"] and params["model"]:
        raise ConfigError("Both a model and --hf-config are given.", hint="Give one of them.")
    if params["gpu"] is None:
        raise ConfigError("No GPU is given.", hint="Give --gpu; --list-gpus shows the catalogue.")
    copied = (
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "nnodes",
        "enable_expert_parallel",
        "quantization",
        "kv_cache_dtype",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "gpu_memory_utilization",
        "block_size",
        "enforce_eager",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "disable_hybrid_kv_cache_manager",
        "kv_cache_memory_bytes",
        "num_gpu_blocks_override",
        "engine_version",
    )
    cards = tuple(find_accelerator(name) for name in params["gpu"].split(","))
    return Deployment(
        find_model(model),
        cards[0],
        **{name: params[name] for name in copied},
        rank_accelerators=cards if len(cards) > 1 else (),
        pp_layer_partition=_partition(params["pp_layer_partition"]),
        model_weights_bytes=params["model_weights"],
        usage="llm" if params["offline"] else "api",
    )


def _partition(text: str | None) -> tuple[int, ...] | None:
    from headway.errors import ConfigError

    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{text!r} is not a layer partition.", hint="Example: 16,32.") from None


def _lengths(params: dict[str, Any]) -> LengthStats | None:
    from headway.errors import WorkloadError
    from headway.planner.lengths import described_lengths, length_stats, read_lengths

    trace, spec = params["trace"], params["lengths"]
    if trace is not None and spec is not None:
        raise WorkloadError("Both --trace and --lengths are given.", hint="Give one of them.")
    if trace is not None:
        return length_stats(read_lengths(trace))
    if spec is None:
        return None
    if Path(spec).is_file():
        return length_stats(read_lengths(Path(spec)))
    prompt, separator, output = spec.partition("/")
    if not separator:
        raise WorkloadError(f"{spec!r} is neither a file nor PROMPT/OUTPUT.", hint="Example: 512/256.")
    return length_stats(described_lengths(prompt, output, 1000))


def _advice(deployment: Deployment, stats: LengthStats, params: dict[str, Any]) -> BudgetAdvice | None:
    from headway.errors import ConfigError
    from headway.planner.token_budget import Targets, advise_budget

    targets = Targets(tpot_ms=params["tpot_ms"], itl_ms=params["itl_ms"], ttft_ms=params["ttft_ms"])
    try:
        return advise_budget(deployment, stats, targets, concurrency=params["concurrency"])
    except ConfigError as error:
        click.echo(f"No token budget: {error}", err=True)
        return None


def _read_logs(path: str | None) -> list[StartupLog]:
    from headway.errors import InputError
    from headway.planner.startup_log import read_startup_logs

    if path is None:
        return []
    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error}.") from None
    logs = read_startup_logs(text)
    if not logs:
        raise InputError(f"{path} says nothing about memory.", hint="vLLM prints it while it starts.")
    return logs


def _log_documents(logs: list[StartupLog], planned: Any) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from headway.planner.explain_log import compare_terms, explain

    return [
        {
            **asdict(log),
            "fits": log.fits,
            "kv_tokens": log.tokens,
            "kv_bytes_per_token": log.bytes_per_token,
            "shortfall_bytes": log.shortfall_bytes,
            "max_model_len_that_fits": log.max_model_len_that_fits,
            "blocks_needed": log.blocks_needed,
            "blocks_have": log.blocks_have,
            "terms": [asdict(term) for term in compare_terms(log, planned)],
            "explanation": explain(log, planned),
        }
        for log in logs
    ]


def _explain(logs: list[StartupLog], planned: Any, *, as_json: bool) -> None:
    from headway.cli.console import make_console
    from headway.planner.explain_log import compare_terms, explain
    from headway.planner.report import log_table

    if as_json:
        click.echo(json.dumps({"log": _log_documents(logs, planned), "comparisons": _comparisons(logs)}, indent=2))
        return
    console = make_console()
    for log in logs:
        console.print(log_table(compare_terms(log, planned)))
        for line in explain(log, planned):
            console.print(line)
    for line in itertools.chain.from_iterable(_comparisons(logs)):
        console.print(line)


def _comparisons(logs: list[StartupLog]) -> list[list[str]]:
    """What differs between each start-up and the next, in sentences."""
    from headway.planner.explain_log import compare_start_ups

    return [compare_start_ups(first, second) for first, second in itertools.pairwise(logs)]


def _print_catalogue(*, models: bool) -> None:
    from headway.catalog import list_accelerators, list_models

    for name in list_models() if models else list_accelerators():
        click.echo(name)
