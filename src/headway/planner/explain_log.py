"""A start-up log beside the plan, and two start-ups beside each other, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from headway.planner.plan import Plan
from headway.planner.startup_log import GIB, StartupLog

_HIGHEST_SHARE = 0.98
"""Above it CUDA's own memory and what serving adds have no room left."""


@dataclass(frozen=True, slots=True)
class ComparedTerm:
    """One figure in the log and in the plan; None where one of them has none."""

    name: str
    logged: float | None
    planned: float | None
    unit: str
    explanation: str


def compare_terms(log: StartupLog, plan: Plan | None) -> list[ComparedTerm]:
    """Each term of the budget as logged and as planned, with what it means. Terms that neither has are left out."""
    terms = [*_memory_terms(log, plan), *_token_terms(log, plan)]
    return [term for term in terms if term.logged is not None or term.planned is not None]


def _memory_terms(log: StartupLog, plan: Plan | None) -> Iterator[ComparedTerm]:
    def planned(name: str) -> float | None:
        return None if plan is None else plan.binding.term(name).num_bytes / GIB

    def gib(value: int | None) -> float | None:
        return None if value is None else value / GIB

    share, total = log.gpu_memory_utilization, log.total_bytes
    requested = share * total / GIB if share is not None and total is not None else None
    said = f"{share:g} of torch's {total / GIB:.2f} GiB" if share is not None and total is not None else "the budget"
    yield ComparedTerm("requested", requested, planned("requested"), "GiB", said)
    yield ComparedTerm("weights", gib(log.weights_bytes), planned("weights"), "GiB", "weights on one GPU")
    yield ComparedTerm(
        "activation_peak",
        gib(log.activation_peak_bytes),
        planned("activation_peak"),
        "GiB",
        "the profile run: grows with max_num_batched_tokens and, from V1, with max_num_seqs",
    )
    yield ComparedTerm(
        "non_torch", gib(log.non_torch_bytes), planned("non_torch"), "GiB", "workspaces, NCCL; not torch's own"
    )
    yield ComparedTerm("cuda_graphs", gib(log.cuda_graph_bytes), planned("cuda_graphs"), "GiB", _graph_words(plan))
    rest = None
    if requested is not None and log.weights_bytes is not None and log.available_bytes is not None:
        rest = requested - (log.weights_bytes + log.available_bytes) / GIB
    planned_rest = None
    if plan is not None:
        taken = [term.num_bytes for term in plan.terms[2:] if term.counted]
        planned_rest = sum(taken) / GIB
    yield ComparedTerm("all but weights", rest, planned_rest, "GiB", "activations, workspaces, counted graphs")
    yield ComparedTerm(
        "kv_cache",
        gib(log.available_bytes),
        None if plan is None else plan.available_kv_cache_bytes / GIB,
        "GiB",
        "what is left for KV blocks",
    )


def _graph_words(plan: Plan | None) -> str:
    if plan is None:
        return "CUDA graphs"
    counted = plan.binding.term("cuda_graphs").counted
    return "taken off the KV budget in this version" if counted else "on top of the budget in this version"


def _token_terms(log: StartupLog, plan: Plan | None) -> Iterator[ComparedTerm]:
    each = log.bytes_per_token
    yield ComparedTerm(
        "kv_bytes_per_token",
        each,
        None if plan is None else float(plan.kv_bytes_per_token),
        "B",
        "pool over tokens, on one GPU",
    )
    yield ComparedTerm(
        "kv_cache_tokens",
        None if log.tokens is None else float(log.tokens),
        None if plan is None else float(plan.kv_cache_tokens.likely),
        "tokens",
        "",
    )
    yield ComparedTerm(
        "max_concurrency", log.max_concurrency, None if plan is None else plan.max_concurrency, "x", "at max_model_len"
    )


def explain(log: StartupLog, plan: Plan | None = None) -> list[str]:
    """What the log says, in sentences: the fit, the smallest way out, and what not to try.

    With a plan of several pipeline ranks the longest request is that of the rank's own layers: vLLM's estimate divides
    the smallest rank's memory by all layers.
    """
    lines: list[str] = []
    needed, have, length = log.blocks_needed, log.blocks_have, log.max_model_len
    if log.fits is False:
        if needed is not None and have is not None:
            size = log.block_size or 16
            lines.append(
                f"One request of {length} tokens needs {needed} blocks of {size}; there are {have} "
                f"(short by {needed - have})."
            )
        elif log.shortfall_bytes:
            lines.append(f"One request of {length} tokens is {log.shortfall_bytes / 2**20:,.0f} MiB short.")
        lines += _ways_out(log, _by_rank(log, plan))
    elif log.fits and log.tokens is not None and length is not None:
        lines.append(f"One request of {length} tokens fits {log.tokens / length:.2f} times.")
    if log.error == "free_memory":
        lines.append("Something else holds memory on this card: free it or lower gpu_memory_utilization.")
    return lines


