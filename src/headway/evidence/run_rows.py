"""One run of a benchmark from a row of names and values, whatever they are called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.evidence.figure_names import RUN_RATES, figure_of, words_of
from headway.evidence.load import LoadResult
from headway.evidence.quantities import UNITS_MS, Quantity, quantity

_SETTINGS = frozenset((
    "engine", "engine_version", "gpu", "hardware", "quant", "quantization", "dtype", "tp", "pp", "dp", "ep",
    "budget", "watermark", "chunk", "chunk_size", "chunked_prefill", "prefix_caching", "spec_decode",
    "speculative_config", "seats", "model", "block_size", "policy", "eager", "attention_backend",
    "async_scheduling", "long_prefill_token_threshold", "scheduling_policy", "gpu_memory_utilization",
    "tensor_parallel_size", "pipeline_parallel_size", "swap_space", "data_parallel_size", "optimization_level",
    "performance_mode", "cudagraph_mode", "compilation_config",
))  # fmt: skip
_SETTING_STARTS = ("max_", "enable_", "disable_", "enforce_", "kv_cache_", "gpu_memory_", "num_scheduler", "no_enable",
                   "num_speculative", "num_gpu_blocks", "cpu_offload")  # fmt: skip
_NOT_SETTINGS = frozenset(("max_concurrency", "max_concurrent_requests", "max_output_tokens_per_s"))
_SURELY_SECONDS = 10.0
_SURELY_MS = 1000.0
_TOKEN_SECONDS = 1.0


_OTHER_NAMES = {
    "speculative": "speculative_config", "speculation": "speculative_config", "spec": "speculative_config",
    "spec_decode": "speculative_config", "speculative_decoding": "speculative_config", "mtp": "speculative_config",
    "spec_decoding": "speculative_config", "eager": "enforce_eager", "eager_mode": "enforce_eager",
    "tp": "tensor_parallel_size", "tp_size": "tensor_parallel_size", "tensor_parallel": "tensor_parallel_size",
    "pp": "pipeline_parallel_size", "dp": "data_parallel_size", "chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching", "prefix_cache": "enable_prefix_caching", "seats": "max_num_seqs",
    "budget": "max_num_batched_tokens", "token_budget": "max_num_batched_tokens",
}  # fmt: skip
"""What people call vLLM's settings."""


def setting_name(name: str) -> str:
    """vLLM's name of a setting, with underscores."""
    plain = name.strip().lower().replace("-", "_").replace(" ", "_").lstrip("_")
    return _OTHER_NAMES.get(plain, plain)


def is_setting(name: str) -> bool:
    """Whether a name is one of a setting rather than of a figure."""
    plain = setting_name(name)
    return plain not in _NOT_SETTINGS and (plain in _SETTINGS or plain.startswith(_SETTING_STARTS))


_GAP_KEYS = ("itl_ms", "tpot_ms")
_LOAD_FIELDS = ("concurrency", "requests_per_s", "mean_prompt_tokens", "mean_output_tokens", "num_requests")


@dataclass(slots=True)
class Run:
    """A run while it is read. `unitless` are latencies whose unit nothing tells yet."""

    concurrency: float | None = None
    requests_per_s: float | None = None
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    num_requests: float | None = None
    totals: dict[str, float] = field(default_factory=dict)
    lengths: tuple[tuple[int, int], ...] = ()
    measured: dict[str, float] = field(default_factory=dict)
    unitless: dict[str, float] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)

    def put_latency(self, key: str, value: Quantity, unit: str | None) -> None:
        """Keep a latency in milliseconds, or until its unit is clear."""
        factor = UNITS_MS.get(value.unit or "", UNITS_MS.get(unit or ""))
        if factor is not None:
            self.measured.setdefault(key, value.value * factor)
        else:
            self.unitless.setdefault(key, value.value)

    def put_load(self, key: str, value: float) -> None:
        """Keep a figure of the load; rates of `inf` are no rate."""
        if key in ("total_input_tokens", "total_output_tokens", "duration"):
            self.totals[key] = value
        elif value > 0.0 or key == "mean_output_tokens":
            setattr(self, key, value)

    def merged(self, base: Run) -> Run:
        """This run, with the base's load where it has none of its own, and its settings besides."""
        made = Run(**{name: getattr(self, name) for name in self.__slots__})
        for name in _LOAD_FIELDS:
            if getattr(made, name) is None:
                setattr(made, name, getattr(base, name))
        made.settings = {**base.settings, **self.settings}
        return made

    def load_only(self) -> Run:
        """Its load and settings, without what was measured."""
        made = Run().merged(self)
        made.totals = dict(self.totals)
        return made

    def has_same_load(self, other: Run) -> bool:
        """Whether both are of the same load."""
        return all(getattr(self, name) == getattr(other, name) for name in _LOAD_FIELDS)

    def result(self, source: str) -> LoadResult:
        """The run as a value; latencies whose unit is not settled are left out."""
        measured = dict(self.measured)
        count = self.num_requests
        prompt, output = self.mean_prompt_tokens, self.mean_output_tokens
        if count:
            prompt = prompt if prompt is not None else _mean(self.totals.get("total_input_tokens"), count)
            output = output if output is not None else _mean(self.totals.get("total_output_tokens"), count)
        if count and (seconds := self.totals.get("duration")):
            measured.setdefault("request_throughput", count / seconds)
        if self.lengths:
            prompt = prompt if prompt is not None else sum(item[0] for item in self.lengths) / len(self.lengths)
            output = output if output is not None else sum(item[1] for item in self.lengths) / len(self.lengths)
        return LoadResult(
            source=source,
            concurrency=None if self.concurrency is None else max(1, round(self.concurrency)),
            requests_per_s=self.requests_per_s,
            mean_prompt_tokens=prompt,
            mean_output_tokens=output,
            num_requests=None if count is None else round(count),
            lengths=self.lengths,
            measured=measured,
            settings=self.settings,
        )

    @property
    def is_told(self) -> bool:
        """Whether anything was measured."""
        return bool(self.measured or self.unitless)

    @property
    def has_load(self) -> bool:
        """Whether anything is known of the load."""
        return any(getattr(self, name) is not None for name in _LOAD_FIELDS)


