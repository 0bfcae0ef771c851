"""What a figure's name means, in the many spellings of benchmarks, dashboards and people."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from headway.evidence.quantities import UNITS_MS

Kind = Literal["latency", "rate", "gauge", "share", "load", "fact", "total", "spec"]


@dataclass(frozen=True, slots=True)
class Figure:
    """`key` is a summary key, a field of `EngineSample`, `LoadResult` or `EngineFacts`, or a key of `EngineTotals`.

    Args:
        unit: the unit of time that the name gives; None where it gives none.
        concurrency: of a name that is one run's of several, such as `c4_tg`.
        is_percent: the name says so.
    """

    kind: Kind
    key: str
    unit: str | None = None
    concurrency: int | None = None
    is_percent: bool = False


_TIMES = {
    "ttft": "ttft", "time to first token": "ttft", "first token": "ttft", "first token latency": "ttft",
    "tpot": "tpot", "time per output token": "tpot", "per token": "tpot", "per output token": "tpot",
    "time per token": "tpot", "token latency": "tpot", "request time per output token": "tpot",
    "itl": "itl", "tbt": "itl", "inter token latency": "itl", "inter token": "itl", "time between tokens": "itl",
    "token gap": "itl", "intertoken latency": "itl",
    "e2el": "e2el", "e2e": "e2el", "e2e latency": "e2el", "end to end latency": "e2el", "end to end": "e2el",
    "request latency": "e2el", "e2e request latency": "e2el", "latency": "e2el",
    "queue": "queue", "queue time": "queue", "queuing": "queue", "queueing": "queue", "request queue time": "queue",
    "queuing time": "queue", "queueing time": "queue", "waiting time": "queue",
}  # fmt: skip
_RATES = {
    "output_throughput": (
        "output throughput", "output token throughput", "output tok", "out tok", "output", "tok", "tokens", "token",
        "throughput", "generated tokens", "output tokens", "tg", "decode", "token throughput", "output token",
    ),
    "generation_tokens_per_s": (
        "gen", "generation", "gen throughput", "generation throughput", "avg generation throughput",
        "avg generation throughput toks", "gen tok", "generation tok", "generation tokens",
    ),
    "prompt_tokens_per_s": (
        "prompt", "prefill", "prompt throughput", "avg prompt throughput", "prefill tok", "prompt tok", "prompt tokens",
        "input throughput", "input token throughput", "pp", "prefill throughput", "avg prompt throughput toks",
        "input tok", "input",
    ),
    "total_token_throughput": ("total throughput", "total token throughput", "total tok", "total tokens", "total"),
    "request_throughput": (
        "request throughput", "req", "reqs", "requests", "request", "throughput req", "capacity req", "completed req",
        "capacity",
    ),
}  # fmt: skip
"""Names of rates, without their unit."""
_GAUGES = {
    "num_running": (
        "running", "num running", "running reqs", "running requests", "num requests running", "num running reqs",
        "num running requests", "running req",
    ),
    "num_waiting": (
        "waiting", "pending", "queued", "queue depth", "queue length", "num waiting", "num requests waiting",
        "waiting requests", "pending requests", "num queue reqs", "waiting depth", "queue req", "waiting reqs",
    ),
    "num_swapped": ("swapped", "num requests swapped"),
    "num_deferred": ("deferred",),
    "num_preemptions": (
        "preemptions", "preempt", "preempted", "num preemptions", "num preemptions total", "preemption count",
    ),
}  # fmt: skip
_SHARES = {
    "kv_usage": (
        "kv", "kv usage", "kv cache", "kv cache usage", "gpu cache usage", "gpu kv cache usage", "cache usage",
        "token usage", "kv util", "kv utilization", "kv utilisation",
    ),
    "prefix_hit_rate": (
        "prefix hit", "prefix hit rate", "prefix cache hit rate", "prefix cache hit", "hit rate", "cache hit rate",
        "prefix hits", "gpu prefix cache hit rate",
    ),
    "mm_hit_rate": ("mm hit", "mm hit rate", "mm cache hit rate"),
    "external_hit_rate": ("external hit", "external prefix cache hit rate"),
}  # fmt: skip
_LOADS = {
    "concurrency": (
        "concurrency", "max concurrency", "concurrent", "users", "clients", "streams", "num users", "concurrent users",
        "concurrent requests", "maximum request concurrency", "num concurrent", "parallelism",
    ),
    "requests_per_s": (
        "rate", "request rate", "arrival rate", "offered rate", "traffic request rate", "request rate configured",
        "offered load",
    ),
    "num_requests": (
        "num prompts", "prompts", "num requests", "completed", "successful requests", "number of prompts",
        "number of requests",
    ),
    "mean_prompt_tokens": (
        "isl", "input len", "prompt len", "prompt length", "input length", "input sequence length", "mean input len",
        "random input len", "prompt size", "mean prompt tokens",
    ),
    "mean_output_tokens": (
        "osl", "output len", "output length", "output sequence length", "random output len", "mean output tokens",
    ),
    "total_input_tokens": ("total input tokens",),
    "total_output_tokens": ("total output tokens", "total generated tokens"),
    "duration": ("benchmark duration", "duration"),
}  # fmt: skip
_FACTS = {
    "max_model_len": ("max model len", "context len", "context length", "max model length", "max seq len"),
    "kv_cache_tokens": (
        "kv tokens", "kv cache tokens", "max total num tokens", "gpu kv cache size", "kv cache size tokens",
    ),
    "num_gpu_blocks": ("gpu blocks", "num gpu blocks"),
    "block_size": ("block size", "block tokens"),
    "max_num_seqs": ("max num seqs", "max running requests"),
    "max_num_batched_tokens": ("max num batched tokens",),
    "gpu_memory_utilization": ("gpu memory utilization", "gpu memory utilisation"),
}  # fmt: skip
_TOTALS = {
    "prompt_tokens": ("prompt tokens total",),
    "generation_tokens": ("generation tokens total",),
    "prefix_cache_queries": ("prefix cache queries", "prefix cache queries total"),
    "prefix_cache_hits": ("prefix cache hits", "prefix cache hits total"),
}
_SPEC = {
    "mean_acceptance_length": (
        "mean accept len", "mean acceptance length", "acceptance length", "accept len", "accept length",
        "mean accept length",
    ),
    "accepted_per_s": ("accepted", "accepted throughput"),
    "drafted_per_s": ("drafted", "drafted throughput"),
    "acceptance_rate": (
        "acceptance rate", "draft acceptance rate", "avg draft acceptance rate", "accept rate", "acceptance",
    ),
}  # fmt: skip

_TABLES: tuple[tuple[Kind, Mapping[str, tuple[str, ...]]], ...] = (
    ("spec", _SPEC), ("total", _TOTALS), ("fact", _FACTS), ("load", _LOADS), ("share", _SHARES), ("gauge", _GAUGES),
)  # fmt: skip
_NAMES: dict[str, tuple[Kind, str]] = {
    name: (kind, key) for kind, table in _TABLES for key, names in table.items() for name in names
}
_RATE_NAMES = {name: key for key, names in _RATES.items() for name in names}
_STATS = {
    "mean": "mean", "avg": "mean", "average": "mean", "median": "median", "med": "median", "max": "max",
    "maximum": "max", "min": "min", "minimum": "min", "std": "std",
}  # fmt: skip
_FILLERS = frozenset(
    (
        "about",
        "approx",
        "approximately",
        "order",
        "observed",
        "measured",
        "the",
        "roughly",
        "excl",
        "1st",
        "aggregate",
        "short",
    )
)
_PERCENT = frozenset(("pct", "percent", "percentage"))
"""vLLM's `perc` is none: it is a share."""
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)|(\d{1,2}(?:\.\d+)?)(?:th|st|nd|rd)(?:percentile)?|p(\d{3})")
_COUNTED = frozenset(("tok", "toks", "token", "tokens", "req", "reqs", "requests", "request"))
_WORD = re.compile(r"[a-z]*\d+(?:\.\d+)?[a-z]*|[a-zµ]+|%")
_CONCURRENCY = re.compile(r"(?:c|conc|concurrency|users|n)(\d{1,6})")
_BARE_RATES = frozenset(("throughput", "output throughput", "output token throughput", "total token throughput",
                         "request throughput", "token throughput", "gen", "generation", "prompt throughput",
                         "generation throughput", "gen throughput", "total throughput", "avg prompt throughput",
                         "avg generation throughput", "tg", "input throughput", "input token throughput"))  # fmt: skip
