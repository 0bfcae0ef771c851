"""GPUs that split each layer and spend the step on telling each other: more of them bring nothing, or cost."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headway.doctor.diagnosis import BottleneckKind, Missing
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, found, percent
from headway.doctor.rules.physics import Physics, split_over
from headway.doctor.rules.pool import pool_tokens_with, trial
from headway.doctor.rules.sweep import Effect, setting_effects

GPU_COUNTS = frozenset(("tensor_parallel_size", "pipeline_parallel_size"))
"""Settings that take more GPUs: what they do not repay, they cost."""
_SHARE = 0.5
"""All-reduces that take most of a step: what is split is worth less than the splitting."""
_WORTH = 1.1
"""Gain that twice the GPUs must bring: a second replica on them would double the throughput."""
_GAIN = 1.25
"""Gain of replicas on the same GPUs by physics, from which the model of the links may be off and it still pays."""
_REFUTED = [
    "A time per token that grows when tensor_parallel_size is halved under the same load.",
    "Links between the GPUs that are faster than the card's usual ones.",
]
_NOTHING = re.compile(
    r"\b(?:no|not|hardly|barely|little|without|isn't|doesn't|does not|never)\b[^.;]{0,40}"
    r"\b(?:gain|increase|improve|improvement|speed-?up|faster|better|scal\w+|difference|benefit)|"
    r"\b(?:unchanged|the same|slower|worse|flat)\b",
    re.IGNORECASE,
)
_ABOUT_GPUS = re.compile(r"\b(?:tensor[- _]parallel\w*|tp|gpus|cards|multi-?gpu)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Smaller:
    """Fewer GPUs to a replica, and what all of them together then get done over what they do now, by physics."""

    tensor_parallel_size: int
    gain: float


@dataclass(frozen=True, slots=True)
class Split:
    """A number of GPUs that gains little over a smaller one, measured: `speed` of the many over that of the few."""

    setting: str
    few: int
    many: int
    speed: float


def judge(case: Case) -> Ruling:
    """By what was measured with fewer GPUs, by physics, or by what somebody says."""
    for rule in (_measured, _by_physics, _said):
        ruling = rule(case)
        if ruling.bottleneck is not None:
            return ruling
    return NOTHING


def is_fruitless(case: Case, effect: Effect) -> bool:
    """Whether two runs differ in their number of GPUs alone, and more of them gain little or cost."""
    return _split_of(case, effect) is not None


def fruitless_splits(case: Case) -> list[Split]:
    """Such pairs of runs, where this deployment has more GPUs than the smaller of the two."""
    found = [split for effect in setting_effects(case.evidence) if (split := _split_of(case, effect)) is not None]
    if case.evidence.effective is None:
        return found
    return [split for split in found if getattr(case.settings, split.setting, 1) > split.few]


def _split_of(case: Case, effect: Effect) -> Split | None:
    if len(effect.names) != 1 or effect.names[0] not in GPU_COUNTS:
        return None
    name = effect.names[0]
    now = getattr(case.settings, name, None)
    sides = [
        (_gpus(now if size == "on" else size), cost)
        for size, cost in ((effect.before[name], effect.cost_before), (effect.after[name], effect.cost_after))
    ]
    told = [(size, cost) for size, cost in sides if size is not None]
    if len(told) < 2:
        return None
    (few, cost_few), (many, cost_many) = sorted(told)
    if few == many or cost_few >= _WORTH * cost_many:
        return None
    return Split(name, few, many, cost_few / cost_many)


def _gpus(size: object) -> int | None:
    """A number of GPUs; tables may write it as 2.0. None where it is none."""
    if isinstance(size, bool) or not isinstance(size, int | float) or size < 1 or size % 1:
        return None
    return int(size)


def _measured(case: Case) -> Ruling:
    texts = [
        f"{split.setting} {split.few} → {split.many} makes it {split.speed:.2f} times as fast, measured: the GPUs "
        "spend on all-reduces what they save."
        for split in fruitless_splits(case)
    ]
    if not texts:
        return NOTHING
    return found("decode_compute_bound", "medium", texts, _REFUTED, {"communication": True})


def _by_physics(case: Case) -> Ruling:
    """Under pressure, where all-reduces take most of the steps, and the same GPUs would do more as replicas."""
    physics, is_pressed = case.physics, case.queue is not None and case.queue.is_lasting
    if physics is None or case.settings.tensor_parallel_size < 2:
        return NOTHING
    if not is_pressed and case.violates("ttft", "itl", "tpot") is None:
        return NOTHING
    work = _work_of(case)
    times = _times(case, physics, work, 1) if work is not None else None
    if work is None or times is None or times.communication_s < _SHARE * times.total_s:
        return NOTHING
    smaller = fewer_gpus(case)
    if smaller is None:
        return NOTHING
    size, share = case.settings.tensor_parallel_size, times.communication_s / times.total_s
    texts = [
        f"With tensor_parallel_size {size} all-reduces take {percent(share)} of the steps by physics"
        f"{_link_words(case)}: the same GPUs as {size // smaller.tensor_parallel_size} replicas of "
        f"{smaller.tensor_parallel_size} get {smaller.gain:.1f} times as much done."
    ]
    figures: dict[str, float | str | bool] = {
        "communication": True,
        "all_reduce_share": share,
        "gain_of_replicas": smaller.gain,
    }
    kind: BottleneckKind = "prefill_compute_bound" if times.prefill_s >= 0.5 * times.total_s else "decode_compute_bound"
    return found(kind, "medium", texts, _REFUTED, figures)


def _link_words(case: Case) -> str:
    card = case.settings.accelerator
    if card is None or card.link_gbps is not None or card.pcie_gbps is None:
        return ""
    return f" ({card.pcie_gbps:g} GB/s of PCIe)"


@dataclass(frozen=True, slots=True)
class Work:
    """What is done in a second: prompt and generated tokens, by so many running requests at this context each."""

    prompt_tokens: float
    generated_tokens: float
    num_running: float
    context_tokens: float


@dataclass(frozen=True, slots=True)
class Times:
    """Time that the steps of a second's work take on one replica, by physics."""

    total_s: float
    prefill_s: float
    communication_s: float