def settle_units(runs: Sequence[Run], source: str) -> list[str]:
    """Give latencies without a unit the one that all of a table seem to have; returns a note that says so.

    Gaps between tokens below 1 are seconds. Other latencies are seconds if the least is below 10 and none reaches
    1,000, else milliseconds.
    """
    cells = [(run, key, value) for run in runs for key, value in run.unitless.items()]
    gaps = [value for _, key, value in cells if key.endswith(_GAP_KEYS)]
    others = [value for _, key, value in cells if not key.endswith(_GAP_KEYS)]
    gap_factor = 1e3 if gaps and max(gaps) < _TOKEN_SECONDS else 1.0
    factor = 1e3 if others and min(others) < _SURELY_SECONDS and max(others) < _SURELY_MS else 1.0
    told: dict[str, str] = {}
    for run, key, value in cells:
        used = gap_factor if key.endswith(_GAP_KEYS) else factor
        run.measured.setdefault(key, value * used)
        told.setdefault(key.removesuffix("_ms"), f"{value:g} {'s' if used > 1.0 else 'ms'}")
        run.unitless.pop(key, None)
    if not told:
        return []
    words = ", ".join(f"{name} is read as {value}" for name, value in list(told.items())[:6])
    return [f"{source}: no unit is given: {words}."]


def _mean(total: float | None, count: float) -> float | None:
    return None if total is None else total / count


def run_of_row(row: Mapping[Any, Any]) -> tuple[Run, dict[str, Any]]:
    """A run from one row of a table or one JSON object, and what of it has no place in a run.

    A first column that is no figure is what the table varies, and becomes a setting.
    """
    run = Run()
    rest: dict[str, Any] = {}
    for index, (name, value) in enumerate(row.items()):
        key = str(name).strip()
        if value is None or value == "":
            continue
        figure = figure_of(key)
        amount = quantity(value)
        if is_setting(key) and not isinstance(value, Mapping | list):
            run.settings[setting_name(key)] = scalar(value)
        elif figure is not None and amount is not None and put_figure(run, key, value):
            continue
        elif index == 0 and figure is None and isinstance(value, str | int | float) and not _names_rows(key):
            run.settings[key] = scalar(value)
        elif str(value).strip().lower() in ("inf", "infinity", "nan", "none", "null", "n/a", "-"):
            continue
        else:
            rest[key] = value
    return run, rest


def _names_rows(name: str) -> bool:
    return bool({"id", "index", "run", "no", "number", "date", "name", "time"} & set(words_of(name)))


def put_figure(run: Run, name: str, value: Any) -> bool:
    """Put a latency, a rate or a figure of the load into a run; False if it is none of those."""
    figure, amount = figure_of(name), quantity(value)
    if figure is None or amount is None:
        return False
    if figure.kind == "latency" and amount.value >= 0.0:
        run.put_latency(figure.key, amount, figure.unit)
    elif figure.kind == "rate":
        run.measured.setdefault(RUN_RATES.get(figure.key, figure.key), amount.value)
    elif figure.kind == "load":
        run.put_load(figure.key, amount.value)
    elif figure.kind == "gauge" and figure.key == "num_preemptions":
        run.measured.setdefault("num_preemptions", amount.value)
    else:
        return False
    return True


def scalar(value: Any) -> object:
    """A setting's value: numbers and truth values out of their texts."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    lowered = text.lower()
    if lowered in ("true", "false", "none", "null"):
        return {"true": True, "false": False}.get(lowered)
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return text
    return int(number) if number == int(number) and "." not in text else number


def lengths_of(prompts: Iterable[Any], outputs: Iterable[Any]) -> tuple[tuple[int, int], ...]:
    """(prompt, output) tokens by request, of those that have both.

    Raises:
        ValueError, TypeError: not whole numbers, or not as many of each.
    """
    return tuple((int(p), int(o)) for p, o in zip(prompts, outputs, strict=True) if p and o)
