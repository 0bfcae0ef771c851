"""`headway serve --executor sim`: a server that answers, queues and reports like a deployment that is not there."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from headway.cli.serve import curl_line
from headway.config import ServerOptions
from headway.core.engine import Engine
from headway.core.policies import blaming, make_policy
from headway.core.request import Request
from headway.core.scheduler import Scheduler
from headway.executors.simulated.executor import SimulatedExecutor
from headway.frontends.pacing import PacedClock, PacedInbox
from headway.frontends.request_stream import ModelLimits
from headway.frontends.server.lag import LagCollector
from headway.frontends.server.service import Service, make_service
from headway.report.words import counted
from headway.simulation.options import DeploymentOptions, ResolvedDeployment
from headway.text.stand_in import END_TOKEN_ID, FILLER_TOKEN_ID, StandInTokenizer
from headway.text.tokenizer import Tokenizer

DEFAULT_OUTPUT_TOKENS = 256
"""Where a client names no max_tokens, a reply ends here, as if with an end-of-sequence token."""


def run_simulated(options: DeploymentOptions, server_options: ServerOptions) -> None:
    """Serve a simulated deployment until a signal ends it.

    Raises:
        ConfigError: settings that cannot work, or an address in use.
    """
    from headway.frontends.server.app import build_app
    from headway.frontends.server.run import bind, serve, url_of

    listener = bind(server_options.host, server_options.port)
    with listener:
        with blaming(options.policy):
            resolved = options.resolve()
            service = make_simulated_service(resolved, server_options)
        text = simulated_banner(resolved, service.model_name, url_of(listener))
        emit = None if server_options.disable_log_stats else partial(click.echo, err=True)
        serve(build_app(service), service.engine, listener, lambda: click.echo(text), emit)


def make_simulated_service(resolved: ResolvedDeployment, server_options: ServerOptions) -> Service:
    """One replica behind a service: a real queue, real HTTP, and steps that take as long as the oracle says."""
    deployment = resolved.deployment
    config = deployment.config
    tokenizer = _tokenizer(resolved.options.model)
    depth = deployment.depth
    scheduler = Scheduler.of(config, max_in_flight=depth)
    end_id = min(tokenizer.eos_token_ids, default=END_TOKEN_ID)
    executor = SimulatedExecutor(
        deployment.oracle,
        speculation=deployment.speculation,
        ends_after=_natural_end,
        filler_token_id=FILLER_TOKEN_ID,
        end_token_id=end_id,
        prepares_ahead=deployment.prepares_ahead,
    )
    clock = PacedClock()
    inbox = PacedInbox(clock)
    engine = Engine(scheduler, executor, clock, inbox, max_in_flight=depth)
    engine.num_stages = deployment.pipeline_stages
    limits = ModelLimits(
        config.scheduler.max_model_len,
        config.cache.block_size,
        tokenizer.vocab_size,
        frozenset({end_id}),
        ends_by_itself=True,
    )
    name = resolved.options.model or "simulated"
    service = make_service(
        engine,
        inbox,
        tokenizer,
        limits,
        model_name=name,
        options=server_options,
        cache_dtype=resolved.options.kv_cache_dtype,
    )
    service.metrics.registry.register(LagCollector(clock, service.model_name))
    return service


def _natural_end(request: Request) -> int | None:
    sampling = request.sampling
    if sampling.max_tokens is not None or sampling.ignore_eos:
        return None
    return max(DEFAULT_OUTPUT_TOKENS, sampling.min_tokens)


def _tokenizer(model: str | None) -> Tokenizer:
    """The model's own, where it is a folder that has one."""
    if model is not None and (Path(model) / "tokenizer.json").is_file():
        return Tokenizer.from_folder(model)
    return StandInTokenizer()


def simulated_banner(resolved: ResolvedDeployment, model_name: str, url: str) -> str:
    """What is simulated, how well, where, and a line to try."""
    config = resolved.deployment.config
    limits, cache = config.scheduler, config.cache
    bar = resolved.deployment.oracle.error_bar()
    error = "never judged on measurements" if bar is None else f"± {bar.relative:.0%}"
    lines = [
        ("simulated", f"{resolved.name}: no model runs, every token is a filler word"),
        ("step times", f"{resolved.deployment.oracle.provenance}, {error}"),
        ("KV cache", f"{cache.num_blocks} blocks of {cache.block_size} ({config.reasons.get('num_blocks', 'given')})"),
        (
            "scheduler",
            f"{make_policy(config.policy).name}, {counted(limits.max_num_seqs, 'request')} at once, "
            f"{limits.max_num_batched_tokens} tokens a step, up to {limits.max_model_len} tokens a sequence, "
            f"as vLLM {config.engine_version}",
        ),
        ("replies", f"end at max_tokens, or after {DEFAULT_OUTPUT_TOKENS} tokens where none is given"),
        ("URL", f"{url} (model {model_name})"),
        ("try", curl_line(model_name, url, needs_key=False)),
    ]
    return "\n".join(f"{name + ':':<12}{text}" for name, text in lines)
