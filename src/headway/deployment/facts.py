"""What conditions in the data may ask about a deployment: settings, and facts derived from them, model and hardware."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.catalog.accelerators import Accelerator
from headway.catalog.architecture import Attention, LatentAttention, ModelArchitecture, StateSpace
from headway.catalog.compatibility import CompatData, Row
from headway.catalog.conditions import UNKNOWN
from headway.catalog.flags import all_flags
from headway.catalog.speculation import speculative_method
from headway.catalog.versions import Version
from headway.deployment.arguments import Written
from headway.deployment.words import Word

_MTP = frozenset((
    "mtp", "deepseek_mtp", "mimo_mtp", "glm4_moe_mtp", "ernie_mtp", "qwen3_next_mtp", "qwen3_5_mtp",
    "longcat_flash_mtp", "pangu_ultra_moe_mtp", "exaone_moe_mtp", "nemotron_h_mtp", "step3p5_mtp",
))  # fmt: skip


@dataclass(slots=True)
class Facts:
    """A mapping from names to values for conditions. `asked_X` is what was written for X, None where nothing was.

    `values` are effective settings; a name that is a flag of any version and has no value is None; any other name that
    is not derived is unknown.
    """

    version: Version
    engine: str
    values: dict[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Written] = field(default_factory=dict)
    derived: dict[str, Any] = field(default_factory=dict)
    platforms: frozenset[str] = frozenset(("any", "cuda"))

    def get(self, name: str, default: Any = UNKNOWN) -> Any:
        """The value of a fact."""
        if name.startswith("asked_"):
            written = self.asked.get(name.removeprefix("asked_"))
            return None if written is None else (UNKNOWN if written.unresolved else written.value)
        if name in self.derived:
            return self.derived[name]
        if name in self.values:
            return self.values[name]
        return None if name in all_flags() else default


class _View(dict[str, Any]):
    """Facts as the mapping that conditions take."""

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self._facts = facts

    def get(self, key: str, default: Any = None) -> Any:
        return self._facts.get(key, default)


def row_holds(row: Row, facts: Facts, data: CompatData) -> bool | None:
    """Whether a row speaks of the deployment; None where it depends on something that is not known."""
    if row.engine not in ("any", facts.engine) or row.platform not in facts.platforms:
        return False
    view = _View(facts)
    answers = [data.features[name].when.holds(view) for name in row.features]
    if row.when is not None:
        answers.append(row.when.holds(view))
    if False in answers:
        return False
    return None if None in answers else True


def speculation_facts(values: Mapping[str, Any], version: Version) -> dict[str, Any]:
    """Method and sizes of speculative decoding, from `speculative_config` or from the flags before 0.8.3."""
    config = values.get("speculative_config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except ValueError:
            config = {"model": config}
    if not isinstance(config, Mapping) and (values.get("speculative_model") or values.get("num_speculative_tokens")):
        config = {
            "model": values.get("speculative_model"),
            "num_speculative_tokens": values.get("num_speculative_tokens"),
            "draft_tensor_parallel_size": values.get("speculative_draft_tensor_parallel_size"),
        }
    if not isinstance(config, Mapping):
        return {"speculative_config": None, "spec_method": None, "spec_is_mtp": False, "num_speculative_tokens": 0}
    method = speculative_method(config)
    tensor = values.get("tensor_parallel_size")
    return {
        "speculative_config": dict(config),
        "spec_method": method,
        "spec_is_mtp": method in _MTP,
        "spec_tokens_given": bool(config.get("num_speculative_tokens")),
        "spec_names_draft": bool(config.get("method") or config.get("model")) or "speculative_config" not in values,
        "spec_is_dynamic": isinstance(config.get("num_speculative_tokens"), list | dict),
        "spec_is_adaptive": bool(config.get("adaptive_verification")),
        "spec_is_multi_module_mtp": UNKNOWN if method in _MTP else False,
        "spec_disable_padded_drafter_batch": bool(config.get("disable_padded_drafter_batch")),
        "spec_use_heterogeneous_vocab": bool(config.get("use_heterogeneous_vocab")),
        "spec_parallel_slots": UNKNOWN if config.get("parallel_drafting") else 0,
        "num_speculative_tokens": config.get("num_speculative_tokens") or UNKNOWN,
        "draft_tensor_parallel_size": config.get("draft_tensor_parallel_size") or tensor,
    }


def model_facts(model: ModelArchitecture | None) -> dict[str, Any]:
    """Facts about the model's layers; nothing where the model is not known."""
    if model is None:
        return {}
    mixers = [layer.mixer for layer in model.layers]
    states = any(isinstance(mixer, StateSpace) for mixer in mixers)
    attention = [mixer for mixer in mixers if isinstance(mixer, Attention)]
    return {
        "is_moe": model.is_moe,
        "is_multimodal": model.vision_params != 0,
        "is_encoder_decoder": False,
        "is_mla": any(isinstance(mixer, LatentAttention) for mixer in mixers),
        "has_states": states,
        "is_hybrid": states and any(not isinstance(mixer, StateSpace) for mixer in mixers if mixer is not None),
        "has_sliding_window": any(mixer.kind == "sliding" for mixer in attention),
        "has_chunked_attention": any(mixer.kind == "chunked" for mixer in attention),
        "is_attention_free": not any(not isinstance(mixer, StateSpace) for mixer in mixers if mixer is not None),
        "uses_gqa": any(mixer.num_kv_heads < mixer.num_heads for mixer in attention),
        "num_attention_heads": min((mixer.num_heads for mixer in attention), default=UNKNOWN),
        "model_limit": model.max_model_len or UNKNOWN,
        "num_kv_heads": min((mixer.num_kv_heads for mixer in attention), default=1),
    }


_GENERATIONS = ((9, "sm90"), (8.9, "sm89"), (8, "sm80"), (7.5, "sm75"), (7, "sm70"))


def platform_tags(accelerator: Accelerator | None, device: str | None) -> frozenset[str]:
    """Names of the platform that rows may give."""
    if device == "cpu":
        return frozenset(("any", "cpu"))
    if accelerator is None:
        return frozenset(("any", "cuda"))
    if accelerator.vendor == "amd":
        return frozenset(("any", "rocm", *(("rdna3",) if accelerator.architecture.startswith("gfx11") else ())))
    if accelerator.vendor != "nvidia":
        return frozenset(("any", {"google": "tpu", "intel": "xpu"}.get(accelerator.vendor, accelerator.vendor)))
    capability = accelerator.compute_capability
    number = capability[0] + capability[1] / 10 if capability else 0
    names = [name for least, name in _GENERATIONS if least <= number < 10]
    return frozenset(("any", "cuda", *names[:1]))


def environment_facts(environment: Mapping[str, Word]) -> dict[str, Any]:
    """What the environment variables switch."""

    def text(name: str) -> Any:
        word = environment.get(name)
        return None if word is None else (UNKNOWN if word.unresolved else word.text)

    allocator = text("PYTORCH_CUDA_ALLOC_CONF")
    return {
        "env_use_v1": text("VLLM_USE_V1"),
        "env_allow_long_max_model_len": text("VLLM_ALLOW_LONG_MAX_MODEL_LEN"),
        "uses_expandable_segments": "expandable_segments:True" in allocator if isinstance(allocator, str) else False,
    }
