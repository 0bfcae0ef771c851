"""Prices from NVIDIA's aiconfigurator: kernel times measured on the card itself (the extra `headway[aic]`).

A step is everything but attention for its rows, attention of each chunk, and attention of the decodes at their mean
context: memory-bound, so the mean is right. Batches are padded to CUDA-graph sizes first, which the package itself does
not do. Its times hold no scheduler, launch or sampler: the roofline's fitted host time is added.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

from headway.errors import ConfigError
from headway.executors.simulated.oracle import DecodePricer, ErrorBar, Part, StepShape, StepTime
from headway.extras import need_extra

_SYSTEMS = {
    "H100-SXM5-80GB": "h100_sxm",
    "H200-SXM-141GB": "h200_sxm",
    "B200-SXM-180GB": "b200_sxm",
    "B300-SXM-288GB": "b300_sxm",
    "GB200-NVL72-192GB": "gb200",
    "GB300-NVL72-288GB": "gb300",
    "L40S-48GB": "l40s",
    "RTX-PRO-6000-Server-96GB": "rtx_pro_6000_server",
    "A100-SXM4-80GB": "a100_sxm",
}
_DATA_VERSION, _DATA_VERSIONS = "0.24.0", {"a100_sxm": "0.14.0"}
"""The vLLM release whose kernels were measured, by system: the newest in 0.12.0 of the package."""
_ATTENTION = ("context_attention", "generation_attention")
_CONTEXT_STEP = 64
"""Contexts between two asked ones are interpolated."""


@dataclass(frozen=True, slots=True)
class AicSetup:
    """What is priced. `model` is a Hugging Face id or a folder with config.json; `gpu` an id of the catalogue."""

    model: str
    gpu: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    graph_sizes: tuple[int, ...] = ()
    host_s: float = 0.0


class AicOracle:
    """See `LatencyOracle`.

    Raises:
        ConfigError: the extra is not installed, or the package has no data for the card or the model.
    """

    def __init__(self, setup: AicSetup) -> None:
        self._setup = setup
        self._engine = _compile(setup)
        context, generation = self._engine.run_static_per_op(1, 1, 16, 2, 0, 1.0, 1.0, "static", 32)
        self._chunk_ops = [index for index, op in enumerate(context) if op[0] == _ATTENTION[0]]
        self._row_ops = [index for index, op in enumerate(context) if op[0] != _ATTENTION[0]]
        self._decode_ops = [index for index, op in enumerate(generation) if op[0] == _ATTENTION[1]]
        self._rows = lru_cache(maxsize=16384)(self._price_rows)
        self._chunk = lru_cache(maxsize=65536)(self._price_chunk)
        self._decode = lru_cache(maxsize=65536)(self._price_decode)

    @property
    def provenance(self) -> str:
        """See `LatencyOracle`."""
        return "aiconfigurator: measured kernels"

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        if not shape.chunks and shape.num_decodes == shape.num_decode_tokens:
            device_s = self.decode_pricer(shape.num_decodes)(shape.num_context_tokens)
        else:
            device_s = self._rows(shape.num_tokens) + self._attention(shape)
        return StepTime(device_s, self._setup.host_s, self.provenance)

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """See `LatencyOracle`."""
        rows_s = self._rows(num_decodes)
        return lambda context: rows_s + self._decodes(num_decodes, context / num_decodes)

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """See `LatencyOracle`."""
        return self._setup.host_s

    def _attention(self, shape: StepShape) -> float:
        seconds = sum(self._chunk(chunk.num_tokens, chunk.num_past_tokens) for chunk in shape.chunks)
        if shape.num_decodes:
            seconds += self._decodes(shape.num_decodes, shape.num_context_tokens / shape.num_decodes)
        return seconds

    def _decodes(self, num_decodes: int, context: float) -> float:
        below = int(context) // _CONTEXT_STEP * _CONTEXT_STEP
        low, high = self._decode(num_decodes, max(1, below)), self._decode(num_decodes, below + _CONTEXT_STEP)
        return low + (high - low) * (context - below) / _CONTEXT_STEP

    def _price_rows(self, num_rows: int) -> float:
        sizes = self._setup.graph_sizes
        index = bisect_left(sizes, num_rows)
        rows = sizes[index] if index < len(sizes) else num_rows
        return _seconds(self._engine.evaluate_context_ops(self._row_ops, 1, rows))

    def _price_chunk(self, num_tokens: int, num_past: int) -> float:
        return _seconds(self._engine.evaluate_context_ops(self._chunk_ops, 1, num_tokens, num_past))

    def _price_decode(self, num_decodes: int, context: int) -> float:
        return _seconds(self._engine.evaluate_generation_ops(self._decode_ops, num_decodes, context))

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """See `LatencyOracle`."""
        seconds = {
            "linear": self._rows(shape.num_tokens),
            "attention": self._attention(shape),
            "host": self._setup.host_s,
        }
        return [Part(name, value, self.provenance) for name, value in seconds.items() if value]

    def error_bar(self) -> ErrorBar | None:
        """None: it was not judged here."""
        return None


def _compile(setup: AicSetup) -> Any:
    system = _SYSTEMS.get(setup.gpu)
    if system is None:
        raise ConfigError(
            f"aiconfigurator has no vLLM data for {setup.gpu}.", hint=f"It has: {', '.join(_SYSTEMS)}. Use roofline."
        )
    need_extra(
        "aic", "--latency aiconfigurator", instead="(Python 3.11 to 3.13, no Windows). --latency roofline does without."
    )
    sdk = import_module("aiconfigurator_core.sdk")
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    options: dict[str, Any] = {"gemm_quant_mode": "fp8"} if setup.quantization == "fp8" else {}
    try:
        handle = sdk.EngineHandle.compile(
            setup.model,
            system,
            "vllm",
            backend_version=_DATA_VERSIONS.get(system, _DATA_VERSION),
            tp_size=setup.tensor_parallel_size,
            pp_size=setup.pipeline_parallel_size,
            kvcache_quant_mode="fp8" if setup.kv_cache_dtype.startswith("fp8") else "bfloat16",
            **options,
        )
    except Exception as error:
        raise ConfigError(f"aiconfigurator cannot price {setup.model} on {setup.gpu}: {error}.") from None
    return handle._engine


def _seconds(parts: Sequence[Sequence[Any]]) -> float:
    return sum(float(part[1]) for part in parts) * 1e-3
