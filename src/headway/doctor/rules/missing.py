"""What to ask for: the four figures that a diagnosis rests on, and those that would settle a doubt."""

from __future__ import annotations

from headway.doctor.diagnosis import Missing
from headway.doctor.figures import Figures

RUNNING = Missing(
    "num_requests_running",
    "Whether requests wait for a seat or all run and share the device: the two call for opposite changes.",
    "The gauge vllm:num_requests_running, or Running: in the engine's log, while the load runs.",
)
WAITING = Missing(
    "num_requests_waiting",
    "Whether anything queues in the engine at all.",
    "The gauge vllm:num_requests_waiting, or Waiting: in the engine's log.",
)
KV_USAGE = Missing(
    "kv_cache_usage_perc",
    "Whether KV blocks are the gate.",
    "The gauge vllm:kv_cache_usage_perc, or GPU KV cache usage: in the engine's log.",
)
PROMPT_THROUGHPUT = Missing(
    "avg_prompt_throughput",
    "Whether prefill is at its plateau: waiting with seats and blocks free is then prefill-bound.",
    "Avg prompt throughput: in the engine's log, or the rate of vllm:prompt_tokens_total; with it the prompt length.",
)
BUDGET = Missing(
    "max_num_batched_tokens",
    "How long a step with a full chunk takes, and with it the gap between tokens while prompts are computed.",
    "The flag, or the engine's start-up log: Chunked prefill is enabled with max_num_batched_tokens=….",
)
TTFT = Missing(
    "ttft",
    "Mean and P99 time to first token: whether users wait before the first token at all.",
    "`vllm bench serve` with --save-result, or the histogram vllm:time_to_first_token_seconds.",
)
ITL = Missing(
    "itl",
    "Mean and P99 time between tokens: whether prompts stall those who already read.",
    "`vllm bench serve` with --save-result, or the histogram vllm:inter_token_latency_seconds.",
)
THROUGHPUT = Missing(
    "throughput",
    "Tokens a second: how far the deployment is from what its device can do.",
    "The rate of vllm:generation_tokens_total, or the benchmark's output throughput.",
)
CONCURRENCY = Missing(
    "concurrency",
    "How many requests were there at once: no latency means anything without it.",
    "The benchmark's concurrency or rate; else vllm:num_requests_running and vllm:num_requests_waiting over time.",
)


def lesson_figures(figures: Figures) -> tuple[Missing, ...]:
    """Which of time to first token, time between tokens, throughput and concurrency nothing tells."""
    absent: list[Missing] = []
    if figures.value("p99_ttft_ms", "mean_ttft_ms", "p50_ttft_ms", "median_ttft_ms") is None:
        absent.append(TTFT)
    if figures.value("p99_itl_ms", "mean_itl_ms", "p50_itl_ms", "mean_tpot_ms", "p50_tpot_ms", "p99_tpot_ms") is None:
        absent.append(ITL)
    if figures.value("output_throughput", "total_token_throughput", "request_throughput") is None:
        absent.append(THROUGHPUT)
    load = figures.load
    if figures.mean("num_running") is None:
        if load.concurrency is None and load.requests_per_s is None:
            absent.append(CONCURRENCY)
        absent.append(RUNNING)
    return tuple(absent)
