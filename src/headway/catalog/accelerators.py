"""Accelerators: memory as torch sees it, bandwidth, arithmetic, links. Figures not read anywhere are marked uncited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from headway.errors import ConfigError

GIB = 2**30
MemoryBasis = Literal["torch", "nvidia-smi", "label"]

_SMI_RESERVE_GIB = (0.45, 0.0015)
"""torch sees nvidia-smi's total less 0.45 GiB and 0.15 % of it: a line through the cards where both were read (H100,
A100, L20, 4090, 3090), good to about 0.2 GiB."""
_LABEL_SHARE = {"nvidia": (0.92, 0.985, 1.0), "amd": (0.98, 1.0, 1.0)}
"""Low, likely, high share of the label that torch sees; ECC memory on GDDR cards takes the low end."""
_HBM_ARCHITECTURES = ("sm70", "sm80", "sm90", "sm100", "sm103")
_HBM_LABEL_SHARE = (0.96, 0.99, 1.0)
"""Of cards with stacked memory: torch saw 0.986 to 0.992 of the label on V100, A100, H100 and H200, 0.96 on GB300."""
_INTEGRATED = ("sm87", "sm110", "sm121")


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of GPU or other accelerator.

    `dense_tflops` is by number format ("bf16", "fp16", "fp8", "fp4", "int8"), without sparsity. `link_gbps` is one
    GPU's bandwidth to its peers in one direction, over `link_kind`, within a group of `link_world`. `uncited` names the
    figures that were not read in a source: usable for a rough answer, not to be quoted.
    """

    id: str
    aliases: tuple[str, ...]
    vendor: str
    architecture: str
    memory_label_gb: float
    memory_torch_gib: float | None
    memory_smi_mib: float | None
    bandwidth_gbps: float | None
    dense_tflops: Mapping[str, float]
    link_kind: str | None
    link_gbps: float | None
    link_world: int
    pcie_gbps: float | None
    tdp_w: float | None
    confidence: str
    uncited: frozenset[str]
    source: str
    note: str

    @property
    def is_integrated(self) -> bool:
        """The host's memory is the GPU's too (Orin, Thor, GB10)."""
        return self.architecture in _INTEGRATED

    @property
    def memory_basis(self) -> MemoryBasis:
        """Where `memory_bytes` comes from: read in a log, from nvidia-smi's total, or guessed from the label."""
        if self.memory_torch_gib is not None:
            return "torch"
        return "nvidia-smi" if self.memory_smi_mib is not None else "label"

    @property
    def memory_bytes(self) -> int:
        """Total memory as torch reports it; `memory_range_bytes` says how sure that is."""
        return self.memory_range_bytes[1]

    @property
    def memory_range_bytes(self) -> tuple[int, int, int]:
        """Low, likely and high total memory as torch reports it."""
        if self.memory_torch_gib is not None:
            exact = int(self.memory_torch_gib * GIB)
            return exact, exact, exact
        if self.memory_smi_mib is not None:
            total = self.memory_smi_mib / 1024
            likely = total - _SMI_RESERVE_GIB[0] - _SMI_RESERVE_GIB[1] * total
            return int((likely - 0.2) * GIB), int(likely * GIB), int((likely + 0.2) * GIB)
        low, likely, high = _LABEL_SHARE.get(self.vendor, (0.92, 0.97, 1.0))
        if self.architecture in _HBM_ARCHITECTURES:
            low, likely, high = _HBM_LABEL_SHARE
        label = self.memory_label_gb * GIB
        return int(low * label), int(likely * label), int(high * label)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """CUDA compute capability; None for other vendors."""
        digits = self.architecture.removeprefix("sm")
        if self.vendor != "nvidia" or not digits.isdigit():
            return None
        return int(digits[:-1]), int(digits[-1])

    def flops(self, dtype: str) -> float | None:
        """Dense operations a second in a number format; 16-bit formats stand in for each other."""
        for name in (dtype, *({"bf16": ("fp16",), "fp16": ("bf16",)}.get(dtype, ()))):
            if name in self.dense_tflops:
                return self.dense_tflops[name] * 1e12
        return None


def list_accelerators() -> list[str]:
    """Ids of all accelerators, in the catalogue's order."""
    return list(_all())


def find_accelerator(name: str) -> Accelerator:
    """An accelerator by id or alias, in any case: `h100`, `H100-SXM5-80GB`, `a100-80g`, `NVIDIA L40S`.

    Raises:
        ConfigError: unknown, with the nearest names.
    """
    wanted = _normal(name)
    for accelerator in _all().values():
        if wanted in {_normal(accelerator.id), *map(_normal, accelerator.aliases)}:
            return accelerator
    starts = [item for item in _all().values() if _normal(item.id).startswith(f"{wanted}-")]
    if len(starts) == 1:
        return starts[0]
    names = {_normal(alias): item.id for item in _all().values() for alias in (item.id, *item.aliases)}
    near = dict.fromkeys(names[match] for match in get_close_matches(wanted, names, n=4, cutoff=0.5))
    hint = f"Nearest: {', '.join(near)}." if near else f"Known: {', '.join(_all())}."
    raise ConfigError(f"GPU {name!r} is not in the catalogue.", hint=hint)


def _normal(name: str) -> str:
    text = name.strip().lower().replace("_", "-").replace(" ", "-")
    for prefix in ("nvidia-", "amd-", "instinct-", "geforce-", "tesla-"):
        text = text.removeprefix(prefix)
    if text.endswith("g") and text[-2:-1].isdigit():
        text += "b"
    return text.replace("-hbm3e", "").replace("-hbm3", "").replace("-hbm2e", "")


@cache
def _all() -> Mapping[str, Accelerator]:
    text = resources.files("headway.catalog").joinpath("accelerators.json").read_text(encoding="utf-8")
    return MappingProxyType({record["id"]: _read(record) for record in json.loads(text)})


def _read(record: Mapping[str, Any]) -> Accelerator:
    link = record.get("interconnect") or {}
    return Accelerator(
        id=record["id"],
        aliases=tuple(record["aliases"]),
        vendor=record["vendor"],
        architecture=record["architecture"],
        memory_label_gb=record["memory_label_gb"],
        memory_torch_gib=record.get("memory_torch_gib"),
        memory_smi_mib=record.get("memory_smi_mib"),
        bandwidth_gbps=record.get("bandwidth_gbps"),
        dense_tflops=dict(record.get("dense_tflops", {})),
        link_kind=link.get("kind"),
        link_gbps=link.get("gbps_per_direction"),
        link_world=link.get("world", 1),
        pcie_gbps=record.get("pcie_gbps"),
        tdp_w=record.get("tdp_w"),
        confidence=record["confidence"],
        uncited=frozenset(record.get("uncited", ())),
        source=record["source"],
        note=record.get("note", ""),
    )
