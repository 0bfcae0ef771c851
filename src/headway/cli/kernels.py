"""`headway kernels`: the native kernel library on this machine."""

from __future__ import annotations

import time

import click

from headway.errors import ConfigError


@click.group()
def kernels() -> None:
    """The native kernels of the int8 path: compile them ahead of time, or see where they are."""


@kernels.command()
@click.option("--force", is_flag=True, help="Compile even if that has been done.")
def build(force: bool) -> None:
    """Compile the kernels for this machine, unless they are in the cache.

    `headway serve --quantization int8` does the same when it needs them.
    """
    from headway.factory import build_kernels

    started_at = time.perf_counter()
    path, isa = build_kernels(force=force)
    click.echo(f"{path}\n{isa} kernels ready after {time.perf_counter() - started_at:.1f} s")


@kernels.command()
def path() -> None:
    """Print where the compiled library is, or would be."""
    from headway.factory import kernel_path

    found, exists = kernel_path()
    click.echo(found)
    if not exists:
        raise ConfigError("It is not compiled yet.", hint="Run: headway kernels build")
