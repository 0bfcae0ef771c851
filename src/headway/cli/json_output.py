"""Machine output of a run, to a file or to standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import click
from rich.console import Console

from headway.report.files import write_file


def write_json(rows: Sequence[Mapping[str, object]], path: str | None, console: Console) -> None:
    """Write the rows to `path`; "-" is standard output, None nowhere.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None:
        return
    text = json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    if path == "-":
        click.echo(text, nl=False)
    else:
        console.print(f"Results written to {write_file(path, text)}.")
