"""The smoke test of the built package sees what it is there to see. `make smoke` runs it; it takes about a minute."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from headway.cli import _COMMANDS
from tests.packaging.cases import BARE, Case
from tests.packaging.smoke import ROOT, complaint_about, missing_from_sdist, missing_from_wheel


def done(code: int, stdout: str = "", stderr: str = "") -> subprocess.CompletedProcess[str]:
    """What a command did."""
    return subprocess.CompletedProcess([], code, stdout, stderr)


@pytest.mark.parametrize(
    ("case", "result", "said"),
    [
        (Case("x", "yes"), done(1, "yes"), "expected exit code 0"),
        (Case("x", "yes"), done(0, "no"), "expected 'yes'"),
        (Case("x", "bad", 2), done(2, "", "Traceback (most recent call last):\nbad\n"), "expected exit code 2"),
        (Case("x", "bad", 2), done(2, "", "Usage: x\n\nError: bad\n"), "in one line"),
    ],
)
def test_a_command_that_does_something_else_is_told(
    case: Case, result: subprocess.CompletedProcess[str], said: str
) -> None:
    complaint = complaint_about(case, result)
    assert complaint is not None and said in complaint


def test_a_command_that_does_as_it_should_is_not() -> None:
    assert complaint_about(Case("x", "^y"), done(0, "yes")) is None
    assert complaint_about(Case("x", "bad", 2), done(2, "", "headway: bad. Do this.\n")) is None


def test_a_data_file_that_the_wheel_lacks_is_named(tmp_path: Path) -> None:
    """All but one are there."""
    source = ROOT / "src"
    names = [path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()]
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
        for name in names:
            if name != "headway/catalog/models.json":
                archive.writestr(name, "")
    assert missing_from_wheel(tmp_path / "a.whl") == ["headway/catalog/models.json"]


def test_what_the_sdist_lacks_is_named(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for name in ("pyproject.toml", "README.md", "src/headway/__init__.py"):
            archive.addfile(tarfile.TarInfo(f"headway-1/{name}"), io.BytesIO())
    assert missing_from_sdist(tmp_path / "a.tar.gz") == ["LICENSE"]


def test_every_sub_command_has_a_case() -> None:
    """As the script itself demands of what is installed."""
    assert set(_COMMANDS) <= {case.line.split()[0] for case in BARE}
