"""Fuzzing the scheduler against vLLM's own: `make conformance`.

Generates workloads by family and seed, runs each on the live vLLM scheduler and on ours, and compares every field of
every record. The first mismatch is shrunk to a minimal workload and printed.

    python -m tests.conformance.fuzz --seeds 40 --families priority,async
    HEADWAY_VLLM_SOURCES=… python -m tests.conformance.fuzz --engine-version 0.19.0
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from headway.frontends.steplog import run_workload
from tests.conformance.comparison import Difference, first_difference
from tests.conformance.live_oracle import INSTALLED_VERSION, LiveOracle, supports
from tests.conformance.shrinking import shrink
from tests.conformance.workloads import FAMILIES, Workload, generate

SLOW_FAMILIES = frozenset({"real"})
"""Run one seed in twenty: each workload takes as long as dozens of small ones."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line. Exit status 1 if anything differed."""
    options = _parser().parse_args(arguments)
    families = options.families.split(",") if options.families else list(FAMILIES)
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        print(f"unknown families {unknown}; known: {', '.join(FAMILIES)}", file=sys.stderr)
        return 2
    seeds = _seed_range(options.seeds)
    oracle = LiveOracle(options.engine_version)
    try:
        report = {name: fuzz_family(oracle, name, seeds) for name in families}
    finally:
        oracle.close()
    total: Counter[str] = sum((Counter(counts) for counts in report.values()), Counter())
    if options.json:
        print(json.dumps({"engine_version": options.engine_version, "families": report, "total": dict(total)}))
    else:
        print(f"total: {_say(total)}")
    return 1 if total["different"] else 0


def fuzz_family(oracle: LiveOracle, family: str, seeds: range) -> dict[str, int]:
    """Run a family's seeds, as far as the release supports them. Returns counts of what was seen, and `different`."""
    if family in SLOW_FAMILIES:
        seeds = range(seeds.start, max(seeds.start + 1, seeds.start + len(seeds) // 20))
    counts: Counter[str] = Counter()
    failed: list[tuple[int, Workload, Difference]] = []
    candidates = ((seed, generate(family, seed)) for seed in seeds)
    workloads = (pair for pair in candidates if supports(oracle.version, pair[1]["config"]))
    for seed, workload, theirs in _answered(oracle, workloads):
        counts += measure(theirs)
        difference = first_difference(theirs, run_workload(workload, oracle.version))
        if difference is not None:
            failed.append((seed, workload, difference))
    counts["different"] = len(failed)
    print(f"{family} (seeds {seeds.start} to {seeds.stop - 1}): {_say(counts)}", file=sys.stderr, flush=True)
    if failed:
        _report(oracle, family, failed)
    return dict(counts)


def measure(records: Sequence[Mapping[str, Any]]) -> Counter[str]:
    """What a log shows of the features that a family is meant to exercise."""
    steps = [record for record in records if record["type"] == "step"]
    kinds = Counter(record["type"] for record in records)
    return Counter(
        workloads=1,
        steps=len(steps),
        preemptions=sum(len(record["preempted"]) for record in steps),
        prefix_hits=sum(tokens > 0 for record in steps for tokens in record["admitted"].values()),
        aborts=sum(len(record.get("aborted", ())) for record in steps),
        deadlocks=kinds["deadlock"],
        crashes=kinds["error"],
    )


def _answered(
    oracle: LiveOracle, workloads: Iterable[tuple[int, Workload]]
) -> Iterator[tuple[int, Workload, list[dict[str, Any]]]]:
    seeds: list[int] = []

    def unnumbered() -> Iterator[Workload]:
        for seed, workload in workloads:
            seeds.append(seed)
            yield workload

    for workload, records in oracle.answers(unnumbered()):
        yield seeds.pop(0), workload, records


def _report(oracle: LiveOracle, family: str, failed: Sequence[tuple[int, Workload, Difference]]) -> None:
    """Print the seeds that differ, and the first of them as a minimal workload."""

    def still_fails(candidate: Workload) -> bool:
        return first_difference(oracle.records(candidate), run_workload(candidate, oracle.version)) is not None

    print(f"{family}: seeds {[seed for seed, _, _ in failed]} differ", file=sys.stderr)
    seed, workload, difference = failed[0]
    print(f"{family} seed {seed}: {difference}", file=sys.stderr)
    minimal = shrink(workload, still_fails)
    left = first_difference(oracle.records(minimal), run_workload(minimal, oracle.version))
    print(f"minimal workload:\n{json.dumps(minimal)}\n{left}", file=sys.stderr, flush=True)


def _say(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count or name == "different")


def _seed_range(text: str) -> range:
    first, separator, last = text.partition(":")
    return range(int(first), int(last)) if separator else range(int(text))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Compare our scheduler with vLLM's own on random workloads.")
    parser.add_argument(
        "--seeds", default="20", help="seeds of each family: a count, or FIRST:END (default %(default)s)"
    )
    parser.add_argument("--families", help=f"comma-separated; default all: {', '.join(FAMILIES)}")
    parser.add_argument(
        "--engine-version", default=INSTALLED_VERSION, help="the vLLM release (others need $HEADWAY_VLLM_SOURCES)"
    )
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())
