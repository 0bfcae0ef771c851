"""Prometheus metrics under vLLM's names, so that dashboards and routers made for vLLM work; our own are `headway:`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from headway.core.engine import Engine
from headway.core.events import Event, StepFinished
from headway.core.request import FinishReason
from headway.frontends.generation import FinishedRequest
from headway.metrics import HISTOGRAMS, LABELS, EngineFigures, engine_families, token_count_buckets


class ServerMetrics:
    """All metrics of one served model. A `RequestObserver`; also listens to the engine's events.

    Args:
        engine: read when metrics are asked for.
        max_model_len: bound of the histograms over token counts.
        cache_dtype: shown in `vllm:cache_config_info`.
    """

    def __init__(self, engine: Engine, model_name: str, max_model_len: int, cache_dtype: str = "auto") -> None:
        self.registry = CollectorRegistry()
        labels = {"model_name": model_name, "engine": "0"}
        token_buckets = token_count_buckets(max_model_len)
        self._histograms = {
            name: Histogram(
                f"vllm:{name}", text, LABELS, registry=self.registry, buckets=buckets or token_buckets
            ).labels(**labels)
            for name, text, buckets in HISTOGRAMS
        }
        finished = Counter(
            "vllm:request_success",
            "Requests that have ended, by reason.",
            (*LABELS, "finished_reason"),
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


class _EngineCollector(Collector):
    """Gauges and counters that the engine keeps anyway, read at the moment they are asked for."""

    def __init__(self, engine: Engine, labels: Mapping[str, str], cache_dtype: str) -> None:
        self._engine = engine
        self._labels = labels
        self._cache_dtype = cache_dtype

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        scheduler = self._engine.scheduler
        for family in engine_families(
            EngineFigures.of(self._engine),
            self._labels,
            scheduler.kv.config,
            cache_dtype=self._cache_dtype,
            num_speculative_tokens=scheduler.config.num_speculative_tokens,
        ):
            metric = Metric(family.name, family.text, family.kind)
            for suffix, labels, value in family.samples:
                metric.add_sample(family.name + suffix, dict(labels), value)
            yield metric
