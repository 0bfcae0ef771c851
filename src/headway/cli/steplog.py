"""`headway steplog`: print the scheduler's decisions for a workload, step by step."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from headway.config import REFERENCE_ENGINE_VERSION


@click.command()
@click.argument("workload")
@click.option(
    "--engine-version",
    default=REFERENCE_ENGINE_VERSION,
    show_default=True,
    help="The vLLM release whose scheduler is matched, 0.8 to 0.33.",
)
def steplog(workload: str, engine_version: str) -> None:
    """Print one JSON record for each step that the scheduler takes on WORKLOAD (a JSON file, or - for stdin).

    \b
    Example:
        headway steplog workload.json --engine-version 0.19.1
    """
    from headway.frontends.steplog import run_workload

    for record in run_workload(_read(workload), engine_version):
        click.echo(json.dumps(record))


def _read(path: str) -> Any:
    from headway.errors import WorkloadError

    try:
        text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise WorkloadError(f"Cannot read {path}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise WorkloadError(f"Cannot read {path}: {error}.") from None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{path} is not JSON: line {error.lineno}, column {error.colno}: {error.msg}.") from None
    except (RecursionError, ValueError) as error:
        raise WorkloadError(f"{path} cannot be read as JSON: {error}.") from None
