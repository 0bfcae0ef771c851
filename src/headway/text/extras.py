"""Imports of optional dependencies, with an error that says how to install them."""

from __future__ import annotations

import importlib
from typing import Any

from headway.errors import ConfigError


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
            f"The Python package {package!r} is needed for text and is not installed.",
            hint="Run: pip install 'headway[torch]'",
        ) from error
