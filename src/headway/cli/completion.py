"""`headway completion`: what a shell needs to complete headway's commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print a script that lets SHELL complete headway's commands and options.

    \b
    Examples:
        headway completion bash >> ~/.bashrc
        headway completion zsh >> ~/.zshrc
        headway completion fish > ~/.config/fish/completions/headway.fish
    """
    from headway.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click completes each of these"
    click.echo(kind(cli, {}, "headway", "_HEADWAY_COMPLETE").source())
