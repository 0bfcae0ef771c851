"""Facts as data: models, accelerators, and vLLM's defaults by version. Standard library only."""

from __future__ import annotations

from headway.catalog.accelerators import Accelerator, find_accelerator, list_accelerators
from headway.catalog.architecture import (
    Attention,
    CompressedAttention,
    DenseFeedForward,
    ExpertFeedForward,
    LatentAttention,
    Layer,
    ModelArchitecture,
    StateSpace,
)
from headway.catalog.models import find_model, list_models

__all__ = [
    "Accelerator",
    "Attention",
    "CompressedAttention",
    "DenseFeedForward",
    "ExpertFeedForward",
    "LatentAttention",
    "Layer",
    "ModelArchitecture",
    "StateSpace",
    "find_accelerator",
    "find_model",
    "list_accelerators",
    "list_models",
]
