"""The pages say what the code says: generated ones are current, commands parse, links lead somewhere, calls run."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import click
import pytest

from headway.cli import _COMMANDS, cli
from headway.errors import HeadwayError
from tests.docs_text import PAGES, ROOT, SCRIPTS, commands, generator, links, make_targets

_PLACEHOLDERS = ("DEPLOYMENT", "MODEL", "WORKLOAD", "FILE", "COMMAND", "[")


def test_generated_pages_are_current() -> None:
    """Run `make docs` when this fails."""
    assert generator().stale_pages() == []


def test_every_setting_is_in_the_flag_reference() -> None:
    """A field that is added without being declared as an option would be missing from flags and page alike."""
    from headway.config import EngineOptions, ServerOptions

    page = generator().flags_page()
    for cls in (EngineOptions, ServerOptions):
        for field in dataclasses.fields(cls):
            assert "help" in field.metadata, f"{cls.__name__}.{field.name} is not an option"
            assert field.metadata["help"] in page


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_option_is_explained(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.help
    assert [item.opts for item in command.params if isinstance(item, click.Option) and not item.help] == []


def complaint(words: list[str]) -> str | None:
    """Why the command line would not be understood; None if it would."""
    context = click.Context(cli, info_name="headway")
    try:
        with cli.make_context("headway", list(words), resilient_parsing=False):
            command = cli.get_command(context, words[0]) if not words[0].startswith("-") else None
        while isinstance(command, click.Group):
            words = words[1:]
            command = command.get_command(context, words[0])
        if command is not None:
            command.make_context(words[0], words[1:], parent=context).close()
    except click.exceptions.Exit:
        return None
    except (click.ClickException, HeadwayError) as error:
        return error.format_message() if isinstance(error, click.ClickException) else str(error)
    return None


@pytest.mark.parametrize("path", [*PAGES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_on_the_page_are_understood(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sub-commands and flags exist, values are of their kind; nothing is run."""
    monkeypatch.chdir(ROOT)
    for words in commands(path.read_text(encoding="utf-8"), is_script=path.suffix == ".sh"):
        # A name in running text, or a pattern of how to call it.
        is_prose = len(words) == 1 or any(word.startswith(_PLACEHOLDERS) for word in words)
        if is_prose:
            assert words[0].startswith("-") or words[0] in (*_COMMANDS, "COMMAND"), words
        else:
            assert (said := complaint(words)) is None, f"headway {' '.join(words)}: {said}"


def test_a_command_that_does_not_exist_is_seen() -> None:
    fenced = "```sh\nheadway bnech \\\n    --json | jq .\nheadway plan m --gpu l4\n```\n"
    found = [complaint(words) for words in commands(f"Try `headway simulate --gpus l40s` or\n{fenced}")]
    assert found[0] is not None and "bnech" in found[0]
    assert found[1] is None
    assert found[2] is not None and "--gpus" in found[2]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    missing = [target for target in links(path.read_text(encoding="utf-8")) if not (path.parent / target).exists()]
    assert not missing


def test_targets_to_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    known = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.M))
    for path in PAGES:
        assert make_targets(path.read_text(encoding="utf-8")) <= known, path


def test_the_calls_of_the_readme_run() -> None:
    """All but those that need a model."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = (block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "from headway import" in block)
    lines = [line for line in block.splitlines() if not line.startswith("LLM(")]
    assert len(lines) >= 5
    exec("\n".join(lines), {})
