"""What steps cost by physics, for coarse comparisons: floors, gains from larger batches, prefill rates."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from headway.catalog.accelerators import Accelerator
from headway.catalog.dtypes import dtype_bytes
from headway.doctor.evidence import Evidence
from headway.doctor.figures import Figures
from headway.doctor.in_effect import InEffect
from headway.errors import ConfigError
from headway.executors.simulated.oracle import Chunk, StepShape, decode_shape
from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup


@dataclass(frozen=True, slots=True)
class Physics:
    """Step times of a deployment from its model's shape and its card. Good to tens of percent: compare by factors."""

    oracle: RooflineOracle

    def decode_step_s(self, num_running: int, context_tokens: float) -> float:
        """A step in which so many requests decode, each with this much context."""
        time = self.oracle.step_time(decode_shape(num_running, round(num_running * context_tokens)))
        return time.device_s + time.host_s

    def mixed_step_s(self, num_prefill_tokens: int, num_running: int = 0, context_tokens: float = 0.0) -> float:
        """A step with a chunk of a prompt beside so many decodes."""
        chunks = (Chunk(num_prefill_tokens, 0),) if num_prefill_tokens else ()
        context = round(num_running * context_tokens)
        time = self.oracle.step_time(StepShape(chunks, num_running, num_running, context, num_running))
        return time.device_s + time.host_s

    def prefill_tokens_per_s(self, budget: int) -> float:
        """Prompt tokens a second with nothing but full chunks."""
        return budget / self.mixed_step_s(budget)

    def floor_s(self, num_running: int, context_tokens: float) -> float:
        """Time that a decode step takes at the full memory bandwidth."""
        return self.oracle.floor_s(num_running, round(num_running * context_tokens))

    def is_memory_bound(self, num_running: int, context_tokens: float) -> bool:
        """Whether reading weights and KV outlasts the arithmetic of a decode step."""
        limits = self.oracle.row_limits(num_running, num_running, num_running)
        kv_s = self.oracle.kv_limit_s(num_running, round(num_running * context_tokens))
        memory_s = limits.linear_memory_s + limits.head_memory_s + limits.state_s + kv_s
        return memory_s >= limits.linear_compute_s + limits.head_compute_s

    def waiting_share(self, num_running: int, context_tokens: float) -> float:
        """Share of a decode step in which the device waits for the host: launches and scheduling."""
        parts = self.oracle.explain(decode_shape(num_running, round(num_running * context_tokens)))
        total = sum(part.seconds for part in parts)
        return sum(part.seconds for part in parts if part.name in ("launches", "host", "layers")) / total

    def decode_parts(self, num_running: int, context_tokens: float) -> dict[str, float]:
        """Seconds of a decode step by part: `linear`, `all_reduce`, `host`, …"""
        return self._parts(decode_shape(num_running, round(num_running * context_tokens)))

    def prefill_parts(self, budget: int) -> dict[str, float]:
        """Seconds of a step with a full chunk and nothing else."""
        return self._parts(StepShape((Chunk(budget, 0),), 0, 0, 0, 0))

    def _parts(self, shape: StepShape) -> dict[str, float]:
        return {part.name: part.seconds for part in self.oracle.explain(shape)}

    def output_tokens_per_s(self, num_running: int, prompt_tokens: float, output_tokens: float, budget: int) -> float:
        """Generated tokens a second in the steady state of so many running requests, prompts included.

        Each running request brings prompt / output prompt tokens a step, which take their time beside the decodes.
        """
        context = prompt_tokens + output_tokens / 2
        decode_s = self.decode_step_s(num_running, context)
        chunk = max(1, budget - num_running)
        chunk_s = self.mixed_step_s(chunk, num_running, context)
        prefill_s = (chunk_s - decode_s) / chunk * num_running * prompt_tokens / max(1.0, output_tokens)
        return num_running / (decode_s + max(0.0, prefill_s))


