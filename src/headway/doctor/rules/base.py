"""What a rule gets and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headway.doctor.diagnosis import Bottleneck, BottleneckKind, Confidence, Missing
from headway.doctor.evidence import Evidence
from headway.doctor.figures import Figures, figures_of
from headway.doctor.in_effect import InEffect
from headway.doctor.rules.physics import Physics, physics_of
from headway.doctor.rules.queueing import Queue, find_queue

Values = Mapping[str, float | str | bool]


@dataclass(frozen=True, slots=True)
class Case:
    """One deployment under examination: its figures, the worst queue that was seen, and physics where they apply."""

    evidence: Evidence
    figures: Figures
    queue: Queue | None
    physics: Physics | None

    @property
    def settings(self) -> InEffect:
        """Settings in effect."""
        return self.figures.settings

    def bound(self, *keys: str) -> float | None:
        """The objective's bound on the first of these figures that has one."""
        bounds = self.evidence.objective.bounds
        return next((bounds[key] for key in keys if key in bounds), None)

    def violates(self, *names: str) -> tuple[str, float, float] | None:
        """The first objective on one of these latencies (`ttft`, `itl`, …) that is missed: key, measured, bound."""
        for key, bound in self.evidence.objective.bounds.items():
            if not any(f"_{name}_" in key for name in names):
                continue
            value = self.figures.value(key, key.replace("p50_", "median_"))
            if value is not None and value > bound:
                return key, value, bound
        return None

    @property
    def wants_throughput(self) -> bool:
        """Offline work: nobody waits for single tokens."""
        return self.evidence.objective.goal == "throughput"


def case_of(evidence: Evidence) -> Case:
    """Derive once what the rules share."""
    figures = figures_of(evidence)
    return Case(figures.evidence, figures, find_queue(figures), physics_of(evidence, figures))


@dataclass(frozen=True, slots=True)
class Ruling:
    """A rule's answer: a bottleneck or none, what it excludes, and what it would need to know."""

    bottleneck: Bottleneck | None = None
    ruled_out: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()


Rule = Callable[[Case], Ruling]
NOTHING = Ruling()


def found(
    kind: BottleneckKind,
    confidence: Confidence,
    evidence: list[str],
    refuted_by: list[str],
    figures: Values | None = None,
    discriminate: tuple[str, ...] = (),
    missing: tuple[Missing, ...] = (),
) -> Ruling:
    """A ruling that a bottleneck is there."""
    bottleneck = Bottleneck(kind, confidence, tuple(evidence), tuple(refuted_by), figures or {}, discriminate)
    return Ruling(bottleneck, missing=missing)


@dataclass(frozen=True, slots=True)
class Findings:
    """What the rules found, the most limiting first."""

    bottlenecks: tuple[Bottleneck, ...] = ()
    ruled_out: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()

    def has(self, *kinds: BottleneckKind) -> bool:
        """Whether one of these was found."""
        return any(item.kind in kinds for item in self.bottlenecks)

    @property
    def first(self) -> BottleneckKind | None:
        """The most limiting."""
        return self.bottlenecks[0].kind if self.bottlenecks else None

    def get(self, kind: BottleneckKind) -> Bottleneck | None:
        """A bottleneck by kind."""
        return next((item for item in self.bottlenecks if item.kind == kind), None)


def percent(share: float) -> str:
    """A share for a sentence."""
    value = 100 * share
    return f"{value:.1f} %" if value < 10 or value > 99 or value != round(value) else f"{value:.0f} %"


def amount(value: float) -> str:
    """A count or rate for a sentence: whole where it is large."""
    return f"{value:,.0f}" if abs(value) >= 20 or value == round(value) else f"{value:.1f}"


def span(seconds: float) -> str:
    """A duration for a sentence."""
    if seconds < 1:
        return f"{1e3 * seconds:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
