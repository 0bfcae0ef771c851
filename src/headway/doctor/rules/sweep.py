"""Tables of runs: over concurrencies, and over settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from headway.doctor.evidence import Evidence
from headway.doctor.rules import thresholds as limits
from headway.evidence.load import LoadResult

_TTFT = ("median_ttft_ms", "p50_ttft_ms", "mean_ttft_ms", "p99_ttft_ms")
_TPOT = ("mean_tpot_ms", "median_tpot_ms", "p50_tpot_ms", "mean_itl_ms", "p50_itl_ms", "median_itl_ms")


@dataclass(frozen=True, slots=True)
class Plateau:
    """Throughput that no longer grows with the concurrency.

    `concurrency` is the first of the flat part, `is_hard` whether throughput was in proportion up to there, `waits`
    whether the time to first token grows along the flat part, `slows` whether the time between tokens does.
    """

    concurrency: int
    last_concurrency: int
    tokens_per_s: float
    single_tokens_per_s: float | None
    is_hard: bool
    waits: bool
    slows: bool
    words: str


def throughput_of(load: LoadResult) -> float | None:
    """Generated tokens a second of a run, whatever it tells them by."""
    for key in ("output_throughput", "total_token_throughput", "request_throughput"):
        if (value := load.measured.get(key)) is not None:
            return value
    return None


def latency_of(load: LoadResult, keys: Sequence[str]) -> float | None:
    """The first of these latencies that a run tells, in seconds."""
    return next((load.measured[key] / 1e3 for key in keys if key in load.measured), None)


def sweeps(evidence: Evidence) -> list[list[LoadResult]]:
    """Runs that differ in their concurrency alone, by rising concurrency; the largest tables first."""
    groups: dict[tuple[Any, ...], dict[int, LoadResult]] = {}
    for load in evidence.loads:
        if load.concurrency is not None and throughput_of(load) is not None:
            settings = tuple(sorted((name, repr(value)) for name, value in load.settings.items()))
            key = (load.mean_prompt_tokens, load.mean_output_tokens, settings)
            groups.setdefault(key, {})[load.concurrency] = load
    tables = [[runs[count] for count in sorted(runs)] for runs in groups.values() if len(runs) > 1]
    return sorted(tables, key=len, reverse=True)


def find_plateau(evidence: Evidence) -> Plateau | None:
    """The flat end of the first sweep that has one."""
    for runs in sweeps(evidence):
        plateau = _plateau_of(runs)
        if plateau is not None:
            return plateau
    return None


def _plateau_of(runs: list[LoadResult]) -> Plateau | None:
    rates = [throughput_of(run) or 0.0 for run in runs]
    counts = [run.concurrency or 1 for run in runs]
    start = len(runs) - 1
    while start > 0 and rates[-1] <= rates[start - 1] * (1 + limits.FLAT_GAIN):
        start -= 1
    if start == len(runs) - 1 or rates[start] <= 0:
        return None
    single = rates[0] / counts[0] if start > 0 else None
    flat = runs[start:]
    waits, slows = _grows(flat, _TTFT), _grows(flat, _TPOT)
    words = (
        f"From {counts[start]} to {counts[-1]} concurrent requests throughput stays at {rates[start]:,.0f} tokens/s "
        f"({rates[-1]:,.0f} at the end)"
    )
    firsts = [(run.concurrency, latency_of(run, _TTFT)) for run in runs]
    told = [f"{seconds:.2f} s at {count}" for count, seconds in firsts if seconds is not None]
    words += f"; time to first token {', '.join(told)}." if told else "."
    is_hard = single is not None and rates[start] >= limits.LINEAR_SHARE * single * counts[start]
    return Plateau(counts[start], counts[-1], rates[start], single, is_hard, waits, slows, words)


def _grows(runs: Sequence[LoadResult], keys: Sequence[str]) -> bool:
    """Whether a latency grows at least half as fast as the concurrency over the runs that tell it."""
    points = [(run.concurrency or 1, value) for run in runs if (value := latency_of(run, keys)) is not None]
    if len(points) < 2 or points[0][1] <= 0:
        return False
    return points[-1][1] / points[0][1] >= 1 + 0.5 * (points[-1][0] / points[0][0] - 1)


def parallel_efficiency(runs: Sequence[LoadResult]) -> dict[int, float]:
    """Throughput of each concurrency over that of as many single streams; empty without a run of one stream."""
    single = next((throughput_of(run) for run in runs if run.concurrency == 1), None)
    if not single:
        return {}
    return {
        run.concurrency: (throughput_of(run) or 0.0) / (run.concurrency * single) for run in runs if run.concurrency
    }


# ---------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class Effect:
    """What changing one setting (or several together) did, measured: the cost before and after.

    `metric` is a latency, or a throughput turned over (seconds a token), so that less is always better. The time to
    first token and the rate of prompts stand in where nothing is told of decoding.
    """

    names: tuple[str, ...]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    metric: str
    cost_before: float
    cost_after: float
    concurrency: int | None = None

    @property
    def is_rate(self) -> bool:
        """Whether the cost is a rate turned over."""
        return self.metric.endswith(("throughput", "_per_s"))

    @property
    def is_of_decoding(self) -> bool:
        """Whether it tells anything of more than prompts."""
        return self.metric not in (*_TTFT, "prompt_tokens_per_s")

    @property
    def relative(self) -> float:
        """Change of the cost, negative for the better."""
        return self.cost_after / self.cost_before - 1


_COSTS = (*_TPOT, "p99_itl_ms", "mean_e2el_ms", "median_e2el_ms", "p50_e2el_ms")


def _cost(load: LoadResult) -> tuple[str, float] | None:
    for key in _COSTS:
        if load.measured.get(key):
            return key, load.measured[key]
    rate = throughput_of(load)
    if rate:
        return "output_throughput", 1.0 / rate
    for key in _TTFT:
        if load.measured.get(key):
            return key, load.measured[key]
    rate = load.measured.get("prompt_tokens_per_s")
    return ("prompt_tokens_per_s", 1.0 / rate) if rate else None


def setting_effects(evidence: Evidence) -> list[Effect]:
    """Every pair of runs under the same load that differs in one setting, or in a group changed together."""
    loads = [load for load in evidence.loads if _cost(load) is not None]
    effects: list[Effect] = []
    for one, other in combinations(loads, 2):
        if (one.concurrency, one.requests_per_s, one.mean_prompt_tokens, one.mean_output_tokens) != (
            other.concurrency, other.requests_per_s, other.mean_prompt_tokens, other.mean_output_tokens,
        ):  # fmt: skip
            continue
        names = tuple(
            sorted(
                name
                for name in {*one.settings, *other.settings}
                if repr(one.settings.get(name)) != repr(other.settings.get(name))
            )
        )
        first, second = _cost(one), _cost(other)
        if names and first is not None and second is not None and first[0] == second[0]:
            before = {name: one.settings.get(name) for name in names}
            after = {name: other.settings.get(name) for name in names}
            effects.append(Effect(names, before, after, first[0], first[1], second[1], one.concurrency))
    return effects


def at_most_load(effects: Sequence[Effect]) -> list[Effect]:
    """Of each group of settings the effects under the most concurrency: what helps a single stream may cost many."""
    most: dict[tuple[str, ...], int] = {}
    for effect in effects:
        most[effect.names] = max(most.get(effect.names, 0), effect.concurrency or 0)
    return [effect for effect in effects if (effect.concurrency or 0) == most[effect.names]]


def mean_effects(evidence: Evidence) -> dict[str, float]:
    """By setting, the mean size of its effect over all pairs that differ in it alone, as a share of the cost."""
    sizes: dict[str, list[float]] = {}
    for effect in setting_effects(evidence):
        if len(effect.names) == 1:
            sizes.setdefault(effect.names[0], []).append(abs(effect.relative))
    return {name: sum(values) / len(values) for name, values in sizes.items()}