def _work_of(case: Case) -> Work | None:
    series = case.queue.series if case.queue is not None and case.queue.is_lasting else None
    means = [
        series.mean(name) if series is not None else case.figures.mean(name)
        for name in ("prompt_tokens_per_s", "generation_tokens_per_s", "num_running")
    ]
    prompt, generated, running = means
    if prompt is None or generated is None or not running or running < limits.IDLE_RUNNING:
        return None
    return Work(prompt, generated, running, _context(case))


def _times(case: Case, physics: Physics, work: Work, num_replicas: int) -> Times | None:
    """Time of that work shared by so many replicas, each of these physics."""
    count = max(1, round(work.num_running / num_replicas))
    budget = case.settings.max_num_batched_tokens or 8192
    prefill, decode = physics.prefill_parts(budget), physics.decode_parts(count, work.context_tokens)
    num_chunks, num_steps = work.prompt_tokens / num_replicas / budget, work.generated_tokens / work.num_running
    prefill_s, decode_s = num_chunks * sum(prefill.values()), num_steps * sum(decode.values())
    told = num_chunks * prefill.get("all_reduce", 0.0) + num_steps * decode.get("all_reduce", 0.0)
    return Times(prefill_s + decode_s, prefill_s, told) if prefill_s + decode_s > 0 else None


def fewer_gpus(case: Case) -> Smaller | None:
    """The smaller tensor-parallel size that does most on the same GPUs, if it holds what is in use and gains enough."""
    physics, size, work = case.physics, case.settings.tensor_parallel_size, _work_of(case)
    now = _times(case, physics, work, 1) if physics is not None and work is not None else None
    if physics is None or work is None or now is None:
        return None
    found: list[Smaller] = []
    for less in (size >> shift for shift in range(1, size.bit_length())):
        other = split_over(physics, less) if less * (size // less) == size and _holds(case, less) else None
        times = _times(case, other, work, size // less) if other is not None else None
        if times is not None and now.total_s >= _GAIN * times.total_s:
            found.append(Smaller(less, now.total_s / times.total_s))
    return max(found, key=lambda item: item.gain, default=None)


def _holds(case: Case, size: int) -> bool:
    """Whether as many replicas as there are GPUs for have room for the weights, and for the KV blocks in use now."""
    plan, pool = trial(case, tensor_parallel_size=size), pool_tokens_with(case, tensor_parallel_size=size)
    used = (case.figures.highest("kv_usage") or 0.0) * (case.settings.kv_tokens or 0)
    num_replicas = case.settings.tensor_parallel_size // size
    return plan is not None and plan.fits and pool is not None and limits.KV_ROOM * pool * num_replicas >= used


def _context(case: Case) -> float:
    return (case.figures.load.mean_prompt_tokens or 1024.0) + (case.figures.load.mean_output_tokens or 0.0) / 2


def _said(case: Case) -> Ruling:
    """Somebody says that more GPUs bring nothing, without figures."""
    if case.settings.tensor_parallel_size < 2:
        return NOTHING
    for name, text in case.evidence.stated.items():
        if isinstance(text, str) and _NOTHING.search(text) and _ABOUT_GPUS.search(f"{name} {text}"):
            asked = Missing(
                "throughput with half the GPUs",
                "It tells whether all-reduces cost what the further GPUs bring.",
                f"Run the same load with tensor_parallel_size {case.settings.tensor_parallel_size // 2}.",
            )
            words = f"“{text[:120]}”: more GPUs that bring nothing spend what they save on all-reduces."
            return found("decode_compute_bound", "weak", [words], _REFUTED, {"communication": True}, (), (asked,))
    return NOTHING
