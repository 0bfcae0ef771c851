"""Which changes to try, the smallest first, and which not to make. Whether they help is for the simulation to say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from headway.doctor.diagnosis import Bottleneck, BottleneckKind, Fix, MustNot, Predicted
from headway.doctor.evidence import Evidence
from headway.doctor.fixes.forbidden import forbidden
from headway.doctor.fixes.makers import MAKERS
from headway.doctor.fixes.memory import USUAL_UTILIZATION, raise_utilization
from headway.doctor.fixes.release_check import Refusal, refusal
from headway.doctor.fixes.values import OUTSIDE_SETTINGS, exists
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import Case, Findings, case_of
from headway.doctor.rules.communication import fruitless_splits, is_fruitless
from headway.doctor.rules.healthy import no_effect_settings
from headway.doctor.rules.speculation import is_on
from headway.doctor.rules.sweep import Effect, at_most_load, setting_effects
from headway.doctor.sglang_flags import SGLANG_NAMES
from headway.evidence.run_rows import is_setting

_RAISED_FIRST: frozenset[BottleneckKind] = frozenset(("kv_starvation", "hbm_bound", "decode_compute_bound"))
"""Bottlenecks at which memory that lies idle is given to the engine before anything else is turned."""


def candidates(evidence: Evidence, findings: Findings) -> list[Fix]:
    """Changes worth simulating, in the order in which to try them. Never a value that is in effect already."""
    return _Advice(case_of(evidence), findings).fixes


def must_not(evidence: Evidence, findings: Findings) -> list[MustNot]:
    """Changes that somebody may well think of here, and why not to make them. None of them is among the candidates."""
    return _Advice(case_of(evidence), findings).must_not


class _Advice:
    """Both lists, which know of each other."""

    def __init__(self, case: Case, findings: Findings) -> None:
        self._case = case
        self._findings = findings
        idle = set(no_effect_settings(case))
        fixes = [fix for fix in self._raw() if self._is_open(fix) and fix.setting not in idle]
        checked = [
            (fix, refusal(case.evidence.effective, fix.setting, fix.to_value)) for fix in _without_repeats(fixes)
        ]
        self.fixes = [fix for fix, against in checked if against is None]
        self.must_not = list(self._warnings([against for _, against in checked if against is not None]))

    def _raw(self) -> Iterator[Fix]:
        yield from measured_fixes(self._case)
        yield from self._lying_memory()
        for found in self._findings.bottlenecks:
            maker = MAKERS.get(found.kind)
            if maker is not None:
                yield from (self._in_engine_words(fix) for fix in maker(self._case, found))

    def _lying_memory(self) -> Iterator[Fix]:
        """gpu_memory_utilization below 0.7 is raised before other knobs are turned."""
        share = self._case.settings.gpu_memory_utilization
        first = self._findings.bottlenecks[0] if self._findings.bottlenecks else None
        if first is None or share is None or share >= limits.LOW_UTILIZATION or not self._needs_memory(first):
            return
        for fix in raise_utilization(self._case, first.kind, USUAL_UTILIZATION):
            reason = f"{share:g} leaves memory lying; use it before anything else is turned. {fix.reason}"
            yield replace(fix, reason=reason)

    def _needs_memory(self, found: Bottleneck) -> bool:
        demanded = found.figures.get("kv_usage_at_demand")
        return found.kind in _RAISED_FIRST or (isinstance(demanded, float) and demanded > limits.KV_ROOM)

    def _is_open(self, fix: Fix) -> bool:
        """The engine has the setting, and the value is another than the one in effect."""
        return exists(self._case.settings, fix.setting) and not _same(
            fix.to_value, self._now(fix.setting, fix.from_value)
        )

    def _now(self, setting: str, default: Any) -> Any:
        if setting in OUTSIDE_SETTINGS or (setting == "max_num_seqs" and self._are_seats_seen()):
            return default
        if setting in ("speculative_config", "speculative_model"):
            return self._case.settings.speculation if self._case.settings.written - {"model"} else default
        value = getattr(self._case.settings, setting, None)
        if value is None and self._case.evidence.effective is not None:
            value = self._case.evidence.effective.value(setting)
        return default if value is None else value

    def _are_seats_seen(self) -> bool:
        """Running requests are pinned at a number that the default of max_num_seqs does not tell."""
        return self._case.queue is not None and self._case.queue.is_seats_inferred

    def _in_engine_words(self, fix: Fix) -> Fix:
        if not self._case.settings.is_sglang or fix.setting not in SGLANG_NAMES:
            return fix
        return replace(fix, note=f"SGLang calls it {SGLANG_NAMES[fix.setting]}.")

    def _warnings(self, refused: Sequence[Refusal]) -> Iterator[MustNot]:
        taken = {fix.setting for fix in self.fixes}
        told: set[str] = set()
        refusals = [MustNot(item.setting, item.reason) for item in refused]
        others = forbidden(self._case, self._findings, self.fixes)
        for item in [*refusals, *_idle_settings(self._case), *others]:
            if item.setting not in taken and item.setting not in told:
                told.add(item.setting)
                yield item


def _idle_settings(case: Case) -> Iterator[MustNot]:
    for name in no_effect_settings(case):
        yield MustNot(name, "Changing it was measured and did nothing beyond noise: it is not what limits.")


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return isinstance(one, int | float) and isinstance(other, int | float) and abs(one - other) < 1e-9
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _without_repeats(fixes: Iterable[Fix]) -> list[Fix]:
    """Each setting and value once; a later reason adds its bottleneck to the earlier one."""
    kept: dict[tuple[str, str], Fix] = {}
    for fix in fixes:
        key = (fix.setting, repr(fix.to_value))
        if key in kept:
            both = tuple(dict.fromkeys((*kept[key].addresses, *fix.addresses)))
            kept[key] = replace(kept[key], addresses=both)
        else:
            kept[key] = fix
    return list(kept.values())


# ---------------------------------------------------------------- measured


def measured_fixes(case: Case) -> list[Fix]:
    """Changes whose effect was measured in runs that differ in one setting, the largest gain first."""
    best: dict[str, tuple[float, Effect, Any, Any]] = {}
    for effect in at_most_load(setting_effects(case.evidence)):
        if len(effect.names) != 1 or not is_setting(effect.names[0]):
            continue
        name = effect.names[0]
        better, worse = (effect.after, effect.before) if effect.relative < 0 else (effect.before, effect.after)
        gain = 1 - min(effect.cost_after, effect.cost_before) / max(effect.cost_after, effect.cost_before)
        if is_fruitless(case, effect):
            continue  # see `_measured_splits`
        if name == "max_num_seqs" and not effect.is_rate:
            continue  # a smaller batch has shorter steps whatever it costs: one latency alone does not tell
        if gain >= limits.NO_CHANGE and (name not in best or gain > best[name][0]):
            best[name] = (gain, effect, worse[name], better[name])
    found = [_measured_fix(case, *item) for item in sorted(best.values(), key=lambda item: -item[0])]
    return [*found, *_measured_splits(case)]


def _measured_splits(case: Case) -> Iterator[Fix]:
    """Fewer GPUs to a replica, where more of them were measured to gain little or to cost."""
    for split in sorted(fruitless_splits(case), key=lambda split: split.few)[:1]:
        reason = f"Measured: {split.many} GPUs are {split.speed:.2f} times as fast as {split.few}."
        note = "measured, not simulated"
        yield Fix(split.setting, split.many, split.few, reason, ("decode_compute_bound",), note=note)


def _measured_fix(case: Case, gain: float, effect: Effect, worse: Any, better: Any) -> Fix:
    name = effect.names[0]
    high, low = max(effect.cost_before, effect.cost_after), min(effect.cost_before, effect.cost_after)
    if name.startswith("speculat") and not is_on(better):
        name, better = "speculative_config", None
    before, after = (1 / high, 1 / low) if effect.is_rate else (high, low)
    predicted = Predicted(effect.metric, before, after, None, None)
    kinds: tuple[BottleneckKind, ...] = ()
    if name == "speculative_config":
        kinds = ("spec_decode_overhead",)
    elif name == "enforce_eager":
        kinds = ("cpu_launch_bound",)
    reason = f"Measured: {effect.metric} {before:g} → {after:g}, {100 * gain:.0f} % less time."
    return Fix(name, worse, better, reason, kinds, (predicted,), note="measured, not simulated")
