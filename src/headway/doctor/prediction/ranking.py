"""The order in which to try fixes that were simulated, and what each makes worse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headway.doctor.diagnosis import BottleneckKind, Fix
from headway.doctor.evidence import Objective
from headway.report.summary import Summary

NO_CHANGE = 0.03
"""Effects under 3 % count as no change: repeated runs differ by as much."""
_ENOUGH = 0.5
"""Without bounds, a fix reaches the objective if it brings at least half of what the best one brings, in logarithms."""
_MORE_IS_BETTER = ("throughput",)
_TTFT, _ITL = ("p99_ttft_ms", "median_ttft_ms"), ("p99_itl_ms", "mean_tpot_ms")
_TARGETS: Mapping[BottleneckKind, tuple[str, ...]] = {
    "kv_starvation": (*_TTFT, "output_throughput"),
    "waiting_queue_stall": _TTFT,
    "prefill_compute_bound": _TTFT,
    "impossible_request_at_queue_head": _TTFT,
    "offered_load_too_high": _TTFT,
    "lora_slots": _TTFT,
    "runaway_generation": (*_TTFT, "output_throughput"),
    "long_prompt_hol": (*_TTFT, "p99_itl_ms"),
    "chunk_missized": _ITL,
    "decode_compute_bound": _ITL,
    "hbm_bound": _ITL,
    "spec_decode_overhead": ("mean_tpot_ms",),
    "cpu_launch_bound": ("mean_tpot_ms",),
}
"""What a user feels of a bottleneck, and a fix should improve."""
_QUEUES: frozenset[BottleneckKind] = frozenset(
    ("kv_starvation", "waiting_queue_stall", "prefill_compute_bound", "offered_load_too_high")
)
"""Bottlenecks that a queue shows, or requests that go back to it: gone when both are."""
_QUEUED_SHARE = 0.1
"""Waiting requests per running one that are taken within a step or two."""
_PREEMPTED_SHARE = 0.01
_LAST = frozenset((
    "replicas", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size", "request_rate",
))  # fmt: skip
_BEYOND_FLAGS = frozenset(("offered_load_too_high", "prefill_compute_bound"))
_WITHOUT_TARGETS = ("output_throughput", "mean_num_waiting")
"""What stands in where the model does not predict what the fix is for: how much gets through, and how many wait."""
_SIDE_EFFECTS = (
    "output_throughput", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "num_preemptions",
)  # fmt: skip
_NAMES: Mapping[str, str] = {
    "output_throughput": "throughput",
    "median_ttft_ms": "median TTFT",
    "p99_ttft_ms": "P99 TTFT",
    "mean_tpot_ms": "mean TPOT",
    "p99_itl_ms": "P99 ITL",
    "num_preemptions": "preemptions",
}


@dataclass(frozen=True, slots=True)
class Simulated:
    """A fix with the summary of the deployment after it."""

    fix: Fix
    summary: Summary


def rank(items: Sequence[Simulated | Fix], before: Summary, objective: Objective, shown: Sequence[str]) -> list[Fix]:
    """Put fixes in order.

    `items` come smallest change first. Those that meet every bound of the objective keep that order and lead (without
    bounds: those that bring at least half of the best gain); others that help follow, most gain first. Of either, those
    for the most limiting bottleneck, which is the first fix's, come first: a larger cache puts requests that never end
    off, and does not end them. Among these, what leaves no queue comes first, if anything does and there are no bounds;
    then what needs no further GPU and turns no request away, unless no flag lifts the bottleneck. Then come those that
    were not simulated, except that one which stood before all simulated ones stays in front; last, what does not help.
    """
    gains = {id(item): _gain(item, before, objective, shown) for item in items if isinstance(item, Simulated)}
    best = max(gains.values(), default=0.0)
    reaching: list[Fix] = []
    helping: list[tuple[float, Fix]] = []
    useless: list[Fix] = []
    leading: list[Fix] = []
    unsimulated: list[Fix] = []
    for item in items:
        if isinstance(item, Fix):
            (unsimulated if reaching or helping or useless else leading).append(item)
            continue
        fix, gain = _with_side_effects(item, before, shown), gains[id(item)]
        if gain <= math.log1p(NO_CHANGE):
            useless.append(replace(fix, note=_useless_note(fix, gain), helps=False))
        elif _reaches(item, objective, gain, best):
            reaching.append(fix)
        else:
            helping.append((gain, fix))
    helping.sort(key=lambda pair: -pair[0])
    useful = [*reaching, *(fix for _, fix in helping)]
    leaves = {(fix.setting, repr(fix.to_value)) for fix in _leaving_a_queue(items, objective)}
    first = next((kind for fix in map(_fix_of, items) for kind in fix.addresses[:1]), None)
    useful.sort(
        key=lambda fix: (
            first not in fix.addresses,
            (fix.setting, repr(fix.to_value)) in leaves,
            fix.setting in _LAST and first not in _BEYOND_FLAGS,
        )
    )
    return [*leading, *useful, *unsimulated, *useless]


def _leaving_a_queue(items: Sequence[Simulated | Fix], objective: Objective) -> list[Fix]:
    """Fixes after which requests still wait, or are still preempted, although a fix is there to end that."""
    if objective.bounds or objective.goal == "throughput":
        return []
    return [
        item.fix
        for item in items
        if isinstance(item, Simulated) and _QUEUES & {*item.fix.addresses} and _has_queue(item.summary)
    ]


def _has_queue(summary: Summary) -> bool:
    waiting, running = summary.get("mean_num_waiting") or 0.0, summary.get("mean_num_running") or 0.0
    preempted, completed = summary.get("num_preemptions") or 0, summary.get("completed") or 0
    return waiting >= max(1.0, _QUEUED_SHARE * running) or preempted > _PREEMPTED_SHARE * completed


def _fix_of(item: Simulated | Fix) -> Fix:
    return item if isinstance(item, Fix) else item.fix


def _useless_note(fix: Fix, gain: float) -> str:
    text = "Simulated: it does not help" if gain >= -math.log1p(NO_CHANGE) else "Simulated: it makes things worse"
    return f"{fix.note} {text}.".strip()


def _reaches(item: Simulated, objective: Objective, gain: float, best: float) -> bool:
    bounds = objective.bounds
    known = {key: value for key in bounds if (value := item.summary.get(key)) is not None}
    if bounds and len(known) == len(bounds):
        return all(value <= bounds[key] for key, value in known.items())
    return gain >= _ENOUGH * best


def _gain(item: Simulated, before: Summary, objective: Objective, shown: Sequence[str]) -> float:
    """The largest improvement of what the fix is for, as a logarithm of the ratio; negative where all get worse."""
    names = [key for key in _targets(item.fix, objective) if key in shown or key in objective.bounds]
    changes = [
        change for key in names or _WITHOUT_TARGETS if (change := _change(key, before, item.summary)) is not None
    ]
    return max(changes, default=0.0)


def _targets(fix: Fix, objective: Objective) -> tuple[str, ...]:
    missed = tuple(objective.bounds)
    if missed:
        return missed
    if objective.goal == "throughput":
        return ("output_throughput",)
    found = [key for kind in fix.addresses for key in _targets_of(kind, fix)]
    return tuple(dict.fromkeys(found)) or (*_TTFT, *_ITL, "output_throughput")


def _targets_of(kind: BottleneckKind, fix: Fix) -> tuple[str, ...]:
    """A budget that was too large stalls decodes; one that was too small holds prompts up."""
    old, new = fix.from_value, fix.to_value
    if kind == "chunk_missized" and isinstance(old, int) and isinstance(new, int) and new > old:
        return _TTFT
    return _TARGETS.get(kind, ())


def _change(key: str, before: Summary, after: Summary) -> float | None:
    """How much better a metric gets, as a logarithm of the ratio. Of counts, which may be 0, one is added to both."""
    old, new = before.get(key), after.get(key)
    if old is None or new is None:
        return None
    if "_num_" in key:
        old, new = old + 1.0, new + 1.0
    if old <= 0 or new <= 0:
        return None
    change = math.log(new / old)
    return change if key.endswith(_MORE_IS_BETTER) else -change


def _with_side_effects(item: Simulated, before: Summary, shown: Sequence[str]) -> Fix:
    found = list(item.fix.side_effects)
    for key in _SIDE_EFFECTS:
        old, new = before.get(key), item.summary.get(key)
        if key not in shown or old is None or new is None:
            continue
        worse = new / old - 1.0 if old > 0 else float(new > 0)
        worse = -worse if key.endswith(_MORE_IS_BETTER) else worse
        if worse > NO_CHANGE:
            found.append(f"{_NAMES[key]} {_text(key, float(old))} → {_text(key, float(new))}")
    return replace(item.fix, side_effects=tuple(found), helps=True)


def _text(key: str, value: float) -> str:
    if key.endswith("_ms"):
        return f"{value / 1e3:.1f} s" if value >= 1e3 else f"{value:.0f} ms"
    return f"{value:,.0f} tok/s" if key.endswith("throughput") else f"{value:,.0f}"
