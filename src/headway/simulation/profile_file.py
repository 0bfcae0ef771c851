"""What `headway calibrate` saves about a deployment, and `headway simulate --profile` applies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headway.errors import ConfigError
from headway.executors.simulated.calibrated import CalibratedOracle
from headway.executors.simulated.oracle import ErrorBar, LatencyOracle
from headway.report.files import write_file

_FORMAT = "headway-profile-1"
_LEAST_ERROR = 0.03
"""Runs of one server under one load differ by about as much: no fit to a few of them is surer than that."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Corrections to an oracle, and the KV blocks.

    Args:
        latency: the oracle that was calibrated; the profile belongs to it.
        kernel_scale: factor on the device's time.
        host_ms_per_step: time to add to each step.
        num_gpu_blocks: KV blocks that the deployment really has; None if no source told.
        relative_error: typical error on the measurements after the fit.
        num_measurements: how many loads were fitted.
        not_identified: what the measurements could not decide, by name, and why.
        deployment: the settings under which it was found.
    """

    latency: str
    kernel_scale: float = 1.0
    host_ms_per_step: float = 0.0
    num_gpu_blocks: int | None = None
    relative_error: float | None = None
    num_measurements: int = 0
    not_identified: Mapping[str, str] = field(default_factory=dict)
    deployment: Mapping[str, object] = field(default_factory=dict)

    def applied_to(self, oracle: LatencyOracle) -> LatencyOracle:
        """The oracle with these corrections."""
        if not self.num_measurements:
            return oracle
        error = None
        if self.relative_error is not None:
            least = max(self.relative_error, _LEAST_ERROR)
            error = ErrorBar(least, f"{self.num_measurements} measurements of this deployment, in sample")
        return CalibratedOracle(oracle, self.kernel_scale, self.host_ms_per_step * 1e-3, error)

    def check_is_of(self, **settings: object) -> None:
        """Refuse to be used for another model, GPU or split than it was found on.

        Args:
            settings: of the deployment at hand, under the names in `deployment`; None says nothing.

        Raises:
            ConfigError: one of them differs.
        """
        for name, value in settings.items():
            known = self.deployment.get(name)
            if value is not None and known is not None and known != value:
                raise ConfigError(
                    f"The profile was found with {name} {known}, not {value}.",
                    hint="Calibrate that deployment, or leave --profile out.",
                )

    def write(self, path: Path) -> None:
        """Save as JSON.

        Raises:
            ConfigError: the file cannot be written.
        """
        write_file(path, json.dumps({"format": _FORMAT, **asdict(self)}, indent=2) + "\n")


def read_profile(path: str | Path) -> Profile:
    """A saved profile.

    Raises:
        ConfigError: the file cannot be read, or is not a profile.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"The profile {path} cannot be read: {error}.") from None
    if not isinstance(record, dict) or record.pop("format", None) != _FORMAT:
        raise ConfigError(f"{path} is not a profile.", hint="`headway calibrate --out FILE` writes one.")
    try:
        profile = Profile(**record)
    except TypeError:
        raise ConfigError(f"The profile {path} has unknown or missing entries.") from None
    if not profile.kernel_scale > 0:
        raise ConfigError(f"kernel_scale in {path} must be above 0, not {profile.kernel_scale}.")
    return profile
