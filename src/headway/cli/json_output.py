"""Machine output of a run, to a file or to standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from headway.errors import ConfigError


def check_json_path(path: str | None) -> None:
    """Refuse a place for JSON that cannot exist, before a long run and not after it.

    Raises:
        ConfigError: there is no such folder.
    """
    if path not in (None, "-") and not Path(str(path)).parent.is_dir():
        raise ConfigError(f"There is no folder {Path(str(path)).parent} for the JSON file.")


def write_json(rows: Sequence[Mapping[str, object]], path: str | None, console: Console) -> None:
    """Write the rows to `path`; "-" is standard output, None nowhere.

    Raises:
        ConfigError: the file cannot be written.
    """
    if path is None:
        return
    text = json.dumps(rows, indent=2, ensure_ascii=False)
    if path == "-":
        click.echo(text)
        return
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    console.print(f"Results written to {path}.")
