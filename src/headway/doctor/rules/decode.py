"""Decoding at the limit of the device: arithmetic, or memory bandwidth."""

from __future__ import annotations

from dataclasses import dataclass

from headway.doctor.diagnosis import BottleneckKind, Confidence
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent
from headway.doctor.rules.missing import RUNNING
from headway.doctor.rules.physics import bandwidth_floor_s
from headway.doctor.rules.sweep import find_plateau, mean_effects

_TPOT = ("mean_tpot_ms", "p50_tpot_ms", "mean_itl_ms", "p50_itl_ms", "median_itl_ms")
_PLAUSIBLE = 1.2
"""Rate over that of the floor, above which the model or the card is not the one that is thought of."""
_FEW = 4
"""Requests in a batch up to which reading the weights rules any device."""


@dataclass(frozen=True, slots=True)
class Floor:
    """Least time of a decode step, with its arithmetic."""

    seconds: float
    words: str
    is_memory: bool


def judge(case: Case) -> Ruling:
    """Whether decoding is slow because the device is at its floor. Only asked where something is wrong with it."""
    for rule in (_from_sweep, _from_step_time, _single_stream):
        ruling = rule(case)
        if ruling.bottleneck is not None:
            return ruling
    return NOTHING


def _running(case: Case) -> float:
    return max(1.0, case.figures.mean("num_running") or float(case.figures.load.concurrency or 1))


def floor_of(case: Case, running: float) -> Floor | None:
    """The floor by the model's shape and the card, or else by the model's name and the card."""
    if case.physics is not None:
        load, count = case.figures.load, max(1, round(running))
        context = (load.mean_prompt_tokens or 1024.0) + (load.mean_output_tokens or 0.0) / 2
        seconds = case.physics.floor_s(count, context)
        requests = f"{count} request{'s' * (count > 1)}"
        words = f"weights and KV of {requests} at about {amount(context)} tokens, read at full bandwidth"
        return Floor(seconds, words, case.physics.is_memory_bound(count, context))
    named = bandwidth_floor_s(case.settings)
    return Floor(*named, is_memory=running <= _FEW) if named is not None else None


def _step_s(case: Case) -> tuple[float, str] | None:
    """Time of a decode step: the least of several measured ways to run, else what is measured."""
    best = [
        (run.measured[key] / 1e3, key)
        for run in case.evidence.loads
        for key in _TPOT[:1] + _TPOT[2:3]
        if run.measured.get(key) and (run.concurrency or 1) <= _FEW
    ]
    if best and mean_effects(case.evidence):
        seconds, key = min(best)
        return seconds, f"{key.removeprefix('mean_').removesuffix('_ms')} of the fastest run"
    for key in _TPOT:
        if (value := case.figures.value(key)) is not None:
            return value / 1e3, key
    rate, running = case.figures.mean("generation_tokens_per_s"), case.figures.mean("num_running")
    return (running / rate, "running requests over generated tokens/s") if rate and running else None


