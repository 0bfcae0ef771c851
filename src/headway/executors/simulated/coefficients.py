"""The roofline's fitted numbers: how far from the physical limit things run, and what the limits leave out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import resources

from headway.catalog.versions import parse_version
from headway.errors import ConfigError

V1_ENGINE = (0, 8, 0)
"""First release whose default is the V1 engine: its host work is done beside the device's, in a process of its own."""
_EARLY_ENGINE, _EARLY_FACTOR = (0, 6, 0), 2.0
"""Before 0.6.0 the HTTP server shared the engine's process: vLLM's account of that release has the GPU at work 38 % of
the time for Llama 3 8B on an H100, and about twice as much host time a step as after it."""


@dataclass(frozen=True, slots=True)
class RooflineCoefficients:
    """Global coefficients: none belongs to a model, a card or a source.

    Args:
        memory: share of the bandwidth that reading weights reaches.
        kv_memory: share of the bandwidth that decode attention reaches when it reads KV.
        compute: share of the 16-bit arithmetic that matrix products and prefill attention reach.
        narrow_gain: what 8- and 4-bit arithmetic brings: the peak is taken as 16-bit peak × ratio of peaks ** gain.
        experts: share of the 16-bit arithmetic that the products of experts reach, each with a tile half empty.
        network: share of the link's bandwidth that an all-reduce reaches.
        all_reduce_s: fixed time of one all-reduce.
        layer_s: fixed device time of one layer: small kernels and the gaps between kernels.
        eager_layer_s: host time to launch one layer's kernels without CUDA graphs; the device waits for the host then.
        host_s: host time of one step of the V1 engine.
        host_v0_s: host time of one step of the engine before it.
        host_request_s: host time of each request in a step.
    """

    memory: float
    kv_memory: float
    compute: float
    narrow_gain: float
    experts: float
    network: float
    all_reduce_s: float
    layer_s: float
    eager_layer_s: float
    host_s: float
    host_v0_s: float
    host_request_s: float

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0.0 <= value < float("inf"):
                raise ConfigError(f"The roofline coefficient {name} must be a number of at least 0, not {value}.")
        for name in ("memory", "kv_memory", "compute", "experts", "network"):
            if getattr(self, name) == 0.0:
                raise ConfigError(f"The roofline coefficient {name} must be above 0.")

    def host_time_s(self, version: str, num_requests: int) -> float:
        """Host time of one step in an engine version; an empty version is a current one."""
        fixed = self.host_v0_s if is_before_v1(version) else self.host_s
        return age_factor(version) * (fixed + num_requests * self.host_request_s)


def is_before_v1(version: str) -> bool:
    """Whether the engine is the one before V1."""
    return bool(version) and parse_version(version) < V1_ENGINE


def age_factor(version: str) -> float:
    """What the host takes in a version, over what it takes from 0.6 on."""
    return _EARLY_FACTOR if version and parse_version(version) < _EARLY_ENGINE else 1.0


@dataclass(frozen=True, slots=True)
class FittedCoefficients:
    """Coefficients with where they come from. `residuals` are relative errors on sources left out of the fit."""

    coefficients: RooflineCoefficients
    residuals: Mapping[str, float]
    source: str

    def step_error(self, *, is_moe: bool) -> float:
        """Typical relative error of a step's time: that of TPOT, of dense models or of mixtures of experts."""
        return self.residuals["tpot_experts" if is_moe else "tpot"]


@cache
def fitted_coefficients() -> FittedCoefficients:
    """The coefficients of `catalog/roofline_coefficients.json`."""
    text = resources.files("headway.catalog").joinpath("roofline_coefficients.json").read_text(encoding="utf-8")
    record = json.loads(text)
    return FittedCoefficients(read_coefficients(record["coefficients"]), record["residuals"], record["source"])


def read_coefficients(values: Mapping[str, float]) -> RooflineCoefficients:
    """Coefficients by name.

    Raises:
        ConfigError: one is missing, unknown or out of range.
    """
    names = {field.name for field in fields(RooflineCoefficients)}
    if set(values) != names:
        odd = ", ".join(sorted(set(values) ^ names))
        raise ConfigError(f"Roofline coefficients are missing or unknown: {odd}.")
    return RooflineCoefficients(**values)
