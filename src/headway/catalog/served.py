"""Which releases of vLLM know a model architecture: as their registries say, read from 0.8.0 on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources

from headway.catalog.versions import Version, parse_version


@dataclass(frozen=True, slots=True)
class Served:
    """The last release read without an architecture (None: the first one read has it) and the first one with it."""

    last_without: str | None
    first_with: str

    def knows(self, version: Version) -> bool | None:
        """None for a release between the two, and for one before the first that was read."""
        if self.last_without is not None and version <= parse_version(self.last_without):
            return False
        return True if version >= parse_version(self.first_with) else None


def served(architecture: str | None) -> Served | None:
    """What the registries say of an architecture's name; None if no release read has it (or no name is given)."""
    return None if architecture is None else _all().get(architecture)


@cache
def _all() -> dict[str, Served]:
    text = resources.files("headway.catalog").joinpath("vllm_architectures.json").read_text(encoding="utf-8")
    data = json.loads(text)
    return {
        **{name: Served(None, "0.8.0") for name in data["in_0_8_0"]},
        **{name: Served(last_without, first) for name, (last_without, first) in data["since"].items()},
    }
