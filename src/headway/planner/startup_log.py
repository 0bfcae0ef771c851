"""Reading what vLLM (V0 and V1) and SGLang print about memory when they start."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

GIB = 2**30


@dataclass(frozen=True, slots=True)
class StartupLog:
    """The figures of one start-up; None where the log has none. Sizes in bytes of one GPU."""

    engine: str = "vllm"
    version: str | None = None
    model: str | None = None
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    enforce_eager: bool | None = None
    gpu_memory_utilization: float | None = None
    total_bytes: int | None = None
    weights_bytes: int | None = None
    non_torch_bytes: int | None = None
    activation_bytes: int | None = None
    peak_torch_bytes: int | None = None
    """Weights and activations together, as 0.6.3 and 0.6.4 print them."""
    cuda_graph_bytes: int | None = None
    available_bytes: int | None = None
    needed_bytes: int | None = None
    """KV memory that one request of max_model_len needs, from the error that says so."""
    kv_cache_tokens: int | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    max_concurrency: float | None = None
    estimated_max_model_len: int | None = None
    no_memory_for_blocks: bool = False
    error: str | None = None

    @property
    def activation_peak_bytes(self) -> int | None:
        """As printed, or the peak less the weights."""
        if self.activation_bytes is None and self.peak_torch_bytes is not None and self.weights_bytes is not None:
            return self.peak_torch_bytes - self.weights_bytes
        return self.activation_bytes

    @property
    def tokens(self) -> int | None:
        """KV tokens as printed, or blocks times the block size (16 unless the log says otherwise)."""
        if self.kv_cache_tokens is not None:
            return self.kv_cache_tokens
        return None if self.num_gpu_blocks is None else self.num_gpu_blocks * (self.block_size or 16)

    @property
    def bytes_per_token(self) -> float | None:
        """KV bytes a token on one GPU: the pool over its tokens, or what a request needs over its length."""
        if self.available_bytes is not None and self.tokens:
            return self.available_bytes / self.tokens
        if self.needed_bytes is not None and self.max_model_len:
            return self.needed_bytes / self.max_model_len
        return None

    @property
    def fits(self) -> bool | None:
        """Whether one request of max_model_len has its memory; None if the log does not tell."""
        if self.no_memory_for_blocks:
            return False
        if self.needed_bytes is not None and self.available_bytes is not None:
            return self.needed_bytes <= self.available_bytes
        if self.tokens is not None and self.max_model_len is not None:
            return self.tokens >= self.max_model_len
        return None

    @property
    def shortfall_bytes(self) -> int | None:
        """What one request of max_model_len lacks; 0 if it fits."""
        if self.needed_bytes is not None and self.available_bytes is not None:
            return max(0, self.needed_bytes - self.available_bytes)
        each = self.bytes_per_token
        if each is None or self.tokens is None or self.max_model_len is None:
            return None
        return max(0, int((self.max_model_len - self.tokens) * each))

    @property
    def blocks_needed(self) -> int | None:
        """Blocks of one request of max_model_len."""
        return None if self.max_model_len is None else -(-self.max_model_len // (self.block_size or 16))

    @property
    def blocks_have(self) -> int | None:
        """Blocks of the pool."""
        if self.num_gpu_blocks is not None:
            return self.num_gpu_blocks
        return None if self.tokens is None else self.tokens // (self.block_size or 16)

    @property
    def max_model_len_that_fits(self) -> int | None:
        """The longest request that the pool holds."""
        if self.needed_bytes and self.available_bytes is not None and self.max_model_len is not None:
            return int(self.max_model_len * min(1.0, self.available_bytes / self.needed_bytes))
        return self.tokens

    def concurrency_at(self, num_tokens: int) -> float | None:
        """Requests of that length that the pool holds at once."""
        return None if self.tokens is None else self.tokens / num_tokens


_SIZE = r"([\d.,]+)\s*(GiB|GB|MiB|MB|G)\b"


def _size(number: str, unit: str) -> int:
    """vLLM prints GiB whatever it calls them."""
    return int(float(number.replace(",", "")) * (GIB if unit.startswith("G") else GIB / 1024))


def _count(text: str) -> int:
    return int(text.replace(",", ""))


_Reader = Callable[[re.Match[str]], Mapping[str, Any]]
_Pattern = tuple[re.Pattern[str], _Reader]


def _sized(pattern: str, name: str) -> _Pattern:
    return re.compile(pattern.replace("SIZE", _SIZE)), lambda match: {name: _size(match[1], match[2])}


def _counted(pattern: str, name: str) -> _Pattern:
    return re.compile(pattern.replace("COUNT", r"([\d,]+)")), lambda match: {name: _count(match[1])}


def _words(pattern: str, name: str) -> _Pattern:
    return re.compile(pattern), lambda match: {name: None if match[1] == "None" else match[1]}


def _needed(match: re.Match[str]) -> Mapping[str, Any]:
    return {
        "max_model_len": _count(match[1]),
        "needed_bytes": _size(match[2], match[3]),
        "available_bytes": _size(match[4], match[5]),
        "error": "max_model_len",
    }


def _too_long(match: re.Match[str]) -> Mapping[str, Any]:
    return {"max_model_len": _count(match[1]), "kv_cache_tokens": _count(match[2]), "error": "max_model_len"}


def _total(match: re.Match[str]) -> Mapping[str, Any]:
    return {"total_bytes": _size(match[1], match[2]), "gpu_memory_utilization": float(match[3])}


def _free(match: re.Match[str]) -> Mapping[str, Any]:
    return {
        "total_bytes": _size(match[2], "GiB"),
        "gpu_memory_utilization": float(match[3]),
        "error": "free_memory",
    }


def _concurrency(match: re.Match[str]) -> Mapping[str, Any]:
    return {"max_model_len": _count(match[1]), "max_concurrency": float(match[2].replace(",", ""))}


_PATTERNS: tuple[_Pattern, ...] = (
    (
        re.compile(r"(?:LLM engine \(v|API server version |\bversion )v?(\d+\.\d+\.[\w.+]+)"),
        lambda match: {"version": match[1].rstrip(".")},
    ),
    _words(r"with config: .*?model='([^']+)'", "model"),
    _counted(r"\btensor_parallel_size=COUNT", "tensor_parallel_size"),
    _counted(r"\bpipeline_parallel_size=COUNT", "pipeline_parallel_size"),
    _words(r"\bquantization=(\w+)", "quantization"),
    _words(r"\bkv_cache_dtype='?(\w+)", "kv_cache_dtype"),
    (re.compile(r"\benforce_eager=(True|False)"), lambda match: {"enforce_eager": match[1] == "True"}),
    _counted(r"(?:\bmax_seq_len=|\bmax_model_len'?[=:] ?|Using max model len )COUNT", "max_model_len"),
    _counted(r"\bmax_num_batched_tokens'?[=:] ?COUNT", "max_num_batched_tokens"),
    (
        re.compile(r"\bgpu_memory_utilization'?[=:] ?([\d.]+)"),
        lambda match: {"gpu_memory_utilization": float(match[1].rstrip("."))},
    ),
    _sized(r"(?:Loading model weights|Model loading) took SIZE", "weights_bytes"),
    _sized(r"model weights take SIZE", "weights_bytes"),
    _sized(r"non_torch_memory (?:takes |= ?)SIZE", "non_torch_bytes"),
    _sized(r"peak_torch_memory=SIZE", "peak_torch_bytes"),
    _sized(r"activation peak memory takes SIZE", "activation_bytes"),
    _sized(r"\bkv_cache_size=SIZE", "available_bytes"),
    _sized(r"reserved for KV Cache is SIZE", "available_bytes"),
    _sized(r"Available KV cache memory: SIZE", "available_bytes"),
    (re.compile(r"Available KV cache memory: -"), lambda match: {"no_memory_for_blocks": True}),
    (re.compile(rf"total_gpu_memory \({_SIZE}\) x gpu_memory_utilization \(([\d.]+)\)"), _total),
    _sized(r"\btotal_gpu_memory=SIZE", "total_bytes"),
    (re.compile(r"Free memory on device.*?\(([\d.]+)/([\d.]+) GiB\).*?utilization \(([\d.]+)"), _free),
    _sized(r"Graph capturing finished in .*? took SIZE", "cuda_graph_bytes"),
    _sized(r"[Ee]stimated CUDA graph memory:? SIZE", "cuda_graph_bytes"),
    (
        re.compile(r"# (?:GPU|cuda|CUDA) blocks: (\d+)"),
        lambda match: {"num_gpu_blocks": int(match[1])},
    ),
    _counted(r"attention block size to COUNT tokens", "block_size"),
    _counted(r"\bblock_size'?[=:] ?COUNT", "block_size"),
    _counted(r"KV cache size: COUNT tokens", "kv_cache_tokens"),
    (re.compile(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.,]+)x"), _concurrency),
    (re.compile(r"max seq len \(([\d,]+)\) is larger than .*? KV cache \(([\d,]+)\)"), _too_long),
    (
        re.compile(rf"max seq len \(([\d,]+)\)[,.]? \(?{_SIZE} KV cache is needed.*?memory \({_SIZE}\)", re.DOTALL),
        _needed,
    ),
    _counted(r"estimated maximum model length is COUNT", "estimated_max_model_len"),
    (
        re.compile(r"No available memory for the cache blocks"),
        lambda match: {"no_memory_for_blocks": True, "error": "no_memory"},
    ),
    (
        re.compile(r"max_total_num_tokens=(\d+)"),
        lambda match: {"engine": "sglang", "kv_cache_tokens": int(match[1])},
    ),
    (
        re.compile(r"#tokens: (\d+), K size: ([\d.]+) GB, V size: ([\d.]+) GB"),
        lambda match: {
            "engine": "sglang",
            "kv_cache_tokens": int(match[1]),
            "available_bytes": int((float(match[2]) + float(match[3])) * GIB),
        },
    ),
    (
        re.compile(r"mem[_-]fraction[_-]static[=: ]+([\d.]+)"),
        lambda match: {"engine": "sglang", "gpu_memory_utilization": float(match[1])},
    ),
)

_NEW_START = re.compile(r"Initializing an? (?:V0 |V1 )?LLM engine|Loading model weights took|Model loading took")
_LATER_DATA_PARALLEL_ENGINE = re.compile(r"EngineCore_?DP[1-9]")


def read_startup_logs(text: str) -> list[StartupLog]:
    """Every start-up in a log, oldest first; an empty list where nothing about memory was found.

    Several ranks that print the same figure count as one start-up; a size that differs between ranks is the smallest
    for what is available and the largest for what is taken.
    """
    starts: list[StartupLog] = []
    current = StartupLog()
    for line in text.splitlines():
        found = _read_line(line)
        if _begins_another(current, line, found):
            starts.append(current)
            current = StartupLog()
        if found:
            current = _merge(current, found)
    starts.append(current)
    return [start for start in starts if _has_memory(start)]


def _begins_another(current: StartupLog, line: str, found: Mapping[str, Any]) -> bool:
    """By its words, because another engine prints it, or because the pool was sized already."""
    if _LATER_DATA_PARALLEL_ENGINE.search(line):
        return False
    if _NEW_START.search(line):
        return current.tokens is not None or current.error is not None
    if found.get("engine", current.engine) != current.engine:
        return _has_memory(current)
    says_memory = "available_bytes" in found or "total_bytes" in found
    if current.engine == "sglang":
        arguments = "engine" in found and "gpu_memory_utilization" in found
        return current.tokens is not None and (arguments or (says_memory and "engine" not in found))
    return says_memory and current.max_concurrency is not None and current.tokens is not None


def _read_line(line: str) -> dict[str, Any]:
    """What a line says; figures that are no numbers, such as 1.2.3, are left out."""
    found: dict[str, Any] = {}
    for pattern, reader in _PATTERNS:
        match = pattern.search(line)
        if match is None:
            continue
        try:
            told = reader(match)
        except (ValueError, OverflowError):
            continue
        for name, value in told.items():
            found.setdefault(name, value)
    return found


_SMALLEST = ("available_bytes", "num_gpu_blocks")
_LARGEST = ("weights_bytes", "non_torch_bytes", "activation_bytes")


def _merge(log: StartupLog, found: Mapping[str, Any]) -> StartupLog:
    changes = dict(found)
    for name in (*_SMALLEST, *_LARGEST):
        old, new = getattr(log, name), changes.get(name)
        if old is not None and new is not None:
            changes[name] = min(old, new) if name in _SMALLEST else max(old, new)
    return replace(log, **{name: value for name, value in changes.items() if value is not None})


def _has_memory(log: StartupLog) -> bool:
    told = ("weights_bytes", "available_bytes", "kv_cache_tokens", "num_gpu_blocks", "total_bytes", "error")
    return any(getattr(log, field.name) is not None for field in fields(log) if field.name in told)
