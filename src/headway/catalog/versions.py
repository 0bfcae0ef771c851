"""vLLM version numbers, as people write them."""

from __future__ import annotations

import re

from headway.errors import ConfigError

Version = tuple[int, int, int]


def parse_version(text: str) -> Version:
    """Read `0.19.1`, `v0.8`, `0.5.x`, `0.15.2rc1.dev93` or `0.10.1.post1` to three numbers; the rest is dropped.

    Raises:
        ConfigError: not a version.
    """
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+|x))?(?:[.+\-]?\w+)*", text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is not a vLLM version.", hint="Examples: 0.19.1, 0.32.0.")
    major, minor, patch = match.groups()
    return int(major), int(minor), int(patch) if patch and patch != "x" else 0


def version_text(version: Version) -> str:
    """The version as people write it."""
    return ".".join(map(str, version))


def outside_known(version: Version, oldest: Version, newest: Version) -> str | None:
    """What to tell of a release that data from `oldest` to `newest` does not reach; None where it does."""
    if oldest <= version <= newest:
        return None
    age, nearest = ("newer", newest) if version > newest else ("older", oldest)
    end = "newest" if version > newest else "oldest"
    return (
        f"vLLM {version_text(version)} is {age} than the {end} release known, {version_text(nearest)}: the answer is "
        f"that of {version_text(nearest)}."
    )
