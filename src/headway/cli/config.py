"""`headway config`: what a deployment file really sets, in one exact vLLM version."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("deployments", nargs=-1, required=True, metavar="DEPLOYMENT...")
@click.option("--engine-version", help="vLLM release; default: the image's tag, else the reference.", metavar="X.Y.Z")
@click.option("--gpu", help="Accelerator that defaults depend on, such as h100, or cpu.", metavar="NAME")
@click.option("--model", help="Model whose facts are used; default: the deployment's own.", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--sarif", type=click.Path(path_type=Path), help="Write lints as SARIF 2.1.0; - prints.", metavar="FILE")
@click.option("--all", "show_all", is_flag=True, help="Show every default, not only those that matter most.")
@click.option("--quiet", is_flag=True, help="Print findings only.")
@click.pass_context
def config(
    ctx: click.Context,
    deployments: tuple[str, ...],
    engine_version: str | None,
    gpu: str | None,
    model: str | None,
    as_json: bool,
    sarif: Path | None,
    show_all: bool,
    quiet: bool,
) -> None:
    """Read a deployment of any form, without running anything, and say what each flag does.

    DEPLOYMENT is a file, or a command line in quotes. Read are shell scripts, docker, compose, Kubernetes, KServe, Helm
    values, Ray Serve, systemd, Makefiles, PowerShell, Python, vLLM's own config file, JSON or TOML of engine arguments,
    and vLLM's logs and metrics.

    \b
    Exit codes: 0 fine, 1 warnings or errors were found, 2 a file cannot be read.
    Examples:
        headway config start.sh --gpu h100
        headway config docker-compose.yml --engine-version 0.18.0 --json
        headway config "vllm serve llama-3.1-8b --max-num-seqs 64" --gpu l40s
    """
    from headway.cli.config_run import run_config

    ctx.exit(
        run_config(
            deployments,
            engine_version=engine_version,
            gpu=gpu,
            model=model,
            as_json=as_json,
            sarif=sarif,
            show_all=show_all,
            quiet=quiet,
        )
    )
