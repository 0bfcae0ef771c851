"""`headway calibrate`: fit a deployment's host time, kernel scale and block count to what was measured on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headway.cli.options import options_from, options_of
from headway.simulation.options import DeploymentOptions

if TYPE_CHECKING:
    from headway.accuracy.calibration import Calibration, Fit
    from headway.evidence.load import LoadResult

_MISS = 0.25
"""A fitted metric that is off by more than this share is named."""
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.option("--bench", "benches", type=_FILE, multiple=True, help="Result of vllm bench serve; may be repeated.")
@click.option("--guidellm", "reports", type=_FILE, multiple=True, help="Report of GuideLLM; may be repeated.")
@click.option("--metrics", type=_FILE, nargs=2, help="Two scrapes of /metrics under load: BEFORE AFTER.")
@click.option("--startup-log", type=_FILE, help="What the engine printed at its start: tells the KV blocks.")
@click.option("--out", type=_FILE, default=Path("headway-profile.json"), show_default=True, help="The profile.")
@options_from(DeploymentOptions, exclude=("profile",))
def calibrate(
    benches: tuple[Path, ...],
    reports: tuple[Path, ...],
    metrics: tuple[Path, Path] | None,
    startup_log: Path | None,
    out: Path,
    **params: Any,
) -> None:
    """Fit a deployment's host time a step, kernel scale and KV blocks to measurements that you already have.

    Give the deployment's flags, and any of: results of vllm bench serve, GuideLLM reports, two scrapes of /metrics, the
    start-up log. The profile is then used by `headway simulate --profile FILE` with the same flags. What the
    measurements could not decide is said.

    \b
    Example:
        headway calibrate --model llama-3.1-8b --gpu l40s --bench c1.json --bench c64.json --startup-log vllm.log
    """
    from headway.accuracy.calibration import calibrate as fit
    from headway.accuracy.observations import read_scrapes
    from headway.errors import ConfigError
    from headway.evidence.bench_results import read_guidellm, read_vllm_bench
    from headway.report.files import check_writable

    check_writable(out, "--out")
    options: DeploymentOptions = options_of(DeploymentOptions, params)
    observations: list[LoadResult] = [item for path in benches for item in read_vllm_bench(path)]
    observations += [item for path in reports for item in read_guidellm(path)]
    blocks = options.num_gpu_blocks_override
    if metrics is not None:
        found, scraped = read_scrapes(*metrics)
        observations += found
        blocks = blocks or scraped
    if startup_log is not None:
        blocks = blocks or _logged_blocks(startup_log)
    if not observations and blocks is None:
        raise ConfigError("Nothing to calibrate on.", hint="Give --bench, --guidellm, --metrics or --startup-log.")
    resolved = _with_blocks(options, blocks).resolve()
    result = fit(
        resolved.deployment,
        observations,
        latency=options.latency,
        num_gpu_blocks=blocks,
        facts=resolved.facts(),
    )
    is_replaced = out.exists()
    result.profile.write(out)
    _print(result, out, is_replaced=is_replaced)


def _with_blocks(options: DeploymentOptions, blocks: int | None) -> DeploymentOptions:
    from dataclasses import replace

    return options if blocks is None else replace(options, num_gpu_blocks_override=blocks)


def _logged_blocks(path: Path) -> int | None:
    """Blocks that a start-up log tells; None if it does not.

    Raises:
        InputError: the log cannot be read.
    """
    from headway.errors import InputError
    from headway.planner.startup_log import read_startup_logs

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from None
    for log in read_startup_logs(text):
        if log.num_gpu_blocks is not None:
            return log.num_gpu_blocks
        if log.tokens is not None:
            return log.tokens // (log.block_size or 16)
    return None


def _print(result: Calibration, out: Path, *, is_replaced: bool = False) -> None:
    from headway.cli.console import make_console, print_next
    from headway.report.tables import new_table

    console = make_console()
    profile = result.profile
    if result.fits:
        table = new_table()
        for column in ("measurement", "metric", "measured", "before", "after"):
            table.add_column(column, justify="left" if column in ("measurement", "metric") else "right")
        for row in result.fits:
            for key, value in row.measured.items():
                shown = [f"{value:,.2f}", *(f"{side[key]:,.2f} ({side[key] / value - 1:+.1%})" for side in _sides(row))]
                table.add_row(row.source, key, *shown)
        console.print(table)
    console.print(
        f"host time {profile.host_ms_per_step:+.3f} ms a step, kernels × {profile.kernel_scale:.3f}, "
        f"KV blocks {profile.num_gpu_blocks or 'as planned'}; typical error "
        + (f"{profile.relative_error:.1%}" if profile.relative_error is not None else "unknown")
        + " in TPOT and throughput.",
        highlight=False,
    )
    replaced = ", which is replaced" if is_replaced else ""
    console.print(f"Written to {out}{replaced}.", highlight=False, soft_wrap=True)
    if missed := _missed(result.fits):
        console.print(
            f"Warning: the fit misses {missed}: do not trust such figures of this profile, and check that the "
            "measurements are of this model, GPU and flags.",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    if profile.host_ms_per_step < 0:
        console.print(
            "A negative host time takes away: steps of this server are that much shorter than the oracle's own host "
            "time says.",
            highlight=False,
        )
    for name, reason in profile.not_identified.items():
        console.print(f"Not identified: {name}: {reason}.", highlight=False)
    known = profile.deployment
    where = f"--model {known.get('model_id')} --gpu {known.get('gpu')}"
    print_next(console, f"headway simulate --profile {out} {where}", "it takes the same flags")


def _missed(fits: Sequence[Fit]) -> str:
    """Metrics that the fit misses by more than `_MISS`, each where it misses by most; empty where none does."""
    worst: dict[str, tuple[float, str]] = {}
    for row in fits:
        for key, value in row.measured.items():
            error = row.after[key] / value - 1.0
            if abs(error) > max(_MISS, abs(worst.get(key, (0.0, ""))[0])):
                worst[key] = error, row.source
    return ", ".join(f"{key} by {error:+.0%} ({source})" for key, (error, source) in worst.items())


def _sides(row: Fit) -> Sequence[Mapping[str, float]]:
    return row.before, row.after
