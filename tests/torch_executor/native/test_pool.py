"""The threads of a step, by themselves: a program of their own that does nothing but hand out items."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headway.executors.torch.native.compilation import SOURCES, KernelsUnavailableError, find_compiler

_MILLISECONDS = 2500


@pytest.mark.slow
def test_each_item_of_each_job_runs_once(tmp_path: Path) -> None:
    """Millions of jobs of a few and of many items, so that a thread that is late meets the next one."""
    try:
        compiler = find_compiler()
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
    program = tmp_path / "pool_stress"
    sources = [str(Path(__file__).parent / "pool_stress.cpp"), str(SOURCES / "pool.cpp")]
    command = [compiler, "-std=c++20", "-O2", "-pthread", f"-I{SOURCES}", *sources, "-o", str(program)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    for num_threads in (2, 4):
        done = subprocess.run(
            [str(program), str(num_threads), str(_MILLISECONDS)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout
