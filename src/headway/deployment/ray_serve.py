"""Reads Ray Serve's LLM configs, from YAML or from Python keywords."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headway.deployment.container_args import line_of
from headway.deployment.invocation import Invocation
from headway.deployment.mapping import settings_of


def read_ray(document: Any) -> list[Invocation]:
    """Every LLM config of a Ray Serve file."""
    return [from_llm_config(config, _first_line(config)) for config in _configs(document, 0)]


def is_ray(document: Any) -> bool:
    """The document holds an LLM config of Ray Serve."""
    return next(_configs(document, 0), None) is not None


def _configs(node: Any, depth: int) -> Iterator[Mapping[str, Any]]:
    if isinstance(node, Mapping):
        if "engine_kwargs" in node or "model_loading_config" in node:
            yield node
            return
        for value in node.values():
            yield from _configs(value, depth + 1)
    elif isinstance(node, list):
        for value in node:
            yield from _configs(value, depth + 1)


def _first_line(config: Mapping[str, Any]) -> int:
    return next((line for value in config.values() if (line := line_of(value))), 0)


def from_llm_config(config: Mapping[str, Any], line: int) -> Invocation:
    """An invocation from an `LLMConfig`: the engine's keywords, the model's source, the accelerator."""
    kwargs = config.get("engine_kwargs")
    settings = settings_of(kwargs if isinstance(kwargs, Mapping) else {}, "engine_kwargs")
    loading = config.get("model_loading_config")
    loading = loading if isinstance(loading, Mapping) else {}
    model = loading.get("model_source") or loading.get("model_id")
    if model is not None and "model" not in settings:
        settings |= settings_of({"model": model}, "model_loading_config")
    if loading.get("model_id") is not None and "served_model_name" not in settings:
        settings |= settings_of({"served_model_name": [str(loading["model_id"])]}, "model_loading_config")
    found = Invocation("settings", "Ray Serve LLMConfig", line, settings=settings)
    if isinstance(config.get("accelerator_type"), str):
        found.facts["accelerator"] = str(config["accelerator_type"])
    if "max_num_seqs" not in settings:
        found.lint(
            "ray-batch-default",
            "note",
            "Ray builds the engine outside vLLM's server: where max_num_seqs is not given, older Ray (before its PR "
            "55159) gets 128 rather than the server's 256 or 1024. Write max_num_seqs.",
            line,
            "max_num_seqs",
        )
    return found
