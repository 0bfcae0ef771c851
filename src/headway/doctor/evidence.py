"""Everything that is known of one deployment, before anybody judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headway.deployment.effective import Effective
from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample, EngineTotals
from headway.evidence.load import LoadResult
from headway.planner import Plan
from headway.planner.startup_log import StartupLog


@dataclass(frozen=True, slots=True)
class Objective:
    """What the deployment should achieve: upper bounds by summary key, such as `p99_ttft_ms`, and a goal.

    `goal`: `latency` or `throughput` (offline work: nobody waits for single tokens).
    """

    bounds: Mapping[str, float] = field(default_factory=dict)
    goal: str = "latency"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One deployment's flags, what was seen of it while it ran, and what could not be used.

    `samples` are in order of time, engine by engine. `unusable` says what was left out and why, in whole sentences.
    `stated` holds figures and words that somebody gave and that have no place elsewhere, by their name as given (of
    nested ones joined by dots); a gauge described in words, such as a growing queue, has its field's name.
    """

    effective: Effective | None = None
    plan: Plan | None = None
    startup: StartupLog | None = None
    facts: EngineFacts = field(default_factory=EngineFacts)
    samples: tuple[EngineSample, ...] = ()
    totals: EngineTotals | None = None
    events: tuple[EngineEvent, ...] = ()
    loads: tuple[LoadResult, ...] = ()
    trace: Path | None = None
    objective: Objective = field(default_factory=Objective)
    unusable: tuple[str, ...] = ()
    stated: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def tells_nothing(self) -> bool:
        """Whether there is neither a deployment nor anything that was seen of it."""
        seen = (self.startup, self.samples, self.totals, self.events, self.loads, self.stated, self.trace)
        return self.effective is None and self.facts == EngineFacts() and not any(seen)
