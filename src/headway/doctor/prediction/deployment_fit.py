"""The deployment of the evidence as a simulation takes it, and what one changed setting makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from headway.catalog.models import find_model
from headway.catalog.quantization import named_quantization
from headway.compat.sizing import plan_flags
from headway.deployment.arguments import Written
from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.invocation import Invocation
from headway.doctor.evidence import Evidence
from headway.doctor.figures import Figures
from headway.doctor.prediction.speculation_fit import Speculation, fit_speculation
from headway.doctor.rules.queueing import find_queue
from headway.errors import ConfigError
from headway.executors.simulated.calibrated import CalibratedOracle
from headway.planner import Deployment, Plan, make_plan
from headway.simulation.options import DeploymentOptions
from headway.simulation.oracles import make_oracle
from headway.simulation.run import SimulatedDeployment

_V0_STAND_IN = "0.8.0"
_UNKNOWN_ERROR = 0.2
_SIMULATED = frozenset(
    {
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
        "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
        "gpu_memory_utilization", "block_size", "num_gpu_blocks_override", "kv_cache_memory_bytes", "enforce_eager",
        "enable_chunked_prefill", "enable_prefix_caching", "async_scheduling", "long_prefill_token_threshold",
        "max_num_active_seqs", "scheduler_reserve_full_isl", "watermark", "speculative_config", "model",
    }
)  # fmt: skip
"""Settings that the simulation follows."""
_PRICED = frozenset(
    {
        "tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel", "quantization", "kv_cache_dtype",
        "enforce_eager", "async_scheduling", "speculative_config", "model",
    }
)  # fmt: skip
"""Those that change how long a step of the same shape takes: prices are then extrapolated, not only fitted."""
_FLAGS = (
    "long_prefill_token_threshold", "max_num_active_seqs", "scheduler_reserve_full_isl", "watermark",
)  # fmt: skip
_REPORTED = (
    "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization", "kv_cache_dtype",
    "enable_prefix_caching",
)  # fmt: skip


class NotSimulatedError(Exception):
    """A deployment or a change that cannot be simulated; the message is a sentence that says why."""


@dataclass(frozen=True, slots=True)
class FittedDeployment:
    """A deployment ready to be simulated.

    `kv_offset_bytes` is what the engine reported as its KV memory less what the planner computes, on each GPU: it is
    carried over to deployments that differ in a setting. `kv_source`: reported, logged or planned.
    """

    effective: Effective
    deployment: SimulatedDeployment
    plan: Plan
    kv_offset_bytes: float
    kv_source: str
    speculation: Speculation | None

    def changed(self, changes: Mapping[str, Any], *, must_start: bool = True) -> FittedDeployment:
        """The deployment with some settings changed, and all defaults that depend on them.

        Args:
            changes: a value of None stands for the version's default.
            must_start: refuse what vLLM would refuse for lack of KV memory; False where it is known to have started.

        Raises:
            NotSimulatedError: the simulation does not follow one of the settings, or vLLM would not start.
        """
        for setting in changes:
            if setting not in _SIMULATED:
                raise NotSimulatedError(f"{setting} is not part of the simulation.")
        values = {setting: _read(setting, value) for setting, value in changes.items()}
        if values.get("speculative_config") is not None and self.speculation is None:
            raise NotSimulatedError("How many drafts would be accepted is not in the evidence.")
        effective = _with_settings(self.effective, values)
        for item in effective.problems:
            if item.kind == "unknown_flag" and item.option in values:
                raise NotSimulatedError(f"vLLM {effective.version_text} has no setting {item.option}.")
        speculation = self.speculation
        if speculation is not None and "speculative_config" in values:
            config = effective.facts.get("speculative_config")
            speculation = speculation.under(config) if isinstance(config, Mapping) else None
        try:
            changed = _build(effective, self.kv_offset_bytes, self.kv_source, speculation)
        except ConfigError as error:
            raise NotSimulatedError(f"vLLM would not start: {error.message}") from None
        if must_start and not changed.plan.fits and self.plan.fits:
            raise NotSimulatedError(
                f"vLLM would not start: the KV cache would hold {changed.plan.max_model_len_that_fits:,} tokens, less "
                f"than max_model_len {changed.plan.resolved.max_model_len:,}."
            )
        return changed

    @property
    def oracle_error(self) -> float:
        """Typical relative error of the oracle's step times on deployments that it was not fitted to."""
        bar = self.deployment.oracle.error_bar()
        return bar.relative if bar is not None else _UNKNOWN_ERROR

    def priced_by(self, scale: float, step_s: float) -> SimulatedDeployment:
        """The deployment with the oracle brought in line with what was observed."""
        return replace(self.deployment, oracle=CalibratedOracle(self.deployment.oracle, scale, step_s))


