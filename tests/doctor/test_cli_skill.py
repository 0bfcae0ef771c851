"""The skill: its front matter, and that every command in it parses as the command line is now."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from headway.cli import cli

SKILL = Path(__file__).parents[2] / "skills" / "vllm-scheduler-reader" / "SKILL.md"
TEXT = SKILL.read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S)
    for line in block.splitlines()
    if line.strip()
]


def test_the_front_matter_names_the_skill_by_its_folder() -> None:
    _, front, body = TEXT.split("---\n", 2)
    fields = yaml.safe_load(front)
    assert set(fields) == {"name", "description"}
    assert fields["name"] == SKILL.parent.name
    assert 0 < len(fields["description"]) <= 1024 and body.strip()


def parse(words: list[str]) -> None:
    """Parse a command line without running it."""
    context = click.Context(cli)
    command = cli.get_command(context, words[1])
    assert words[0] == "headway" and command is not None
    command.make_context(words[1], words[2:], parent=context)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_its_commands_parse(words: list[str]) -> None:
    parse(words)


def test_the_check_of_commands_can_fail() -> None:
    with pytest.raises(click.UsageError):
        parse(["headway", "doctor", "--no-such-option"])


@pytest.mark.parametrize(
    "words", ["TTFT, ITL, throughput and concurrency", "speculative settings", "duty cycle", "100 tokens/s", "0.7"]
)
def test_it_has_the_hard_rejects_and_refusals(words: str) -> None:
    assert words in TEXT.split("## Hard rejects")[1]
