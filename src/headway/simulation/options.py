"""Settings of `headway simulate`: the deployment, its latency, and what is asked of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from headway.catalog import find_accelerator, find_model
from headway.catalog.defaults import version_fact
from headway.catalog.versions import parse_version
from headway.config import (
    BATCHING_POLICIES,
    QUEUE_POLICIES,
    REFERENCE_ENGINE_VERSION,
    CacheConfig,
    EngineConfig,
    SchedulerConfig,
    option,
)
from headway.core.policies import make_policy
from headway.errors import ConfigError
from headway.executors.simulated.drafters import ON_THE_HOST, is_head
from headway.executors.simulated.oracle import LatencyOracle
from headway.executors.simulated.speculation import SpeculationModel
from headway.planner import Deployment, Plan, make_plan
from headway.simulation.drafts import Drafts, parse_drafts
from headway.simulation.oracles import make_oracle
from headway.simulation.profile_file import read_profile
from headway.simulation.routing import ROUTERS
from headway.simulation.run import SimulatedDeployment

_UNPLANNED_MAX_NUM_SEQS = 256
_UNPLANNED_MAX_NUM_BATCHED_TOKENS = 2048
_UNPLANNED_BLOCK_SIZE = 16
_PLANNED = frozenset(
    (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
        "quantization", "kv_cache_dtype", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
        "gpu_memory_utilization", "block_size", "enforce_eager", "enable_chunked_prefill", "enable_prefix_caching",
        "kv_cache_memory_bytes", "num_gpu_blocks_override", "engine_version",
    )
)  # fmt: skip
"""Settings that `headway plan` takes under the same name."""
_ASYNC_PIPELINES, _ASYNC_DRAFT_MODELS = (0, 15, 0), (0, 26, 0)
"""Releases from which asynchronous scheduling goes with a pipeline, and is the default with a draft model, which could
ask for it from 0.16 on (vllm/config/vllm.py)."""


@dataclass(frozen=True, slots=True)
class DeploymentOptions:
    """A deployment in vLLM's flags, and how long its steps take. None means as that version of vLLM chooses."""

    model: str | None = option(None, "Model: a catalogue name, a Hugging Face id, or a folder with config.json.")
    gpu: str | None = option(None, "Accelerator, such as h100, a100, l40s.")
    latency: str = option(
        "roofline",
        "Where step times come from: roofline, table:FOLDER, aiconfigurator, or constant:prefill_us=…,decode_ms=….",
    )
    profile: str | None = option(None, "What `headway calibrate` found out about the deployment.")
    engine_version: str = option(REFERENCE_ENGINE_VERSION, "The vLLM release whose scheduler and defaults are used.")
    policy: str = option(
        "chunked", "Batching policy; FILE.py:CLASS is one of yours.", choices=BATCHING_POLICIES, or_python=True
    )
    tensor_parallel_size: int = option(1, "GPUs that split each layer.", short="tp")
    pipeline_parallel_size: int = option(1, "Groups of layers on different GPUs.", short="pp")
    data_parallel_size: int = option(1, "Independent replicas behind the router.", short="dp")
    router: str = option("least_loaded", "How replicas share requests.", choices=ROUTERS)
    enable_expert_parallel: bool = option(False, "Spread experts instead of splitting them.")
    quantization: str | None = option(None, "Weight format, such as fp8, awq; default: the model's own.")
    kv_cache_dtype: str = option("auto", "Number format of the KV cache.")
    max_model_len: int | None = option(None, "Longest sequence, prompt and output together.", unit="tokens")
    max_num_seqs: int | None = option(None, "Most requests that run at once.", unit="requests")
    max_num_batched_tokens: int | None = option(None, "Token budget of one step.", unit="tokens")
    max_num_scheduled_tokens: int | None = option(
        None, "Tokens that a step may schedule, below the budget that memory is planned for.", unit="tokens"
    )
    gpu_memory_utilization: float | None = option(None, "Share of GPU memory that the engine may use.")
    block_size: int | None = option(None, "Tokens in one KV block.", unit="tokens")
    num_gpu_blocks_override: int | None = option(None, "KV blocks; default: as the planner computes.")
    kv_cache_memory_bytes: int | None = option(None, "KV memory on each GPU, for example 20GiB.", unit="bytes")
    enforce_eager: bool = option(False, "Without CUDA graphs.")
    enable_chunked_prefill: bool | None = option(None, "Cut long prompts into chunks.")
    enable_prefix_caching: bool | None = option(None, "Reuse KV blocks of equal prefixes.")
    async_scheduling: bool | None = option(None, "Schedule the next step while the current one runs.")
    scheduling_policy: str = option("fcfs", "Order of the waiting queue.", choices=QUEUE_POLICIES)
    long_prefill_token_threshold: int = option(
        0, "Most tokens that one prompt may take in a step; 0 is off.", unit="tokens"
    )
    long_prefill_token_threshold_adaptive: bool = option(
        False, "Never hold a prompt below its fair share of the step's budget."
    )
    max_num_active_seqs: int | None = option(None, "Admit at most this many, below max_num_seqs.", unit="requests")
    scheduler_reserve_full_isl: bool | None = option(None, "Admit only what fits with its whole current sequence.")
    watermark: float = option(0.0, "Share of the blocks that admission leaves free while requests run.")
    speculative_config: str | None = option(
        None, 'Speculative decoding as vLLM takes it, such as {"num_speculative_tokens": 3}.'
    )
    acceptance_rate: float = option(0.7, "Speculation: probability that a draft is accepted if all before it were.")
    draft_cost: float | None = option(
        None,
        "Speculation: time of a drafter's pass, as a share of the model's; default: by method and weights.",
    )

    def resolve(self, policy: str | None = None) -> ResolvedDeployment:
        """Fill in every default, as the version does, and compute the KV blocks.

        Args:
            policy: instead of `self.policy`.

        Raises:
            ConfigError: something unknown, missing, or that cannot go together.
        """
        if self.profile is not None:
            read_profile(self.profile).check_is_of(
                model_id=self.model,
                gpu=self.gpu,
                tensor_parallel_size=self.tensor_parallel_size,
                pipeline_parallel_size=self.pipeline_parallel_size,
            )
        if self.profile is not None and self.num_gpu_blocks_override is None:
            blocks = read_profile(self.profile).num_gpu_blocks
            if blocks is not None:
                return replace(self, num_gpu_blocks_override=blocks).resolve(policy)
        plan = self._plan() if self.model is not None and self.gpu is not None else None
        reasons: dict[str, str] = {}
        scheduler, cache = self._planned(plan, reasons) if plan is not None else self._unplanned(reasons)
        oracle = self._oracle(plan)
        speculation = self._speculation(plan)
        name = policy or self.policy
        if self.pipeline_parallel_size > 1 and make_policy(name).reserve(1):
            raise ConfigError(f"The policy {name} runs one batch at a time: no pipeline.", hint="Use continuous.")
        config = EngineConfig(name, scheduler, cache, self.engine_version, reasons)
        deployment = SimulatedDeployment(
            config,
            oracle,
            self.data_parallel_size,
            self.router,
            speculation,
            self.pipeline_parallel_size,
            prepares_ahead=self.pipeline_parallel_size > 1 and self._is_async({}),
        )
        return ResolvedDeployment(self, deployment, plan)

    def _plan(self) -> Plan:
        assert self.model is not None and self.gpu is not None
        plan = make_plan(
            Deployment(
                find_model(self.model),
                find_accelerator(self.gpu),
                tensor_parallel_size=self.tensor_parallel_size,
                pipeline_parallel_size=self.pipeline_parallel_size,
                data_parallel_size=self.data_parallel_size,
                enable_expert_parallel=self.enable_expert_parallel,
                quantization=self.quantization,
                kv_cache_dtype=self.kv_cache_dtype,
                max_model_len=self.max_model_len,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                gpu_memory_utilization=self.gpu_memory_utilization,
                block_size=self.block_size,
                enforce_eager=self.enforce_eager,
                enable_chunked_prefill=self.enable_chunked_prefill,
                enable_prefix_caching=self.enable_prefix_caching,
                async_scheduling=self.async_scheduling,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                num_gpu_blocks_override=self.num_gpu_blocks_override,
                engine_version=self.engine_version,
            )
        )
        if plan.uniform_num_gpu_blocks < 2:
            raise ConfigError(
                f"{self.model} does not fit on {self.tensor_parallel_size * self.pipeline_parallel_size} × {self.gpu}: "
                f"{plan.shortfall_bytes / 2**30:.2f} GiB are lacking for one request of max_model_len.",
                hint="Use more GPUs (--tensor-parallel-size), a smaller weight format, or --num-gpu-blocks-override; "
                f"`{self._plan_command()}` says which changes make it fit.",
            )
        return plan

    def _plan_command(self) -> str:
        """The `headway plan` of this deployment: what was given and bears on memory, in its flags."""
        words = ["headway", "plan", str(self.model), "--gpu", str(self.gpu)]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name not in _PLANNED or value == item.default:
                continue
            flag = item.name.replace("_", "-")
            words += (
                [f"--{flag}" if value else f"--no-{flag}"] if isinstance(value, bool) else [f"--{flag}", str(value)]
            )
        return shlex.join(words)

    def _planned(self, plan: Plan, reasons: dict[str, str]) -> tuple[SchedulerConfig, CacheConfig]:
        defaults = plan.resolved.defaults
        reasons |= defaults.reasons
        max_model_len = plan.resolved.max_model_len
        if self.max_model_len is None:
            reasons["max_model_len"] = "the model's own limit"
        given = self.num_gpu_blocks_override is not None
        num_blocks = plan.num_gpu_blocks if given else plan.uniform_num_gpu_blocks
        reasons["num_blocks"] = "given" if given else "from the planner"
        if num_blocks != plan.num_gpu_blocks:
            reasons["num_blocks"] = (
                f"from the planner: its {plan.num_gpu_blocks} blocks for {plan.binding.layout.num_groups} groups of "
                "layers hold as many requests of max_model_len as these in one group"
            )
        if not plan.fits and self.max_model_len is None:
            max_model_len = max(1, min(max_model_len, (num_blocks - 1) * plan.block_size))
            reasons["max_model_len"] = "what the KV cache holds; vLLM would ask for a smaller --max-model-len"
        windows = {getattr(mixer, "window", None) for mixer in plan.deployment.model.mixer_counts}
        scheduler = SchedulerConfig(
            max_num_seqs=defaults.max_num_seqs,
            max_num_batched_tokens=self._scheduled(defaults.max_num_batched_tokens, reasons),
            max_model_len=max_model_len,
            enable_chunked_prefill=defaults.enable_chunked_prefill,
            **self._scheduler_flags(reasons),
        )
        cache = CacheConfig(
            num_blocks=num_blocks,
            block_size=plan.block_size,
            enable_prefix_caching=defaults.enable_prefix_caching,
            watermark=self.watermark,
            sliding_window=windows.pop() if len(windows) == 1 else None,
            drops_last_hit_block=is_head(self._drafts.method),
        )
        return scheduler, cache

    def _unplanned(self, reasons: dict[str, str]) -> tuple[SchedulerConfig, CacheConfig]:
        """Without a model and a GPU there is no memory to plan: the sizes must be given."""
        if self.num_gpu_blocks_override is None or self.max_model_len is None:
            lacking = [flag for flag, value in (("--model", self.model), ("--gpu", self.gpu)) if value is None]
            raise ConfigError(
                f"Without {' and '.join(lacking)} the size of the KV cache is not known.",
                hint=f"Give {' and '.join(lacking)}; or, without a model, --latency constant:… with "
                "--num-gpu-blocks-override and --max-model-len.",
            )
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size"):
            reasons[name] = "given" if getattr(self, name) is not None else "default on a small GPU"
        reasons["num_blocks"] = "given"
        caching = self.enable_prefix_caching
        scheduler = SchedulerConfig(
            max_num_seqs=self.max_num_seqs or _UNPLANNED_MAX_NUM_SEQS,
            max_num_batched_tokens=self._scheduled(
                self.max_num_batched_tokens or _UNPLANNED_MAX_NUM_BATCHED_TOKENS, reasons
            ),
            max_model_len=self.max_model_len,
            enable_chunked_prefill=self.enable_chunked_prefill is not False,
            **self._scheduler_flags(reasons),
        )
        cache = CacheConfig(
            num_blocks=self.num_gpu_blocks_override,
            block_size=self.block_size or _UNPLANNED_BLOCK_SIZE,
            enable_prefix_caching=True if caching is None else caching,
            watermark=self.watermark,
            drops_last_hit_block=is_head(self._drafts.method),
        )
        return scheduler, cache

    def _scheduled(self, budget: int, reasons: dict[str, str]) -> int:
        """Tokens that the scheduler gives out in a step."""
        most = self.max_num_scheduled_tokens
        if most is None or most >= budget:
            return budget
        reasons["max_num_batched_tokens"] = f"max_num_scheduled_tokens; memory is planned for {budget:,}"
        return most

    def _scheduler_flags(self, reasons: dict[str, str]) -> dict[str, Any]:
        drafts = self._drafts
        on_host = drafts.method in ON_THE_HOST
        is_async = self._is_async(reasons)
        if is_async and self.pipeline_parallel_size > 1:
            reasons["async_scheduling"] = "over a pipeline a request is in one batch at a time; the host works ahead"
        return {
            "scheduling_policy": self.scheduling_policy,
            "long_prefill_token_threshold": self.long_prefill_token_threshold,
            "long_prefill_token_threshold_adaptive": self.long_prefill_token_threshold_adaptive,
            "max_num_active_seqs": self.max_num_active_seqs,
            "scheduler_reserve_full_isl": self.scheduler_reserve_full_isl,
            "async_scheduling": is_async and self.pipeline_parallel_size == 1,
            "num_speculative_tokens": drafts.count,
            "num_lookahead_tokens": 0 if on_host else drafts.count,
        }

    def _is_async(self, reasons: dict[str, str]) -> bool:
        """Whether the host prepares a step while the one before runs, as given or as this version does.

        Raises:
            ConfigError: asked for over a pipeline before the release that can.
        """
        has_stages, version = self.pipeline_parallel_size > 1, parse_version(self.engine_version)
        if has_stages and version < _ASYNC_PIPELINES:
            reasons["async_scheduling"] = "not over a pipeline in this version"
            if self.async_scheduling:
                raise ConfigError(
                    f"vLLM {self.engine_version} has no asynchronous scheduling over a pipeline.",
                    hint="It came with 0.15; leave --async-scheduling out.",
                )
            return False
        if self.async_scheduling is not None:
            reasons["async_scheduling"] = "given"
            return self.async_scheduling
        method = self._drafts.method
        if make_policy(self.policy).reserve(1):
            reasons["async_scheduling"] = "one batch at a time"
            return False
        if method in (*ON_THE_HOST, "medusa") or (method == "draft_model" and version < _ASYNC_DRAFT_MODELS):
            reasons["async_scheduling"] = f"not with {method} in this version"
            return False
        reasons["async_scheduling"] = "as this version does"
        return bool(version_fact("async_scheduling", self.engine_version))

    def _oracle(self, plan: Plan | None) -> LatencyOracle:
        oracle = make_oracle(self.latency, plan)
        return oracle if self.profile is None else read_profile(self.profile).applied_to(oracle)

    @property
    def _drafts(self) -> Drafts:
        return parse_drafts(self.speculative_config)

    def _speculation(self, plan: Plan | None) -> SpeculationModel | None:
        drafts = self._drafts
        if not drafts.count:
            return None
        cost, fixed_s = self.draft_cost or 0.0, 0.0
        if self.draft_cost is None and plan is not None:
            cost, fixed_s = drafts.cost(plan.deployment)
        return SpeculationModel(drafts.count, self.acceptance_rate, cost, draft_s=fixed_s)


