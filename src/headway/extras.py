"""Optional dependencies: which extra brings what, and an error that says how to install it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from headway.errors import ConfigError

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch", "numpy", "safetensors", "gguf", "tokenizers", "jinja2"),
    "serve": ("msgspec", "prometheus_client", "starlette", "uvicorn"),
    "aic": ("aiconfigurator_core",),
}
"""Modules of each extra's own packages."""


def missing_modules(extra: str) -> list[str]:
    """Modules of the extra that are not installed."""
    return [name for name in EXTRAS[extra] if find_spec(name) is None]


def need_extra(extra: str, what: str, *, instead: str = "") -> None:
    """Refuse to go on without an extra; `what` is what needs it, `instead` a sentence on how to do without.

    Raises:
        ConfigError: something of it is missing; the hint is the command that installs it.
    """
    missing = missing_modules(extra)
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}.", hint=f"{_install(extra)} {instead}".rstrip())


def require(module_name: str) -> Any:
    """Import and return a module that comes with the `torch` extra.

    Raises:
        ConfigError: the package is not installed; the hint is the command that installs it.
    """
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        package = module_name.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise
        raise ConfigError(
            f"The Python package {package!r} is needed for text and is not installed.", hint=_install("torch")
        ) from error


def _install(extra: str) -> str:
    return f"Install with: pip install 'headway[{extra}]'"
