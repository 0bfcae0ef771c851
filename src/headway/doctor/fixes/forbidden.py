"""Advice that is often given and would be wrong here, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headway.doctor.diagnosis import BottleneckKind, Fix, MustNot
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import Case, Findings, amount, percent

DUTY_CYCLE = "GPU duty cycle"
_DUTY_CYCLE_REASON = (
    "As a signal to scale by: what nvidia-smi calls utilisation says that some kernel ran, not how much it did; a "
    "decode step that waits for memory shows 100 %. Scale by requests waiting, KV usage and time to first token."
)
_SCALING = frozenset(("replicas", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"))
_ABOUT_PROMPTS: tuple[BottleneckKind, ...] = (
    "kv_starvation",
    "waiting_queue_stall",
    "prefill_compute_bound",
    "long_prompt_hol",
    "chunk_missized",
    "offered_load_too_high",
)
"""Bottlenecks at which people turn on what is on."""


def forbidden(case: Case, findings: Findings, fixes: Sequence[Fix]) -> Iterator[MustNot]:
    """What not to do, by what was found and by what is on already."""
    yield from _by_finding(case, findings)
    if findings.has(*_ABOUT_PROMPTS):
        yield from _already_on(case)
    yield from _exhausted(case)
    if any(fix.setting in _SCALING for fix in fixes) or any("gpu_util" in name for name in case.evidence.stated):
        yield MustNot(DUTY_CYCLE, _DUTY_CYCLE_REASON)


def _by_finding(case: Case, findings: Findings) -> Iterator[MustNot]:
    kv_is_limit = findings.has("kv_starvation", "hbm_bound", "impossible_request_at_queue_head")
    if findings.has("waiting_queue_stall") and not kv_is_limit:
        yield from _blocks_are_free(case)
    if findings.has("prefill_compute_bound", "long_prompt_hol") and not findings.has("waiting_queue_stall"):
        yield from _blocks_are_free(case)
        yield MustNot("max_num_seqs", "Seats are free: more of them change nothing.")
    if findings.has("prefill_compute_bound") and not findings.has("chunk_missized"):
        reason = "A larger budget does not compute prompts faster, and each step stalls the decodes for longer."
        yield MustNot("max_num_batched_tokens", reason)
    if findings.has("kv_starvation"):
        yield from _starved(case)
    if findings.has("engine_stall_other"):
        reason = "The engine stands still with blocks and seats free: no setting of the scheduler reaches that."
        for name in ("gpu_memory_utilization", "max_num_seqs", "replicas"):
            yield MustNot(name, reason)
    if findings.has("kv_leak"):
        yield MustNot("gpu_memory_utilization", "More blocks leak as well; only later.")
    if findings.has("client_bound"):
        for name in ("max_num_seqs", "gpu_memory_utilization", "max_num_batched_tokens", "tensor_parallel_size"):
            yield MustNot(name, "The engine waits for its clients: no flag of the server changes what they send.")
    if findings.first in ("none", "none_idle"):
        for name in ("max_num_seqs", "gpu_memory_utilization", "max_num_batched_tokens"):
            yield MustNot(name, "It limits nothing here: leave it as it is.")
    if findings.has("chunk_missized") and not kv_is_limit:
        yield MustNot("gpu_memory_utilization", "Steps are too long or too short; blocks are not what is lacking.")


def _blocks_are_free(case: Case) -> Iterator[MustNot]:
    highest = case.figures.highest("kv_usage")
    if highest is not None and highest >= limits.KV_ROOM:
        return
    text = (
        f"KV usage never exceeds {percent(highest)}" if highest is not None else "Nothing says that blocks are lacking"
    )
    for name in ("gpu_memory_utilization", "kv_cache_dtype"):
        yield MustNot(name, f"{text}: more blocks let nobody in.")


def _starved(case: Case) -> Iterator[MustNot]:
    running = case.figures.mean("num_running")
    if running is not None and running < limits.FEW_RUNNING:
        reason = f"Only {amount(running)} requests run: fewer seats free no block, since seats are not what they hold."
    else:
        reason = "Blocks are lacking: more seats make more requests be preempted."
    yield MustNot("max_num_seqs", reason)
    yield MustNot("swap_space", "Swapped requests wait for the bus; V1 does not swap at all.")


def _already_on(case: Case) -> Iterator[MustNot]:
    settings = case.settings
    if settings.enable_chunked_prefill is True:
        yield MustNot("enable_chunked_prefill", "It is on already.")
    elif settings.enable_chunked_prefill is None:
        reason = (
            "Not known to be off; it is on by default in V1. First look whether it is, and at speculative decoding."
        )
        yield MustNot("enable_chunked_prefill", reason)
    if settings.enable_prefix_caching is True:
        yield MustNot("enable_prefix_caching", "It is on already.")
    if settings.kv_cache_dtype is not None and settings.kv_cache_dtype.startswith(("fp8", "int8", "nvfp4")):
        yield MustNot("kv_cache_dtype", f"It is {settings.kv_cache_dtype} already.")


def _exhausted(case: Case) -> Iterator[MustNot]:
    share = case.settings.gpu_memory_utilization
    if share is not None and share >= limits.HIGHEST_UTILIZATION - 0.005:
        yield MustNot(
            "gpu_memory_utilization", f"{share:g} is its ceiling: the rest is for CUDA graphs and the context."
        )
