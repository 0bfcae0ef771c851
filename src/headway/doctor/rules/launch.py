"""The device waits for the host: launches without CUDA graphs, or a model so small that the host's work shows."""

from __future__ import annotations

from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent
from headway.doctor.rules.client import rate_of
from headway.doctor.rules.missing import RUNNING
from headway.doctor.rules.sweep import setting_effects

_REFUTED = ["A time per token that hardly changes with enforce_eager off under the same load."]


def judge(case: Case) -> Ruling:
    """Measured with and without, else by physics where eager execution is on and the engine is at work."""
    pairs = [effect for effect in setting_effects(case.evidence) if effect.names == ("enforce_eager",)]
    effects = [effect for effect in pairs if effect.is_of_decoding]
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
        return _unexplained(case, running)
    text = (
        f"enforce_eager is on: of a decode step with {running:.0f} running requests {percent(share)} is waiting for "
        "launches and the host (by physics)."
    )
    return found("cpu_launch_bound", "medium", [text], _REFUTED, {"waiting_share": share})


def _unexplained(case: Case, running: float) -> Ruling:
    """Eager execution, nothing waits in the engine, and far fewer tokens than the device would make."""
    rate, possible = case.figures.value("output_throughput"), rate_of(case, running)
    if not rate or possible is None or rate >= limits.AT_FLOOR * possible or (case.queue and case.queue.is_lasting):
        return NOTHING
    text = (
        f"enforce_eager is on, and {running:.0f} requests get {amount(rate)} tokens/s where physics gives about "
        f"{amount(possible)}: the device mostly waits, for launches or for something else on the host."
    )
    discriminate = (
        "launches: the same load without enforce_eager is several times as fast",
        "host: the engine's process takes a whole core, with CUDA graphs too; or the client sends too little",
    )
    figures: dict[str, float | str | bool] = {"output_throughput": rate, "possible_by_physics": possible}
    return found("cpu_launch_bound", "weak", [text], _REFUTED, figures, discriminate, (RUNNING,))