def physics_of(evidence: Evidence, figures: Figures) -> Physics | None:
    """The physics of a deployment; None where model or card is not in the catalogue, or lacks what it takes."""
    settings = figures.settings
    if settings.model is None or settings.accelerator is None:
        return None
    graph_sizes = evidence.plan.resolved.defaults.cuda_graph_sizes if evidence.plan is not None else ()
    setup = RooflineSetup(
        settings.model,
        settings.accelerator,
        tensor_parallel_size=settings.tensor_parallel_size,
        pipeline_parallel_size=settings.pipeline_parallel_size,
        quantization=_quantization(evidence),
        kv_cache_dtype=settings.kv_cache_dtype or "auto",
        engine_version=".".join(map(str, settings.version)) if settings.version else "",
        graph_sizes=graph_sizes,
        enforce_eager=bool(settings.enforce_eager),
    )
    try:
        physics = Physics(RooflineOracle(setup))
        physics.decode_step_s(1, 1)
    except (ConfigError, ArithmeticError):
        return None
    return physics


def split_over(physics: Physics, tensor_parallel_size: int) -> Physics | None:
    """The physics of the same deployment with its layers split over another number of GPUs; None where it cannot be."""
    try:
        return Physics(RooflineOracle(replace(physics.oracle.setup, tensor_parallel_size=tensor_parallel_size)))
    except (ConfigError, ArithmeticError, ValueError):
        return None


def _quantization(evidence: Evidence) -> str | None:
    if evidence.plan is not None:
        return evidence.plan.deployment.quantization
    value = evidence.effective.value("quantization") if evidence.effective is not None else None
    return value if isinstance(value, str) else None


_BILLIONS = re.compile(r"(?<![\w.])(?:(\d+)x)?(\d+(?:\.\d+)?)[bB](?![a-zA-Z\d])")
_ACTIVE = re.compile(r"(?<![\w.])[aA](\d+(?:\.\d+)?)[bB](?![a-zA-Z\d])")
_FORMATS = (
    (re.compile(r"nvfp4|mxfp4", re.IGNORECASE), "nvfp4"),
    (re.compile(r"awq|gptq|int4|w4a16|4[-_]?bit|q4", re.IGNORECASE), "int4"),
    (re.compile(r"fp8|int8|w8a8|8[-_]?bit|q8", re.IGNORECASE), "fp8"),
)
_SCALE_SHARE = 1.1
"""Scales, and the layers that 4-bit formats leave alone (embedding, head)."""


@dataclass(frozen=True, slots=True)
class NamedWeights:
    """What a model's name tells: bytes of its weights that a decode step of one request reads."""

    num_bytes: float
    words: str


def weights_by_name(name: str | None) -> NamedWeights | None:
    """Weight bytes read for one token, from a name such as `org/Model-27B-NVFP4` or `Model-30B-A3B`; else None."""
    if not name:
        return None
    active, total = _ACTIVE.search(name), _BILLIONS.search(name)
    if active is None and (total is None or total.group(1)):
        return None
    billions = float(active.group(1)) if active is not None else float(total.group(2)) if total is not None else 0.0
    if not 0 < billions < 10_000:
        return None
    kind = next((kind for pattern, kind in _FORMATS if pattern.search(name)), "bf16")
    each = {"nvfp4": 0.5, "int4": 0.5, "fp8": 1.0}.get(kind) or dtype_bytes("bfloat16")
    scale = _SCALE_SHARE if kind in ("nvfp4", "int4") else 1.0
    return NamedWeights(billions * 1e9 * each * scale, f"{billions:g}B parameters in {kind}")


def bandwidth_floor_s(settings: InEffect) -> tuple[float, str] | None:
    """Least time of one token of one request, by the model's name and the card's bandwidth, with its arithmetic."""
    weights, card = weights_by_name(settings.model_name), settings.accelerator
    if weights is None or card is None or not card.bandwidth_gbps:
        return None
    bandwidth = card.bandwidth_gbps * settings.tensor_parallel_size
    floor_s = weights.num_bytes / (bandwidth * 1e9)
    words = f"{weights.num_bytes / 1e9:.0f} GB of weights ({weights.words}) / {bandwidth:,.0f} GB/s"
    return floor_s, words


def is_fast_card(card: Accelerator | None, least_gbps: float) -> bool:
    """Whether a card's bandwidth is of the H100's class."""
    return card is not None and (card.bandwidth_gbps or 0.0) >= least_gbps
