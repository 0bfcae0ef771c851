"""What metrics say of the engine's own make, and what its engines are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headway.evidence.engine import EngineFacts
from headway.evidence.metric_names import ENGINE_LABELS, V0_ONLY, V1_ONLY

EngineKey = tuple[str, ...]
"""The values of `ENGINE_LABELS`."""
_ENGINE = ENGINE_LABELS.index("engine")
_DP_RANK = ENGINE_LABELS.index("dp_rank")
_MODEL = (ENGINE_LABELS.index("model_name"), ENGINE_LABELS.index("name"))

_Seen = tuple[str, Mapping[str, tuple[float, Mapping[str, str]]], Mapping[str, float]]


def short_names(engines: Iterable[EngineKey]) -> dict[EngineKey, str]:
    """Names of the labels that differ; a single engine has its own label, or 0."""
    keys = list(engines)
    differing = [i for i in range(len(ENGINE_LABELS)) if len({key[i] for key in keys}) > 1]
    if not differing:
        return {key: key[_ENGINE] or key[_DP_RANK] or "0" for key in keys}
    return {key: "/".join(key[i] or "-" for i in differing) for key in keys}


def facts_of(engines: Mapping[EngineKey, _Seen], names: set[str]) -> EngineFacts:
    """Facts of the engines, of which the first speaks for all.

    Args:
        engines: the kind, the info metrics (value and labels) and the gauges of each.
        names: every metric's name seen, without prefix.
    """
    if not engines:
        return EngineFacts()
    kind = "vllm" if any(seen[0] == "vllm" for seen in engines.values()) else "sglang"
    model = next((key[i] for key in engines for i in _MODEL if key[i]), None)
    if kind == "sglang":
        gauges = next(iter(engines.values()))[2]
        return EngineFacts(
            engine=kind,
            model=model,
            kv_cache_tokens=_count(gauges.get("max_total_num_tokens")),
            max_model_len=_count(gauges.get("context_len")),
            max_num_seqs=_count(gauges.get("max_running_requests")),
            num_engines=len(engines),
        )
    infos = [seen[1] for seen in engines.values()]
    labels = next((info["cache_config"][1] for info in infos if "cache_config" in info), {})
    lora = [info["lora"][1] for info in infos if "lora" in info]
    blocks, size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    dtype, caching = labels.get("cache_dtype"), labels.get("enable_prefix_caching")
    tokens = _number(labels.get("kv_cache_size_tokens")) or (blocks * size if blocks and size else None)
    slots = [value for item in lora if (value := _number(item.get("max_lora"))) is not None]
    return EngineFacts(
        engine=kind,
        generation=_generation(engines, names),
        model=model,
        num_gpu_blocks=_count(blocks),
        block_size=_count(size),
        kv_cache_tokens=_count(tokens),
        gpu_memory_utilization=_number(labels.get("gpu_memory_utilization")),
        kv_cache_dtype=dtype if dtype and dtype != "None" else None,
        enable_prefix_caching={"True": True, "False": False}.get(caching or ""),
        num_engines=len(engines),
        max_lora=_count(max(slots)) if slots else None,
        lora_running=_adapters(lora, "running_lora_adapters"),
        lora_waiting=_adapters(lora, "waiting_lora_adapters"),
    )


def _generation(engines: Iterable[EngineKey], names: set[str]) -> str | None:
    if names & V0_ONLY:
        return "V0"
    return "V1" if names & V1_ONLY or any(key[_ENGINE] for key in engines) else None


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and 0.0 < value < 1e15 else None


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0.0 < value < 1e15 else None


def _adapters(infos: Iterable[Mapping[str, str]], label: str) -> tuple[str, ...]:
    names = [name.strip() for info in infos for name in info.get(label, "").split(",")]
    return tuple(dict.fromkeys(name for name in names if name))