@dataclass(frozen=True, slots=True)
class ResolvedDeployment:
    """A deployment ready to be simulated, and the plan that its KV blocks come from, if one was made."""

    options: DeploymentOptions
    deployment: SimulatedDeployment
    plan: Plan | None

    @property
    def name(self) -> str:
        """What it is called in titles."""
        options = self.options
        if self.plan is None:
            return options.latency.partition(":")[0]
        gpus = options.tensor_parallel_size * options.pipeline_parallel_size * options.data_parallel_size
        return f"{self.plan.deployment.model.id} on {gpus} × {self.plan.deployment.accelerator.id}"

    def facts(self) -> Mapping[str, object]:
        """Settings for a JSON row."""
        config = self.deployment.config
        return {
            "model_id": self.options.model,
            "gpu": self.options.gpu,
            "num_gpus": self.options.tensor_parallel_size
            * self.options.pipeline_parallel_size
            * self.options.data_parallel_size,
            "tensor_parallel_size": self.options.tensor_parallel_size,
            "pipeline_parallel_size": self.options.pipeline_parallel_size,
            "data_parallel_size": self.options.data_parallel_size,
            "latency": self.options.latency,
            "engine_version": config.engine_version,
            "num_blocks": config.cache.num_blocks,
            "block_size": config.cache.block_size,
            "enable_prefix_caching": config.cache.enable_prefix_caching,
            "max_model_len": config.scheduler.max_model_len,
            "max_num_seqs": config.scheduler.max_num_seqs,
            "max_num_batched_tokens": make_policy(config.policy).limits(config.scheduler).max_num_batched_tokens,
            "async_scheduling": config.scheduler.async_scheduling,
        }
