"""The command line: one file a sub-command, imported only when it runs."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module, metadata

import click

from headway import __version__
from headway.config import REFERENCE_ENGINE_VERSION
from headway.errors import HeadwayError
from headway.extras import EXTRAS, missing_modules

_GROUPS: Mapping[str, Mapping[str, str]] = {
    "Run a model here": {
        "serve": "an OpenAI endpoint on a real model, or a stand-in for a GPU deployment",
        "bench": "four batching policies side by side on the real model",
    },
    "Predict a deployment": {
        "simulate": "throughput and latency of model × GPU × vLLM flags × release, without a GPU",
        "plan": "will it fit, how many KV blocks, and the smallest change that makes it fit",
        "fragmentation": "KV waste of contiguous reservation against paging",
    },
    "Check and repair one": {
        "doctor": "the bottleneck of a running deployment, and fixes ranked by their simulated effect",
        "config": "what a deployment's flags really do in one exact release",
        "compat": "which flags go together, and what changes between two releases",
    },
    "Make predictions yours": {
        "calibrate": "fit the simulator to benchmarks or metrics that you have",
        "profile": "time the real model's steps on this machine",
        "validate": "replay recorded runs: predicted against measured",
    },
    "Under the hood": {
        "steplog": "every decision of the scheduler on a workload",
        "kernels": "compile the native int8 kernels ahead of time",
        "completion": "shell completion",
    },
}
_COMMANDS = tuple(name for group in _GROUPS.values() for name in group)


class _LazyGroup(click.Group):
    """Finds a sub-command `x` in `headway.cli.x`, so that --help loads nothing heavy."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By what one wants to do, in words that are read without importing the commands."""
        for title, commands in _GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            near = get_close_matches(cmd_name, _COMMANDS, 1)
            raise click.UsageError(
                f"There is no command {cmd_name!r}." + (f" Did you mean {near[0]}?" if near else ""), ctx
            )
        command = getattr(import_module(f"headway.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command


_PIECES = {"torch": "the real engine", "serve": "the HTTP server", "aic": "the aiconfigurator oracle"}
"""What each extra is for."""


def _version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    click.echo(
        f"headway {__version__}, Python {platform.python_version()}; the scheduler of vLLM {REFERENCE_ENGINE_VERSION}"
    )
    for extra, purpose in _PIECES.items():
        if missing_modules(extra):
            click.echo(f"  {purpose}: not installed (pip install 'headway[{extra}]')")
        else:
            click.echo(f"  {purpose}: " + ", ".join(f"{name} {_release(name)}" for name in EXTRAS[extra]))
    ctx.exit()


def _one_line(error: click.ClickException) -> str:
    """click's own complaints in the shape of ours: what is wrong, then what to do."""
    message = " ".join(error.format_message().split())
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return message
    return f"{message}{'' if message.endswith(('.', '?', ')')) else '.'} See: {error.ctx.command_path} --help"


def _release(module: str) -> str:
    try:
        return metadata.version(module.replace("_", "-"))
    except metadata.PackageNotFoundError:
        return "of unknown version"


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="What is installed."
)
def cli() -> None:
    """An LLM serving engine whose scheduler also runs under a virtual clock.

    \b
    Start with:
        headway serve                                               chat with the bundled model
        headway simulate --model llama-3.1-8b --gpu l40s            predict a GPU deployment
        headway plan llama-3.3-70b --gpu h100 --quantization fp8    see whether it fits
    """


def main() -> None:
    """Entry point: user mistakes end with one line and their exit code, not with a traceback."""
    try:
        code = cli(prog_name="headway", standalone_mode=False)  # the code given to ctx.exit(), if a command did
    except HeadwayError as error:
        click.echo(f"headway: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"headway: {_one_line(error)}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)
