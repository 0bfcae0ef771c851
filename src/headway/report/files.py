"""Files that commands write: what cannot be written is refused before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from headway.errors import ConfigError


def check_writable(path: str | Path | None, flag: str) -> None:
    """Refuse a file that could not be written; `flag` is what names it. None and "-" (standard output) pass.

    Raises:
        ConfigError: there is no such folder, it is a folder itself, or writing is not allowed there.
    """
    if path is None or str(path) == "-":
        return
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"There is no folder {path.parent} for {flag}.", hint="Make it first.")
    if path.is_dir():
        raise ConfigError(f"{flag} names a folder, {path}.", hint="Name a file in it.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ConfigError(f"{path} for {flag} may not be written.")


def write_file(path: str | Path, text: str) -> Path:
    """Write a text; returns where.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None
    return Path(path)
