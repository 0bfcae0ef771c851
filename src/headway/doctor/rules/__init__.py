"""The rules: joint conditions over time, each with the evidence that proves it and what would refute it."""

from __future__ import annotations

from dataclasses import replace

from headway.doctor.diagnosis import Bottleneck, BottleneckKind, Confidence, Missing
from headway.doctor.evidence import Evidence
from headway.doctor.rules import (
    chunk,
    client,
    communication,
    decode,
    healthy,
    kv_held,
    kv_starvation,
    launch,
    load,
    long_prompts,
    memory,
    prefill,
    seats,
    speculation,
    standstill,
)
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import Case, Findings, Rule, case_of
from headway.doctor.rules.load import best_gain
from headway.doctor.rules.missing import lesson_figures

__all__ = ["Case", "Findings", "case_of", "find_bottlenecks", "judge_case"]

_RULES: tuple[Rule, ...] = (
    standstill.judge_impossible,
    standstill.judge_stall,
    standstill.judge_lora,
    memory.judge,
    kv_starvation.judge,
    kv_held.judge_runaway,
    kv_held.judge_leak,
    seats.judge,
    chunk.judge,
    prefill.judge,
    long_prompts.judge,
    decode.judge,
    communication.judge,
    load.judge,
    speculation.judge,
    launch.judge,
    client.judge,
)
_MOST_LIMITING_FIRST: tuple[BottleneckKind, ...] = (
    "impossible_request_at_queue_head",
    "engine_stall_other",
    "runaway_generation",
    "kv_leak",
    "kv_starvation",
    "lora_slots",
    "waiting_queue_stall",
    "chunk_missized",
    "prefill_compute_bound",
    "long_prompt_hol",
    "hbm_bound",
    "decode_compute_bound",
    "offered_load_too_high",
    "spec_decode_overhead",
    "cpu_launch_bound",
    "client_bound",
    "none_idle",
    "none",
)
"""Among equally sure ones: what stops everything, then what holds requests back, then what makes steps slow."""
_SURE_FIRST: dict[Confidence, int] = {"strong": 0, "medium": 1, "weak": 2}


def find_bottlenecks(evidence: Evidence) -> Findings:
    """What limits a deployment, the most limiting first; what is excluded; and what to ask."""
    return judge_case(case_of(evidence))


def judge_case(case: Case) -> Findings:
    """The same for a case whose figures are derived already."""
    found: list[Bottleneck] = []
    ruled_out: dict[str, str] = {}
    asked: list[Missing] = []
    for rule in _RULES:
        ruling = rule(case)
        asked += ruling.missing
        ruled_out |= ruling.ruled_out
        if ruling.bottleneck is not None:
            found.append(ruling.bottleneck)
    if not found:
        ruling = healthy.judge(case)
        found += [ruling.bottleneck] if ruling.bottleneck is not None else []
    kept = sorted(_settle(_merged(found), case), key=_rank)
    for item in kept:
        ruled_out.pop(item.kind, None)
    asked += lesson_figures(case.figures)
    return Findings(tuple(kept), ruled_out, tuple({item.figure: item for item in reversed(asked)}.values())[::-1])


def _rank(item: Bottleneck) -> tuple[int, int]:
    return _SURE_FIRST[item.confidence], _MOST_LIMITING_FIRST.index(item.kind)


def _merged(found: list[Bottleneck]) -> list[Bottleneck]:
    """Each kind once: the surer one's verdict, with what both say."""
    kinds: dict[str, Bottleneck] = {}
    for item in sorted(found, key=_rank):
        if item.kind not in kinds:
            kinds[item.kind] = item
            continue
        first = kinds[item.kind]
        both = {**item.figures, **first.figures}
        kinds[item.kind] = replace(first, evidence=(*first.evidence, *item.evidence), figures=both)
    return list(kinds.values())


def _settle(found: list[Bottleneck], case: Case) -> list[Bottleneck]:
    """Drop what another finding explains."""
    kinds = {item.kind: item for item in found}
    explained: set[BottleneckKind] = set()
    impossible = kinds.get("impossible_request_at_queue_head")
    if impossible is not None and impossible.confidence != "weak":
        explained |= {"engine_stall_other", "waiting_queue_stall", "prefill_compute_bound", "client_bound"}
    stall = kinds.get("engine_stall_other")
    if stall is not None and stall.confidence == "strong":
        explained.add("chunk_missized")  # its steps look as long as the stall that no chunk explains
    behind = kinds.get("long_prompt_hol")
    if stall is not None and stall.confidence != "strong" and behind is not None and behind.confidence == "strong":
        explained.add("engine_stall_other")  # a prompt's tokens count when it is done
    offered = kinds.get("offered_load_too_high")
    gain = best_gain(case)
    if offered is not None and offered.confidence == "strong" and gain is not None and gain < limits.WORTHWHILE_GAIN:
        explained.add("waiting_queue_stall")
    if "kv_leak" in kinds or "runaway_generation" in kinds:
        explained.add("client_bound")
    return [item for item in found if item.kind not in explained or item is impossible]
