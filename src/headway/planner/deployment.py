"""What is to be planned: a model on GPUs with vLLM's flags, checked and with every default filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations

from headway.catalog.accelerators import Accelerator
from headway.catalog.architecture import CompressedAttention, LatentAttention, ModelArchitecture, StateSpace
from headway.catalog.defaults import EngineDefaults, Usage, resolve_defaults, version_fact
from headway.catalog.dtypes import KV_CACHE_DTYPES, dtype_bytes
from headway.catalog.quantization import named_quantization
from headway.config import REFERENCE_ENGINE_VERSION
from headway.errors import ConfigError
from headway.planner.compressed_layout import DEFAULT_BLOCK_SIZE
from headway.planner.kv_parts import LayoutRules
from headway.planner.partition import layer_partition


@dataclass(frozen=True, slots=True)
class Deployment:
    """Flags as a user writes them, in vLLM's names; None means vLLM's own default.

    `nnodes` are machines that the GPUs are spread over evenly. `model_weights_bytes` (all GPUs together) replaces the
    computed size of the weights.
    """

    model: ModelArchitecture
    accelerator: Accelerator
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    nnodes: int = 1
    enable_expert_parallel: bool = False
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    block_size: int | None = None
    enforce_eager: bool = False
    enable_chunked_prefill: bool | None = None
    enable_prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    disable_hybrid_kv_cache_manager: bool = False
    kv_cache_memory_bytes: int | None = None
    num_gpu_blocks_override: int | None = None
    pp_layer_partition: tuple[int, ...] | None = None
    rank_accelerators: tuple[Accelerator, ...] = ()
    """The card of each pipeline rank, where they differ; the defaults are those of `accelerator`, the first rank's."""
    model_weights_bytes: int | None = None
    engine_version: str = REFERENCE_ENGINE_VERSION
    usage: Usage = "api"

    @property
    def num_gpus(self) -> int:
        """GPUs in all."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    def accelerator_of(self, rank: int) -> Accelerator:
        """The card of a pipeline rank."""
        return self.rank_accelerators[rank] if self.rank_accelerators else self.accelerator

    @property
    def num_expert_gpus(self) -> int:
        """GPUs that share each layer's experts: those of all data-parallel engines, whether experts are spread whole or
        in parts."""
        return self.tensor_parallel_size * self.data_parallel_size

    @property
    def has_device_group(self) -> bool:
        """A worker's GPU exchanges tensors with others."""
        shares_experts = self.data_parallel_size > 1 and self.model.is_moe
        return self.tensor_parallel_size > 1 or self.pipeline_parallel_size > 1 or shares_experts

    @property
    def within_nvlink(self) -> bool:
        """The GPUs of each group reach one another's memory over NVLink (bridges do not count)."""
        card, group = self.accelerator, self.tensor_parallel_size
        group = self.num_expert_gpus if self.model.is_moe else group
        has_nvlink = re.match(r"NVLink\d", card.link_kind or "") is not None
        return has_nvlink and group <= card.link_world and group * self.nnodes <= self.num_gpus


@dataclass(frozen=True, slots=True)
class Resolved:
    """A deployment with nothing left open."""

    deployment: Deployment
    defaults: EngineDefaults
    max_model_len: int
    partition: tuple[int, ...]
    """Layers on each pipeline rank."""
    in_flight_tokens: int
    """Tokens of one request that may be in flight when a sliding window is moved."""
    layout_rules: LayoutRules

    @property
    def has_states(self) -> bool:
        """Some layers keep a recurrent state."""
        return _has_states(self.deployment.model)


def resolve(deployment: Deployment) -> Resolved:
    """Check the flags and fill in the defaults of the version.

    Raises:
        ConfigError: values that cannot be, or cannot go together.
    """
    model = deployment.model
    _check_ranges(deployment)
    _check_parallel(deployment)
    max_model_len = deployment.max_model_len or model.max_model_len
    if max_model_len is None:
        raise ConfigError(f"The maximum length of {model.id} is not known.", hint="Give --max-model-len.")
    if model.max_model_len is not None and max_model_len > model.max_model_len:
        raise ConfigError(
            f"max_model_len {max_model_len} is longer than {model.id} allows ({model.max_model_len}).",
            hint=f"Use at most {model.max_model_len}, or a config with its rope scaling set.",
        )
    defaults = resolve_defaults(
        deployment.engine_version,
        deployment.accelerator,
        max_model_len=max_model_len,
        usage=deployment.usage,
        is_hybrid=_has_states(model),
        gpu_memory_utilization=deployment.gpu_memory_utilization,
        block_size=deployment.block_size,
        preferred_block_size=_preferred_block_size(deployment),
        max_num_seqs=deployment.max_num_seqs,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        enable_chunked_prefill=deployment.enable_chunked_prefill,
        enable_prefix_caching=deployment.enable_prefix_caching,
        enforce_eager=deployment.enforce_eager,
    )
    _check_budget(defaults, max_model_len)
    return Resolved(
        deployment=deployment,
        defaults=defaults,
        max_model_len=max_model_len,
        partition=layer_partition(model.num_layers, deployment.pipeline_parallel_size, deployment.pp_layer_partition),
        in_flight_tokens=_in_flight_tokens(deployment, defaults),
        layout_rules=LayoutRules(
            hybrid=bool(version_fact("hybrid_kv_groups", defaults.version))
            and not deployment.disable_hybrid_kv_cache_manager,
            chunked_groups=bool(version_fact("chunked_kv_groups", defaults.version)),
            pad_below=float(version_fact("groups_padded_below", defaults.version)),
            latent_step=int(version_fact("latent_block_step", defaults.version)),
            state_blocks=2 if _has_states(model) and defaults.enable_prefix_caching else 1,
            compressed_blocks=version_fact("compressed_blocks", defaults.version),
            compressed_requests_in_bytes=bool(version_fact("compressed_requests_in_bytes", defaults.version)),
            compressed_auto_is_fp8=bool(version_fact("compressed_auto_is_fp8", defaults.version)),
        ),
    )