def _from_step_time(case: Case) -> Ruling:
    """The step time is close to what physics allows, and that is not good enough, or settings were tried against it."""
    step = _step_s(case)
    tried = mean_effects(case.evidence)
    missed = case.violates("itl", "tpot")
    if step is None or not (tried or missed):
        return NOTHING
    usual = case.figures.value("p50_itl_ms", "median_itl_ms")
    if missed is not None and missed[0].startswith("p") and usual is not None and usual <= missed[2]:
        return NOTHING
    running = _running(case) if not tried else min(_running(case), float(_FEW))
    floor = floor_of(case, running)
    texts: list[str] = []
    if missed is not None:
        texts.append(f"{missed[0]} is {amount(missed[1])} ms for a bound of {amount(missed[2])} ms.")
    if floor is None:
        if missed is None or "p99" in missed[0]:
            return NOTHING
        texts.append("The device is not known, so that its floor cannot be computed.")
        kind: BottleneckKind = "hbm_bound" if running <= _FEW else "decode_compute_bound"
        return found(kind, "weak", texts, _REFUTED, {}, _EITHER)
    share = floor.seconds / step[0]
    if share < limits.AT_FLOOR:
        reason = f"A token takes {1e3 * step[0]:.1f} ms; the floor is {1e3 * floor.seconds:.1f} ms ({floor.words})."
        return Ruling(ruled_out={"hbm_bound": reason, "decode_compute_bound": reason})
    texts.append(
        f"A step takes {1e3 * step[0]:.1f} ms ({step[1]}); the floor is {1e3 * floor.seconds:.1f} ms: {floor.words}. "
        f"That is {percent(min(1.0, share))} of what is possible, so that the device itself is the limit."
    )
    small = [name for name, size in tried.items() if size < 0.1]
    if small:
        texts.append(f"Measured effect of {', '.join(small)}: under 10 %, so that launches are not what costs.")
    kind = "hbm_bound" if floor.is_memory else "decode_compute_bound"
    figures: dict[str, float | str | bool] = {
        "floor_ms": 1e3 * floor.seconds,
        "step_ms": 1e3 * step[0],
        "share_of_floor": share,
    }
    return found(kind, "strong", texts, _REFUTED, figures)


def _single_stream(case: Case) -> Ruling:
    """All that is told is the rate of a single stream, and that is what reading the weights allows."""
    loads = case.evidence.loads
    if len(loads) != 1 or loads[0].concurrency != 1 or case.figures.series or _step_is_told(case):
        return NOTHING
    rate, floor = loads[0].measured.get("output_throughput"), floor_of(case, 1.0)
    if not rate or floor is None or floor.seconds * rate < limits.AT_FLOOR or floor.seconds * rate > _PLAUSIBLE:
        return NOTHING
    text = (
        f"A single stream gets {amount(rate)} tokens/s, {1e3 / rate:.1f} ms each; the floor is "
        f"{1e3 * floor.seconds:.1f} ms: {floor.words}. More requests at once share the same reads: the total grows."
    )
    figures: dict[str, float | str | bool] = {"floor_ms": 1e3 * floor.seconds, "share_of_floor": floor.seconds * rate}
    return found("hbm_bound", "medium", [text], _REFUTED, figures, (), (RUNNING,))


def _step_is_told(case: Case) -> bool:
    return case.figures.value(*_TPOT, "mean_ttft_ms", "p50_ttft_ms", "mean_e2el_ms") is not None


_REFUTED = [
    "A step time that falls by more than a tenth with another scheduler setting under the same load.",
    "A floor computed for the wrong model, format or card.",
]
_EITHER = (
    "hbm_bound: time per token hardly changes with the number of running requests",
    "decode_compute_bound: time per token grows in proportion to the running requests",
)


def _from_sweep(case: Case) -> Ruling:
    """Throughput that stays flat while each token takes longer: the device is shared among more requests."""
    plateau = find_plateau(case.evidence)
    if plateau is None:
        return NOTHING
    count = plateau.concurrency
    is_memory = case.physics.is_memory_bound(count, 1024.0) if case.physics is not None else count <= _FEW
    figures: dict[str, float | str | bool] = {
        "signature": "throughput flat while TTFT grows" if plateau.waits else "throughput flat while TPOT grows",
        "capacity_tokens_per_s": plateau.tokens_per_s,
    }
    confidence: Confidence = "weak"
    if plateau.slows and not plateau.waits:
        confidence = "strong"
    elif not plateau.waits or not plateau.is_hard:
        confidence = "medium"
    kind: BottleneckKind = "hbm_bound" if is_memory and case.physics is not None else "decode_compute_bound"
    if confidence == "weak":
        kind = "decode_compute_bound"
    return found(kind, confidence, [plateau.words], _REFUTED, figures, _EITHER, (RUNNING,))
