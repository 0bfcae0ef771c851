"""Every setting and its default, once: the command line, the flag reference and the engine are made from these.

`EngineOptions` is what a user writes (None means "choose for me"). `resolve()` turns it into an `EngineConfig`, whose
values are all concrete, and says for each value it chose why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.errors import ConfigError

REFERENCE_ENGINE_VERSION = "0.32.0"
"""The vLLM release whose scheduler is matched unless another is asked for."""

BATCHING_POLICIES = ("naive", "static", "continuous", "chunked")
QUEUE_POLICIES = ("fcfs", "priority")


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] = (),
    or_python: bool = False,
    flag: str | None = None,
    unit: str = "",
    short: str = "",
    bare: str = "",
) -> Any:
    """A dataclass field that is also a command-line option; `flag` defaults to the field's name with dashes.

    `short` is a second name for it, `bare` its value where it is written without one. With `or_python` a value may also
    be FILE.py or FILE.py:CLASS.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "or_python": or_python,
        "flag": flag,
        "unit": unit,
        "short": short,
        "bare": bare,
    }
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What the scheduler is allowed to do in one step. All values concrete, in vLLM's names.

    Example::

        >>> from headway import SchedulerConfig
        >>> SchedulerConfig(max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=4096).enable_chunked_prefill
        True

    Raises:
        ConfigError: a value, or a combination, that no schedule can satisfy.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    scheduling_policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    max_num_active_seqs: int | None = None
    scheduler_reserve_full_isl: bool | None = None
    async_scheduling: bool = False
    num_lookahead_tokens: int = 0
    num_speculative_tokens: int = 0
    num_draft_slots: int = 0
    """Input rows beyond its tokens that a parallel drafter needs for each scheduled request."""

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.scheduling_policy not in QUEUE_POLICIES:
            raise ConfigError(
                f"scheduling_policy {self.scheduling_policy!r} is unknown.",
                hint=f"Known: {', '.join(QUEUE_POLICIES)}.",
            )
        if self.long_prefill_token_threshold < 0:
            raise ConfigError(
                f"long_prefill_token_threshold must be 0 (off) or positive, not {self.long_prefill_token_threshold}."
            )
        if self.max_num_active_seqs is not None and self.max_num_active_seqs < 1:
            raise ConfigError(f"max_num_active_seqs must be at least 1, not {self.max_num_active_seqs}.")


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Size and behaviour of the KV-block pool. num_blocks counts the null block, as vLLM's num_gpu_blocks does.

    Example::

        >>> from headway import CacheConfig
        >>> CacheConfig(num_blocks=1001).block_size
        16

    Raises:
        ConfigError: a size below 1, or a watermark outside [0, 1).
    """

    num_blocks: int
    block_size: int = 16
    enable_prefix_caching: bool = True
    watermark: float = 0.0
    sliding_window: int | None = None
    drops_last_hit_block: bool = False
    """Drafters of the EAGLE and MTP kind read hidden states, so the last block of a prefix hit is computed again."""

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size must be at least 1, not {self.block_size}.")
        if self.num_blocks < 2:
            raise ConfigError(
                f"The KV cache has {self.num_blocks} block(s); it needs at least 2 (one is the null block).",
                hint="Give it more memory or use a smaller block_size.",
            )
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark must be at least 0 and below 1, not {self.watermark}.")
        if self.sliding_window is not None and self.sliding_window < 1:
            raise ConfigError(f"sliding_window must be at least 1, not {self.sliding_window}.")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Engine settings as a user writes them. None means "choose for me"; `resolve` says what was chosen and why."""

    policy: str = option(
        "chunked", "Batching policy; FILE.py:CLASS is one of yours.", choices=BATCHING_POLICIES, or_python=True
    )
    scheduling_policy: str = option("fcfs", "Order of the waiting queue.", choices=QUEUE_POLICIES)
    max_model_len: int | None = option(
        None, "Longest sequence, prompt and output together; default: the model's own limit.", unit="tokens"
    )
    max_num_seqs: int | None = option(None, "Most requests that run at once.", unit="requests")
    max_num_batched_tokens: int | None = option(None, "Token budget of one step.", unit="tokens")
    long_prefill_token_threshold: int = option(
        0, "Most tokens that one prompt may take in a step while others want to run; 0 is off.", unit="tokens"
    )
    long_prefill_token_threshold_adaptive: bool = option(
        False, "Never hold a prompt below its fair share of the step's budget."
    )
    max_num_active_seqs: int | None = option(None, "Admit at most this many, below max_num_seqs.", unit="requests")
    scheduler_reserve_full_isl: bool | None = option(
        None, "Admit a request only if its whole current sequence fits; default: as the engine version does."
    )
    watermark: float = option(0.0, "Share of the blocks that admission leaves free while requests run.")
    async_scheduling: bool = option(False, "Schedule the next step while the current one runs.")
    block_size: int = option(16, "Tokens in one KV block.", unit="tokens")
    num_blocks: int | None = option(
        None,
        "KV blocks, the null block included; default: computed from memory.",
        flag="num-gpu-blocks-override",
    )
    kv_cache_memory_bytes: int | None = option(
        None, "Memory for the KV cache, for example 2GiB; default: a share of what is free.", unit="bytes"
    )
    kv_cache_memory_share: float = option(0.4, "Share of free memory that the KV cache takes when no size is given.")
    enable_prefix_caching: bool = option(True, "Reuse KV blocks of equal prefixes.")
    engine_version: str = option(REFERENCE_ENGINE_VERSION, "The vLLM release whose scheduler is matched.")
    dtype: str = option("float32", "Arithmetic of the model.", choices=("float32",))
    quantization: str | None = option(
        None, "int8 computes with bytes and a scale for every 32 of them, on the CPU; default: exact."
    )
    kv_cache_dtype: str = option(
        "auto", "Number format of the KV cache: float32, or with int8 also float16, its default."
    )
    device: str = option("auto", "Where the model runs.", choices=("auto", "cpu", "cuda"))
    num_threads: int | None = option(None, "Threads of one CPU step; default: all cores.")
    tpot_target_ms: float = option(
        200.0,
        "The longest gap between tokens to aim for; the token budget follows from it unless it is given.",
        unit="ms",
    )
    speculative_config: str | None = option(
        None,
        'Speculative decoding as vLLM takes it: {"method": "ngram", "num_speculative_tokens": 4, '
        '"prompt_lookup_max": 4, "prompt_lookup_min": 2}.',
    )


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """HTTP settings of `headway serve`."""

    host: str = option("127.0.0.1", "Address to listen on; loopback unless told otherwise.")
    port: int = option(8000, "Port to listen on; 0 picks a free one.")
    api_key: str | None = option(None, "Require this bearer token under /v1; also read from HEADWAY_API_KEY.")
    served_model_name: str | None = option(None, "Name that clients use; default: the model's own.")
    max_queue: int = option(2048, "Refuse with 429 when this many requests wait.", unit="requests")
    sse_keep_alive_s: float = option(15.0, "Send a comment on an idle stream this often.", unit="seconds")
    disable_log_stats: bool = option(False, "No line about throughput, queue and KV usage every ten seconds.")


