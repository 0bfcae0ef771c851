"""Compiling, caching, and doing without."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from headway.cli.kernels import kernels
from headway.errors import ConfigError
from headway.executors.torch import load
from headway.executors.torch.native import KernelsUnavailableError, build, cached_library, compilation
from headway.executors.torch.native import library as library_module
from headway.executors.torch.native.library import load_library
from tests.torch_executor.native.support import NativeRunner
from tests.torch_executor.support import random_ids
from tests.torch_executor.tiny_models import VOCAB_SIZE, TinyModel

Models = Callable[[str], TinyModel]


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes down each call, makes its output, and is slow enough to be met by others."""
    log, script = tmp_path / "calls", tmp_path / "bin" / "fake-c++"
    script.parent.mkdir()
    script.write_text(
        f'#!{sys.executable}\nimport sys, time\nargs = sys.argv[1:]\nif "-o" in args:\n    time.sleep(0.05)\n'
        f'    open({str(log)!r}, "a").write(args[-1 if "-shared" in args else args.index("-c") + 1] + "\\n")\n'
        '    open(args[args.index("-o") + 1], "w").write("made")\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    return log


def test_each_file_is_compiled_once_however_many_ask(fake_compiler: Path) -> None:
    """Four builders at once: one compiles, the others find its result."""
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: build(), range(4)))
    assert len(paths) == 1 and paths.pop().read_text() == "made"
    calls = fake_compiler.read_text().split()
    assert len(calls) == len(set(calls)) == len(compilation.sources()) + 1
    build(force=True)
    assert len(fake_compiler.read_text().split()) == 2 * len(calls)


def test_the_place_depends_on_source_compiler_and_flags(
    fake_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed source, another compiler or another flag is another library; the same again is the same."""
    first = cached_library()
    assert cached_library() == first
    assert cached_library(("-g",)) != first
    sources = tmp_path / "csrc"
    sources.mkdir()
    for file in compilation.SOURCES.iterdir():
        (sources / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(compilation, "SOURCES", sources)
    assert cached_library() == first
    (sources / "api.cpp").write_text("// changed\n")
    assert cached_library() != first


def test_a_compiler_error_is_told_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves nothing behind that looks like a library."""
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'x.cpp:1: error: no such thing' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    with pytest.raises(KernelsUnavailableError, match="error: no such thing"):
        build()
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a compiler, and nothing loaded yet."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HEADWAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(library_module, "load_library", load_library.__wrapped__)


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_the_exact_path_runs_and_says_so_once(
    tiny: Models, loaded: Callable[[str], object], caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, with the reason and what to do; results are the exact ones."""
    token_ids = random_ids(20, VOCAB_SIZE)
    with caplog.at_level(logging.WARNING):
        models = [load(tiny("llama").folder, device="cpu", quantization="int8") for _ in range(2)]
    (record,) = caplog.records
    assert "no C++ compiler" in record.getMessage() and "Install a C++ compiler" in record.getMessage()
    for model in models:
        torch.testing.assert_close(
            NativeRunner(model).logits(token_ids), tiny("llama").logits(token_ids), rtol=0, atol=1e-3
        )


@pytest.mark.usefixtures("no_compiler")
def test_headway_kernels_says_what_is_missing() -> None:
    """`build` and `path` fail with the reason and a hint."""
    for command in ("build", "path"):
        result = CliRunner().invoke(kernels, [command])
        assert isinstance(result.exception, ConfigError)
        assert "no C++ compiler" in str(result.exception) and "Install" in str(result.exception)


def test_headway_kernels_builds_and_finds() -> None:
    """The path that `build` prints is the one that `path` prints, and is there."""
    built = CliRunner().invoke(kernels, ["build"])
    found = CliRunner().invoke(kernels, ["path"])
    assert built.exit_code == found.exit_code == 0
    assert built.output.splitlines()[0] == found.output.strip() and Path(found.output.strip()).is_file()


@pytest.mark.slow
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Address and undefined-behaviour sanitizers under the kernel tests, all instruction sets, several threads."""
    runtime = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False)
    if runtime.returncode or not Path(runtime.stdout.strip()).is_file():
        pytest.skip("there is no libasan here")
    flags = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g1", "-O1")
    try:
        path = build(flags)
    except KernelsUnavailableError as error:
        pytest.skip(str(error))
    environment = os.environ | {
        "LD_PRELOAD": runtime.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "HEADWAY_KERNELS": str(path),
    }
    root = Path(__file__).parents[3]
    tests = [str(Path(__file__).parent / name) for name in ("test_kernels.py", "test_native_forward.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "runtime error" not in done.stdout + done.stderr
