"""The project's own goldens: step logs recorded from many vLLM releases, committed with the tests.

`golden/logs.jsonl.gz` holds one workload a line: {"name", "workload", "logs": [{"versions": […], "steps": […], "tail":
[…]}]}. Releases that decided alike share a log. To record anew:

    HEADWAY_VLLM_SOURCES=… python -m tests.conformance.golden
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    """Record candidate workloads on every release, and keep those that tell releases apart."""
    parser = argparse.ArgumentParser(description="Record step logs of many vLLM releases.")
    parser.add_argument("--seeds", type=int, default=12, help="candidates of each family (default %(default)s)")
    parser.add_argument("--keep", type=int, default=3, help="of which are kept (default %(default)s)")
    parser.add_argument("--max-steps", type=int, default=90, help="longest log that is kept (default %(default)s)")
    options = parser.parse_args()
    names = [(family, seed) for family in FAMILIES if family not in _NOT_KEPT for seed in range(options.seeds)]
    lines = [{"name": f"{f}/{s}", "workload": generate(f, s), "logs": []} for f, s in names]
    for version in VERSIONS:
        _record(version, lines)
    kept = [line for family in FAMILIES for line in _best(family, lines, options.keep, options.max_steps)]
    FILE.parent.mkdir(exist_ok=True)
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in kept)
    FILE.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))
    print(
        f"{len(kept)} workloads, {sum(len(k['logs']) for k in kept)} logs, {FILE.stat().st_size} bytes", file=sys.stderr
    )


def _record(version: str, lines: Sequence[dict[str, Any]]) -> None:
    chosen = [line for line in lines if supports(version, line["workload"]["config"])]
    oracle = LiveOracle(version)
    try:
        workloads: list[Workload] = [line["workload"] for line in chosen]
        for line, (_, records) in zip(chosen, oracle.answers(workloads), strict=True):
            log = condense(records)
            for known in line["logs"]:
                if {k: v for k, v in known.items() if k != "versions"} == log:
                    known["versions"].append(version)
                    break
            else:
                line["logs"].append({"versions": [version], **log})
    finally:
        oracle.close()
    print(f"recorded {len(chosen)} workloads on vLLM {version}", file=sys.stderr, flush=True)


def _best(family: str, lines: Sequence[dict[str, Any]], count: int, max_steps: int) -> list[dict[str, Any]]:
    """The workloads of a family with the most distinct logs, short ones first among equals."""

    def length(line: dict[str, Any]) -> int:
        return max(len(log["steps"]) for log in line["logs"])

    mine = [line for line in lines if line["name"].startswith(f"{family}/") and length(line) <= max_steps]
    return sorted(mine, key=lambda line: (-len(line["logs"]), length(line)))[:count]


if __name__ == "__main__":
    main()
