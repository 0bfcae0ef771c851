"""Accuracy of the simulation in one page: replays of recorded runs, and the roofline on measured rows.

    python bench/accuracy.py --runs groundtruth/ --tables kernel/ --rows measured_serving.csv
    python bench/accuracy.py --rows measured_serving.csv --mixtures

Prints Markdown. Replays are judged on the requests that were not fitted. The roofline's figures are of the catalogue's
coefficients on the rows that they were fitted to; `fit_roofline.py` leaves sources out.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, median

from headway.accuracy.measured_rows import MeasuredRow, select_rows
from headway.accuracy.recorded_runs import read_runs
from headway.accuracy.row_errors import METRICS, RowError, row_errors
from headway.accuracy.row_simulation import prepare
from headway.accuracy.validation import validate_run
from headway.errors import ConfigError
from headway.executors.simulated.coefficients import fitted_coefficients

_REPLAYED = ("mean_ttft_ms", "mean_tpot_ms", "mean_latency_ms", "p99_tpot_ms", "output_throughput", "prefix_hit_tokens")


def main() -> None:
    """Both tables, or the one whose data is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of recorded runs")
    parser.add_argument("--tables", type=Path, help="folder of kernel tables")
    parser.add_argument("--rows", type=Path, help="CSV of measured rows")
    parser.add_argument("--mixtures", action="store_true", help="rows of mixtures of experts instead of dense models")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.runs is not None:
        print_replays(arguments.runs, arguments.tables)
    if arguments.rows is not None:
        rows = select_rows(arguments.rows, mixtures=arguments.mixtures).rows
        with ProcessPoolExecutor(arguments.jobs) as pool:
            errors = [error for found in pool.map(_errors, rows, chunksize=4) for error in found]
        print_rows(errors)


def print_replays(runs: Path, tables: Path | None) -> None:
    """Predicted against measured, run by run."""
    print("| run | oracle | metric | measured | predicted | error |\n| --- | --- | --- | --: | --: | --: |")
    for run in read_runs(runs):
        result = validate_run(run, tables)
        for row in result.comparisons:
            if row.metric in _REPLAYED:
                oracle = result.oracle.partition(":")[0]
                numbers = f"{row.measured:,.1f} | {row.predicted:,.1f} | {row.error_pct:+.2f} %"
                print(f"| {run.name} | {oracle} | {row.metric} | {numbers} |")


def print_rows(errors: Sequence[RowError]) -> None:
    """Medians of the absolute error by source, GPU and model, and their mean over sources."""
    print(f"\nCoefficients: {fitted_coefficients().source}\n")
    print("| by | name | rows | " + " | ".join(METRICS) + " |\n| --- | --- | --: |" + " --: |" * len(METRICS))
    for key in ("source", "gpu", "model"):
        names = sorted({str(getattr(error, key)) for error in errors})
        for name in names:
            found = [error for error in errors if getattr(error, key) == name]
            count = len({error.row_id for error in found})
            print(f"| {key} | {name} | {count} | " + " | ".join(_median(found, metric) for metric in METRICS) + " |")
    for metric in METRICS:
        sources = {error.source for error in errors if error.metric == metric}
        medians = [
            median(abs(e.error) for e in errors if e.metric == metric and e.source == source) for source in sources
        ]
        print(f"\n{metric}: mean of the sources' medians {mean(medians):.1%}, their median {median(medians):.1%}")


def _median(errors: Sequence[RowError], metric: str) -> str:
    values = [abs(error.error) for error in errors if error.metric == metric]
    return f"{median(values):.1%}" if values else ""


def _errors(row: MeasuredRow) -> list[RowError]:
    try:
        return row_errors(row, prepare(row).predict())
    except ConfigError:
        return []


if __name__ == "__main__":
    main()
