"""`headway profile`: time steps of the real model, for `headway simulate --latency table:FOLDER`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli.options import options_from, options_of
from headway.config import EngineOptions

if TYPE_CHECKING:
    from headway.accuracy.step_profile import StepPoint
    from headway.config import EngineConfig


@click.command()
@click.option("--model", help="Hugging Face folder or GGUF file; default: the bundled model.", metavar="PATH")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("headway-profile"),
    show_default=True,
    help="The folder to write.",
    metavar="FOLDER",
)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(min=1), help="Timed runs of each shape.")
@options_from(EngineOptions, exclude=("policy",))
def profile(model: str | None, out: Path, repeats: int, **params: Any) -> None:
    """Time steps of the real model on this machine over a grid of prompts, decodes and contexts.

    Writes OUT/steps.csv, which prices steps for `headway simulate`: what it then predicts is this engine.

    \b
    Example:
        headway profile --out profile/ --max-num-seqs 16
    """
    from headway.accuracy.step_profile import ProfileLimits, grid, host_seconds, time_steps, write_steps
    from headway.cli.console import make_console
    from headway.core.arrivals import TraceSource
    from headway.core.clock import WallClock
    from headway.factory import build_engine, load_model

    options: EngineOptions = options_of(EngineOptions, params)
    loaded = load_model(model, options)

    engine, config = build_engine(loaded, options, TraceSource([]), WallClock())
    scheduler, cache = config.scheduler, config.cache
    limits = ProfileLimits(
        scheduler.max_num_batched_tokens,
        scheduler.max_num_seqs,
        scheduler.max_model_len,
        cache.num_blocks,
        cache.block_size,
    )
    console = make_console(stderr=True)
    points = grid(limits)
    with console.status("") as status:

        def show(index: int, point: StepPoint, seconds: float) -> None:
            num_steps = len(points) * (repeats + 1)
            status.update(f"step {index + 1} of {num_steps}: {point.num_tokens} tokens, {seconds * 1e3:.1f} ms")

        measured = time_steps(
            engine.executor, points, limits, vocab_size=loaded.vocab_size, repeats=repeats, on_point=show
        )
    engine.close()
    host_s = host_seconds(
        lambda source: build_engine(loaded, options, source, WallClock())[0], loaded.vocab_size, cache.block_size
    )
    facts = {"model": loaded.name, "host_us": round(host_s * 1e6, 1), "date": time.strftime("%Y-%m-%d")}
    path = write_steps(out, measured, facts)
    click.echo(f"{len(measured)} shapes in {path}; {host_s * 1e3:.2f} ms between steps. To predict this engine:")
    click.echo(f"  {_command(out, config)} --trace …")


def _command(out: Path, config: EngineConfig) -> str:
    scheduler, cache = config.scheduler, config.cache
    caching = "" if cache.enable_prefix_caching else "no-"
    overlap = "" if scheduler.async_scheduling else "no-"
    return (
        f"headway simulate --latency table:{out} --num-gpu-blocks-override {cache.num_blocks} "
        f"--block-size {cache.block_size} --max-model-len {scheduler.max_model_len} "
        f"--max-num-seqs {scheduler.max_num_seqs} --max-num-batched-tokens {scheduler.max_num_batched_tokens} "
        f"--{caching}enable-prefix-caching --{overlap}async-scheduling --engine-version {config.engine_version}"
    )
