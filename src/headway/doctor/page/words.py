"""Names of bottlenecks and metrics, and numbers with their units, as the page writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from headway.doctor.diagnosis import Predicted
from headway.report.tables import format_number

TITLES: Mapping[str, str] = {
    "kv_starvation": "KV blocks run out",
    "waiting_queue_stall": "Requests wait for a seat",
    "prefill_compute_bound": "Prompts come faster than they are computed",
    "long_prompt_hol": "Long prompts hold up short ones",
    "chunk_missized": "The token budget of a step has the wrong size",
    "decode_compute_bound": "Decoding is at the speed of the hardware",
    "hbm_bound": "Memory bandwidth is the floor",
    "impossible_request_at_queue_head": "A request that can never run blocks the queue",
    "lora_slots": "Requests wait for an adapter slot",
    "engine_stall_other": "The engine stands still, and not for want of blocks or seats",
    "kv_leak": "Blocks stay taken with nothing running",
    "runaway_generation": "Answers do not end",
    "offered_load_too_high": "More is offered than this deployment can do",
    "client_bound": "The client limits, not the server",
    "spec_decode_overhead": "Speculation costs more than it brings",
    "cpu_launch_bound": "The CPU launches kernels too slowly",
    "none_idle": "Nothing is wrong: the deployment is idle",
    "none": "Nothing is wrong",
}
"""Bottleneck kinds in words."""

_STATISTICS = {"mean": "mean", "median": "median", "p50": "median", "p90": "P90", "p95": "P95", "p99": "P99"}
_LATENCIES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2el": "E2EL", "queue": "queueing"}
_NAMES = {
    "output_throughput": ("output", " tok/s"),
    "total_token_throughput": ("tokens", " tok/s"),
    "request_throughput": ("requests", "/s"),
    "request_goodput": ("goodput", " requests/s"),
    "num_preemptions": ("preemptions", ""),
    "preemptions_per_request": ("preemptions a request", ""),
    "mean_num_running": ("RUNNING", ""),
    "mean_num_waiting": ("WAITING", ""),
    "mean_kv_usage": ("KV usage", ""),
    "kv_tokens": ("KV", " tokens"),
    "concurrency": ("concurrency", ""),
}
_ON_THE_PAGE = (
    "p99_ttft_ms", "median_ttft_ms", "mean_ttft_ms", "p99_itl_ms", "mean_tpot_ms", "output_throughput", "mean_kv_usage",
    "num_preemptions",
)  # fmt: skip
"""Metrics of a prediction that a reader looks for, in this order."""
_WITHOUT_ERROR = ("mean_kv", "num_", "mean_num_")
_NO_CHANGE = 0.03
"""Effects under 3 % count as no change."""


def told_first(predicted: Sequence[Predicted]) -> list[Predicted]:
    """What a page says of a prediction: the metrics that move, one of the times to first token among them."""
    by_key = {item.metric: item for item in predicted}
    found = [by_key[key] for key in _ON_THE_PAGE if key in by_key] or list(predicted)
    moving = [item for item in found if abs(item.after - item.before) >= _NO_CHANGE * max(abs(item.before), 1e-9)]
    first_tokens = [item for item in moving if item.metric.endswith("ttft_ms")][1:]
    return [item for item in moving if item not in first_tokens]


def metric_name(key: str) -> str:
    """`p99_ttft_ms` as "P99 TTFT"."""
    if key in _NAMES:
        return _NAMES[key][0]
    match = re.fullmatch(r"(mean|median|p\d+)_(\w+?)_(ms|s)", key)
    if match and match[2] in _LATENCIES:
        return f"{_STATISTICS.get(match[1], match[1].upper())} {_LATENCIES[match[2]]}"
    return key.replace("_", " ")


def metric_value(key: str, value: float) -> str:
    """A value with its unit, by its key."""
    if key.endswith("_ms"):
        return f"{format_number(value / 1e3)} s" if abs(value) >= 1000 else f"{format_number(value)} ms"
    if key.endswith(("_usage", "_hit_rate", "_share", "_waste", "_efficiency")):
        return f"{value:.0%}"
    if key in _NAMES:
        return f"{format_number(value)}{_NAMES[key][1]}"
    return f"{format_number(value)} s" if key.endswith("_s") and "_per_s" not in key else format_number(value)


def figure_text(key: str, value: float, *, named: bool = True) -> str:
    """`P99 TTFT 8.2 s`."""
    return f"{metric_name(key)} {metric_value(key, value)}" if named else metric_value(key, value)


def predicted_text(predicted: Predicted) -> str:
    """`P99 TTFT 8.2 s → 1.1 s (± 15 %)`; an error that is not the same on both sides is given as its bounds."""
    key = predicted.metric
    text = f"{metric_name(key)} {metric_value(key, predicted.before)} → {metric_value(key, predicted.after)}"
    low, high, after = predicted.low, predicted.high, predicted.after
    if low is None or high is None:
        return text if key.startswith(_WITHOUT_ERROR) else f"{text} (error not known)"
    if low == high:
        return text
    below, above = after - low, high - after
    if after > 0 and abs(below - above) <= 0.2 * max(below, above, 1e-12):
        return f"{text} (± {max(below, above) / after:.0%})"
    return f"{text} ({metric_value(key, low)} to {metric_value(key, high)})"
