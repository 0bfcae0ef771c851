"""How much memory there is to give to the KV cache."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def free_memory_bytes(device: torch.device | str, *, cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
    """Memory of the device that can still be allocated; on Linux no more than the process's control group allows.

    Args:
        cgroup, meminfo: where the kernel says so.
    """
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    available = _available_bytes(meminfo)
    limits = [
        headroom for headroom in (_cgroup_v2_headroom(cgroup), _cgroup_v1_headroom(cgroup)) if headroom is not None
    ]
    return min([available, *limits])


def _available_bytes(meminfo: Path) -> int:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    # Not Linux: all there is. The share that the KV cache takes of it leaves room for the rest.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_v2_headroom(cgroup: Path) -> int | None:
    limit = _number(cgroup / "memory.max")
    used = _number(cgroup / "memory.current")
    return _headroom(limit, used, _statistic(cgroup / "memory.stat", "inactive_file"))


def _cgroup_v1_headroom(cgroup: Path) -> int | None:
    folder = cgroup / "memory"
    limit = _number(folder / "memory.limit_in_bytes")
    used = _number(folder / "memory.usage_in_bytes")
    return _headroom(limit, used, _statistic(folder / "memory.stat", "total_inactive_file"))


def _headroom(limit: int | None, used: int | None, reclaimable: int) -> int | None:
    """Page cache that nobody uses counts as used, and is given back when memory runs short."""
    if limit is None or used is None:
        return None
    return max(0, limit - max(0, used - reclaimable))


def _number(path: Path) -> int | None:
    """The number in a control file; None without the file, or where it says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _statistic(path: Path, key: str) -> int:
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == key:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
