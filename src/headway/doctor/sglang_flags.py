"""Flags of SGLang, under the names that vLLM has for the same settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headway.deployment.effective import Effective

SGLANG_NAMES = {
    "max_num_seqs": "max_running_requests",
    "max_num_batched_tokens": "chunked_prefill_size",
    "gpu_memory_utilization": "mem_fraction_static",
    "max_model_len": "context_length",
    "tensor_parallel_size": "tp_size",
    "kv_cache_dtype": "kv_cache_dtype",
    "enforce_eager": "disable_cuda_graph",
    "speculative_config": "speculative_algorithm",
}
"""What SGLang calls a setting of vLLM's; it has none of the others."""
_OWN = frozenset((
    "chunked-prefill-size", "mem-fraction-static", "max-running-requests", "context-length", "tp-size",
    "max-prefill-tokens", "max-total-tokens", "schedule-policy", "schedule-conservativeness", "disable-radix-cache",
    "attention-backend-sglang", "disable-cuda-graph", "cuda-graph-max-bs",
))  # fmt: skip
"""Options that only SGLang has."""
_NUMBERS = {
    "max-running-requests": "max_num_seqs",
    "chunked-prefill-size": "max_num_batched_tokens",
    "context-length": "max_model_len",
    "tp-size": "tensor_parallel_size",
    "tp": "tensor_parallel_size",
}


def sglang_settings(effective: Effective | None) -> Mapping[str, Any]:
    """Settings of a start of SGLang, in vLLM's names; empty where the words are not SGLang's."""
    if effective is None:
        return {}
    words = [word.text for word in effective.invocation.words]
    options = [word.lstrip("-").partition("=")[0].replace("_", "-") for word in words if word.startswith("--")]
    if not any("sglang" in word for word in words) and not _OWN & {*options}:
        return {}
    found: dict[str, Any] = {"enable_chunked_prefill": True}
    for index, word in enumerate(words):
        option, _, value = word.lstrip("-").replace("_", "-").partition("=")
        value = value or (words[index + 1] if index + 1 < len(words) else "")
        if not word.startswith("--"):
            continue
        if option in _NUMBERS and re.fullmatch(r"\d{1,9}", value):
            found.setdefault(_NUMBERS[option], int(value))
        elif option == "mem-fraction-static" and re.fullmatch(r"0?\.\d{1,6}", value):
            found["gpu_memory_utilization"] = float(value)
        elif option == "disable-cuda-graph":
            found["enforce_eager"] = True
        elif option == "disable-radix-cache":
            found["enable_prefix_caching"] = False
    found.setdefault("enable_prefix_caching", True)
    return found
