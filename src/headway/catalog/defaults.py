"""What vLLM chooses when the user gives nothing: by version, device and usage context.

The rules are data (`vllm_defaults.json`); this module only looks them up.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from headway.catalog.accelerators import GIB, Accelerator
from headway.catalog.versions import Version, parse_version

Usage = Literal["api", "llm"]
"""`api`: vllm serve. `llm`: the offline LLM class, which may take larger batches."""


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """Concrete values, each given by the user or chosen as this version does; `reasons` says which and why."""

    version: Version
    gpu_memory_utilization: float
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_chunked_prefill: bool
    enable_prefix_caching: bool
    cuda_graph_sizes: tuple[int, ...]
    counts_cuda_graph_memory: bool
    reasons: Mapping[str, str]


def version_fact(name: str, version: str | Version) -> Any:
    """The value that a rule of `vllm_defaults.json` has in a version.

    Raises:
        ConfigError: not a version.
    """
    number = parse_version(version) if isinstance(version, str) else version
    value = None
    for step in _rules()[name]:
        if parse_version(step["since"]) <= number:
            value = step["value"]
    return value


def newest_read() -> Version:
    """The newest release whose rules stand in `vllm_defaults.json`."""
    return parse_version(_rules()["read_up_to"])


def resolve_defaults(
    version: str,
    accelerator: Accelerator,
    *,
    max_model_len: int,
    usage: Usage = "api",
    is_hybrid: bool = False,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
    preferred_block_size: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    enable_chunked_prefill: bool | None = None,
    enable_prefix_caching: bool | None = None,
    enforce_eager: bool = False,
) -> EngineDefaults:
    """Fill in what the user left open, as that vLLM version does on that device.

    Args:
        preferred_block_size: what the model's attention kernels want in place of the version's block size.

    Raises:
        ConfigError: not a version.
    """
    number = parse_version(version)
    reasons: dict[str, str] = {}

    def choose(name: str, given: Any, chosen: Any, reason: str) -> Any:
        reasons[name] = "given" if given is not None else reason
        return chosen if given is None else given

    release = f"default of vLLM {'.'.join(map(str, number))}"
    chunked = _chunked(number, enable_chunked_prefill, max_model_len, reasons)
    seats, tokens = _batch(number, accelerator, usage, chunked, max_model_len, reasons)
    if max_num_seqs is None and max_num_batched_tokens is not None and version_fact("seats_capped_by_tokens", number):
        seats = min(seats, max_num_batched_tokens)
    seats = choose("max_num_seqs", max_num_seqs, seats, reasons["max_num_seqs"])
    if max_num_batched_tokens is None and version_fact("tokens_capped_by_seats", number):
        tokens = min(tokens, seats * max_model_len)
    tokens = choose("max_num_batched_tokens", max_num_batched_tokens, tokens, reasons["max_num_batched_tokens"])
    caching = version_fact("prefix_caching", number) and (
        not is_hybrid or version_fact("prefix_caching_of_hybrids", number)
    )
    return EngineDefaults(
        version=number,
        gpu_memory_utilization=choose(
            "gpu_memory_utilization", gpu_memory_utilization, version_fact("gpu_memory_utilization", number), release
        ),
        block_size=choose(
            "block_size",
            block_size,
            preferred_block_size or version_fact("block_size", number),
            "preferred by the attention kernels" if preferred_block_size else release,
        ),
        max_num_seqs=seats,
        max_num_batched_tokens=tokens,
        enable_chunked_prefill=chunked,
        enable_prefix_caching=choose("enable_prefix_caching", enable_prefix_caching, caching, release),
        cuda_graph_sizes=() if enforce_eager else cuda_graph_sizes(number, seats, tokens, accelerator),
        counts_cuda_graph_memory=version_fact("cuda_graph_memory_counts", number),
        reasons=reasons,
    )


def cuda_graph_sizes(
    version: Version, max_num_seqs: int, max_num_batched_tokens: int, accelerator: Accelerator | None = None
) -> tuple[int, ...]:
    """Batch sizes that CUDA graphs are captured for; a decode batch is padded to the next one."""
    rule = version_fact("cuda_graph_sizes", version)
    capability = accelerator.compute_capability if accelerator is not None else None
    limit = rule["limit"]
    if capability is not None and capability[0] == 10:
        limit = rule.get("limit_on_capability_10", limit)
    if rule["seats_factor"] is not None:
        limit = min(limit, rule["seats_factor"] * max_num_seqs)
    limit = min(limit, max_num_batched_tokens)
    fine = min(rule["fine_step_to"], limit)
    sizes = [1, 2, 4, *range(8, fine + 1, 8), *range(256, limit + 1, 16)]
    return tuple(sorted({size for size in sizes if size <= limit}))


def _chunked(number: Version, given: bool | None, max_model_len: int, reasons: dict[str, str]) -> bool:
    rule = version_fact("chunked_prefill", number)
    if (0, 8, 0) <= number < (0, 11, 1) and given is False:
        reasons["enable_chunked_prefill"] = "the V1 engine of this version does not turn it off"
        return True
    if given is not None:
        reasons["enable_chunked_prefill"] = "given"
        return given
    if rule == "on above 32768 tokens":
        reasons["enable_chunked_prefill"] = "V0 turns it on where max_model_len exceeds 32768"
        return max_model_len > 32768
    reasons["enable_chunked_prefill"] = f"{rule} in this version"
    return bool(rule == "on")


def _batch(
    number: Version,
    accelerator: Accelerator,
    usage: Usage,
    chunked: bool,
    max_model_len: int,
    reasons: dict[str, str],
) -> tuple[int, int]:
    """Seats and tokens of one step where neither was given."""
    tier = next(tier for tier in version_fact("batch", number) if _matches(tier["when"], accelerator))
    where = f"{accelerator.id}, {'vllm serve' if usage == 'api' else 'offline LLM'}"
    reasons["max_num_seqs"] = f"default of this version on {where}"
    fixed = version_fact("chunked_tokens", number)
    tokens = int(fixed if fixed is not None else tier[usage])
    reasons["max_num_batched_tokens"] = f"default of this version on {where}"
    if not chunked:
        floor = version_fact("unchunked_tokens_at_least", number) if fixed is not None else tokens
        tokens = max(max_model_len, floor)
        reasons["max_num_batched_tokens"] = "without chunked prefill a whole prompt must fit in one step"
    return int(tier["seqs"]), tokens


def _matches(when: Mapping[str, Any], accelerator: Accelerator) -> bool:
    name = accelerator.id.lower()
    if "name" in when and not any(part in name for part in when["name"]):
        return False
    if any(part in name for part in when.get("not_name", ())):
        return False
    if "not_capability" in when and accelerator.compute_capability == tuple(when["not_capability"]):
        return False
    return bool(accelerator.memory_bytes >= when.get("memory_gib", 0) * GIB)


@cache
def _rules() -> dict[str, Any]:
    text = resources.files("headway.catalog").joinpath("vllm_defaults.json").read_text(encoding="utf-8")
    rules: dict[str, Any] = json.loads(text)
    return rules