@dataclass(frozen=True, slots=True)
class StepTime:
    """How long a step takes on this machine: fixed_s, and per_token_s for each of its rows."""

    fixed_s: float
    per_token_s: float

    def of(self, num_tokens: int) -> float:
        """Seconds of a step with so many rows, attention to long contexts apart."""
        return self.fixed_s + self.per_token_s * num_tokens

    def tokens_within(self, seconds: float) -> int:
        """Rows of the longest step that takes no longer."""
        return max(0, int((seconds - self.fixed_s) / self.per_token_s))


@dataclass(frozen=True, slots=True)
class Speculation:
    """Drafts looked up in the request's own tokens: what followed the last occurrence of its last few tokens."""

    num_speculative_tokens: int
    prompt_lookup_max: int
    prompt_lookup_min: int


_LOOKUP_DEFAULTS = {"num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


def parse_speculation(text: str) -> Speculation:
    """Read a speculative config in vLLM's JSON.

    Raises:
        ConfigError: not JSON, another method than ngram, an unknown key, or numbers that make no sense.
    """
    try:
        given = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"The speculative config is not JSON: {error}.", hint='As in {"method": "ngram"}.') from None
    if not isinstance(given, dict) or given.get("method") != "ngram":
        raise ConfigError("The real engine speculates with the method ngram alone.", hint='Use {"method": "ngram"}.')
    values = {**_LOOKUP_DEFAULTS, **{name: value for name, value in given.items() if name != "method"}}
    unknown = set(values) - set(_LOOKUP_DEFAULTS)
    if unknown:
        raise ConfigError(
            f"The speculative config has no {sorted(unknown)[0]!r}.", hint=f"Known: {', '.join(_LOOKUP_DEFAULTS)}."
        )
    if "prompt_lookup_min" not in given:
        values["prompt_lookup_min"] = min(values["prompt_lookup_min"], values["prompt_lookup_max"])
    if not all(type(value) is int and value >= 1 for value in values.values()):
        raise ConfigError("All numbers of the speculative config must be whole and at least 1.")
    if values["prompt_lookup_min"] > values["prompt_lookup_max"]:
        raise ConfigError("prompt_lookup_min is above prompt_lookup_max.")
    return Speculation(**values)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What resolving needs to know of a model."""

    max_model_len: int
    kv_bytes_per_token: int
    sliding_window: int | None = None


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings with nothing left open. `reasons` says, for each value that was chosen, why."""

    policy: str
    scheduler: SchedulerConfig
    cache: CacheConfig
    engine_version: str
    reasons: Mapping[str, str]
    speculation: Speculation | None = None


