"""docs/exercises.md: every command runs, and prints what stands under it.

`python -m tests.test_exercises` rewrites the outputs after a change that is meant to move them.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "exercises.md"
_TOLERANCE = 0.1
"""The fits of step times and memory may move by less than this without making the page wrong."""
_PAIR = re.compile(r"```sh\n(.*?)```\n\n```text\n(.*?)```", re.S)
_NUMBER = re.compile(r"[\d,]*\.?\d+")


def pairs() -> list[tuple[str, list[str]]]:
    """Commands, and the lines documented for them."""
    return [(script, lines.splitlines()) for script, lines in _PAIR.findall(PAGE.read_text(encoding="utf-8"))]


def run(script: str) -> list[str]:
    """What the commands print, as lines."""
    with tempfile.TemporaryDirectory() as folder:
        command = Path(folder) / "headway"
        command.write_text(f"#!{sys.executable}\nfrom headway.cli import main\nmain()\n", encoding="utf-8")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    assert "Traceback" not in done.stderr and "headway:" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def words_and_numbers(line: str) -> tuple[str, list[float]]:
    """A line without its numbers, and those."""
    return _NUMBER.sub("#", " ".join(line.split())), [float(text.replace(",", "")) for text in _NUMBER.findall(line)]


def agrees(documented: str, printed: str) -> bool:
    """The printed line begins with the documented one, its numbers within the tolerance."""
    words, numbers = words_and_numbers(documented)
    printed_words, printed_numbers = words_and_numbers(printed)
    close = all(abs(a - b) <= _TOLERANCE * abs(b) for a, b in zip(numbers, printed_numbers, strict=False))
    return printed_words.startswith(words) and close


@pytest.mark.parametrize("index", range(len(pairs())))
def test_the_documented_output_is_what_the_commands_print(index: int) -> None:
    script, documented = pairs()[index]
    printed: Iterator[str] = iter(run(script))
    for line in documented:
        assert any(agrees(line, found) for found in printed), f"not printed, or not in this order: {line}"


def test_the_page_answers_all_five() -> None:
    assert len(pairs()) >= 5
    assert re.findall(r"^## (\d)\.", PAGE.read_text(encoding="utf-8"), re.M) == list("12345")


def test_a_figure_that_is_off_is_seen() -> None:
    assert agrees("Output tok/s 100 200", "Output tok/s 101 199 300")
    assert not agrees("Output tok/s 100 200", "Output tok/s 101 150 300")
    assert not agrees("Output tok/s 100", "Requests/s 100")


def refreshed(text: str) -> str:
    """The page with each documented line as it is printed now; lines are known by their first words."""

    def block(match: re.Match[str]) -> str:
        printed = iter(run(match[1]))
        lines = [next(found for found in printed if label(found) == label(line)) for line in match[2].splitlines()]
        return f"```sh\n{match[1]}```\n\n```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```"

    return _PAIR.sub(block, text)


def label(line: str) -> tuple[str, ...]:
    """The words before the first number, or that number where the line begins with one."""
    words = line.split()
    first = next((i for i, word in enumerate(words) if re.fullmatch(r"[\d,.]+%?", word)), len(words))
    return tuple(words[: first + (not any(re.search(r"\w", word) for word in words[:first]))])


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
