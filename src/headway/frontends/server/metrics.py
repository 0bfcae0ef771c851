"""Prometheus metrics under vLLM's names, so that dashboards and routers made for vLLM work; our own are `headway:`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.core.engine import Engine
from headway.core.events import Event, StepFinished
from headway.core.request import FinishReason
from headway.frontends.generation import FinishedRequest

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

_LABELS = ("model_name", "engine")

_REQUEST_HISTOGRAMS: tuple[tuple[str, str, Sequence[float] | None], ...] = (
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


class ServerMetrics:
    """All metrics of one served model. A `RequestObserver`; also listens to the engine's events.

    Args:
        engine: read when metrics are asked for.
        max_model_len: bound of the histograms over token counts.
        cache_dtype: shown in `vllm:cache_config_info`.
    """

    def __init__(self, engine: Engine, model_name: str, max_model_len: int, cache_dtype: str = "float32") -> None:
        self.registry = CollectorRegistry()
        labels = {"model_name": model_name, "engine": "0"}
        token_buckets = token_count_buckets(max_model_len)
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", text, _LABELS, registry=self.registry, buckets=buckets or token_buckets
            ).labels(**labels)
            for name, text, buckets in _REQUEST_HISTOGRAMS
        }
        finished = Counter(
            "vllm:request_success",
            "Requests that have ended, by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )
        self._finished = {reason: finished.labels(**labels, finished_reason=reason.value) for reason in FinishReason}
        self.registry.register(_EngineCollector(engine, labels, cache_dtype))
        engine.listeners.append(self.on_event)

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def on_event(self, event: Event) -> None:
        """Engine listener, called on the engine's thread."""
        if isinstance(event, StepFinished):
            self._observe("iteration_tokens_total", event.plan.num_tokens)

    def first_token(self, ttft_s: float) -> None:
        """See `RequestObserver`."""
        self._observe("time_to_first_token_seconds", ttft_s)

    def inter_token(self, gap_s: float) -> None:
        """See `RequestObserver`."""
        self._observe("inter_token_latency_seconds", gap_s)

    def finished(self, record: FinishedRequest) -> None:
        """See `RequestObserver`. Requests that were aborted or failed are counted, their latencies are not."""
        self._finished[record.finish_reason].inc()
        if record.finish_reason not in (FinishReason.STOP, FinishReason.LENGTH):
            return
        self._observe("e2e_request_latency_seconds", record.e2e_s)
        self._observe("request_queue_time_seconds", record.queue_s)
        self._observe("request_prefill_time_seconds", record.prefill_s)
        self._observe("request_decode_time_seconds", record.decode_s)
        self._observe("request_inference_time_seconds", record.inference_s)
        if record.decode_s is not None and record.num_output_tokens > 1:
            mean = record.decode_s / (record.num_output_tokens - 1)
            self._observe("request_time_per_output_token_seconds", mean)
        self._observe("request_prompt_tokens", record.num_prompt_tokens)
        self._observe("request_generation_tokens", record.num_output_tokens)
        num_computed = record.num_prompt_tokens - record.num_cached_tokens
        self._observe("request_prefill_kv_computed_tokens", num_computed)
        self._observe("request_params_max_tokens", record.max_tokens)
        if record.most_output_tokens is not None:
            self._observe("request_params_n", record.num_choices)
            self._observe("request_max_num_generation_tokens", record.most_output_tokens)
        self._observe("request_num_preemptions", record.num_preemptions)

    def _observe(self, name: str, value: float | None) -> None:
        if value is not None:
            self._histograms[name].observe(value)


def token_count_buckets(limit: int) -> list[float]:
    """1, 2, 5, 10, 20, 50, … up to `limit`."""
    buckets: list[float] = []
    scale = 1
    while scale <= limit:
        buckets += [float(scale * step) for step in (1, 2, 5) if scale * step <= limit]
        scale *= 10
    return buckets


class _EngineCollector(Collector):
    """Gauges and counters that the engine keeps anyway, read at the moment they are asked for."""

    def __init__(self, engine: Engine, labels: Mapping[str, str], cache_dtype: str) -> None:
        self._engine = engine
        self._labels = labels
        self._cache_dtype = cache_dtype

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        scheduler = self._engine.scheduler
        num_waiting = len(scheduler.waiting)
        yield self._gauge("vllm:num_requests_running", "Requests that run.", len(scheduler.running))
        yield self._gauge("vllm:num_requests_waiting", "Requests that wait.", num_waiting)
        yield self._waiting_by_reason(num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", scheduler.kv.pool.usage)
        yield from self._counters()
        if scheduler.config.num_speculative_tokens:
            yield from self._speculation()
        yield self._cache_info()

    def _counters(self) -> Iterator[Metric]:
        stats = self._engine.stats
        yield self._counter("vllm:prompt_tokens", "Prompt tokens of admitted requests.", stats.num_prompt_tokens)
        yield self._counter("vllm:prompt_tokens_cached", "Prompt tokens found in the cache.", stats.prefix_cache_hits)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", stats.num_generation_tokens)
        yield self._counter("vllm:num_preemptions", "Preemptions.", stats.num_preemptions)
        yield self._counter("vllm:prefix_cache_queries", "Tokens looked up.", stats.prefix_cache_queries)
        yield self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", stats.prefix_cache_hits)
        yield self._counter("headway:engine_steps", "Steps that the engine has run.", self._engine.num_steps)
        waste = stats.mean_kv_waste
        yield self._gauge("headway:kv_waste_mean", "Share of held KV slots without a computed token, 0 to 1.", waste)

    def _speculation(self) -> Iterator[Metric]:
        """Acceptance is accepted over draft tokens; a verified draft yields 1 + accepted / drafts tokens."""
        stats = self._engine.stats
        yield self._counter("vllm:spec_decode_num_drafts", "Drafts verified.", stats.num_drafts)
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Draft tokens verified.", stats.num_draft_tokens)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", stats.num_accepted_tokens)
        family = CounterMetricFamily(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position in the draft.",
            labels=(*self._labels, "position"),
        )
        accepted = stats.num_accepted_per_position
        for position in range(self._engine.scheduler.config.num_speculative_tokens):
            count = accepted[position] if position < len(accepted) else 0
            family.add_metric((*self._labels.values(), str(position)), count)
        yield family

    def _waiting_by_reason(self, num_waiting: int) -> Metric:
        family = GaugeMetricFamily(
            "vllm:num_requests_waiting_by_reason", "Requests that wait, by reason.", labels=(*self._labels, "reason")
        )
        family.add_metric((*self._labels.values(), "capacity"), num_waiting)
        family.add_metric((*self._labels.values(), "deferred"), 0)
        return family

    def _cache_info(self) -> Metric:
        kv = self._engine.scheduler.kv
        info = {
            "block_size": kv.block_size,
            "num_gpu_blocks": kv.config.num_blocks,
            "enable_prefix_caching": kv.config.enable_prefix_caching,
            "sliding_window": kv.config.sliding_window,
            "watermark": kv.config.watermark,
            "cache_dtype": self._cache_dtype,
        }
        labels = {**self._labels, **{name: str(value) for name, value in info.items()}}
        family = GaugeMetricFamily("vllm:cache_config_info", "Settings of the KV cache.", labels=tuple(labels))
        family.add_metric(tuple(labels.values()), 1)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family