def _preferred_block_size(deployment: Deployment) -> int | None:
    """Tokens in a block that the kernels of latent or compressed attention want; None where the default will do."""
    mixers = deployment.model.mixer_counts
    if any(isinstance(mixer, CompressedAttention) for mixer in mixers):
        return DEFAULT_BLOCK_SIZE
    latent = [mixer for mixer in mixers if isinstance(mixer, LatentAttention)]
    capability = deployment.accelerator.compute_capability
    if not latent or capability is None or _has_states(deployment.model):
        return None
    sizes: dict[str, int] = version_fact("latent_block_size", deployment.engine_version)
    words = ["sparse"] if latent[0].num_index_heads else []
    words += [str(capability[0])]
    words += ["fp8"] if deployment.kv_cache_dtype.startswith("fp8") else []
    known = (" ".join(chosen) for count in range(len(words), 0, -1) for chosen in combinations(words, count))
    return next((sizes[name] for name in known if name in sizes), None)


def _has_states(model: ModelArchitecture) -> bool:
    return any(isinstance(mixer, StateSpace) for mixer in model.mixer_counts)


def _in_flight_tokens(deployment: Deployment, defaults: EngineDefaults) -> int:
    steps = 1
    if version_fact("window_counts_steps_in_flight", defaults.version):
        pp = deployment.pipeline_parallel_size
        steps = pp if deployment.async_scheduling is False else pp + 1
    return steps * defaults.max_num_batched_tokens


def _check_ranges(deployment: Deployment) -> None:
    positive = {
        "tensor_parallel_size": deployment.tensor_parallel_size,
        "pipeline_parallel_size": deployment.pipeline_parallel_size,
        "data_parallel_size": deployment.data_parallel_size,
        "nnodes": deployment.nnodes,
        "max_model_len": deployment.max_model_len,
        "max_num_seqs": deployment.max_num_seqs,
        "max_num_batched_tokens": deployment.max_num_batched_tokens,
        "block_size": deployment.block_size,
        "kv_cache_memory_bytes": deployment.kv_cache_memory_bytes,
        "num_gpu_blocks_override": deployment.num_gpu_blocks_override,
    }
    for name, value in positive.items():
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be at least 1, not {value}.")
    share = deployment.gpu_memory_utilization
    if share is not None and not 0.0 < share <= 1.0:
        raise ConfigError(
            f"gpu_memory_utilization must be above 0 and at most 1, not {share}.",
            hint="It is a share of the GPU's memory, such as 0.9.",
        )
    if deployment.kv_cache_dtype not in KV_CACHE_DTYPES:
        dtype_bytes(deployment.kv_cache_dtype)
    if deployment.quantization is not None:
        named_quantization(deployment.quantization)


def _check_parallel(deployment: Deployment) -> None:
    tp = deployment.tensor_parallel_size
    for mixer in deployment.model.mixer_counts:
        heads = mixer.num_value_heads if isinstance(mixer, StateSpace) else mixer.num_heads
        if heads % tp:
            fitting = [size for size in (1, 2, 4, 8, 16) if heads % size == 0]
            raise ConfigError(
                f"tensor_parallel_size {tp} does not divide the {heads} attention heads of {deployment.model.id}.",
                hint=f"Use one of {', '.join(map(str, fitting))}.",
            )
        kv_heads = getattr(mixer, "num_kv_heads", None)
        if kv_heads is not None and kv_heads % tp and tp % kv_heads:
            raise ConfigError(
                f"tensor_parallel_size {tp} and the {kv_heads} KV heads of {deployment.model.id} do not divide "
                "one another.",
                hint="One must be a multiple of the other.",
            )
    if deployment.rank_accelerators and len(deployment.rank_accelerators) != deployment.pipeline_parallel_size:
        raise ConfigError(
            f"{len(deployment.rank_accelerators)} GPUs are named for {deployment.pipeline_parallel_size} pipeline "
            "rank(s).",
            hint="Name one, or one for each rank.",
        )
    if deployment.num_gpus % deployment.nnodes:
        raise ConfigError(
            f"{deployment.num_gpus} GPU(s) cannot be spread evenly over {deployment.nnodes} nodes.",
            hint="nnodes must divide tensor_parallel_size × pipeline_parallel_size × data_parallel_size.",
        )
    if deployment.enable_expert_parallel and not deployment.model.is_moe:
        raise ConfigError(f"{deployment.model.id} has no experts.", hint="Leave --enable-expert-parallel out.")


def _check_budget(defaults: EngineDefaults, max_model_len: int) -> None:
    tokens, seats = defaults.max_num_batched_tokens, defaults.max_num_seqs
    if tokens < seats:
        raise ConfigError(
            f"max_num_batched_tokens ({tokens}) is below max_num_seqs ({seats}): not every running request could "
            "decode in one step.",
            hint="Raise the former or lower the latter.",
        )
    if not defaults.enable_chunked_prefill and tokens < max_model_len:
        raise ConfigError(
            f"Without chunked prefill max_num_batched_tokens ({tokens}) must be at least max_model_len "
            f"({max_model_len}), so that any prompt fits in one step.",
            hint="Turn chunked prefill on, or raise the one or lower the other.",
        )
