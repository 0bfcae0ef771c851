"""What `--speculative-config` asks for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from headway.catalog import find_model
from headway.catalog.architecture import ModelArchitecture
from headway.catalog.speculation import speculative_method
from headway.errors import ConfigError
from headway.executors.simulated.drafters import draft_share, head_read_s, is_head, pass_overhead_s
from headway.planner import Deployment


@dataclass(frozen=True, slots=True)
class Drafts:
    """How many drafts a step has, and who proposes them; none without speculation.

    Args:
        method: as vLLM names it; empty where neither a method nor a model is given.
        drafter: name of the draft model, if there is one.
    """

    count: int = 0
    method: str = ""
    drafter: str = ""

    def cost(self, deployment: Deployment) -> tuple[float, float]:
        """Device time of a drafter's pass: as a share of the model's, and a fixed part in seconds."""
        from headway.executors.simulated.coefficients import fitted_coefficients

        fitted, model, card = fitted_coefficients().coefficients, deployment.model, deployment.accelerator
        drafter = _known(self.drafter) if self.method == "draft_model" else None
        fixed_s = pass_overhead_s(self.method, fitted, drafter)
        if model.is_moe and is_head(self.method) and card.bandwidth_gbps is not None:
            reached = card.bandwidth_gbps * 1e9 * fitted.memory * deployment.tensor_parallel_size
            return 0.0, fixed_s + head_read_s(model, reached)
        return draft_share(self.method, model, drafter), fixed_s


def parse_drafts(text: str | None) -> Drafts:
    """Read vLLM's JSON.

    Raises:
        ConfigError: not JSON, or without a number of drafts.
    """
    if text is None:
        return Drafts()
    try:
        given: dict[str, Any] = json.loads(text)
        count = int(given["num_speculative_tokens"])
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"--speculative-config {text!r} does not say num_speculative_tokens.",
            hint='As in {"method": "eagle3", "num_speculative_tokens": 3}.',
        ) from None
    is_named = bool(given.get("method") or given.get("model"))
    return Drafts(count, speculative_method(given) if is_named else "", str(given.get("model") or ""))


def _known(name: str) -> ModelArchitecture | None:
    try:
        return find_model(name) if name else None
    except ConfigError:
        return None
