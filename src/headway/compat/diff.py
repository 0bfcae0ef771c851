"""What moving a deployment from one vLLM version to another does to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.catalog.flags import all_flags, flags_of
from headway.compat.judge import Finding, Judgement, judge
from headway.compat.sizing import Memory, size
from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.invocation import Invocation
from headway.deployment.lints import replacement


@dataclass(frozen=True, slots=True)
class LostFlag:
    """A written flag that the new version does not take. `removed_in` is empty where it never had it."""

    name: str
    option: str
    removed_in: str
    replaced_by: str | None
    note: str


@dataclass(frozen=True, slots=True)
class ChangedValue:
    """A setting whose effective value differs between the versions, with the reason on each side."""

    name: str
    before: Any
    after: Any
    reason_before: str
    reason_after: str
    is_written: bool


@dataclass(frozen=True, slots=True)
class VersionDiff:
    """Both sides judged, and what lies between them.

    `lost`: written flags that vanish or are renamed. `changed`: effective values that differ. `appeared` and `gone`:
    findings of one side only. `memory`: before and after.
    """

    before: Judgement
    after: Judgement
    lost: tuple[LostFlag, ...]
    changed: tuple[ChangedValue, ...]
    appeared: tuple[Finding, ...]
    gone: tuple[Finding, ...]
    memory: tuple[Memory, Memory]

    @property
    def is_breaking(self) -> bool:
        """The new version refuses, ignores or breaks something that the old one did not, or lacks the memory."""
        bad = [finding for finding in self.appeared if finding.verdict not in ("fallback", "unknown")]
        return bool(self.lost or bad) or (self.memory[0].fits is True and self.memory[1].fits is False)


def diff_versions(
    invocation: Invocation,
    before: str,
    after: str,
    *,
    accelerator: str | None = None,
    model: str | None = None,
) -> VersionDiff:
    """Judge a deployment in both versions and compare.

    Raises:
        ConfigError: not a version, or an accelerator or model that is not known.
    """
    sides = [
        judge(resolve_effective(invocation, engine_version=version, accelerator=accelerator, model=model))
        for version in (before, after)
    ]
    old, new = sides
    known = {(finding.id, finding.settings or finding.features) for finding in old.bad}
    still = {(finding.id, finding.settings or finding.features) for finding in new.bad}
    return VersionDiff(
        before=old,
        after=new,
        lost=tuple(_lost(old.effective, new.effective)),
        changed=tuple(_changed(old.effective, new.effective)),
        appeared=tuple(item for item in new.bad if (item.id, item.settings or item.features) not in known),
        gone=tuple(item for item in old.bad if (item.id, item.settings or item.features) not in still),
        memory=(
            size(old.effective, old.effective.accelerator, old.effective.model),
            size(new.effective, new.effective.accelerator, new.effective.model),
        ),
    )


def _lost(old: Effective, new: Effective) -> list[LostFlag]:
    taken = flags_of(new.version)
    lost: list[LostFlag] = []
    for name, written in old.parsed.settings.items():
        flag = all_flags().get(name)
        if flag is None or name in taken:
            continue
        removed = flag.removed_in(new.version)
        lost.append(
            LostFlag(
                name=name,
                option=written.option or flag.option,
                removed_in="" if removed is None else ".".join(map(str, removed)),
                replaced_by=replacement(flag.replaced_by) if flag.replaced_by else None,
                note=flag.note,
            )
        )
    return lost


def _changed(old: Effective, new: Effective) -> list[ChangedValue]:
    changed: list[ChangedValue] = []
    for name in dict.fromkeys((*old.settings, *new.settings)):
        first, second = old.settings.get(name), new.settings.get(name)
        if first is None or second is None:
            continue
        is_open = first.value is None and second.value is None
        if first.value == second.value and not (is_open and first.reason != second.reason):
            continue
        if is_open and not (
            first.reason.startswith("depends on the GPU") or second.reason.startswith("depends on the GPU")
        ):
            continue
        changed.append(
            ChangedValue(
                name, first.value, second.value, first.reason, second.reason, first.is_written or second.is_written
            )
        )
    return changed
