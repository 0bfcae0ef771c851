"""`headway doctor`: what limits a deployment, and what to change, with each fix simulated before it is advised."""

from __future__ import annotations

from pathlib import Path

import click

FORMATS = ("terminal", "markdown", "html", "json")


@click.command()
@click.argument("deployment", required=False)
@click.option(
    "--metrics",
    multiple=True,
    help="Scrapes of /metrics in order of time, or a saved answer of Prometheus; a URL is only read.",
    metavar="FILE|URL",
)
@click.option(
    "--interval", type=float, help="Time between scrapes that carry none, and between two of a URL.", metavar="SECONDS"
)
@click.option("--log", "logs", multiple=True, help="The server's log, from its start if there is one.", metavar="FILE")
@click.option(
    "--bench",
    "benches",
    multiple=True,
    help="A result of `vllm bench serve`, GuideLLM or `headway bench`.",
    metavar="FILE",
)
@click.option(
    "--observed",
    multiple=True,
    help="Figures that you know, such as concurrency=64,p99_ttft_ms=8200; or a file of them.",
    metavar="KEY=VALUE,…",
)
@click.option("--trace", type=click.Path(path_type=Path), help="The requests: arrivals and lengths.", metavar="FILE")
@click.option(
    "--engine-version", help="vLLM release; default: as the engine, its log or the image says.", metavar="X.Y.Z"
)
@click.option("--gpu", help="Accelerator, such as h100, or cpu.", metavar="NAME")
@click.option("--model", help="Model whose facts are used; default: the deployment's own.", metavar="NAME")
@click.option("--slo", help="What it should achieve, such as ttft_p99=2s,itl_p99=100ms.", metavar="KEY=VALUE,…")
@click.option(
    "--goal",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    show_default=True,
    help="What it is for; throughput: nobody waits for single tokens.",
)
@click.option(
    "--format", "form", type=click.Choice(FORMATS), default="terminal", show_default=True, help="How to write the page."
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json (see docs/doctor.md).")
@click.option("--output", type=click.Path(path_type=Path), help="Write the page to a file.", metavar="FILE")
@click.pass_context
def doctor(
    ctx: click.Context,
    deployment: str | None,
    metrics: tuple[str, ...],
    interval: float | None,
    logs: tuple[str, ...],
    benches: tuple[str, ...],
    observed: tuple[str, ...],
    trace: Path | None,
    engine_version: str | None,
    gpu: str | None,
    model: str | None,
    slo: str | None,
    goal: str,
    form: str,
    as_json: bool,
    output: Path | None,
) -> None:
    """Diagnose DEPLOYMENT from everything there is of it: flags, metrics, logs, benchmark results, a trace.

    DEPLOYMENT is a file in any form that `headway config` reads, or a command line in quotes. It may be left out: what
    the engine reports of itself is then all that is known. Nothing is changed, and a live server is only read.

    \b
    Exit codes: 0 nothing wrong, 1 findings, 2 the evidence cannot be read.
    Examples:
        headway doctor docker-compose.yml --gpu l40s --metrics before.prom --metrics after.prom --log vllm.log
        headway doctor "vllm serve llama-3.3-70b -tp 2" --gpu h100 --observed concurrency=128,p99_ttft_ms=8200
        headway doctor --metrics http://localhost:8000/metrics --json
        headway doctor start.sh --bench result.json --slo ttft_p99=2s,itl_p99=100ms --format html --output page.html
    """
    from headway.cli.doctor_run import DoctorRun

    run = DoctorRun("json" if as_json else form, output)
    evidence = run.gather(
        deployment=deployment,
        metrics=metrics,
        interval_s=interval,
        logs=logs,
        benches=benches,
        observed=observed,
        trace=trace,
        engine_version=engine_version,
        gpu=gpu,
        model=model,
        slo=slo,
        goal=goal,
    )
    ctx.exit(run.report(evidence))
