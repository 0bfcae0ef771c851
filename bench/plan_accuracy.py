"""How close the planner comes to measured start-ups: an error table by engine version.

    python bench/plan_accuracy.py kv_startup_logs.csv [--rows]

Each source counts the same, however many rows it has. Models that are not in the catalogue are listed as unknown.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from headway.catalog.versions import parse_version
from headway.errors import ConfigError
from headway.planner.calibration import Judged, StartUp, by_source, judge, read_start_ups, weighted_share


def main() -> None:
    """Read the rows, judge them and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", action="store_true", help="print every row")
    arguments = parser.parse_args()
    start_ups = read_start_ups(arguments.path)
    pairs = [(start_up, judge(start_up)) for start_up in start_ups]
    judged = [answer for _, answer in pairs if answer is not None and answer.tokens_error is not None]
    if arguments.rows:
        _print_rows(judged)
    _print_versions(judged)
    _print_bytes_per_token(start_ups)
    unknown = [start_up for start_up, answer in pairs if answer is None]
    print(f"\nunknown ({len(unknown)}): {', '.join(f'{row.row_id} {row.reason}' for row in unknown)}")
    print(f"\n{len(judged)} rows, {len(by_source(judged))} sources, each source weighted equally:")
    for within in (0.05, 0.10):
        print(f"  KV tokens within {within:.0%}: {weighted_share(judged, within):.0%} of rows")


def _print_rows(judged: Sequence[Judged]) -> None:
    for row in judged:
        assert row.tokens_error is not None and row.start_up.deployment is not None
        gib = "" if row.available_error_gib is None else f"{row.available_error_gib:+.2f} GiB"
        print(
            f"{row.start_up.row_id} {row.start_up.version:<8} {row.start_up.deployment.model.id:<42.42}"
            f"{row.start_up.deployment.accelerator.id:<24.24}{row.start_up.kv_cache_tokens:>10} {row.tokens:>10}"
            f" {row.tokens_error:+7.1%} {gib}"
        )


def _print_versions(judged: Sequence[Judged]) -> None:
    groups: dict[str, list[Judged]] = defaultdict(list)
    for row in judged:
        groups[_minor(row.start_up.version)].append(row)
    print(
        f"\n{'version':<10}{'rows':>5}{'sources':>9}{'median |error|':>16}"
        f"{'mean error':>12}{'worst':>9}{'<5 %':>7}{'<10 %':>7}"
    )
    for version in sorted(groups, key=_order):
        errors = [row.tokens_error for row in groups[version] if row.tokens_error is not None]
        sizes = [abs(error) for error in errors]
        print(
            f"{version:<10}{len(errors):>5}{len(by_source(groups[version])):>9}{median(sizes):>15.1%} "
            f"{sum(errors) / len(errors):>+11.1%} {max(sizes):>8.1%}"
            f"{sum(size <= 0.05 for size in sizes):>7}{sum(size <= 0.10 for size in sizes):>7}"
        )


def _print_bytes_per_token(start_ups: Sequence[StartUp]) -> None:
    """Bytes per token against the log's own quotient, for models of uniform full attention."""
    errors = []
    for row in start_ups:
        deployment = row.deployment
        if deployment is None or row.kib_per_token is None or deployment.model.is_hybrid:
            continue
        bytes_per_token = deployment.model.kv_bytes_per_token(
            deployment.kv_cache_dtype, deployment.tensor_parallel_size
        )
        errors.append((abs(bytes_per_token / 1024 / row.kib_per_token - 1), row.row_id))
    within = sum(error <= 0.005 for error, _ in errors)
    print(f"\nbytes per token (uniform attention): {within} of {len(errors)} rows within 0.5 %; others:", end=" ")
    print(", ".join(f"{row_id} {error:.1%}" for error, row_id in errors if error > 0.005) or "none")


def _minor(version: str) -> str:
    try:
        return ".".join(map(str, parse_version(version.split(" ")[0])[:2]))
    except ConfigError:
        return "unknown"


def _order(version: str) -> tuple[int, int, int]:
    return parse_version(version) if version != "unknown" else (99, 0, 0)


if __name__ == "__main__":
    main()
