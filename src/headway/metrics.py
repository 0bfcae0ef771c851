"""vLLM's Prometheus metrics: their names, buckets and text form, for whoever shows an engine under them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headway.config import CacheConfig
from headway.core.engine import Engine

# Bucket bounds are vLLM 0.32's.
TTFT_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_LATENCY_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_LATENCY_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_TOKENS_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NUM_CHOICES_BUCKETS = (1, 2, 5, 10, 20)
NUM_PREEMPTIONS_BUCKETS = (1, 2, 3, 4, 5, 10, 20)

LABELS = ("model_name", "engine")

HISTOGRAMS: tuple[tuple[str, str, Sequence[float] | None], ...] = (
    ("time_to_first_token_seconds", "Time from receipt to the first token, in seconds.", TTFT_BUCKETS),
    ("inter_token_latency_seconds", "Time between outputs of a request, in seconds.", TOKEN_LATENCY_BUCKETS),
    ("request_time_per_output_token_seconds", "Mean time per output token after the first.", TOKEN_LATENCY_BUCKETS),
    ("e2e_request_latency_seconds", "Time from receipt to the end, in seconds.", REQUEST_LATENCY_BUCKETS),
    ("request_queue_time_seconds", "Time until a request was first scheduled.", REQUEST_LATENCY_BUCKETS),
    ("request_prefill_time_seconds", "Time from scheduling to the first token.", REQUEST_LATENCY_BUCKETS),
    ("request_decode_time_seconds", "Time from the first token to the last.", REQUEST_LATENCY_BUCKETS),
    ("request_inference_time_seconds", "Time from scheduling to the last token.", REQUEST_LATENCY_BUCKETS),
    ("request_prompt_tokens", "Prompt tokens of a request.", None),
    ("request_generation_tokens", "Output tokens of a request.", None),
    ("request_max_num_generation_tokens", "Output tokens of a prompt's longest choice.", None),
    ("request_prefill_kv_computed_tokens", "Prompt tokens computed, cached ones excluded.", None),
    ("request_params_max_tokens", "The max_tokens that a request ran with.", None),
    ("request_params_n", "Choices that a request asked for.", NUM_CHOICES_BUCKETS),
    ("request_num_preemptions", "How often a request was preempted.", NUM_PREEMPTIONS_BUCKETS),
    ("iteration_tokens_total", "Tokens computed in one step.", ITERATION_TOKENS_BUCKETS),
)
"""Names without `vllm:`, what they are, and their buckets; None is `token_count_buckets` of the maximum length."""

Sample = tuple[str, Mapping[str, str], float]
"""(suffix of the family's name, labels, value)."""


def token_count_buckets(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, … up to `limit`."""
    buckets: list[float] = []
    scale = 1
    while scale <= limit:
        buckets += [float(scale * step) for step in (1, 2, 5) if scale * step <= limit]
        scale *= 10
    return buckets


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: `kind` is gauge, counter or histogram; a counter's samples end in `_total` on the wire."""

    name: str
    kind: str
    text: str
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """An engine's gauges, and its counters since its start. Those that are None are left out."""

    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_steps: int | None = None
    mean_kv_waste: float | None = None
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_position: tuple[int, ...] = ()

    @classmethod
    def of(cls, engine: Engine) -> EngineFigures:
        """As they are now."""
        scheduler, stats = engine.scheduler, engine.stats
        return cls(
            len(scheduler.running),
            len(scheduler.waiting),
            scheduler.kv.pool.usage,
            stats.num_prompt_tokens,
            stats.num_generation_tokens,
            stats.num_preemptions,
            stats.prefix_cache_queries,
            stats.prefix_cache_hits,
            engine.num_steps,
            stats.mean_kv_waste,
            stats.num_drafts,
            stats.num_draft_tokens,
            stats.num_accepted_tokens,
            tuple(stats.num_accepted_per_position),
        )


def engine_families(
    figures: EngineFigures,
    labels: Mapping[str, str],
    cache: CacheConfig,
    *,
    cache_dtype: str = "auto",
    num_speculative_tokens: int = 0,
) -> Iterator[Family]:
    """What vLLM shows of an engine besides histograms, with two gauges and a counter of our own (`headway:`)."""

    def one(kind: str, name: str, text: str, value: float) -> Family:
        return Family(name, kind, text, [("_total" if kind == "counter" else "", labels, value)])

    waiting = figures.num_waiting
    yield one("gauge", "vllm:num_requests_running", "Requests that run.", figures.num_running)
    yield one("gauge", "vllm:num_requests_waiting", "Requests that wait.", waiting)
    yield Family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Requests that wait, by reason.",
        [("", {**labels, "reason": "capacity"}, waiting), ("", {**labels, "reason": "deferred"}, 0)],
    )
    yield one("gauge", "vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", figures.kv_usage)
    hits = figures.prefix_cache_hits
    yield one("counter", "vllm:prompt_tokens", "Prompt tokens of prompts that are done.", figures.num_prompt_tokens)
    yield one("counter", "vllm:prompt_tokens_cached", "Prompt tokens found in the cache.", hits)
    yield one("counter", "vllm:generation_tokens", "Tokens generated.", figures.num_generation_tokens)
    yield one("counter", "vllm:num_preemptions", "Preemptions.", figures.num_preemptions)
    yield one("counter", "vllm:prefix_cache_queries", "Tokens looked up.", figures.prefix_cache_queries)
    yield one("counter", "vllm:prefix_cache_hits", "Tokens found in the prefix cache.", hits)
    if figures.num_steps is not None:
        yield one("counter", "headway:engine_steps", "Steps that the engine has run.", figures.num_steps)
    if figures.mean_kv_waste is not None:
        text = "Share of held KV slots without a computed token, 0 to 1."
        yield one("gauge", "headway:kv_waste_mean", text, figures.mean_kv_waste)
    if num_speculative_tokens:
        yield from _speculation(figures, labels, num_speculative_tokens)
    yield _cache_info(labels, cache, cache_dtype)


def _speculation(figures: EngineFigures, labels: Mapping[str, str], num_positions: int) -> Iterator[Family]:
    """Acceptance is accepted over draft tokens; a verified draft yields 1 + accepted / drafts tokens."""
    for name, text, value in (
        ("vllm:spec_decode_num_drafts", "Drafts verified.", figures.num_drafts),
        ("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", figures.num_draft_tokens),
        ("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", figures.num_accepted_tokens),
    ):
        yield Family(name, "counter", text, [("_total", labels, value)])
    accepted = figures.num_accepted_per_position
    yield Family(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "counter",
        "Draft tokens accepted, by position in the draft.",
        [
            ("_total", {**labels, "position": str(i)}, accepted[i] if i < len(accepted) else 0)
            for i in range(num_positions)
        ],
    )


def _cache_info(labels: Mapping[str, str], cache: CacheConfig, cache_dtype: str) -> Family:
    info = {
        "block_size": cache.block_size,
        "num_gpu_blocks": cache.num_blocks,
        "enable_prefix_caching": cache.enable_prefix_caching,
        "sliding_window": cache.sliding_window,
        "watermark": cache.watermark,
        "cache_dtype": cache_dtype,
    }
    shown = {**labels, **{name: str(value) for name, value in info.items()}}
    return Family("vllm:cache_config_info", "gauge", "Settings of the KV cache.", [("", shown, 1)])


class Histogram:
    """A cumulative histogram under `bounds`, which ascend; like values may be taken in at once."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, count: int = 1) -> None:
        """Take `count` observations of `value` in."""
        self._counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def samples(self, labels: Mapping[str, str]) -> list[Sample]:
        """Buckets, count and sum."""
        found: list[Sample] = []
        total = 0
        for bound, count in zip((*self.bounds, float("inf")), self._counts, strict=True):
            total += count
            found.append(("_bucket", {**labels, "le": "+Inf" if bound == float("inf") else str(float(bound))}, total))
        return [*found, ("_count", labels, total), ("_sum", labels, self.sum)]


def render(families: Iterable[Family], timestamp_ms: int | None = None) -> str:
    """Prometheus' text format; families of equal names follow each other as one."""
    lines: list[str] = []
    stamp = "" if timestamp_ms is None else f" {timestamp_ms}"
    last = ""
    for family in families:
        if family.name != last:
            wire = family.name + ("_total" if family.kind == "counter" else "")
            lines += [f"# HELP {wire} {family.text}", f"# TYPE {wire} {family.kind}"]
            last = family.name
        for suffix, labels, value in family.samples:
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{family.name}{suffix}{{{shown}}} {float(value)!r}{stamp}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
