"""What to change: for each knob the smallest change that makes the model fit, ordered by what it costs the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from headway.catalog.accelerators import Accelerator, find_accelerator, list_accelerators
from headway.catalog.dtypes import dtype_bytes
from headway.errors import ConfigError
from headway.planner.deployment import Deployment
from headway.planner.plan import Plan, make_plan

MAX_UTILIZATION = 0.95
"""Above this the space left for CUDA graphs, fragmentation and other programs is too small to recommend."""

HARM_ORDER = (
    "enable_chunked_prefill",
    "max_num_batched_tokens",
    "max_num_seqs",
    "gpu_memory_utilization",
    "max_model_len",
    "kv_cache_dtype",
    "enforce_eager",
    "quantization",
    "tensor_parallel_size",
    "accelerator",
)
"""From what only reshapes steps, over what limits requests or costs accuracy or speed, to what costs money."""

_MIN_USEFUL_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Fix:
    """One knob turned alone. `break_even` is the value that just fits; `value` is what to set, a rounder one.

    `order` counts from 1, the least harmful first. `kv_cache_tokens` is what the change gives.
    """

    setting: str
    current: Any
    value: Any
    break_even: Any
    order: int
    kv_cache_tokens: int
    note: str


@dataclass(frozen=True, slots=True)
class NoHelp:
    """A knob that cannot make it fit alone, and why."""

    setting: str
    reason: str


def find_fixes(plan: Plan) -> tuple[tuple[Fix, ...], tuple[NoHelp, ...]]:
    """Single changes that make a plan fit that does not, and the knobs that cannot; both empty if it fits."""
    if plan.fits:
        return (), ()
    found: list[Fix] = []
    useless: list[NoHelp] = []
    for setting in HARM_ORDER:
        answer = _KNOBS[setting](plan)
        if isinstance(answer, NoHelp):
            useless.append(answer)
        elif answer is not None:
            found.append(replace(answer, order=len(found) + 1))
    return tuple(found), tuple(useless)


def find_gains(plan: Plan, *, at_least: float = 1.05) -> tuple[Fix, ...]:
    """Single changes that give a fitting plan noticeably more KV tokens, the least harmful first."""
    gains: list[Fix] = []
    for setting, deployment, value, note in _gain_candidates(plan):
        better = _try(deployment)
        if better is None:
            continue
        more = better.num_gpu_blocks * better.block_size >= at_least * plan.num_gpu_blocks * plan.block_size
        if more:
            tokens = better.kv_cache_tokens.likely
            current = _current(plan, setting)
            gains.append(Fix(setting, current, value, None, len(gains) + 1, tokens, note))
    return tuple(gains)


def _gain_candidates(plan: Plan) -> Iterator[tuple[str, Deployment, Any, str]]:
    given, defaults = plan.deployment, plan.resolved.defaults
    if defaults.max_num_batched_tokens > 2048 and defaults.enable_chunked_prefill:
        tokens = max(2048, defaults.max_num_seqs)
        yield "max_num_batched_tokens", replace(given, max_num_batched_tokens=tokens), tokens, "smaller prefill steps"
    if defaults.max_num_seqs > 256:
        yield "max_num_seqs", replace(given, max_num_seqs=256), 256, "fewer seats to sample for"
    if defaults.gpu_memory_utilization < MAX_UTILIZATION:
        raised = replace(given, gpu_memory_utilization=MAX_UTILIZATION)
        yield "gpu_memory_utilization", raised, MAX_UTILIZATION, "less headroom on the card"
    if _kv_bytes(given) > 1:
        yield "kv_cache_dtype", replace(given, kv_cache_dtype="fp8"), "fp8", "half the bytes a token"
    for name in _smaller_weights(given):
        yield "quantization", replace(given, quantization=name), name, "smaller weights"
    for tp in _larger_tp(given):
        yield "tensor_parallel_size", replace(given, tensor_parallel_size=tp), tp, "more GPUs"
        break


def _chunked_prefill(plan: Plan) -> Fix | NoHelp | None:
    if plan.resolved.defaults.enable_chunked_prefill:
        return None
    tokens = max(2048, plan.resolved.defaults.max_num_seqs)
    changed = replace(plan.deployment, enable_chunked_prefill=True, max_num_batched_tokens=tokens)
    note = f"the profile run then takes {tokens} tokens (max_num_batched_tokens), not a whole prompt"
    return _switch(plan, "enable_chunked_prefill", changed, True, note)


def _batched_tokens(plan: Plan) -> Fix | NoHelp | None:
    defaults = plan.resolved.defaults
    if not defaults.enable_chunked_prefill:
        return NoHelp("max_num_batched_tokens", "without chunked prefill it cannot go below max_model_len")
    floor = max(_MIN_USEFUL_TOKENS, defaults.max_num_seqs)
    if defaults.max_num_batched_tokens <= floor:
        return NoHelp("max_num_batched_tokens", f"already at {defaults.max_num_batched_tokens}")
    return _lower(plan, "max_num_batched_tokens", floor, _round_tokens, "long prompts take more steps")


def _seats(plan: Plan) -> Fix | NoHelp | None:
    def rounded(value: int) -> int:
        return min(256, 1 << (value.bit_length() - 1)) if value > 256 else value

    return _lower(plan, "max_num_seqs", 1, rounded, "fewer requests run at once")


def _utilization(plan: Plan) -> Fix | NoHelp | None:
    setting, share = "gpu_memory_utilization", plan.resolved.defaults.gpu_memory_utilization
    if plan.deployment.kv_cache_memory_bytes is not None:
        return NoHelp(setting, "kv_cache_memory_bytes takes its place")
    total = plan.deployment.accelerator_of(plan.binding_rank).memory_bytes
    if share >= MAX_UTILIZATION:
        rest = max(0.0, 1 - share) * total / 2**30
        return NoHelp(
            setting,
            f"already at {share:g}, its ceiling: the whole card would add {rest:.1f} GiB and leave nothing over",
        )
    needed = share + plan.shortfall_bytes / total
    value = -(-int(needed * 100_000) // 100) / 1000
    for candidate in (value, value + 0.001):
        changed = replace(plan.deployment, gpu_memory_utilization=round(candidate, 3))
        better = _try(changed) if candidate <= MAX_UTILIZATION else None
        if better is not None and better.fits:
            nice = (
                min(MAX_UTILIZATION, -(-int(candidate * 1000) // 5) * 5 / 1000)
                if candidate > share + 0.005
                else candidate
            )
            final = _try(replace(plan.deployment, gpu_memory_utilization=round(nice, 3))) or better
            return Fix(
                setting,
                share,
                round(nice, 3),
                round(candidate, 3),
                0,
                final.kv_cache_tokens.likely,
                "less headroom on the card",
            )
    best = _try(replace(plan.deployment, gpu_memory_utilization=MAX_UTILIZATION))
    missing = "" if best is None else f", {best.shortfall_bytes / 2**30:.2f} GiB short even at {MAX_UTILIZATION}"
    return NoHelp(setting, f"raising it adds {(MAX_UTILIZATION - share) * total / 2**30:.2f} GiB at most{missing}")


def _length(plan: Plan) -> Fix | NoHelp | None:
    low, high = 0, plan.resolved.max_model_len
    while high - low > 1:
        middle = (low + high) // 2
        changed = _with_length(plan, middle)
        if changed is not None and changed.fits:
            low = middle
        else:
            high = middle
    if low < 1:
        return NoHelp("max_model_len", "the pool has no block even for one token")
    nice = low // 256 * 256 if low >= 4096 else low
    better = _with_length(plan, nice)
    assert better is not None
    note = "longer requests are refused"
    return Fix("max_model_len", plan.resolved.max_model_len, nice, low, 0, better.kv_cache_tokens.likely, note)


def _with_length(plan: Plan, length: int) -> Plan | None:
    """The plan at another length; a budget that only followed the length follows it again."""
    given = plan.deployment
    changed = replace(given, max_model_len=length)
    if not plan.resolved.defaults.enable_chunked_prefill and given.max_num_batched_tokens is not None:
        changed = replace(changed, max_num_batched_tokens=max(length, plan.resolved.defaults.max_num_seqs))
    return _try(changed)


def _kv_dtype(plan: Plan) -> Fix | NoHelp | None:
    if _kv_bytes(plan.deployment) <= 1:
        return NoHelp("kv_cache_dtype", "the cache is in 8 bits already")
    changed = replace(plan.deployment, kv_cache_dtype="fp8")
    return _switch(plan, "kv_cache_dtype", changed, "fp8", "half the bytes a token, some accuracy")


def _eager(plan: Plan) -> Fix | NoHelp | None:
    if plan.deployment.enforce_eager:
        return NoHelp("enforce_eager", "on already")
    if not plan.binding.term("cuda_graphs").counted:
        return NoHelp("enforce_eager", "this version does not take CUDA graphs off the KV budget")
    changed = replace(plan.deployment, enforce_eager=True)
    return _switch(plan, "enforce_eager", changed, True, "no CUDA graphs: slower decode steps")


def _quantization(plan: Plan) -> Fix | NoHelp | None:
    answer: Fix | NoHelp | None = None
    for name in _smaller_weights(plan.deployment):
        changed = replace(plan.deployment, quantization=name, model_weights_bytes=None)
        answer = _switch(plan, "quantization", changed, name, "smaller weights, some accuracy")
        if isinstance(answer, Fix):
            return answer
    return answer or NoHelp("quantization", "the weights are in 4 bits already")


def _tensor_parallel(plan: Plan) -> Fix | NoHelp | None:
    for tp in _larger_tp(plan.deployment):
        changed = replace(plan.deployment, tensor_parallel_size=tp)
        answer = _switch(plan, "tensor_parallel_size", changed, tp, f"{changed.num_gpus} GPUs")
        if isinstance(answer, Fix):
            return answer
    return NoHelp("tensor_parallel_size", "not even 16 GPUs hold it")


def _larger_card(plan: Plan) -> Fix | NoHelp | None:
    if plan.deployment.rank_accelerators:
        return None
    own = plan.deployment.accelerator
    cards = [find_accelerator(name) for name in list_accelerators()]
    larger = [card for card in cards if _is_step_up(own, card)]
    for card in sorted(larger, key=lambda card: card.memory_bytes):
        better = _try(replace(plan.deployment, accelerator=card))
        if better is not None and better.fits:
            tokens = better.kv_cache_tokens.likely
            return Fix("accelerator", own.id, card.id, card.id, 0, tokens, "the smallest card that holds it")
    return NoHelp("accelerator", f"no {own.vendor} card holds it on {plan.deployment.num_gpus} GPU(s)")


def _is_step_up(own: Accelerator, card: Accelerator) -> bool:
    """Clearly more memory on a card of the same vendor that runs the same kernels at no much lower bandwidth, and
    whose facts were read."""
    if card.vendor != own.vendor or card.memory_bytes < 1.1 * own.memory_bytes or card.confidence == "low":
        return False
    if own.compute_capability is not None and (card.compute_capability or (0, 0)) < own.compute_capability:
        return False
    return (card.bandwidth_gbps or 0.0) >= 0.5 * (own.bandwidth_gbps or 0.0)


_KNOBS: dict[str, Callable[[Plan], Fix | NoHelp | None]] = {
    "enable_chunked_prefill": _chunked_prefill,
    "max_num_batched_tokens": _batched_tokens,
    "max_num_seqs": _seats,
    "gpu_memory_utilization": _utilization,
    "max_model_len": _length,
    "kv_cache_dtype": _kv_dtype,
    "enforce_eager": _eager,
    "quantization": _quantization,
    "tensor_parallel_size": _tensor_parallel,
    "accelerator": _larger_card,
}


def _lower(plan: Plan, setting: str, floor: int, rounded: Callable[[int], int], note: str) -> Fix | NoHelp:
    """The largest lower value of a counting knob that fits."""
    current = int(_current(plan, setting))
    lowest = _try(_with(plan.deployment, setting, min(floor, current)))
    if lowest is None or not lowest.fits:
        if lowest is not None and lowest.available_kv_cache_bytes <= plan.available_kv_cache_bytes:
            return NoHelp(setting, "another term sets the activation peak")
        missing = "" if lowest is None else f": {lowest.shortfall_bytes / 2**30:.2f} GiB short even at {floor}"
        return NoHelp(setting, f"not enough alone{missing}")
    low, high = floor, current
    while high - low > 1:
        middle = (low + high) // 2
        better = _try(_with(plan.deployment, setting, middle))
        if better is not None and better.fits:
            low = middle
        else:
            high = middle
    value = max(floor, rounded(low))
    final = _try(_with(plan.deployment, setting, value))
    assert final is not None
    return Fix(setting, current, value, low, 0, final.kv_cache_tokens.likely, note)


def _switch(plan: Plan, setting: str, changed: Deployment, value: Any, note: str) -> Fix | NoHelp:
    better = _try(changed)
    if better is None:
        return NoHelp(setting, f"{value} is not possible here")
    if not better.fits:
        return NoHelp(setting, f"{value} alone leaves it {better.shortfall_bytes / 2**30:.2f} GiB short")
    return Fix(setting, _current(plan, setting), value, value, 0, better.kv_cache_tokens.likely, note)


def _with(deployment: Deployment, setting: str, value: Any) -> Deployment:
    changes: dict[str, Any] = {setting: value}
    return replace(deployment, **changes)


def _try(deployment: Deployment) -> Plan | None:
    try:
        return make_plan(deployment)
    except ConfigError:
        return None


def _current(plan: Plan, setting: str) -> Any:
    if setting == "max_model_len":
        return plan.resolved.max_model_len
    if setting == "quantization":
        own = plan.deployment.model.quantization
        return plan.deployment.quantization or (own.method if own else plan.deployment.model.dtype)
    return (
        getattr(plan.resolved.defaults, setting, None)
        if hasattr(plan.resolved.defaults, setting)
        else getattr(plan.deployment, setting)
    )


def _kv_bytes(deployment: Deployment) -> float:
    return dtype_bytes(deployment.kv_cache_dtype, auto=deployment.model.dtype)


def _smaller_weights(deployment: Deployment) -> Iterator[str]:
    """Formats with fewer bits than now that the card's kernels read: FP8 from capability 8.9, 4 bits everywhere."""
    model, capability = deployment.model, deployment.accelerator.compute_capability
    own = model.quantization
    bits = min(own.bits, *(bits for _, bits in own.part_bits), 16.0) if own is not None else 16.0
    if deployment.quantization is not None:
        bits = {"fp8": 8.0, "int8": 8.0}.get(deployment.quantization, bits if own is not None else 4.0)
    if bits > 8 and (capability is None or capability >= (8, 9)):
        yield "fp8"
    if bits > 5:
        yield "awq"


def _larger_tp(deployment: Deployment) -> Iterator[int]:
    tp = deployment.tensor_parallel_size * 2
    while tp <= 16:
        yield tp
        tp *= 2


def _round_tokens(value: int) -> int:
    return value // 256 * 256 if value >= 1024 else value
