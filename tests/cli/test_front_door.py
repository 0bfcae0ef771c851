"""What somebody sees who types `headway`: the list of commands, what is installed, completion."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from headway import __version__
from headway.cli import _COMMANDS, cli


def test_help_lists_every_command_by_purpose() -> None:
    text = CliRunner().invoke(cli, ["--help"]).output
    assert all(f"  {name}  " in text or f"\n  {name}" in text for name in _COMMANDS)
    assert text.index("Run a model here") < text.index("Predict a deployment") < text.index("Check and repair one")


@pytest.mark.parametrize("name", [name for name in _COMMANDS if name != "kernels"])
def test_every_command_teaches_by_example(name: str) -> None:
    """A line that starts with the command itself."""
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0 and f"    headway {name}" in result.output


def test_version_names_the_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there with its release, what is not with the line that installs it."""
    assert f"headway {__version__}" in CliRunner().invoke(cli, ["--version"]).output
    monkeypatch.setattr("headway.extras.find_spec", lambda name: None)
    assert "pip install 'headway[serve]'" in CliRunner().invoke(cli, ["--version"]).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    assert "_HEADWAY_COMPLETE" in CliRunner().invoke(cli, ["completion", shell]).output


def test_a_mistyped_command_is_named_rightly() -> None:
    result = CliRunner().invoke(cli, ["bnech"])
    assert result.exit_code == 2 and "Did you mean bench?" in result.output