_DEFAULT_MAX_NUM_SEQS = 64
_DEFAULT_MAX_NUM_BATCHED_TOKENS = 256
"""Where no step has been timed. On a CPU a step's time grows with its tokens from the start; vLLM's 2048 would stall
every decode for seconds."""
_BUDGET_MULTIPLE = 32
_MOST_NUM_BATCHED_TOKENS = 2048


def resolve(
    options: EngineOptions,
    model: ModelFacts,
    free_memory_bytes: int | None = None,
    step_time: StepTime | None = None,
) -> EngineConfig:
    """Turn options into a config with concrete values.

    Args:
        free_memory_bytes: memory that the pool may share; needed unless num_blocks or kv_cache_memory_bytes is given.
        step_time: measured on this machine; the token budget follows from it unless it is given.

    Raises:
        ConfigError: values that cannot work together, with the numbers.
    """
    reasons: dict[str, str] = {}
    max_model_len = options.max_model_len or model.max_model_len
    if options.max_model_len is None:
        reasons["max_model_len"] = "the model's own limit"
    elif options.max_model_len > model.max_model_len:
        raise ConfigError(
            f"max_model_len {options.max_model_len} is longer than the model's own limit of {model.max_model_len}.",
            hint=f"Use at most {model.max_model_len}.",
        )
    num_blocks, reasons["num_blocks"] = _num_blocks(options, model, free_memory_bytes)
    pool_tokens = (num_blocks - 1) * options.block_size
    if options.max_model_len is None and pool_tokens < max_model_len:
        max_model_len = pool_tokens
        reasons["max_model_len"] = f"the KV cache holds {pool_tokens} tokens, less than the model's limit"
    max_num_seqs = options.max_num_seqs or _DEFAULT_MAX_NUM_SEQS
    if options.max_num_seqs is None:
        reasons["max_num_seqs"] = "default on a CPU"
    budget = options.max_num_batched_tokens
    if budget is None:
        budget, reasons["max_num_batched_tokens"] = _token_budget(options.tpot_target_ms, max_num_seqs, step_time)
    if budget < max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({budget}) is below max_num_seqs ({max_num_seqs}): not every running request "
            "could decode in one step.",
            hint="Raise the former or lower the latter.",
        )
    speculation = parse_speculation(options.speculative_config) if options.speculative_config is not None else None
    if speculation is not None and options.async_scheduling:
        raise ConfigError(
            "Drafts are made from the tokens of the step before, for which asynchronous scheduling does not wait.",
            hint="Leave out --async-scheduling or --speculative-config.",
        )
    scheduler = SchedulerConfig(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        scheduling_policy=options.scheduling_policy,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=options.long_prefill_token_threshold_adaptive,
        max_num_active_seqs=options.max_num_active_seqs,
        scheduler_reserve_full_isl=options.scheduler_reserve_full_isl,
        async_scheduling=options.async_scheduling,
        num_speculative_tokens=speculation.num_speculative_tokens if speculation is not None else 0,
    )
    cache = CacheConfig(
        num_blocks=num_blocks,
        block_size=options.block_size,
        enable_prefix_caching=options.enable_prefix_caching,
        watermark=options.watermark,
        sliding_window=model.sliding_window,
    )
    return EngineConfig(options.policy, scheduler, cache, options.engine_version, reasons, speculation)


