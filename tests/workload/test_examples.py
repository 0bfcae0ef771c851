"""The committed example is what its script makes, and it is a trace."""

from __future__ import annotations

import runpy
from pathlib import Path

from headway.workload import read_trace, write_trace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_example_trace_is_made_by_its_script(tmp_path: Path) -> None:
    chat = runpy.run_path(str(EXAMPLES / "make_trace.py"))["CHAT"]
    write_trace(tmp_path / "chat.csv", chat.requests())
    assert (tmp_path / "chat.csv").read_text() == (EXAMPLES / "chat.csv").read_text()


def test_the_example_trace_reads() -> None:
    requests = list(read_trace(EXAMPLES / "chat.csv"))
    assert len(requests) == 60 and requests[-1].arrival_s == 30.0
