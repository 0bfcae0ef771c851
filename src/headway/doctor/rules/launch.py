"""The device waits for the host: launches without CUDA graphs, or a model so small that the host's work shows."""

from __future__ import annotations

from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, found, percent
from headway.doctor.rules.sweep import setting_effects

_REFUTED = ["A time per token that hardly changes with enforce_eager off under the same load."]


def judge(case: Case) -> Ruling:
    """Measured with and without, else by physics where eager execution is on and the engine is at work."""
    effects = [effect for effect in setting_effects(case.evidence) if effect.names == ("enforce_eager",)]
    if effects:
        costs = [
            effect.relative if effect.after["enforce_eager"] else 1 / (1 + effect.relative) - 1 for effect in effects
        ]
        mean = sum(costs) / len(costs)
        if mean >= limits.LAUNCH_SHARE:
            text = f"Eager execution costs {percent(mean)} per token, measured in {len(costs)} pair(s) of runs."
            return found("cpu_launch_bound", "strong", [text], _REFUTED, {"cost_of_eager": mean})
        reason = f"Eager execution costs {percent(max(0.0, mean))} in {len(costs)} measured pair(s) of runs."
        return Ruling(ruled_out={"cpu_launch_bound": reason})
    running = case.figures.mean("num_running") or case.figures.load.concurrency
    if case.settings.enforce_eager is not True or case.physics is None or not running or running < limits.IDLE_RUNNING:
        return NOTHING
    context = case.figures.load.mean_prompt_tokens or 1024.0
    share = case.physics.waiting_share(max(1, round(running)), context)
    if share < limits.LAUNCH_SHARE:
        return NOTHING
    text = (
        f"enforce_eager is on: of a decode step with {running:.0f} running requests {percent(share)} is waiting for "
        "launches and the host (by physics)."
    )
    return found("cpu_launch_bound", "medium", [text], _REFUTED, {"waiting_share": share})
