"""`headway compat`: which features and flags go together in an exact vLLM version."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("deployments", nargs=-1, metavar="[DEPLOYMENT]...")
@click.option("--matrix", help="Print the feature × feature table of a version.", metavar="X.Y.Z")
@click.option("--features", help="Judge a bare combination, such as spec_decode,pipeline_parallel.", metavar="A,B")
@click.option("--engine-version", help="vLLM release; default: the image's tag, else the reference.", metavar="X.Y.Z")
@click.option("--from", "from_version", help="With --to: what changing the version does.", metavar="X.Y.Z")
@click.option("--to", "to_version", help="The other side of --from.", metavar="X.Y.Z")
@click.option("--engine", type=click.Choice(["V0", "V1"]), help="For --features and --matrix.")
@click.option("--platform", help="For --features: cuda, rocm, rdna3, cpu, tpu, xpu, sm70 to sm90.", metavar="NAME")
@click.option("--gpu", help="Accelerator, such as h100, or cpu.", metavar="NAME")
@click.option("--model", help="Model whose facts are used; default: the deployment's own.", metavar="NAME")
@click.option("--no-simulate", is_flag=True, help="With --from and --to: leave the latency of both sides out.")
@click.option(
    "--workload",
    default="512/128@0.7",
    show_default=True,
    metavar="PROMPT/OUTPUT@LOAD",
    help="With --from and --to: lengths, and the share of the old side's throughput that is offered.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--sarif", type=click.Path(path_type=Path), help="Write findings as SARIF 2.1.0; - prints.", metavar="FILE"
)
@click.pass_context
def compat(
    ctx: click.Context,
    deployments: tuple[str, ...],
    matrix: str | None,
    features: str | None,
    engine_version: str | None,
    from_version: str | None,
    to_version: str | None,
    engine: str | None,
    platform: str | None,
    gpu: str | None,
    model: str | None,
    no_simulate: bool,
    workload: str,
    as_json: bool,
    sarif: Path | None,
) -> None:
    """Say what is rejected, unsupported, crashes, is ignored or silently does nothing, by exact version.

    DEPLOYMENT is a file in any form that `headway config` reads, or a command line in quotes.

    \b
    Exit codes: 0 fine, 1 findings, 2 a file cannot be read.
    Examples:
        headway compat --matrix 0.18.0
        headway compat --features spec_decode,pipeline_parallel --engine-version 0.26.0
        headway compat start.sh --engine-version 0.32.0 --sarif findings.sarif
        headway compat start.sh --from 0.18.0 --to 0.33.0 --gpu h100
    """
    from headway.cli.compat_run import CompatRun

    run = CompatRun(as_json=as_json, sarif=sarif, gpu=gpu, model=model)
    if matrix is not None:
        ctx.exit(run.matrix(matrix, engine))
    if features is not None:
        ctx.exit(run.features(features.split(","), engine_version, engine, platform))
    if not deployments:
        raise click.UsageError("Give a deployment, --matrix or --features.")
    if (from_version is None) != (to_version is None):
        raise click.UsageError("--from and --to belong together.")
    if from_version is not None and to_version is not None:
        ctx.exit(run.difference(deployments, from_version, to_version, workload=None if no_simulate else workload))
    ctx.exit(run.judge(deployments, engine_version))
