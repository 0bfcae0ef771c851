"""Who proposes drafts, by what is written in --speculative-config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def speculative_method(config: Mapping[str, Any]) -> str:
    """The method given, or what vLLM takes it to be from the draft's name."""
    method = config.get("method")
    if isinstance(method, str) and method:
        return "ngram" if method == "[ngram]" else method
    model = str(config.get("model") or "").lower()
    if model in ("ngram", "[ngram]"):
        return "ngram"
    for part, name in (
        ("eagle3", "eagle3"),
        ("eagle", "eagle"),
        ("medusa", "medusa"),
        ("mlp_speculator", "mlp_speculator"),
    ):
        if part in model:
            return name
    return "mtp" if not model or "mtp" in model else "draft_model"
