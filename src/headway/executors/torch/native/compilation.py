"""Compiling the kernel library, once for each combination of source, compiler and processor.

The result lies in the user's cache under a name made of all it depends on, so that nothing there is ever stale. It is
compiled beside its place and moved there when complete; a lock keeps several processes from compiling the same thing.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
COMPILERS = ("g++", "c++", "clang++")
_FLAGS = ("-std=c++20", "-fPIC", "-ffp-contract=off", "-fvisibility=default")
"""No contraction: a * b + c is rounded once where the source says so and nowhere else, so that all versions agree."""
_FLAGS_OF_FILE = {
    "kernels_avx512.cpp": (
        *("-O3", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
        *("-mfma", "-mf16c"),
    ),
    "kernels_avx2.cpp": ("-O3", "-mavx2", "-mfma", "-mf16c"),
}
_X86 = ("x86_64", "AMD64")
_TIMEOUT_S = 600


class KernelsUnavailableError(Exception):
    """The kernels cannot be compiled or loaded here; the message says why, in one sentence."""


def cache_folder() -> Path:
    """Where compiled libraries are kept: $HEADWAY_CACHE, or `headway` in the user's cache folder."""
    if given := os.environ.get("HEADWAY_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headway"


def find_compiler() -> str:
    """The C++ compiler: $CXX, or the first of `COMPILERS` on the path.

    Raises:
        KernelsUnavailableError: there is none.
    """
    for name in filter(None, (os.environ.get("CXX"), *COMPILERS)):
        if found := shutil.which(name):
            return found
    raise KernelsUnavailableError(f"There is no C++ compiler on the path (looked for {', '.join(COMPILERS)}).")


def cached_library(extra_flags: Sequence[str] = ()) -> Path:
    """Where the library for this machine is, or would be if it were compiled.

    Raises:
        KernelsUnavailableError: there is no compiler.
    """
    return cache_folder() / "kernels" / f"headway-{_key(find_compiler(), extra_flags)}.so"


def build(extra_flags: Sequence[str] = (), *, force: bool = False) -> Path:
    """Compile the library unless that has been done; returns its path.

    Args:
        extra_flags: for every file, such as a sanitizer's.
        force: compile even if it is there.

    Raises:
        KernelsUnavailableError: no compiler, an error from it, or a cache folder that cannot be written.
    """
    compiler = find_compiler()
    target = cached_library(extra_flags)
    if target.is_file() and not force:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if force or not target.is_file():
                _compile(compiler, target, extra_flags)
    except OSError as error:
        raise KernelsUnavailableError(f"The kernel cache {target.parent} cannot be used: {error}.") from error
    return target


def sources() -> list[Path]:
    """The files to compile on this machine."""
    files = sorted(SOURCES.glob("*.cpp"))
    is_x86 = platform.machine() in _X86
    return [file for file in files if is_x86 or file.name not in _FLAGS_OF_FILE]


def _key(compiler: str, extra_flags: Sequence[str]) -> str:
    digest = blake2b(digest_size=12)
    for file in sorted(SOURCES.iterdir()):
        digest.update(f"{file.name}\0".encode() + file.read_bytes() + b"\0")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest.update(repr((compiler, version, _FLAGS, _FLAGS_OF_FILE, tuple(extra_flags), _processor())).encode())
    return digest.hexdigest()


def _processor() -> tuple[str, str]:
    """The architecture and, where Linux tells them, the processor's feature flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine(), platform.processor()
    return platform.machine(), next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, target: Path, extra_flags: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [Path(folder) / f"{source.stem}.o" for source in sources()]
        commands = [
            [
                compiler,
                *_FLAGS,
                *_FLAGS_OF_FILE.get(source.name, ("-O2",)),
                *extra_flags,
                "-c",
                str(source),
                "-o",
                str(to),
            ]
            for source, to in zip(sources(), objects, strict=True)
        ]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(_run, commands))
        linked = Path(folder) / "library.so"
        _run([compiler, "-shared", "-pthread", *extra_flags, *map(str, objects), "-o", str(linked)])
        os.replace(linked, target)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise KernelsUnavailableError(f"The compiler did not finish within {_TIMEOUT_S} s.") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        raise KernelsUnavailableError(f"The compiler failed: {lines[0] if lines else command[0]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; it is released even if the process dies."""
    try:
        import fcntl
    except ImportError:
        # Without file locks two processes may both compile; each moves a complete library into place.
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
