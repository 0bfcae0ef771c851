"""Exit codes as a shell sees them: 0 fine, 1 findings, 2 a mistake of the user's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMPOSE = """
services:
  llm:
    image: vllm/vllm-openai:v0.19.0
    command: --model meta-llama/Llama-3.1-8B-Instruct {flags}
"""


def headway(*args: str) -> int:
    """Run the command as an installed script would."""
    command = [sys.executable, "-c", "from headway.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False).returncode


@pytest.mark.parametrize("command", ["config", "compat"])
def test_a_file_that_cannot_be_read_is_2(command: str, tmp_path: Path) -> None:
    """What click's commands hand to ctx.exit() must reach the shell."""
    assert headway(command, str(tmp_path / "missing.yaml")) == 2


@pytest.mark.parametrize(("flags", "code"), [("--max-num-seqs 64", 0), ("--not-a-flag", 1)])
def test_findings_are_1(flags: str, code: int, tmp_path: Path) -> None:
    """As the help of `headway compat` promises."""
    path = tmp_path / "docker-compose.yml"
    path.write_text(COMPOSE.format(flags=flags), encoding="utf-8")
    assert headway("compat", str(path)) == code


def test_evidence_of_which_nothing_can_be_used_is_2(tmp_path: Path) -> None:
    """A log given as metrics: flags alone are no answer to what was asked; beside what can be used it is left out."""
    log = tmp_path / "server.log"
    log.write_text("INFO 01-01 00:00:00 api_server.py: started\n", encoding="utf-8")
    command = ("doctor", "vllm serve llama-3.1-8b", "--gpu", "l40s")
    assert headway(*command, "--metrics", str(log)) == 2
    assert headway(*command) != 2
    assert headway(*command, "--metrics", str(log), "--observed", "kv_cache_usage=0.5,num_requests_running=4") != 2


def test_help_is_0_and_an_unknown_command_2() -> None:
    """The frame's own."""
    assert headway("--help") == 0 and headway("nonsense") == 2
