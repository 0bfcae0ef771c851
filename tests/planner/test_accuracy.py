"""The planner against measured start-ups, kept beside the checkout.

What counts are start-ups of sources that had no part in the fit; those with the catalogue's sizes pin the fit itself.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from headway.planner.calibration import judge, read_start_ups, tokens_from_pool, weighted_share
from tests.shared_data import shared_path

ROOT = Path(__file__).resolve().parents[2]


def test_sources_left_out_of_the_fit_are_planned_within_10_percent() -> None:
    """Each source weighted equally: three of four rows within 5 %, nearly all within 10 %, nine of ten in the range.

    Every row whose version is known is within 5 %.
    """
    printed = run_bench()
    everything, known = re.split(r"whose version is known", printed)
    assert share(r"within 5%: (\d+)%", everything) >= 75 and share(r"within 10%: (\d+)%", everything) >= 95
    assert share(r"planned range: (\d+)%", everything) >= 88
    assert share(r"within 5%: (\d+)%", known) >= 95 and share(r"within 10%: (\d+)%", known) == 100


def test_rows_of_the_fit_are_within_5_percent_where_the_version_is_known() -> None:
    """The catalogue's sizes are those that the fit gave."""
    start_ups = read_start_ups(shared_path("kv_startup_logs_open.csv"))
    judged = [answer for row in start_ups if (answer := judge(row)) is not None and answer.tokens_error is not None]
    assert len(judged) >= 40
    assert weighted_share(judged, 0.05) >= 0.80
    known = [row for row in judged if row.start_up.version_is_known]
    assert all(row.tokens_error is not None and abs(row.tokens_error) <= 0.05 for row in known)


def test_bytes_per_token_equal_the_log_for_uniform_attention() -> None:
    """To half a percent where the log has both figures to that precision."""
    off = []
    for row in read_start_ups(shared_path("kv_startup_logs_open.csv")):
        if row.deployment is None or row.kib_per_token is None or row.deployment.model.is_hybrid:
            continue
        planned = row.deployment.model.kv_bytes_per_token(
            row.deployment.kv_cache_dtype, row.deployment.tensor_parallel_size
        )
        if abs(planned / 1024 / row.kib_per_token - 1) > 0.005:
            off.append(row.row_id)
    assert len(off) <= 1


def test_tokens_of_the_logged_pool_equal_the_log_for_layers_that_forget() -> None:
    """By the formula of each row's own release."""
    errors = []
    for row in read_start_ups(shared_path("kv_startup_logs_open.csv")):
        if row.deployment is not None and row.deployment.model.is_hybrid and row.kv_cache_tokens:
            tokens = tokens_from_pool(row)
            errors += [] if tokens is None else [abs(tokens / row.kv_cache_tokens - 1)]
    assert len(errors) >= 5 and max(errors) < 0.001


def test_models_that_are_not_known_are_not_guessed() -> None:
    """A variant that the row itself calls unknown has no deployment, and a reason."""
    rows = [row for row in read_start_ups(shared_path("kv_startup_logs_open.csv")) if row.deployment is None]
    assert rows and all("not in the catalogue" in row.reason for row in rows)


def test_the_command_prints_a_table_by_version() -> None:
    """With the catalogue's sizes too."""
    printed = run_bench("--in-sample", "--rows")
    assert "0.17" in printed and "the catalogue's sizes" in printed


def run_bench(*flags: str) -> str:
    """What `bench/plan_accuracy.py` prints."""
    path = shared_path("kv_startup_logs_open.csv")
    command = [sys.executable, "-m", "bench.plan_accuracy", str(path), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout


def share(pattern: str, text: str) -> int:
    """A percentage in what was printed."""
    match = re.search(pattern, text)
    assert match is not None
    return int(match[1])
