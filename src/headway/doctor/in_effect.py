"""The settings that a running engine has, from whatever tells: the engine itself, its start-up log, its flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.catalog.accelerators import Accelerator
from headway.catalog.architecture import ModelArchitecture
from headway.catalog.conditions import UNKNOWN
from headway.catalog.versions import Version, parse_version
from headway.doctor.evidence import Evidence
from headway.doctor.sglang_flags import sglang_settings
from headway.errors import ConfigError

_DEFAULT_BLOCK_SIZE = 16
_REPORTED = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")


@dataclass(frozen=True, slots=True)
class InEffect:
    """Effective values; None where nothing tells. `kv_source`: reported, logged or planned.

    `speculation` is the configuration of speculative decoding, empty where only its log lines show that it is on, and
    None where it is off or nothing tells.
    """

    engine: str | None
    generation: str | None
    version: Version | None
    model_name: str | None
    model: ModelArchitecture | None
    accelerator: Accelerator | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    kv_tokens: int | None
    kv_source: str
    block_size: int
    gpu_memory_utilization: float | None
    kv_cache_dtype: str | None
    enable_chunked_prefill: bool | None
    enable_prefix_caching: bool | None
    enforce_eager: bool | None
    long_prefill_token_threshold: int | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int
    max_loras: int | None
    speculation: Mapping[str, Any] | None
    num_speculative_tokens: int
    are_defaults_assumed: bool = False
    """No release is stated: values that nobody wrote are the reference release's."""
    written: frozenset[str] = frozenset()
    reported: frozenset[str] = frozenset()
    """Settings that the engine itself or its start-up log tells."""

    def is_sure_of(self, name: str) -> bool:
        """Whether a setting's value is more than the default of a release that nobody stated."""
        return getattr(self, name, None) is not None and (not self.are_defaults_assumed or name in self.written)

    def is_default(self, name: str) -> bool:
        """Whether a setting's value is a default: nobody wrote it and no engine reports it.

        Defaults depend on the card and on how the engine is started: what is observed outranks them.
        """
        return getattr(self, name, None) is not None and name not in self.written | self.reported

    @property
    def is_sglang(self) -> bool:
        """Whether the engine is SGLang."""
        return self.engine == "sglang"

    @property
    def num_gpus(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def model_text(self) -> str:
        """The model as people call it."""
        return self.model.id if self.model is not None else (self.model_name or "the model")


def in_effect(evidence: Evidence) -> InEffect:
    """Gather the settings; what the running engine reports outranks what its flags should have made of it."""
    facts, effective, plan, startup = evidence.facts, evidence.effective, evidence.plan, evidence.startup
    sglang = sglang_settings(effective)
    read = _Reader(evidence, sglang)
    tokens, source = _kv_tokens(evidence, read)
    speculation, drafts = _speculation(evidence)
    return InEffect(
        engine=facts.engine or ("sglang" if sglang else None) or (startup.engine if startup is not None else None),
        generation=facts.generation or (effective.engine if effective is not None else None),
        version=_version(evidence),
        model_name=read.text("model"),
        model=plan.deployment.model if plan is not None else (effective.model if effective is not None else None),
        accelerator=plan.deployment.accelerator
        if plan is not None
        else (effective.accelerator if effective is not None else None),
        max_num_seqs=read.number("max_num_seqs"),
        max_num_batched_tokens=read.number("max_num_batched_tokens"),
        max_model_len=read.number("max_model_len"),
        kv_tokens=tokens,
        kv_source=source,
        block_size=read.number("block_size") or _DEFAULT_BLOCK_SIZE,
        gpu_memory_utilization=read.share("gpu_memory_utilization"),
        kv_cache_dtype=read.text("kv_cache_dtype"),
        enable_chunked_prefill=read.switch("enable_chunked_prefill"),
        enable_prefix_caching=read.switch("enable_prefix_caching"),
        enforce_eager=read.switch("enforce_eager"),
        long_prefill_token_threshold=read.number("long_prefill_token_threshold", least=0),
        tensor_parallel_size=read.number("tensor_parallel_size") or 1,
        pipeline_parallel_size=read.number("pipeline_parallel_size") or 1,
        data_parallel_size=read.number("data_parallel_size") or 1,
        max_loras=facts.max_lora if facts.max_lora is not None else read.number("max_loras"),
        speculation=speculation,
        num_speculative_tokens=drafts,
        are_defaults_assumed=evidence.facts.version is None and _is_version_assumed(evidence),
        written=frozenset(name for name, setting in effective.settings.items() if setting.is_written)
        if effective is not None
        else frozenset(),
        reported=frozenset(
            name for name in _REPORTED if any(getattr(source, name, None) is not None for source in (facts, startup))
        ),
    )


def _is_version_assumed(evidence: Evidence) -> bool:
    return evidence.effective is not None and "assumed" in evidence.effective.version_reason


class _Reader:
    """Looks a setting up: reported by the engine, logged at its start, from its flags, from the plan's defaults."""

    def __init__(self, evidence: Evidence, sglang: Mapping[str, Any]) -> None:
        self._sglang = sglang
        defaults = evidence.plan.resolved.defaults if evidence.plan is not None else None
        self._sources = (evidence.facts, evidence.startup)
        self._effective = evidence.effective
        self._defaults = (evidence.plan.resolved if evidence.plan is not None else None, defaults)

    def _candidates(self, name: str) -> list[Any]:
        found = [getattr(source, name, None) for source in self._sources]
        if self._sglang:
            return [*found, self._sglang.get(name)]
        if self._effective is not None:
            found.append(self._effective.value(name))
        found += [getattr(source, name, None) for source in self._defaults]
        return found

    def number(self, name: str, least: int = 1) -> int | None:
        """The first whole number of at least `least`."""
        for value in self._candidates(name):
            if isinstance(value, int) and not isinstance(value, bool) and value >= least:
                return value
        return None

    def share(self, name: str) -> float | None:
        """The first number in (0, 1]."""
        for value in self._candidates(name):
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
                return float(value)
        return None

    def switch(self, name: str) -> bool | None:
        """The first truth value."""
        return next((value for value in self._candidates(name) if isinstance(value, bool)), None)

    def text(self, name: str) -> str | None:
        """The first non-empty text."""
        return next((value for value in self._candidates(name) if isinstance(value, str) and value), None)


def _version(evidence: Evidence) -> Version | None:
    for text in (evidence.facts.version, evidence.startup.version if evidence.startup is not None else None):
        if text:
            try:
                return parse_version(text)
            except ConfigError:
                continue
    return evidence.effective.version if evidence.effective is not None else None


def _kv_tokens(evidence: Evidence, read: _Reader) -> tuple[int | None, str]:
    facts = evidence.facts
    if facts.kv_cache_tokens:
        return facts.kv_cache_tokens, "reported"
    if facts.num_gpu_blocks:
        return facts.num_gpu_blocks * (read.number("block_size") or _DEFAULT_BLOCK_SIZE), "reported"
    if evidence.startup is not None and evidence.startup.tokens:
        return evidence.startup.tokens, "logged"
    if evidence.plan is not None and evidence.plan.kv_cache_tokens.likely > 0:
        return evidence.plan.kv_cache_tokens.likely, "planned"
    return None, ""


def _speculation(evidence: Evidence) -> tuple[Mapping[str, Any] | None, int]:
    """What is known of speculative decoding; several servers in one log count as speculating if one does."""
    config: Any = None
    count: Any = 0
    if evidence.effective is not None:
        config = evidence.effective.facts.get("speculative_config")
        count = evidence.effective.facts.get("num_speculative_tokens")
    seen = any(event.kind == "spec_decode" for event in evidence.events)
    seen = seen or bool(evidence.totals is not None and evidence.totals.counters.get("draft_tokens"))
    if config is UNKNOWN or not isinstance(config, Mapping):
        return ({}, 0) if seen or config is UNKNOWN else (None, 0)
    return config, count if isinstance(count, int) and not isinstance(count, bool) else 0
