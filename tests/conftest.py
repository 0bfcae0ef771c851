"""Hypothesis profiles. `ci` (the default) draws the same examples in every run; `fuzz` draws new ones, and more.

HYPOTHESIS_PROFILE chooses, as in `HYPOTHESIS_PROFILE=fuzz pytest tests/core`; pytest's --hypothesis-seed repeats a
fuzz run.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Wall time decides nothing here: deadlines and slow-data checks would fail on a busy machine.
_CALM = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])

settings.register_profile("ci", _CALM, max_examples=260, stateful_step_count=50, derandomize=True, database=None)
settings.register_profile("fuzz", _CALM, max_examples=5_000, stateful_step_count=80, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
