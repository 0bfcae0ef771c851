"""Race headway against other CPU engines: the same requests, in turn, in one run.

    python -m bench.peers [--peers headway,openvino,vllm] [--rounds 5] [--budgets 256,512] [--threads 1,2]
                          [--workload mixed|single] [--rate R] [--requests 64] [--json FILE]

Each peer is installed into an environment of its own below --envs when it is first asked for. A round runs every
peer at every budget and number of threads, one process each, one after the other; ratios are taken within a round,
against headway's best, and the table gives their median and range. Nothing else should run on the machine meanwhile.

--json is written after every process. What it has already is not run again, so that a race may be interrupted, and a
slow peer raced in fewer rounds: `--peers headway,transformers --first-round 5 --rounds 1` adds a sixth with those two.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers import workload
from bench.peers.environments import PEERS, Peer, environment
from bench.peers.export_folder import export_folder
from bench.peers.tables import table
from headway.executors.torch import locate_model, open_checkpoint
from headway.executors.torch.native.compilation import cache_folder

_HERE = Path(__file__).parent
_TIMEOUT_S = 1800


def main() -> None:
    """Install, run, print."""
    args = _parse()
    names = args.peers.split(",")
    for name in names:
        if name not in PEERS:
            raise SystemExit(f"There is no peer {name!r}; known: {', '.join(PEERS)}.")
    pythons = {name: environment(name, args.envs) for name in names}
    race = _Race(args)
    with tempfile.TemporaryDirectory() as scratch:
        race.run(names, pythons, Path(scratch))
    formats = {name: peer.format for name, peer in PEERS.items()}
    print(table(race.results, formats, args.workload, online=args.rate is not None))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--model", help="a GGUF file; default: the bundled model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budgets", default="256,512", help="tokens of one step; each peer's best one counts")
    parser.add_argument(
        "--threads", default=str(os.cpu_count()), help="numbers of threads; each peer's best one counts"
    )
    parser.add_argument("--first-round", type=int, default=0)
    parser.add_argument("--workload", choices=("mixed", "single"), default="mixed", help="single: one long answer")
    parser.add_argument("--requests", type=int, default=workload.NUM_REQUESTS)
    parser.add_argument("--rate", type=float, help="requests a second; default: all at once")
    parser.add_argument("--envs", type=Path, default=cache_folder() / "peers")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


class _Race:
    """Runs what has not been run yet, and keeps the results in a file."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.results: list[dict[str, Any]] = []
        self._kind = {"workload": args.workload, "requests": args.requests, "rate": args.rate, "model": args.model}
        if args.json and args.json.is_file():
            known = json.loads(args.json.read_text())
            if known["kind"] != self._kind:
                raise SystemExit(f"{args.json} is of another race: {known['kind']}.")
            self.results = [result for result in known["results"] if "error" not in result]

    def run(self, names: Sequence[str], pythons: Mapping[str, Path], scratch: Path) -> None:
        """Round by round, setting by setting, peer by peer."""
        args = self._args
        gguf = locate_model(args.model)
        folder = scratch / "folder"
        if any(PEERS[name].needs_folder for name in names):
            export_folder(args.model, folder)
        vocab_size = open_checkpoint(gguf).spec.vocab_size
        done = {(result["peer"], result["round"], result["budget"], result["threads"]) for result in self.results}
        for number in range(args.first_round, args.first_round + args.rounds):
            path = scratch / f"workload-{number}.json"
            if args.workload == "single":
                workload.save(path, workload.single(vocab_size, seed=number))
            else:
                workload.save(path, workload.mixed(vocab_size, number, num_requests=args.requests, rate=args.rate))
            settings = [(int(b), int(t)) for b in args.budgets.split(",") for t in args.threads.split(",")]
            for budget, threads in settings:
                for name in names:
                    if (name, number, budget, threads) in done:
                        continue
                    peer = PEERS[name]
                    result = _run(pythons[name], peer, folder if peer.needs_folder else gguf, path, budget, threads)
                    self._add({"peer": name, "round": number, "threads": threads, "budget": budget, **result})

    def _add(self, result: dict[str, Any]) -> None:
        self.results.append(result)
        print(_line(result), flush=True)
        if self._args.json:
            self._args.json.write_text(json.dumps({"kind": self._kind, "results": self.results}, indent=1))


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


if __name__ == "__main__":
    main()
