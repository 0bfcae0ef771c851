"""Nothing is wrong, or nothing is going on."""

from __future__ import annotations

from headway.doctor.diagnosis import Confidence
from headway.doctor.rules import thresholds as limits
from headway.doctor.rules.base import NOTHING, Case, Ruling, amount, found, percent, span
from headway.doctor.rules.communication import GPU_COUNTS
from headway.doctor.rules.sweep import mean_effects, parallel_efficiency, setting_effects, sweeps


def judge(case: Case) -> Ruling:
    """Said only where something was seen of the deployment at work, and no rule found anything."""
    figures = case.figures
    running, waiting = figures.mean("num_running"), figures.highest("num_waiting")
    if running is not None and running < limits.IDLE_RUNNING and not waiting and _busy_share(case) <= limits.IDLE_SHARE:
        text = f"{amount(running)} requests run on average and none waits: mostly the engine has nothing to do."
        refuted = ["Requests that run while clients complain."]
        return found("none_idle", "strong" if not figures.load.concurrency else "medium", [text], refuted)
    if not figures.has_run or (case.queue is not None and case.queue.is_lasting):
        return NOTHING
    ttft = figures.value("mean_ttft_ms", "p50_ttft_ms", "median_ttft_ms", "p99_ttft_ms")
    if (
        running is None
        and ttft is not None
        and ttft >= 1e3 * _UNEXPLAINED_TTFT_S
        and not case.evidence.objective.bounds
    ):
        return NOTHING  # without the engine's gauges nobody can say that such a wait is as it should be
    texts = [*_queue_words(case), *_kv_words(case), *_latency_words(case), *sweep_words(case)]
    if not texts:
        return NOTHING
    numbers: dict[str, float | str | bool] = {}
    for runs in sweeps(case.evidence)[:1]:
        numbers |= {f"parallel_efficiency_c{count}": share for count, share in parallel_efficiency(runs).items()}
    refuted = ["A queue in half of the samples.", "Preemptions that grow.", "An objective that is missed."]
    return found("none", _confidence(case), texts, refuted, numbers)


def _busy_share(case: Case) -> float:
    """Share of the samples in which something runs or was counted."""
    samples = [sample for series in case.figures.series for sample in series.samples]
    busy = [
        sample
        for sample in samples
        if (sample.num_running or 0) > 0
        or (sample.generation_tokens_per_s or 0) > 0
        or (sample.prompt_tokens_per_s or 0)
    ]
    return len(busy) / len(samples) if samples else 0.0


def _confidence(case: Case) -> Confidence:
    num_samples = max((len(series.samples) for series in case.figures.series), default=0)
    has_latency = case.figures.value("p99_ttft_ms", "mean_ttft_ms", "p50_ttft_ms") is not None
    if num_samples >= 5 or (has_latency and case.evidence.objective.bounds):
        return "strong"
    return "medium" if num_samples >= limits.QUEUE_LEAST_SAMPLES or has_latency else "weak"


def _queue_words(case: Case) -> list[str]:
    running, waiting = case.figures.mean("num_running"), case.figures.mean("num_waiting")
    if running is None or waiting is None:
        return []
    if case.queue is None:
        return [f"{amount(running)} requests run on average and none ever waits."]
    return [
        f"{amount(running)} requests run on average; some wait in {percent(case.queue.share)} of the samples, "
        f"{amount(case.queue.num_waiting)} then: they are taken within a step or two."
    ]


def _kv_words(case: Case) -> list[str]:
    highest = case.figures.highest("kv_usage")
    if highest is None:
        return []
    words = f"KV usage is at most {percent(highest)}"
    seen = case.figures.preemptions
    if seen is not None and not seen.is_since_start:
        words += f", with {amount(seen.count)} preemptions"
    if highest >= limits.KV_ROOM:
        words += ": a pool in full use is what it is for, as long as nobody waits for it"
    return [f"{words}."]


def _latency_words(case: Case) -> list[str]:
    met = [
        f"{key} {amount(value)} ms (bound {amount(bound)} ms)"
        for key, bound in case.evidence.objective.bounds.items()
        if (value := case.figures.value(key, key.replace("p50_", "median_"))) is not None and value <= bound
    ]
    if met:
        return [f"Objectives are met: {', '.join(met)}."]
    told = [
        f"{name} {span(value / 1e3)}"
        for name, keys in (("P99 time to first token", ("p99_ttft_ms",)), ("P99 gap", ("p99_itl_ms",)))
        if (value := case.figures.value(*keys)) is not None
    ]
    return [f"Measured: {', '.join(told)}."] if told else []


def sweep_words(case: Case) -> list[str]:
    """Parallel efficiency of a sweep, and settings whose change did nothing."""
    texts: list[str] = []
    for runs in sweeps(case.evidence)[:1]:
        shares = parallel_efficiency(runs)
        told = [f"{percent(share)} at {count}" for count, share in shares.items() if count > 1]
        if told:
            texts.append(f"Parallel efficiency: {', '.join(told)} concurrent requests of a single stream's rate each.")
    idle = no_effect_settings(case)
    if idle:
        texts.append(f"Changing {', '.join(idle)} changed nothing beyond noise: none of them was binding.")
    return texts


_UNEXPLAINED_TTFT_S = 5.0
_UNNAMED = "variant"
"""Runs before and after a change that only the deployment's flags name."""
_SCHEDULING = frozenset((
    "gpu_memory_utilization", "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "enforce_eager",
    "enable_prefix_caching", "kv_cache_dtype", "max_model_len", "long_prefill_token_threshold", "async_scheduling",
    "speculative_config", "block_size", "swap_space",
))  # fmt: skip
_NOISE = 0.08
"""Throughput and latency of single benchmark runs repeat to within a few percent."""


def no_effect_settings(case: Case) -> tuple[str, ...]:
    """Settings that runs differ in without any effect: alone, or all of a group changed together."""
    alone = {name for name, size in mean_effects(case.evidence).items() if size < limits.NO_CHANGE}
    groups: dict[tuple[str, ...], list[float]] = {}
    for effect in setting_effects(case.evidence):
        groups.setdefault(effect.names, []).append(abs(effect.relative))
    together = {name for names, sizes in groups.items() if len(names) > 1 and max(sizes) < _NOISE for name in names}
    idle = (alone | together) - GPU_COUNTS  # GPUs that change nothing are not left as they are
    if _UNNAMED in idle:
        idle = (idle - {_UNNAMED}) | (case.settings.written & _SCHEDULING)
    return tuple(sorted(idle))
