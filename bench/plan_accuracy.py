"""How close the planner comes to measured start-ups: an error table by engine version.

    python -m bench.plan_accuracy kv_startup_logs.csv [--rows] [--in-sample]

Each start-up is planned with sizes that were fitted without its source (see fit_memory.py), so that the table says
what to expect of a start-up not seen before; `--in-sample` takes the catalogue's sizes as they are: for rows that had
no part in the fit, or to see the fit itself. Each source counts the same, however many rows it has. Models that are
not in the catalogue are listed as unknown.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from bench.fit_memory import leave_one_source_out
from headway.catalog.versions import parse_version
from headway.errors import ConfigError
from headway.planner.calibration import (
    Judged,
    StartUp,
    by_source,
    judge,
    read_start_ups,
    tokens_from_pool,
    weighted_coverage,
    weighted_share,
)


def main() -> None:
    """Read the rows, judge them and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--rows", action="store_true", help="print every row")
    parser.add_argument("--in-sample", action="store_true", help="the catalogue's sizes for all rows")
    arguments = parser.parse_args()
    start_ups = read_start_ups(arguments.path)
    planned = {row.row_id for row in start_ups if judge(row) is not None}
    if arguments.in_sample:
        judged = [answer for row in start_ups if (answer := judge(row)) is not None and answer.tokens_error is not None]
    else:
        judged = leave_one_source_out([row for row in start_ups if row.row_id in planned])
    if arguments.rows:
        _print_rows(judged)
    _print_versions(judged)
    _print_bytes_per_token(start_ups)
    _print_tokens_from_pool(start_ups)
    unknown = [row for row in start_ups if row.row_id not in planned]
    print(f"\nunknown ({len(unknown)}): {', '.join(f'{row.row_id} {row.reason}' for row in unknown)}")
    how = "the catalogue's sizes" if arguments.in_sample else "each source left out of the fit in turn"
    _print_summary(f"{len(judged)} rows, {len(by_source(judged))} sources, {how}, each source weighted equally", judged)
    known = [row for row in judged if row.start_up.version_is_known]
    _print_summary(f"of these the {len(known)} rows whose version is known", known)


def _print_summary(title: str, judged: Sequence[Judged]) -> None:
    print(f"\n{title}:")
    for within in (0.05, 0.10):
        print(f"  KV tokens within {within:.0%}: {weighted_share(judged, within):.0%} of rows")
    print(f"  measured tokens within the planned range: {weighted_coverage(judged):.0%} of rows")


def _print_rows(judged: Sequence[Judged]) -> None:
    for row in judged:
        assert row.tokens_error is not None and row.start_up.deployment is not None
        gib = "" if row.available_error_gib is None else f"{row.available_error_gib:+.2f} GiB"
        print(
            f"{row.start_up.row_id} {row.start_up.version:<8} {row.start_up.deployment.model.id:<42.42}"
            f"{row.start_up.deployment.accelerator.id:<24.24}{row.start_up.kv_cache_tokens:>10} {row.tokens:>10}"
            f" {row.tokens_error:+7.1%} {gib:<10} {'' if row.is_covered else 'outside '}"
            f"{row.plan.kv_cache_tokens.low}..{row.plan.kv_cache_tokens.high}"
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


def _print_tokens_from_pool(start_ups: Sequence[StartUp]) -> None:
    """Tokens of the logged pool by the release's own formula, for models whose layers keep their past in several ways.

    Pools are logged to 0.01 GiB or to whole GiB, which is half of that each way.
    """
    errors = []
    for row in start_ups:
        if row.deployment is None or not row.deployment.model.is_hybrid or not row.kv_cache_tokens:
            continue
        tokens = tokens_from_pool(row)
        if tokens is not None:
            errors.append((tokens / row.kv_cache_tokens - 1, row.row_id))
    print("\ntokens from the logged pool (other attention): ", end="")
    print(", ".join(f"{row_id} {error:+.2%}" for error, row_id in errors) or "no rows")


def _minor(version: str) -> str:
    try:
        return ".".join(map(str, parse_version(version.split(" ")[0])[:2]))
    except ConfigError:
        return "unknown"


def _order(version: str) -> tuple[int, int, int]:
    return parse_version(version) if version != "unknown" else (99, 0, 0)


if __name__ == "__main__":
    main()