def _by_rank(log: StartupLog, plan: Plan | None) -> tuple[int, str] | None:
    """The longest request by ranks, and how vLLM's estimate came about; None without pipeline ranks."""
    if plan is None or len(plan.ranks) < 2 or log.available_bytes is None or log.needed_bytes is None:
        return None
    smallest = min(plan.ranks, key=lambda rank: rank.available_bytes)
    in_flight = plan.resolved.in_flight_tokens
    longest = min(
        rank.layout.longest_request(
            log.available_bytes // rank.layout.block_bytes if rank is smallest else rank.num_blocks(), in_flight
        )
        for rank in plan.ranks
        if rank.layout.block_bytes
    )
    layers, total = smallest.num_layers, plan.deployment.model.num_layers
    why = (
        f"vLLM's estimate divides the memory of rank {smallest.rank} by the KV bytes of all {total} layers, of which "
        f"it holds {layers}."
    )
    return longest, why


def _ways_out(log: StartupLog, by_rank: tuple[int, str] | None) -> Iterator[str]:
    longest = log.max_model_len_that_fits if by_rank is None else by_rank[0]
    if by_rank is not None:
        yield by_rank[1]
    if longest:
        yield f"max_model_len {longest} just fits."
    share, total, missing = log.gpu_memory_utilization, log.total_bytes, log.shortfall_bytes
    if share is not None and share >= 0.95:
        yield f"gpu_memory_utilization is at {share:g} already, its ceiling: look elsewhere."
    elif share is not None and total is not None and missing:
        yield f"gpu_memory_utilization {share + missing / total:.3f} would just do."
    elif longest:
        yield "Raising gpu_memory_utilization or tensor_parallel_size also helps."


def compare_start_ups(first: StartupLog, second: StartupLog) -> list[str]:
    """What differs between two start-ups once both are brought to bytes a token and a share of the card."""
    lines: list[str] = []
    one, two = first.bytes_per_token, second.bytes_per_token
    if one is not None and two is not None:
        same = abs(one / two - 1) < 0.02
        lines.append(
            f"Bytes per token are the same ({one:,.0f} and {two:,.0f}): the layout and KV dtype are not the cause."
            if same
            else f"Bytes per token differ: {one:,.0f} and {two:,.0f}."
        )
    if first.available_bytes is not None and second.available_bytes is not None:
        change = (second.available_bytes - first.available_bytes) / GIB
        verb = "shrank" if change < 0 else "grew"
        lines.append(
            f"The pool {verb} by {abs(change):.2f} GiB ({first.available_bytes / GIB:.2f} → "
            f"{second.available_bytes / GIB:.2f})."
        )
        if first.max_model_len != second.max_model_len and change < 0 and first.engine == second.engine:
            lines.append(
                "max_model_len does not enter the pool itself: something profiled grows with it. Set "
                "max_num_batched_tokens (2048 to 8192) and leave chunked prefill on."
            )
    if first.gpu_memory_utilization != second.gpu_memory_utilization or first.engine != second.engine:
        lines.append(
            f"Budget: {first.engine} {_share(first)}, {second.engine} {_share(second)}; each subtracts other things."
        )
        lines += _parity(first, second)
    return lines


def _parity(first: StartupLog, second: StartupLog) -> Iterator[str]:
    """The utilisation at which the smaller pool of vLLM would be as large as the other."""
    less, more = sorted((first, second), key=lambda log: log.available_bytes or 0)
    share, total = less.gpu_memory_utilization, less.total_bytes
    if less.engine != "vllm" or share is None or total is None or not less.available_bytes:
        return
    assert more.available_bytes is not None
    wanted = math.ceil(100 * (share + (more.available_bytes - less.available_bytes) / total) - 1e-9) / 100
    if wanted <= _HIGHEST_SHARE:
        yield f"gpu_memory_utilization {wanted:.2f} gives vLLM as large a pool; what it does not count gets little."
    else:
        yield (
            f"As large a pool would take gpu_memory_utilization {wanted:.2f}: more than the card has beside what vLLM "
            f"profiles. About {_HIGHEST_SHARE:g} is the most, at the risk of running out of memory."
        )


def _share(log: StartupLog) -> str:
    return "share not logged" if log.gpu_memory_utilization is None else f"{log.gpu_memory_utilization:g} of the card"
