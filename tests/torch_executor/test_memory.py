"""Free memory as the kernel's files tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.executors.torch import free_memory_bytes

GIB = 2**30


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A machine with 8 GiB available and no control group."""
    (tmp_path / "meminfo").write_text(f"MemTotal: {16 * 2**20} kB\nMemAvailable: {8 * 2**20} kB\n")
    return tmp_path


def free(files: Path) -> int:
    """What is free by these files."""
    return free_memory_bytes("cpu", cgroup=files, meminfo=files / "meminfo")


def test_without_limits_it_is_what_the_kernel_says(files: Path) -> None:
    """No control group, or one without a limit."""
    assert free(files) == 8 * GIB
    (files / "memory.max").write_text("max\n")
    (files / "memory.current").write_text(f"{GIB}\n")
    assert free(files) == 8 * GIB


def test_version_2_control_group(files: Path) -> None:
    """Limit minus use; page cache that nobody uses does not count as use."""
    (files / "memory.max").write_text(f"{4 * GIB}\n")
    (files / "memory.current").write_text(f"{3 * GIB}\n")
    assert free(files) == GIB
    (files / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    assert free(files) == 2 * GIB


def test_version_1_control_group(files: Path) -> None:
    """The older file names; never below zero."""
    folder = files / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    assert free(files) == GIB
    (folder / "memory.usage_in_bytes").write_text(f"{3 * GIB}\n")
    assert free(files) == 0


def test_a_limit_above_the_machine_changes_nothing(files: Path) -> None:
    """The smaller of the two counts."""
    (files / "memory.max").write_text(f"{64 * GIB}\n")
    (files / "memory.current").write_text("0\n")
    assert free(files) == 8 * GIB


def test_other_systems(tmp_path: Path) -> None:
    """Without the kernel's files it is the machine's memory."""
    assert free(tmp_path) > 2**28


def test_this_machine() -> None:
    """The default paths work here."""
    assert free_memory_bytes("cpu") > 2**26
