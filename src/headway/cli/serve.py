"""`headway serve`: an OpenAI-compatible server on a real model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from headway.cli.options import options_from, options_of
from headway.config import EngineConfig, EngineOptions, ServerOptions
from headway.errors import ConfigError
from headway.extras import need_extra
from headway.report.words import counted
from headway.simulation.options import DeploymentOptions

_NOT_SIMULATION_ONLY = frozenset({"model", "num_gpu_blocks_override", *(field.name for field in fields(EngineOptions))})


@click.command()
@click.argument("model", required=False)
@click.option("--model", "model_option", metavar="MODEL", help="The same as MODEL.")
@click.option(
    "--executor",
    type=click.Choice(("torch", "sim")),
    default="torch",
    show_default=True,
    help="Run the model, or simulate a deployment of it: real HTTP, queue and metrics, filler text at its pace.",
)
@options_from(ServerOptions, envvars={"api_key": "HEADWAY_API_KEY"})
@options_from(EngineOptions)
@options_from(DeploymentOptions, exclude=_NOT_SIMULATION_ONLY)
@click.pass_context
def serve(ctx: click.Context, /, model: str | None, model_option: str | None, executor: str, **params: Any) -> None:
    """Serve MODEL, a Hugging Face folder or a GGUF file, through OpenAI's HTTP API.

    Without MODEL the bundled SmolLM2-135M-Instruct is served. With --executor sim, MODEL is any model of the catalogue
    and --gpu the accelerator it is to run on.

    \b
    Examples:
        headway serve
        headway serve --executor sim --model llama-3.3-70b --gpu h100 --tensor-parallel-size 2 --quantization fp8
    """
    given = {name for name in params if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT}
    model = model or model_option
    if executor == "sim":
        need_extra("serve", "headway serve")
        from headway.cli.serve_sim import run_simulated

        run_simulated(deployment_options(model, params, given), options_of(ServerOptions, params))
        return
    simulated_only = given & {field.name for field in fields(DeploymentOptions)} - _NOT_SIMULATION_ONLY
    if simulated_only:
        flag = sorted(simulated_only)[0].replace("_", "-")
        raise ConfigError(f"--{flag} is for --executor sim.", hint="Leave it out, or simulate.")
    run(model, options_of(EngineOptions, params), options_of(ServerOptions, params))


def deployment_options(model: str | None, params: Mapping[str, Any], given: Collection[str]) -> DeploymentOptions:
    """The deployment to simulate: what was not given is left to the version of vLLM, not to the CPU's defaults."""
    names = {field.name for field in fields(DeploymentOptions)} | {"num_blocks"}
    renamed = {"num_blocks": "num_gpu_blocks_override"}
    chosen = {renamed.get(name, name): params[name] for name in given if name in names}
    return DeploymentOptions(model=model, **chosen)


def run(model: str | None, engine_options: EngineOptions, server_options: ServerOptions) -> None:
    """Load the model, print where it can be reached, and serve until a signal ends it.

    Raises:
        ModelLoadError: the model cannot be read. ConfigError: settings that cannot work, or an address in use.
    """
    need_extra("serve", "headway serve")
    from headway import factory
    from headway.core.arrivals import Inbox
    from headway.core.clock import WallClock
    from headway.frontends.request_stream import ModelLimits
    from headway.frontends.server.app import build_app
    from headway.frontends.server.run import bind, serve, url_of
    from headway.frontends.server.service import check_options, make_service

    check_options(server_options)
    # An address in use should be told before minutes of loading, not after.
    listener = bind(server_options.host, server_options.port)
    with listener:
        loaded = factory.load_model(model, engine_options)
        inbox = Inbox()
        engine, config = factory.build_engine(loaded, engine_options, inbox, WallClock())
        limits = ModelLimits(
            config.scheduler.max_model_len, config.cache.block_size, loaded.vocab_size, loaded.eos_token_ids
        )
        service = make_service(
            engine,
            inbox,
            loaded.tokenizer,
            limits,
            model_name=loaded.name,
            model_root=model,
            options=server_options,
            cache_dtype=str(loaded.weights.kv_dtype).removeprefix("torch."),
        )
        text = banner(service.model_name, config, url_of(listener), server_options.api_key is not None)
        emit = None if server_options.disable_log_stats else partial(click.echo, err=True)
        serve(build_app(service), service.engine, listener, lambda: click.echo(text), emit)


def banner(model_name: str, config: EngineConfig, url: str, needs_key: bool) -> str:
    """What is served, how much fits, where, and a line to try."""
    from headway.core.policies import make_policy

    cache, limits = config.cache, config.scheduler
    num_slots = (cache.num_blocks - 1) * cache.block_size
    concurrency = num_slots / limits.max_model_len
    lines = [
        ("model", f"{model_name}, up to {limits.max_model_len} tokens a sequence{_because(config, 'max_model_len')}"),
        (
            "KV cache",
            f"{num_slots} tokens in {cache.num_blocks - 1} blocks of {cache.block_size}{_because(config, 'num_blocks')}"
            f": {concurrency:.1f} sequences of full length at once",
        ),
        (
            "scheduler",
            f"{make_policy(config.policy).name}, {counted(limits.max_num_seqs, 'request')} at once, "
            f"{limits.max_num_batched_tokens} tokens a step{_because(config, 'max_num_batched_tokens')}, "
            f"as vLLM {config.engine_version}",
        ),
        ("URL", url),
        ("try", curl_line(model_name, url, needs_key=needs_key)),
    ]
    return "\n".join(f"{name + ':':<11}{text}" for name, text in lines)


def _because(config: EngineConfig, name: str) -> str:
    reason = config.reasons.get(name)
    return f" ({reason})" if reason else ""


def curl_line(model_name: str, url: str, *, needs_key: bool) -> str:
    """A command that asks the server something."""
    key = ' -H "Authorization: Bearer $HEADWAY_API_KEY"' if needs_key else ""
    question = {"role": "user", "content": "What is the capital of Germany?"}
    asked = {"model": model_name, "messages": [question], "temperature": 0, "max_tokens": 32, "stream": True}
    body = shlex.quote(json.dumps(asked))
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d {body}"