def changes_prices(setting: str) -> bool:
    """Whether a setting changes what a step costs, and not only which steps are taken."""
    return setting in _PRICED


def fit_deployment(evidence: Evidence, figures: Figures) -> FittedDeployment:
    """The deployment as the evidence shows it; KV blocks as the engine reports them where it does.

    Raises:
        NotSimulatedError: the model or the GPU is not known, or the engine is not vLLM.
    """
    settings = figures.settings
    if settings.is_sglang:
        raise NotSimulatedError("The engine is SGLang; only vLLM's scheduler is simulated.")
    effective = _effective_of(evidence, figures)
    speculation = fit_speculation(evidence, figures)
    try:
        plan = _plan(effective, None)
        told = settings.kv_tokens if settings.kv_source in ("reported", "logged") else None
        offset = 0.0
        if told is not None:
            layout = plan.binding.layout
            blocks = told / plan.block_size * plan.num_gpu_blocks / max(1, plan.uniform_num_gpu_blocks)
            offset = blocks * layout.block_bytes - plan.available_kv_cache_bytes
        return _build(effective, offset, settings.kv_source if told is not None else "planned", speculation)
    except ConfigError as error:
        raise NotSimulatedError(f"The deployment cannot be simulated: {error.message}") from None


def _effective_of(evidence: Evidence, figures: Figures) -> Effective:
    """The effective settings, with what the running engine reports in place of what its flags should have made."""
    settings, effective = figures.settings, evidence.effective
    if settings.model is None and settings.model_name is None:
        raise NotSimulatedError("The model is not known, so that steps cannot be priced (give --model).")
    card = settings.accelerator
    if card is None:
        raise NotSimulatedError("The GPU is not known, so that steps cannot be priced (give --gpu).")
    if effective is None:
        facts = {"model": settings.model_name or settings.model_text}
        effective = _resolved(
            Invocation("settings", "the running engine"), facts, _version_text(figures), card.id, None
        )
    if effective.model is None:
        raise NotSimulatedError(
            f"The model {settings.model_name or ''} is not in the catalogue, so that steps cannot be priced "
            "(give --model with its config.json)."
        )
    reported = {
        name: value
        for name in _REPORTED
        if (value := getattr(settings, name)) is not None and value != effective.value(name)
    }
    queue = find_queue(figures)
    if queue is not None and queue.is_seats_inferred and queue.seats is not None:
        reported["max_num_seqs"] = queue.seats
    if effective.accelerator is None or reported:
        effective = _with_settings(effective, reported, accelerator=card.id)
    return effective


def _version_text(figures: Figures) -> str | None:
    version = figures.settings.version
    return ".".join(map(str, version)) if version is not None else None


def _with_settings(effective: Effective, changes: Mapping[str, Any], accelerator: str | None = None) -> Effective:
    """The same start with other settings; a value of None stands for the default of the version."""
    before = effective.invocation
    settings = dict(effective.parsed.settings)
    model = effective.model.id if effective.model is not None else None
    if "model" in changes:
        model = str(changes["model"])
    for name, value in changes.items():
        settings.pop(name, None)
        if value is not None:
            settings[name] = Written(name, value, name, str(value))
    invocation = Invocation(
        "settings", before.source, name=before.name, settings=settings, environment=before.environment,
        image=before.image, facts=before.facts,
    )  # fmt: skip
    card = accelerator or (effective.accelerator.id if effective.accelerator is not None else None)
    return resolve_effective(
        invocation,
        engine_version=effective.version_text,
        accelerator=card,
        model=_findable(model, effective),
    )


def _resolved(
    invocation: Invocation, settings: Mapping[str, Any], version: str | None, card: str, model: str | None
) -> Effective:
    invocation.settings |= {name: Written(name, value, name, str(value)) for name, value in settings.items()}
    return resolve_effective(invocation, engine_version=version, accelerator=card, model=model)


def _findable(name: str | None, effective: Effective) -> str | None:
    """A name that the catalogue finds; a model read from a folder is found by the name that it was given by."""
    for candidate in (name, effective.parsed.value("model")):
        try:
            if isinstance(candidate, str):
                find_model(candidate)
                return candidate
        except ConfigError:
            continue
    return None


