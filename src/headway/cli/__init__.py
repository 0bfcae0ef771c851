"""The command line: one file a sub-command, imported only when it runs."""

from __future__ import annotations

import sys
from importlib import import_module

import click

from headway import __version__
from headway.errors import HeadwayError

_COMMANDS = (
    "serve",
    "bench",
    "simulate",
    "steplog",
    "plan",
    "fragmentation",
    "config",
    "compat",
    "calibrate",
    "validate",
    "profile",
    "kernels",
)


class _LazyGroup(click.Group):
    """Finds a sub-command `x` in `headway.cli.x`, so that --help loads nothing heavy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(import_module(f"headway.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="headway")
def cli() -> None:
    """An LLM serving engine whose scheduler also runs under a virtual clock."""


def main() -> None:
    """Entry point: user mistakes end with one line and their exit code, not with a traceback."""
    try:
        code = cli(standalone_mode=False)  # the code given to ctx.exit(), if a command did
    except HeadwayError as error:
        click.echo(f"headway: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)
