"""The planner against measured start-ups, kept beside the checkout.

The coefficients were fitted on these rows, so this pins the fit; docs/planner.md has the figures for sources left out.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headway.planner.calibration import judge, read_start_ups, weighted_share
from tests.shared_data import shared_path

BENCH = Path(__file__).resolve().parents[2] / "bench" / "plan_accuracy.py"


def test_kv_tokens_are_within_5_percent_for_most_measured_start_ups() -> None:
    """Each source weighted equally; rows whose version is known are all within 10 %."""
    start_ups = read_start_ups(shared_path("kv_startup_logs_open.csv"))
    judged = [answer for row in start_ups if (answer := judge(row)) is not None and answer.tokens_error is not None]
    assert len(judged) >= 40
    assert weighted_share(judged, 0.05) >= 0.80
    assert weighted_share(judged, 0.10) >= 0.85
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


def test_models_that_are_not_known_are_not_guessed() -> None:
    """A variant that the row itself calls unknown has no deployment, and a reason."""
    rows = [row for row in read_start_ups(shared_path("kv_startup_logs_open.csv")) if row.deployment is None]
    assert rows and all("not in the catalogue" in row.reason for row in rows)


def test_the_command_prints_the_table() -> None:
    """`bench/plan_accuracy.py` runs on the file as it is."""
    path = shared_path("kv_startup_logs_open.csv")
    done = subprocess.run([sys.executable, str(BENCH), str(path)], capture_output=True, text=True, check=True)
    assert "KV tokens within 5%" in done.stdout and "0.17" in done.stdout
