"""What drafting costs, by method: passes of a drafter beside those of the model whose tokens it guesses."""

from __future__ import annotations

from headway.catalog.architecture import ModelArchitecture
from headway.catalog.dtypes import dtype_bytes
from headway.catalog.parameters import count_parameters
from headway.executors.simulated.coefficients import RooflineCoefficients

ON_THE_HOST = ("ngram", "suffix")
"""Methods that look drafts up instead of computing them."""
_UNKNOWN_SHARE = 0.1
"""Of a draft model that the catalogue does not have, and of a method that is not known."""
_WITH_A_LAYER = ("eagle", "mtp", "dflash")


def is_head(method: str) -> bool:
    """Whether drafts come from a head trained on the model, which reads its hidden states."""
    return any(name in method for name in _WITH_A_LAYER)


def draft_share(method: str, model: ModelArchitecture | None, drafter: ModelArchitecture | None = None) -> float:
    """Device time of one pass of a drafter over that of the model, by the weights that the two read: 0 to 1.

    A head that is trained on the model (EAGLE, MTP) runs one layer and the output head, Medusa's the output head.

    Args:
        method: as in vLLM's --speculative-config.
        model: the model that verifies; None where it is not known.
        drafter: the draft model, where it is one of its own and known.
    """
    if method in ON_THE_HOST:
        return 0.0
    if model is None:
        return _UNKNOWN_SHARE
    layers, head = _read(model)
    if is_head(method):
        return min(1.0, (layers / max(1, model.num_layers) + head) / max(1, layers + head))
    if method == "medusa":
        return min(1.0, head / max(1, layers + head))
    if drafter is None:
        return _UNKNOWN_SHARE
    return min(1.0, sum(_read(drafter)) / max(1, layers + head))


def pass_overhead_s(method: str, coefficients: RooflineCoefficients, drafter: ModelArchitecture | None = None) -> float:
    """Fixed device time of one pass of a drafter: its layers' small kernels, and one layer's worth of launches.

    vLLM captures the passes of a drafter in pieces at most, and the host works between them (vLLM issue 45258). By the
    speed-ups of vLLM pull request 16937 at 2, 4 and 7 drafts an EAGLE pass for Llama 3.1 8B on an H100 takes 0.21 of a
    step, twice what its weights ask for; this is the rest of it.
    """
    if method in ON_THE_HOST:
        return 0.0
    num_layers = 1 if is_head(method) or drafter is None else drafter.num_layers
    return coefficients.eager_layer_s + num_layers * coefficients.layer_s


def head_read_s(model: ModelArchitecture, bytes_per_s: float) -> float:
    """Time that a head's pass takes to read its weights: a layer as wide as one token's way through the model, in the
    model's own numbers, and the output head.

    For mixtures of experts, whose own steps read more of the experts the more rows they have: a share of a step says
    nothing of its head.
    """
    layers, head = _read(model)
    return dtype_bytes(model.dtype) * (layers / max(1, model.num_layers) + head) / bytes_per_s


def _read(model: ModelArchitecture) -> tuple[int, int]:
    """Weights that a token reads: in the layers, and in the output head."""
    parts = count_parameters(model)
    table = parts.by_part.get("embedding", 0)
    head = parts.by_part.get("head", table)
    return parts.active - table - parts.by_part.get("head", 0), head
