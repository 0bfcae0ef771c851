"""What one line of an engine's log says: vLLM's V0 and V1 forms, and SGLang's.

Sources of the forms: `vllm/engine/metrics.py` and `vllm/core/scheduler.py` of V0, `vllm/v1/metrics/loggers.py` and
`vllm/v1/spec_decode/metrics.py` of V1, `sglang/srt/managers/scheduler.py` and its metrics mixin.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

MAX_TEXT = 500
"""Characters of a line that an event quotes."""


@dataclass(frozen=True, slots=True)
class Stats:
    """A periodic line: figures by their field's name in `EngineSample`.

    `num_preempted` is the number since the line before; None where the line does not tell. SGLang counts tokens by
    batch: `new_tokens` were computed and `cached_tokens` found in the cache by the batch of this line.
    """

    engine: str
    figures: Mapping[str, float]
    generation: str | None = None
    num_preempted: float | None = None
    new_tokens: float | None = None
    cached_tokens: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a line reports; `kind` as in `EngineEvent`."""

    kind: str
    fields: Mapping[str, float | str] = field(default_factory=dict)


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VLLM_ENGINE = re.compile(r"\bEngine (\d{1,6}): Avg ")
_AGGREGATED = re.compile(r"\d Engines Aggregated: ")
_FIELDS = {
    "Avg prompt throughput": ("prompt_tokens_per_s", 1.0),
    "Avg generation throughput": ("generation_tokens_per_s", 1.0),
    "Running": ("num_running", 1.0),
    "Waiting": ("num_waiting", 1.0),
    "Pending": ("num_waiting", 1.0),
    "Swapped": ("num_swapped", 1.0),
    "Deferred": ("num_deferred", 1.0),
    "GPU KV cache usage": ("kv_usage", 100.0),
    "KV cache usage": ("kv_usage", 100.0),
    "Prefix cache hit rate": ("prefix_hit_rate", 100.0),
    "External prefix cache hit rate": ("external_hit_rate", 100.0),
    "MM cache hit rate": ("mm_hit_rate", 100.0),
}
"""vLLM's words, the field of a sample, and what to divide by."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def plain(text: str) -> str:
    """A line without colours and without its end."""
    return _ANSI.sub("", text).rstrip("\r\n") if "\x1b" in text else text.rstrip("\r\n")


def number(text: str) -> float | None:
    """The number at the start of a text, such as `99.7%.`; None if there is none, or it is not finite."""
    match = _NUMBER.match(text.strip())
    if match is None:
        return None
    value = float(match[0])
    return value if math.isfinite(value) else None


def read_stats(text: str) -> Stats | None:
    """The figures of a periodic line; None if it is none. Figures below zero are left out."""
    if (start := text.find("Avg prompt throughput: ")) >= 0:
        return _vllm_stats(text, start)
    if "#running-req" in text and ("Decode batch" in text or "Prefill batch" in text):
        return _sglang_stats(text)
    return None


def _vllm_stats(text: str, start: int) -> Stats | None:
    figures: dict[str, float] = {}
    preempted = None
    words = set()
    for part in text[start:].split(", "):
        word, _, rest = part.partition(": ")
        value = number(rest)
        if value is None or value < 0.0:
            continue
        words.add(word)
        if word in _FIELDS:
            name, divisor = _FIELDS[word]
            figures[name] = round(value / divisor, 6)
        elif word == "Preemptions":
            preempted = value
    if not figures:
        return None
    generation = "V0" if "Pending" in words or "Swapped" in words else ("V1" if "Waiting" in words else None)
    match = _VLLM_ENGINE.search(text)
    engine = str(int(match[1])) if match else ("all" if _AGGREGATED.search(text) else "0")
    return Stats(engine, figures, generation, preempted)


_V0_HITS = re.compile(r"Prefix cache hit rate: GPU: ([\d.]+)%")


def read_v0_hits(text: str) -> float | None:
    """The hit rate that V0 prints on a line of its own."""
    match = _V0_HITS.search(text)
    value = None if match is None else number(match[1])
    return None if value is None else value / 100


_SGLANG_FIELDS = {
    "#running-req": "num_running",
    "#queue-req": "num_waiting",
    "token usage": "kv_usage",
    "full token usage": "kv_usage",
    "gen throughput (token/s)": "generation_tokens_per_s",
    "input throughput (token/s)": "prompt_tokens_per_s",
}
_RANKS = re.compile(r"\b([DTP]P)(\d+)\b")


def _sglang_stats(text: str) -> Stats | None:
    start = max(text.find("Decode batch"), text.find("Prefill batch"))
    ranks = dict(_RANKS.findall(text[:start]))
    if int(ranks.get("TP", 0)) or int(ranks.get("PP", 0)):
        return None
    figures: dict[str, float] = {}
    batch: dict[str, float] = {}
    for part in re.split(r"[,.] ", text[start:]):
        word, _, rest = part.partition(": ")
        value = number(rest)
        if value is None or value < 0.0:
            continue
        if word in _SGLANG_FIELDS:
            figures[_SGLANG_FIELDS[word]] = value
        else:
            batch[word] = value
    if "num_running" not in figures:
        return None
    new = batch.get("#new-token") if text.startswith("Prefill", start) else None
    return Stats(str(int(ranks.get("DP", 0))), figures, new_tokens=new, cached_tokens=batch.get("#cached-token", 0.0))


_PREEMPT_V0 = re.compile(
    r"Sequence group (\S+) is preempted by (?:PreemptionMode\.)?(\w+) mode.*?(?:cumulative_preemptions?=(\d+)|$)"
)
_PREEMPT_OTHER = re.compile(r"(?i)\b(?:request|seq(?:uence)?)\s+(\S+)\s+(?:is|was|has been|got)\s+preempted")
_PREEMPTING = re.compile(r"(?i)\bpreempting (?:request|sequence group|seq) (\S+)")
_RETRACT = re.compile(r"#retracted_reqs?: (\d+)")
_JIT = re.compile(r"JIT compilation during inference(?:: (\S+?))?[.,]?(?:\s|$)")
_LEVEL = re.compile(r"\b(ERROR|CRITICAL|FATAL)\b")
_OOM = re.compile(r"(?i)CUDA out of memory|OutOfMemoryError|HIP out of memory|\bOOMKilled\b|Killed process \d+")
_DEAD = re.compile(r"EngineDeadError|AsyncEngineDeadError|Engine core proc \S+ died|Scheduler hit an exception")
_LORA = re.compile(r"(?i)\b(?:loaded|added|activated|evict\w*|unload\w*)\b[^:]{0,40}\blora\b[^:]{0,20}(?:: ?(\S+))?")
START_UP = re.compile(
    r"Initializing an? (?:V0 |V1 )?LLM engine|(?:API server|vLLM) version v?\d|\] version v?\d+\.\d+|"
    r"Started server process \[|server_args=ServerArgs\("
)
"""Lines that a server prints as it starts."""


def read_event(text: str) -> Event | None:
    """What a line reports, if it is more than a periodic line."""
    if "reempt" in text or "etract" in text:
        return _preemption(text)
    if "SpecDecoding metrics:" in text or "Speculative metrics:" in text:
        return _speculation(text)
    if match := _JIT.search(text):
        return Event("jit", {"kernel": match[1]} if match[1] else {})
    if _OOM.search(text):
        return Event("error", {"cause": "out_of_memory"})
    if _DEAD.search(text):
        return Event("error", {"cause": "engine_dead"})
    if _LEVEL.search(text[:200]):
        return Event("error")
    if "LoRA" in text and (match := _LORA.search(text)):
        return Event("lora", {"adapter": match[1]} if match[1] else {})
    return None


def _preemption(text: str) -> Event | None:
    fields: dict[str, float | str] = {}
    if match := _PREEMPT_V0.search(text):
        fields |= {"group": match[1], "mode": match[2]}
        if match[3]:
            fields["cumulative_preemptions"] = float(match[3][:18])
    elif match := _PREEMPT_OTHER.search(text) or _PREEMPTING.search(text):
        fields["request"] = match[1].rstrip(".,;:")
    elif match := _RETRACT.search(text):
        fields |= {"mode": "retract", "count": float(match[1][:18])}
    else:
        return None
    return Event("preemption", fields)


_SPEC_FIELDS = {
    "mean acceptance length": "mean_acceptance_length",
    "accepted throughput": "accepted_per_s",
    "drafted throughput": "drafted_per_s",
    "accepted": "num_accepted",
    "number of accepted tokens": "num_accepted",
    "drafted": "num_drafted",
    "number of draft tokens": "num_drafted",
    "number of emitted tokens": "num_emitted",
    "number of speculative tokens": "num_speculative_tokens",
    "system efficiency": "system_efficiency",
}
_POSITION = re.compile(r"Per-position acceptance rate: \[?((?:[\d.]+%?(?:, )?)+)")


def _speculation(text: str) -> Event:
    """V0 gives the acceptance rate as a share, V1 in percent."""
    fields: dict[str, float | str] = {}
    tail = text[text.index("metrics:") + len("metrics:") :]
    if match := _POSITION.search(tail):
        fields["acceptance_by_position"] = match[1].rstrip(", ")
    for part in tail.split(", "):
        word, _, rest = part.strip().partition(": ")
        value = number(rest)
        if value is None or value < 0.0:
            continue
        word = word.lower()
        if word in _SPEC_FIELDS:
            fields[_SPEC_FIELDS[word]] = value
        elif word in ("draft acceptance rate", "avg draft acceptance rate"):
            fields["acceptance_rate"] = value / 100 if "%" in rest else value
    return Event("spec_decode", fields)