def _build(effective: Effective, offset: float, source: str, speculation: Speculation | None) -> FittedDeployment:
    """The simulated deployment of effective settings, with KV memory as planned plus an offset.

    Raises:
        ConfigError: it cannot run as described.
    """
    plan = _plan(effective, None)
    blocks = None
    is_fixed = effective.value("num_gpu_blocks_override") is not None
    if offset and not is_fixed and plan.binding.layout.block_bytes:
        pool = (plan.available_kv_cache_bytes + offset) / plan.binding.layout.block_bytes
        plan = _plan(effective, max(2, int(pool)))
        blocks = plan.uniform_num_gpu_blocks if plan.binding.layout.num_groups > 1 else plan.num_gpu_blocks
    assert effective.accelerator is not None and effective.model is not None
    options = _options(effective, plan, blocks, speculation)
    resolved = options.resolve()
    deployment = replace(resolved.deployment, oracle=make_oracle("roofline", plan))
    return FittedDeployment(effective, deployment, plan, offset, source, speculation)


def _plan(effective: Effective, blocks: int | None) -> Plan:
    """The memory plan, in the deployment's own version."""
    assert effective.accelerator is not None and effective.model is not None
    flags = _named_flags(effective)
    if blocks is not None:
        flags["num_gpu_blocks_override"] = blocks
    deployment = Deployment(effective.model, effective.accelerator, engine_version=effective.version_text)
    return make_plan(replace(deployment, **flags))


def _named_flags(effective: Effective) -> dict[str, Any]:
    """Effective settings in the planner's names. A format that only says how a checkpoint is stored is the model's."""
    flags = plan_flags(effective)
    block_size = effective.settings.get("block_size")
    if block_size is not None and not block_size.is_written:
        flags.pop("block_size", None)
    if "quantization" in flags:
        try:
            named_quantization(flags["quantization"])
        except ConfigError:
            flags.pop("quantization")
    return flags


def _options(
    effective: Effective, plan: Plan, blocks: int | None, speculation: Speculation | None
) -> DeploymentOptions:
    flags = _named_flags(effective)
    assert effective.model is not None and effective.accelerator is not None
    name = _findable(effective.model.id, effective)
    if name is None:
        raise ConfigError(f"{effective.model.id} cannot be found again by its name.")
    for setting in _FLAGS:
        value = effective.value(setting)
        if value is not None:
            flags[setting] = value
    if speculation is not None:
        flags |= {"speculative_config": speculation.flag, "acceptance_rate": speculation.acceptance_rate}
    if blocks is not None:
        flags["num_gpu_blocks_override"] = blocks
        flags.pop("kv_cache_memory_bytes", None)
    version = effective.version_text
    if effective.engine == "V0":
        version = _V0_STAND_IN
        flags = _as_v0(flags, plan, blocks)
    return DeploymentOptions(model=name, gpu=effective.accelerator.id, engine_version=version, **flags)


def _as_v0(flags: dict[str, Any], plan: Plan, blocks: int | None) -> dict[str, Any]:
    """The oldest scheduler of V1 stands in for V0's, with V0's defaults: whole prompts unless chunking was on."""
    defaults = plan.resolved.defaults
    dropped = ("enable_chunked_prefill", "async_scheduling", "scheduler_reserve_full_isl", "watermark")
    kept = {name: value for name, value in flags.items() if name not in dropped}
    return kept | {
        "policy": "chunked" if defaults.enable_chunked_prefill else "continuous",
        "max_num_seqs": defaults.max_num_seqs,
        "max_num_batched_tokens": max(defaults.max_num_batched_tokens, defaults.max_num_seqs),
        "max_model_len": plan.resolved.max_model_len,
        "enable_prefix_caching": defaults.enable_prefix_caching,
        "num_gpu_blocks_override": blocks if blocks is not None else plan.num_gpu_blocks,
    }


_WHOLE = frozenset(
    {
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len", "max_num_seqs",
        "max_num_batched_tokens", "block_size", "num_gpu_blocks_override", "kv_cache_memory_bytes",
        "long_prefill_token_threshold", "max_num_active_seqs",
    }
)  # fmt: skip


def _read(setting: str, value: Any) -> Any:
    """A fix's value in the type of the setting.

    Raises:
        NotSimulatedError: it is no value of that setting, but a remark such as "fp8 or awq".
    """
    if value is None:
        return None
    try:
        if setting in _WHOLE:
            return int(value)
        if setting in ("gpu_memory_utilization", "watermark"):
            return float(value)
    except (TypeError, ValueError):
        raise NotSimulatedError(f"{setting} {value!r} is not a single number.") from None
    return value