"""Names that are rates without a unit."""


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """The words of a name, in small letters: `avgTTFT (ms)` → avg, ttft, ms."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z]{2})", " ", name[:200])
    return tuple(_WORD.findall(spaced.lower()))


@lru_cache(maxsize=4096)
def figure_of(name: str) -> Figure | None:
    """What a name means; None if it is not known."""
    words = list(words_of(re.sub(r"^(?:vllm|sglang)[:_]", "", name)))
    concurrency = next((int(match[1]) for word in words if (match := _CONCURRENCY.fullmatch(word))), None)
    if concurrency is not None and len(words) > 1:
        words = [word for word in words if not _CONCURRENCY.fullmatch(word)]
    else:
        concurrency = None
    exact = _NAMES.get(" ".join(words))
    if exact is not None:
        return Figure(*exact, concurrency=concurrency)
    is_percent = any(word in _PERCENT or word == "%" for word in words)
    words = [word for word in words if word not in (*_FILLERS, *_PERCENT, "perc", "%")]
    rate = _rate(words)
    if rate is not None:
        kind, key = rate
        return Figure(kind, key, concurrency=concurrency)
    stat, words = _stat(words)
    unit, words = _unit(words)
    text = " ".join(words)
    if text in _TIMES or (not text and stat is not None and unit is not None):
        return Figure("latency", f"{stat or 'mean'}_{_TIMES.get(text, 'e2el')}_ms", unit, concurrency)
    if text in _NAMES and (unit is None or _NAMES[text][1] == "duration"):
        kind, key = _NAMES[text]
        return Figure(kind, key, unit, concurrency, is_percent)
    return None


def _rate(words: list[str]) -> tuple[Kind, str] | None:
    """Rates by their unit, or by a name that is always one."""
    words = [word for word in words if _STATS.get(word) not in ("mean", "median")]
    rest = None
    if words[-1:] in (["tps"], ["toks"]):
        rest = words[:-1] or ["tok"]
    elif words[-1:] in (["rps"], ["qps"]):
        rest = [*words[:-1], "req"]
    elif len(words) > 1 and words[-1] in ("s", "sec", "second"):
        rest = words[:-1]
        if rest[-1] == "per":
            rest = rest[:-1]
        elif rest[-1] not in _COUNTED:
            return None
    text = " ".join(rest if rest is not None else words)
    if rest is None:
        return ("rate", _RATE_NAMES[text]) if text in _BARE_RATES else None
    if text not in _RATE_NAMES and text.split(" ")[-1] in _COUNTED:
        text = text.rsplit(" ", 1)[0]
    if text in _RATE_NAMES:
        return "rate", _RATE_NAMES[text]
    if text in _NAMES and _NAMES[text][0] == "spec":
        return _NAMES[text]
    return ("load", "requests_per_s") if text in ("request rate", "offered", "offered req", "arrival") else None


def _stat(words: list[str]) -> tuple[str | None, list[str]]:
    """The statistic that a name gives, and the other words."""
    for index, word in enumerate(words):
        rest = words[:index] + words[index + 1 :]
        if word in _STATS:
            return _STATS[word], rest
        match = _PERCENTILE.fullmatch(word)
        if match is not None:
            number = match[1] or match[2] or f"{match[3][:2]}.{match[3][2:]}"
            rest = [other for other in rest if other != "percentile"]
            return ("median" if float(number) == 50 and word.startswith("med") else f"p{float(number):g}"), rest
    return None, words


def _unit(words: list[str]) -> tuple[str | None, list[str]]:
    for index, word in enumerate(words):
        if word in UNITS_MS and word != "h":
            return word, words[:index] + words[index + 1 :]
    return None, words


def percentile_label(label: str) -> str | None:
    """`p99` for labels such as p99, 99th, P99.9, mean or median."""
    stat, rest = _stat(list(words_of(label)))
    return stat if stat is not None and not rest else None


def known_share(key: str) -> bool:
    """Whether a sample's field is a share."""
    return key in _SHARES


SAMPLE_RATES: Mapping[str, str] = {"output_throughput": "generation_tokens_per_s"}
"""A rate beside gauges of the engine is the engine's."""
RUN_RATES: Mapping[str, str] = {"generation_tokens_per_s": "output_throughput"}
"""A rate without them is what the run achieved."""
