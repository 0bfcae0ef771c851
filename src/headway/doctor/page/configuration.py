"""The configuration as the doctor reads it: each scheduler setting, the release's default, and what the value does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from headway.catalog.flags import flags_of
from headway.deployment.arguments import Parsed
from headway.deployment.chosen import chosen_defaults
from headway.deployment.effective import Effective, Setting
from headway.doctor.diagnosis import SettingRead
from headway.doctor.figures import Figures
from headway.doctor.page.setting_remarks import CONTROLS, remark

_REPORTED = (
    "gpu_memory_utilization", "kv_cache_dtype", "block_size", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "enable_prefix_caching",
)  # fmt: skip
"""Settings that a running engine tells of itself."""
_ONLY_IF_WRITTEN = frozenset((
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "enforce_eager",
    "quantization", "num_gpu_blocks_override", "kv_cache_memory_bytes", "max_num_queued_reqs",
    "max_num_queued_tokens", "max_num_scheduled_tokens", "max_num_active_seqs", "stream_interval",
    "prefill_schedule_interval", "scheduler_cls", "enable_lora", "max_loras", "disable_hybrid_kv_cache_manager",
    "num_scheduler_steps", "scheduler_delay_factor", "preemption_mode", "swap_space", "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive", "max_num_partial_prefills", "max_long_partial_prefills", "watermark",
    "scheduler_reserve_full_isl", "scheduling_policy", "async_scheduling", "speculative_config", "speculative_model",
    "num_speculative_tokens", "disable_chunked_mm_input",
))  # fmt: skip
"""Settings that a page about the deployment leaves out while they are the release's defaults."""


def read_configuration(figures: Figures) -> tuple[SettingRead, ...]:
    """Every scheduler setting that the deployment's release has, in the order of the page.

    Values are effective ones: what the running engine reports, else what its flags come to. Without a deployment only
    what the engine reports is known.
    """
    return tuple(_with_remark(row, figures) for row in (*_pool(figures), *_settings(figures)))


def is_on_the_page(row: SettingRead) -> bool:
    """Whether one page names the setting: it is written, or one that matters to every deployment."""
    if row.value is None and row.origin != "written":
        return row.name not in _ONLY_IF_WRITTEN and row.default_reason.startswith("depends")
    return not row.is_default or row.origin == "reported" or row.name not in _ONLY_IF_WRITTEN


def _pool(figures: Figures) -> Iterator[SettingRead]:
    """KV blocks: no flag, but what most of the flags come to."""
    settings = figures.settings
    if settings.kv_tokens is not None:
        origin = {"reported": "reported", "logged": "reported", "planned": "planned"}[settings.kv_source]
        num_blocks = settings.kv_tokens // settings.block_size
        controls = CONTROLS["num_gpu_blocks"]
        yield SettingRead("num_gpu_blocks", num_blocks, None, controls, "", origin, "what the memory leaves")


def _settings(figures: Figures) -> Iterator[SettingRead]:
    effective = figures.evidence.effective
    reported = _reported(figures)
    known = flags_of(effective.version) if effective is not None else {}
    for name, controls in CONTROLS.items():
        if name == "num_gpu_blocks":
            continue
        if effective is not None and name in known:
            yield _with_report(_of_flags(name, controls, effective), reported.get(name))
        elif name in reported:
            yield SettingRead(name, reported[name], None, controls, origin="reported", default_reason="not known")


def _of_flags(name: str, controls: str, effective: Effective) -> SettingRead:
    setting = effective.settings.get(name)
    default, reason = _default(name, effective)
    if setting is None:
        return SettingRead(name, default, default, controls, origin="default", default_reason=reason)
    origin = "forced" if setting.source == "forced" else "written" if setting.is_written else "default"
    if setting.is_written and name in effective.unresolved:
        origin = "unknown"
    forced = f"Set by the release: {setting.reason}" if origin == "forced" else ""
    return SettingRead(name, _plain(setting), default, controls, forced, origin, reason)


def _plain(setting: Setting) -> Any:
    """The value as people write it: a JSON setting as an object."""
    if isinstance(setting.value, str) and setting.value.startswith("{"):
        try:
            return json.loads(setting.value)
        except ValueError:
            return setting.value
    return setting.value


def _default(name: str, effective: Effective) -> tuple[Any, str]:
    """What the release would choose if this one setting were not written."""
    others = {key: written for key, written in effective.parsed.settings.items() if key != name}
    device = "cpu" if "cpu" in effective.facts.platforms else None
    chosen = chosen_defaults(Parsed(others), effective, device)
    if name in chosen:
        return chosen[name]
    return flags_of(effective.version)[name].default(effective.version), f"default of vLLM {effective.version_text}"


def _reported(figures: Figures) -> Mapping[str, Any]:
    """What the running engine, or its start-up log, says of its own settings."""
    sources = (figures.evidence.facts, figures.evidence.startup)
    found: dict[str, Any] = {}
    for name in _REPORTED:
        values = [value for source in sources if (value := getattr(source, name, None)) is not None]
        if values:
            found[name] = values[0]
    return found


def _with_report(row: SettingRead, value: Any) -> SettingRead:
    """The engine's own word outranks what its flags should have come to."""
    if value is None or value == row.value:
        return row
    if row.value is None:
        return replace(row, value=value, origin="reported")
    text = (
        f"The flags come to {row.value}, but the engine reports {value}: other flags, or another release, are running."
    )
    return replace(row, value=value, origin="reported", remark=text)


def _with_remark(row: SettingRead, figures: Figures) -> SettingRead:
    parts = [part for part in (row.remark, remark(row, figures)) if part]
    return replace(row, remark=" ".join(parts))
