"""headway: an LLM serving engine whose scheduler also runs under a virtual clock."""

from __future__ import annotations

__version__ = "0.1.0"
