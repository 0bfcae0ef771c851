"""The queue in front of the engine: whether it lasts, whether it grows, and which gate holds it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.doctor.figures import Figures, Series
from headway.doctor.rules import thresholds as limits

Gate = Literal["seats", "kv", "both", "standstill", "prefill", "other", "unknown"]


@dataclass(frozen=True, slots=True)
class Queue:
    """A stretch of samples with requests waiting; means over it. `share` is its part of the busy samples.

    `gate`: seats, KV blocks, both, prefill (the steps are full of prompts), `standstill` (no token moves), `other`
    (tokens move, but neither seats nor blocks nor prompts explain the wait), or unknown.
    """

    series: Series
    share: float
    num_running: float
    num_waiting: float
    kv_usage: float | None
    prompt_tokens_per_s: float | None
    generation_tokens_per_s: float | None
    growth_per_s: float | None
    wait_s: float | None
    is_lasting: bool
    gate: Gate
    seats: int | None
    is_seats_inferred: bool

    @property
    def is_growing(self) -> bool:
        """The queue gains steadily: requests arrive faster than they are taken."""
        if self.growth_per_s is None or self.growth_per_s <= 0:
            return False
        return self.growth_per_s * self.series.duration_s >= limits.GROWING_SHARE * self.num_waiting


def find_queue(figures: Figures) -> Queue | None:
    """The worst queue that any series shows; None where nothing ever waits."""
    queues = [queue for series in figures.series if (queue := _queue_of(figures, series)) is not None]
    return max(queues, key=lambda one: (one.is_lasting, one.num_waiting * len(one.series.samples)), default=None)


def _queue_of(figures: Figures, series: Series) -> Queue | None:
    busy = [sample for sample in series.samples if (sample.num_running or 0) > 0 or (sample.num_waiting or 0) > 0]
    waiting = tuple((sample.num_waiting or 0) + (sample.num_swapped or 0) > 0 for sample in busy)
    stretch = Series(tuple(busy)).where(waiting)
    if not stretch.samples:
        return None
    running = stretch.mean("num_running") or 0.0
    depth = (stretch.mean("num_waiting") or 0.0) + (stretch.mean("num_swapped") or 0.0)
    share = len(stretch.samples) / len(busy)
    trend = stretch.trend("num_waiting")
    wait_s = depth / figures.load.completed_per_s if figures.load.completed_per_s else None
    seats, inferred = _seats(figures, stretch)
    return Queue(
        series=stretch,
        share=share,
        num_running=running,
        num_waiting=depth,
        kv_usage=stretch.mean("kv_usage"),
        prompt_tokens_per_s=stretch.mean("prompt_tokens_per_s"),
        generation_tokens_per_s=stretch.mean("generation_tokens_per_s"),
        growth_per_s=trend.per_s if trend is not None else None,
        wait_s=wait_s,
        is_lasting=_lasts(len(stretch.samples), share, depth, running, wait_s),
        gate=_gate(figures, stretch, seats, is_inferred=inferred),
        seats=seats,
        is_seats_inferred=inferred,
    )


def _lasts(num_samples: int, share: float, depth: float, running: float, wait_s: float | None) -> bool:
    """A queue that is there most of the time and deep enough to be felt."""
    if share < limits.QUEUE_SHARE:
        return False
    if wait_s is not None and num_samples >= limits.QUEUE_LEAST_SAMPLES:
        return wait_s >= limits.QUEUE_WAIT_S and depth >= 1
    least = 1.0 if num_samples >= limits.QUEUE_LEAST_SAMPLES else 2.0
    return depth >= max(least, limits.QUEUE_DEPTH_SHARE * running)


def _seats(figures: Figures, stretch: Series) -> tuple[int | None, bool]:
    """max_num_seqs, or where it is not known the number that the running requests are pinned at.

    A default is known less well than a number written: running requests at a round number below it refute it.
    """
    known, settings = figures.settings.max_num_seqs, figures.settings
    if known is not None and not settings.is_default("max_num_seqs"):
        return known, False
    highest, lowest = stretch.highest("num_running"), stretch.lowest("num_running")
    if highest is None or lowest is None or highest <= limits.HOG_RUNNING or (known is not None and highest == known):
        return known, False
    is_pinned = highest - lowest <= limits.PINNED_SPREAD * highest
    if len(stretch.samples) < limits.QUEUE_LEAST_SAMPLES or settings.is_sure_of("max_num_seqs"):
        is_pinned = is_pinned and highest >= limits.LEAST_ROUND_SEATS and _is_round(highest)
    return (int(highest), True) if is_pinned else (known, False)


def _is_round(number: float) -> bool:
    """A number that people and releases choose for seats: a power of two, or three times one."""
    count = int(number)
    return count == number and any(part & (part - 1) == 0 for part in (count, count // 3 if count % 3 == 0 else count))


def next_request_share(figures: Figures) -> float:
    """Share of the pool that the next request's prompt takes at most, as far as lengths and pool are known."""
    pool = figures.settings.kv_tokens
    prompt = figures.load.longest_prompt_tokens or figures.load.mean_prompt_tokens
    return min(1.0, prompt / pool) if pool and prompt else 0.0


def _gate(figures: Figures, stretch: Series, seats: int | None, *, is_inferred: bool) -> Gate:
    """What holds requests back. Blocks that are full explain a steady number of running requests: no need of seats."""
    generation, prompt = stretch.mean("generation_tokens_per_s"), stretch.mean("prompt_tokens_per_s")
    running = stretch.values("num_running")
    kv_middle = stretch.middle("kv_usage")
    full_seats = bool(
        seats and running and _share_of(running, min(seats - 1, limits.SEATS_FULL * seats)) >= limits.QUEUE_SHARE
    )
    tight = max(limits.KV_ROOM / 2, min(limits.KV_TIGHT, 1.0 - next_request_share(figures)))
    full_kv = kv_middle is not None and kv_middle >= tight
    if not full_kv and kv_middle is not None and len(running) and max(running) <= limits.HOG_RUNNING:
        full_kv = kv_middle >= limits.HOG_USAGE and (generation or 0) > 0
    if _moves_nothing(generation, prompt, running):
        return "standstill"
    if full_seats and full_kv:
        return "kv" if is_inferred else "both"
    if full_seats:
        return "seats"
    if full_kv:
        return "kv"
    if prompt is None and kv_middle is None:
        return "unknown"
    if prompt is None or prompt >= limits.STALL_PROMPT_TOKENS_PER_S:
        return "prefill" if kv_middle is None or kv_middle < limits.KV_TIGHT else "kv"
    return "other"


def _moves_nothing(generation: float | None, prompt: float | None, running: tuple[float, ...]) -> bool:
    """No token moves; where nobody counts tokens, nothing runs although requests wait."""
    if generation is None:
        return bool(running) and max(running) == 0.0 and not prompt
    slow = generation / max(1.0, sum(running) / max(1, len(running))) < limits.STALL_TOKENS_PER_S
    return slow and (prompt or 0.0) < limits.STALL_PROMPT_TOKENS_PER_S


def _share_of(values: tuple[float, ...], least: float) -> float:
    return sum(value >= least for value in values) / len(values)
