"""`headway validate`: replay recorded runs and print predicted against measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from headway.accuracy.validation import Validation

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("folder", type=_PATH)
@click.option("--tables", type=_PATH, help="Folder of kernel tables; default: `kernel` in FOLDER or beside it.")
@click.option("--run", "name", help="Only runs whose name contains this.")
@click.option("--fit-requests", default=100, show_default=True, type=click.IntRange(min=1), help="Fitted on so many.")
@click.option("--num-gpu-blocks", type=click.IntRange(min=2), help="KV blocks; default: recorded, else planned.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a metric, one a line.")
def validate(
    folder: Path, tables: Path | None, name: str | None, fit_requests: int, num_gpu_blocks: int | None, as_json: bool
) -> None:
    """Replay the recorded runs of FOLDER and print predicted against measured.

    Where FOLDER's GPU and model have kernel tables, one host scalar (and with tensor parallelism the bandwidth of
    all-reduces) is fitted on the first requests, and every figure is of the rest. Otherwise the roofline answers.

    \b
    Example:
        headway validate runs/ --tables profiles/kernel
    """
    from headway.accuracy.recorded_runs import read_runs
    from headway.accuracy.validation import validate_run
    from headway.errors import InputError

    runs = [run for run in read_runs(folder) if name is None or name in run.name]
    if not runs:
        raise InputError(f"No run of {folder} has {name!r} in its name.")
    found = tables or next((path for path in (folder / "kernel", folder.parent / "kernel") if path.is_dir()), None)
    done = []
    for run in runs:
        result = validate_run(run, found, num_fit_requests=fit_requests, num_gpu_blocks=num_gpu_blocks)
        done.append(result)
        if as_json:
            _print_json(result)
    if not as_json:
        _print_table(done)


def _print_json(result: Validation) -> None:
    for row in result.comparisons:
        click.echo(
            json.dumps(
                {
                    "run": row.run,
                    "metric": row.metric,
                    "measured": row.measured,
                    "predicted": row.predicted,
                    "error_pct": row.error_pct,
                    "oracle": result.oracle,
                    "num_gpu_blocks": result.num_blocks,
                    "num_gpu_blocks_from": result.blocks_from,
                    "fitted": dict(result.fitted),
                    "num_fit_requests": result.num_fit_requests,
                }
            )
        )


def _print_table(results: Sequence[Validation]) -> None:
    from headway.cli.console import make_console, print_next
    from headway.report.tables import new_table
    from headway.report.words import counted

    console = make_console()
    table = new_table()
    for column in ("run", "metric", "measured", "predicted", "error"):
        table.add_column(column, justify="left" if column in ("run", "metric") else "right")
    for result in results:
        for row in result.comparisons:
            table.add_row(
                row.run, row.metric, f"{row.measured:,.1f}", f"{row.predicted:,.1f}", f"{row.error_pct:+.2f} %"
            )
        table.add_section()
    console.print(table)
    for result in results:
        fitted = ", ".join(f"{key} {value:.3g}" for key, value in result.fitted.items())
        first = counted(result.num_fit_requests, "request")
        how = f"fitted on the first {first}: {fitted}" if fitted else "nothing fitted"
        console.print(
            f"{result.run.name}: {result.oracle}; {result.num_blocks} KV blocks, {result.blocks_from}; {how}; "
            f"judged on {counted(len(result.run.requests) - result.num_fit_requests, 'request')}.",
            highlight=False,
        )
    print_next(
        console, "headway calibrate --model … --gpu … --bench result.json", "fit the simulator to a server of yours"
    )
