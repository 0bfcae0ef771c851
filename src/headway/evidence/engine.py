"""What was seen of a running engine, in one form whatever engine, release or format told it.

Every figure is None where nothing told it. Shares go from 0 to 1, times are in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine at one instant: a scrape's gauges, or one line of its periodic log.

    `at_s` counts from the first line or scrape of the same source that tells a time. The rates are means over the
    interval that ends here; `num_preemptions` counts from the engine's start, or from the first line of its log.
    """

    at_s: float | None = None
    engine: str = "0"
    num_running: float | None = None
    num_waiting: float | None = None
    num_swapped: float | None = None
    kv_usage: float | None = None
    prompt_tokens_per_s: float | None = None
    generation_tokens_per_s: float | None = None
    prefix_hit_rate: float | None = None
    mm_hit_rate: float | None = None
    num_preemptions: float | None = None
    source: str = ""
    num_deferred: float | None = None
    """Of those waiting, the ones held back by something else than room: LoRA slots, a KV transfer."""
    external_hit_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Histogram:
    """A cumulative histogram, perhaps cut short: `bounds` ascend, `counts[i]` observations were at most `bounds[i]`.

    `count` and `sum` are those of all observations; None if the text broke off before them.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    count: float | None = None
    sum: float | None = None

    @property
    def is_truncated(self) -> bool:
        """Whether the number of all observations is unknown."""
        return self.count is None

    @property
    def mean(self) -> float | None:
        """Mean of all observations."""
        return self.sum / self.count if self.sum is not None and self.count else None

    @property
    def largest_at_least(self) -> float | None:
        """The lower bound of the highest bucket that holds anything; None where nothing was observed."""
        found, lower, below = None, 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if count > below:
                found = lower
            lower, below = bound, count
        return lower if self.count is not None and self.count > below and math.isfinite(lower) else found

    def quantile_between(self, share: float) -> tuple[float, float] | None:
        """The two bounds that the quantile lies between; None where it lies above the last, or nothing was observed.

        Of a truncated histogram the observations up to its last bound are taken for all.
        """
        total = self.count if self.count is not None else (self.counts[-1] if self.counts else 0.0)
        lower = 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if total > 0 and count >= share * total:
                return (lower, bound) if bound != float("inf") else None
            lower = bound
        return None

    def quantile(self, share: float) -> float | None:
        """Between those bounds, by linear interpolation as PromQL's histogram_quantile does."""
        total = self.count if self.count is not None else (self.counts[-1] if self.counts else 0.0)
        lower, below = 0.0, 0.0
        for bound, count in zip(self.bounds, self.counts, strict=True):
            if total > 0 and count >= share * total:
                if bound == float("inf"):
                    return None
                return lower + (bound - lower) * ((share * total - below) / (count - below) if count > below else 1.0)
            lower, below = bound, count
        return None


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Counters and histograms of one engine, or of several added up, over a stretch of time.

    `duration_s` is the time between the two scrapes they are the difference of; None if it is not known, or they count
    from the engine's start, as those of a single scrape do.

    Keys of `counters`: `prompt_tokens`, `generation_tokens`, `requests`, `preemptions`, `prefix_cache_queries`,
    `prefix_cache_hits`, `draft_tokens`, `accepted_tokens`, `drafts`, `steps`, `step_tokens`.
    `finished` counts requests by finish reason. Keys of `histograms`: `ttft_s`, `itl_s`, `e2el_s`, `queue_s`,
    `prefill_s`, `decode_s`, `inference_s`, `prompt_tokens`, `generation_tokens`, `step_tokens`, `max_tokens`.
    """

    duration_s: float | None = None
    counters: Mapping[str, float] = field(default_factory=dict)
    finished: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    is_since_start: bool = True


@dataclass(frozen=True, slots=True)
class EngineEvent:
    """Something that a log line reports. `kind`: `preemption`, `spec_decode`, `error`, `jit`, `restart`, `lora`.

    `fields` hold what the line says, such as `mode` and `cumulative_preemptions` of a V0 preemption warning, or
    `mean_acceptance_length`, `accepted_per_s`, `drafted_per_s`, `acceptance_rate` of a SpecDecoding line.
    """

    kind: str
    at_s: float | None
    line: int
    text: str
    fields: Mapping[str, float | str] = field(default_factory=dict)
    source: str = ""
    """As that of samples: events and samples of one source share their time."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What the engine says of its own make. `engine`: `vllm` or `sglang`; `generation`: `V0` or `V1`."""

    engine: str | None = None
    generation: str | None = None
    version: str | None = None
    model: str | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    kv_cache_tokens: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_dtype: str | None = None
    enable_prefix_caching: bool | None = None
    num_engines: int = 1
    max_lora: int | None = None
    lora_running: tuple[str, ...] = ()
    lora_waiting: tuple[str, ...] = ()
