"""The project's own goldens: step logs recorded from many vLLM releases, committed with the tests.

`golden/logs.jsonl.gz` holds one workload a line: {"name", "workload", "logs": [{"versions": […], "steps": […], "tail":
[…]}]}. Releases that decided alike share a log. To record anew:

    HEADWAY_VLLM_SOURCES=… python -m tests.conformance.golden
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headway.frontends.steplog import run_workload
from tests.conformance.live_oracle import LiveOracle, supports
from tests.conformance.workloads import FAMILIES, Workload, generate

FILE = Path(__file__).parent / "golden" / "logs.jsonl.gz"
VERSIONS = (
    *("0.8.0", "0.8.1", "0.8.2", "0.8.3", "0.8.4", "0.8.5", "0.9.2", "0.10.0", "0.10.2", "0.11.0", "0.11.1", "0.12.0"),
    *("0.18.0", "0.19.0", "0.20.0", "0.20.2", "0.23.0", "0.24.0", "0.27.0", "0.28.0", "0.31.0", "0.32.0", "0.33.0"),
)
"""Each release at which some decision changed, and a few between."""
STEP_FIELDS = (
    *("step", "scheduled", "new", "resumed", "preempted", "admitted", "emitted", "finished", "aborted"),
    *("free_blocks", "free_blocks_end"),
)
_NOT_KEPT = frozenset({"real"})
_RARE = (("window", 81), ("window", 247), ("async", 772), ("async", 810), ("deep", 116))
"""Found by search: windows that only 0.20.0 and 0.20.1 undercount, and victims that only 0.28.0 and later step over."""


def condense(records: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What is kept of a log: some fields of every step, and what follows the last step. Of a crash not its words."""
    _, *rest = records
    steps = [record for record in rest if record["type"] == "step"]
    tail = [{"type": "error"} if record["type"] == "error" else record for record in rest[len(steps) :]]
    kept = [{name: step[name] for name in STEP_FIELDS if name in step} for step in steps]
    condensed: dict[str, Any] = json.loads(json.dumps({"steps": kept, "tail": tail}))
    return condensed


def load(path: Path = FILE) -> list[dict[str, Any]]:
    """All golden lines."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def main() -> None:
    """Choose workloads by how our profiles decide them, record those on every release, and write the file."""
    parser = argparse.ArgumentParser(description="Record step logs of many vLLM releases.")
    parser.add_argument("--seeds", type=int, default=40, help="candidates of each family (default %(default)s)")
    parser.add_argument("--keep", type=int, default=3, help="kept of each family (default %(default)s)")
    parser.add_argument("--max-steps", type=int, default=120, help="longest log that is kept (default %(default)s)")
    options = parser.parse_args()
    names = [(family, seed) for family in FAMILIES if family not in _NOT_KEPT for seed in range(options.seeds)]
    candidates = (Candidate(family, seed) for family, seed in [*names, *_RARE])
    chosen = choose([c for c in candidates if c.num_steps <= options.max_steps], options.keep)
    lines: list[dict[str, Any]] = [{"name": c.name, "workload": c.workload, "logs": []} for c in chosen]
    for version in VERSIONS:
        _record(version, lines)
    FILE.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    FILE.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    num_logs = sum(len(line["logs"]) for line in lines)
    print(f"{len(lines)} workloads, {num_logs} logs, {FILE.stat().st_size} bytes", file=sys.stderr)


class Candidate:
    """A workload that may be recorded, with our own decisions under the profile of each release."""

    def __init__(self, family: str, seed: int) -> None:
        self.family, self.name = family, f"{family}/{seed}"
        self.workload = generate(family, seed)
        self.digests: dict[str, str] = {}
        self.num_steps = 0
        for version in VERSIONS:
            if supports(version, self.workload["config"]):
                log = condense(run_workload(self.workload, version))
                self.digests[version] = json.dumps(log)
                self.num_steps = max(self.num_steps, len(log["steps"]))

    def tells_apart(self, earlier: str, later: str) -> bool:
        """Whether two releases decide differently."""
        return self.digests.get(earlier) != self.digests.get(later) and earlier in self.digests


def choose(candidates: Sequence[Candidate], keep: int) -> list[Candidate]:
    """Of each family those with the most distinct logs; and of all, those that tell neighbouring releases apart."""
    ordered = sorted(candidates, key=lambda c: (-len(set(c.digests.values())), c.num_steps))
    chosen = {c.name: c for family in FAMILIES for c in [c for c in ordered if c.family == family][:keep]}
    shortest = sorted(candidates, key=lambda c: c.num_steps)
    for earlier, later in itertools.pairwise(VERSIONS):
        telling = [c for c in shortest if c.tells_apart(earlier, later)]
        chosen |= {c.name: c for c in telling[:keep]}
    return sorted(chosen.values(), key=lambda c: c.name)


def _record(version: str, lines: Sequence[dict[str, Any]]) -> None:
    """Record every line's workload on one release, adding its log, or its name to a log that is the same."""
    supported = [line for line in lines if supports(version, line["workload"]["config"])]
    oracle = LiveOracle(version)
    try:
        workloads: list[Workload] = [line["workload"] for line in supported]
        for line, (_, records) in zip(supported, oracle.answers(workloads), strict=True):
            log = condense(records)
            for known in line["logs"]:
                if {k: v for k, v in known.items() if k != "versions"} == log:
                    known["versions"].append(version)
                    break
            else:
                line["logs"].append({"versions": [version], **log})
    finally:
        oracle.close()
    print(f"recorded {len(supported)} workloads on vLLM {version}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