def _token_budget(target_ms: float, max_num_seqs: int, step_time: StepTime | None) -> tuple[int, str]:
    """The longest step that keeps to the target, in whole thirty-twos, and the reason for it."""
    if step_time is None:
        reason = "default on a CPU: short steps keep inter-token gaps short"
        return max(_DEFAULT_MAX_NUM_BATCHED_TOKENS, max_num_seqs), reason
    fitting = step_time.tokens_within(target_ms / 1e3) // _BUDGET_MULTIPLE * _BUDGET_MULTIPLE
    budget = max(_BUDGET_MULTIPLE, max_num_seqs, min(fitting, _MOST_NUM_BATCHED_TOKENS))
    took = f"measured here: {step_time.of(budget) * 1e3:.0f} ms, for a target of {target_ms:g} ms between tokens"
    return budget, took if fitting <= budget else f"{took}; no more than {_MOST_NUM_BATCHED_TOKENS}"


def _num_blocks(options: EngineOptions, model: ModelFacts, free_memory_bytes: int | None) -> tuple[int, str]:
    if options.num_blocks is not None:
        return options.num_blocks, "given"
    if options.kv_cache_memory_bytes is not None:
        size, reason = options.kv_cache_memory_bytes, "from the given KV-cache memory"
    elif free_memory_bytes is not None:
        size = int(free_memory_bytes * options.kv_cache_memory_share)
        reason = f"{options.kv_cache_memory_share:.0%} of {free_memory_bytes / 2**30:.1f} GiB free memory"
    else:
        raise ConfigError("The size of the KV cache is not known.", hint="Give --kv-cache-memory-bytes.")
    block_bytes = options.block_size * model.kv_bytes_per_token
    num_blocks = size // block_bytes
    if num_blocks < 2:
        raise ConfigError(
            f"{size} bytes hold {num_blocks} KV block(s) of {block_bytes} bytes; at least 2 are needed.",
            hint=f"Give --kv-cache-memory-bytes at least {2 * block_bytes}.",
        )
    return num_blocks, reason


def parse_bytes(text: str) -> int:
    """Read a size such as 512MiB, 2GB or 1073741824.

    Raises:
        ConfigError: not a size.
    """
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGT", start=1):
        units |= {f"{letter}B": 1000**power, f"{letter}IB": 1024**power, letter: 1024**power}
    stripped = text.strip()
    number = stripped.rstrip("BbIiKkMmGgTt").strip()
    unit = stripped[len(number) :].strip().upper()
    try:
        return int(float(number) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise ConfigError(f"{text!r} is not a size.", hint="Examples: 512MiB, 2GB, 1073741824.") from None
