"""The console that every sub-command prints to."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

_WIDTH_OF_NO_TERMINAL = 140
"""A pipe or file has no width of its own; at the usual 80 columns wide tables would be squeezed."""


def print_next(console: Console, command: str, purpose: str) -> None:
    """The natural next step, as the last line of what a person reads."""
    console.print()
    console.print(Text.assemble(("Next: ", "dim"), command, (f"   {purpose}", "dim")), soft_wrap=True)


def repeated(flags: str) -> str:
    """The command that was typed, with more flags; a flag that is there already is replaced by the later one."""
    if Path(sys.argv[0]).name not in ("headway", "__main__.py"):
        return f"the same with {flags}"
    return f"headway {shlex.join(sys.argv[1:])} {flags}"


def make_console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal; tables of a `--json -` run go to stderr."""
    is_terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, width=None if is_terminal else _WIDTH_OF_NO_TERMINAL)
