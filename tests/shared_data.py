"""Reference data that lies beside the checkout and is not part of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_path(name: str) -> Path:
    """A file or folder under `data/` of the shared folder, or at its top; the test is skipped where there is none.

    The shared folder is $HEADWAY_SHARED, or `../shared` beside the checkout.
    """
    root = Path(os.environ.get("HEADWAY_SHARED") or Path(__file__).resolve().parents[2] / "shared")
    for path in (root / "data" / name, root / name):
        if path.exists():
            return path
    pytest.skip(f"needs the reference data {name} under {root} (set HEADWAY_SHARED)")
