"""What a calibrated profile may be used for."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import ConfigError
from headway.simulation.options import DeploymentOptions
from headway.simulation.profile_file import Profile


def _profile(tmp_path: Path, error: float) -> str:
    path = tmp_path / "profile.json"
    found_on = {"model_id": "llama-3.1-8b", "gpu": "l40s", "tensor_parallel_size": 1, "pipeline_parallel_size": 1}
    Profile("roofline", 1.1, 0.5, relative_error=error, num_measurements=2, deployment=found_on).write(path)
    return str(path)


def test_a_profile_is_refused_for_another_deployment(tmp_path: Path) -> None:
    profile = _profile(tmp_path, 0.1)
    assert DeploymentOptions(model="llama-3.1-8b", gpu="l40s", profile=profile).resolve()
    with pytest.raises(ConfigError, match=r"found with gpu l40s, not h100.*Calibrate"):
        DeploymentOptions(model="llama-3.1-8b", gpu="h100", profile=profile).resolve()
    with pytest.raises(ConfigError, match="tensor_parallel_size 1, not 2"):
        DeploymentOptions(model="llama-3.1-8b", gpu="l40s", tensor_parallel_size=2, profile=profile).resolve()


def test_a_perfect_fit_is_not_certainty(tmp_path: Path) -> None:
    """Two measurements that two numbers reproduce say nothing of the next one."""
    resolved = DeploymentOptions(model="llama-3.1-8b", gpu="l40s", profile=_profile(tmp_path, 0.0)).resolve()
    bar = resolved.deployment.oracle.error_bar()
    assert bar is not None and bar.relative == pytest.approx(0.03)
