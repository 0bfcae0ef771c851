"""Prices from physics: bytes over bandwidth or operations over arithmetic, whichever takes longer, times efficiencies.

Works for any model and accelerator of the catalogue. Each step reads the weights once (of the experts, those that its
tokens are expected to reach), reads the KV of every decoding sequence, computes its rows, moves their activations, and
launches each layer's kernels. Bytes, operations and kernels are counted (`work.py`, `layers.py`); a dozen efficiencies
and overheads are fitted (`coefficients.py`, `bench/fit_roofline.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from headway.catalog.accelerators import Accelerator
from headway.catalog.architecture import ModelArchitecture
from headway.errors import ConfigError
from headway.executors.simulated.coefficients import RooflineCoefficients, fitted_coefficients
from headway.executors.simulated.oracle import Chunk, DecodePricer, ErrorBar, Part, StepShape, StepTime, decode_shape
from headway.executors.simulated.work import attention_work, linear_work, narrow_ratio, wide_flops

RIDGE = 3.0
"""Near the ridge a product waits for memory and arithmetic in turn: (m³ + c³)^(1/3), 26 % above either where they are
equal. Measured dense layers of Llama 3.1 8B on an RTX 4090 and Qwen3 32B on an RTX PRO 6000 (LLMServingSim's tables)
lie between exponents of 1.6 and 3."""
_JUDGED_ON = "median on measured servers left out of the fit (docs/accuracy.md)"
_UNKNOWN_LINK_GBPS = 32.0
"""PCIe 4.0 × 16, one direction: for cards of which no link is known."""


@dataclass(frozen=True, slots=True)
class RooflineSetup:
    """What is priced: one replica, of `tensor_parallel_size` × `pipeline_parallel_size` GPUs.

    Args:
        engine_version: decides the host time of a step; empty is a current one.
        graph_sizes: decode batches are padded to the next of these.
        enforce_eager: no CUDA graphs: the device waits for the host to launch each layer.
    """

    model: ModelArchitecture
    accelerator: Accelerator
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    engine_version: str = ""
    graph_sizes: tuple[int, ...] = ()
    enforce_eager: bool = False


class RowLimits(NamedTuple):
    """Seconds that a step's rows take at full bandwidth or full 16-bit arithmetic, before any efficiency."""

    dense_memory_s: float
    dense_compute_s: float
    expert_memory_s: float
    expert_compute_s: float
    pass_s: float
    """Norms, activations, sums: read and written between the products."""
    state_s: float
    head_memory_s: float
    head_compute_s: float
    network_s: float

    @property
    def linear_memory_s(self) -> float:
        """Reading the weights of all layers, with what their products read and write."""
        return self.dense_memory_s + self.expert_memory_s

    @property
    def linear_compute_s(self) -> float:
        """The operations of all layers' products."""
        return self.dense_compute_s + self.expert_compute_s


class RooflineOracle:
    """See `LatencyOracle`.

    Under pipeline parallelism a step's time is that of all stages, one after the other; that several steps are in
    flight is the engine's business.

    Raises:
        ConfigError: the accelerator's bandwidth or arithmetic is not known, or the size of the weights is not.
    """

    def __init__(self, setup: RooflineSetup, coefficients: RooflineCoefficients | None = None) -> None:
        self.setup = setup
        self.is_fitted = coefficients is None
        self.coefficients = fitted = coefficients or fitted_coefficients().coefficients
        card, model, tp = setup.accelerator, setup.model, setup.tensor_parallel_size
        if card.bandwidth_gbps is None:
            raise ConfigError(f"The memory bandwidth of {card.id} is not known.", hint="Use --latency constant:….")
        self._peak_bytes_per_s = card.bandwidth_gbps * 1e9
        self._work = linear_work(model, setup.quantization, tp)
        self._kinds = attention_work(model, setup.kv_cache_dtype, tp)
        self._wide_flops_per_s = wide_flops(card)
        self.narrow_ratio = narrow_ratio(card, model, setup.quantization)
        self.num_all_reduces = 0
        self._row_network_s = 0.0
        self._link(setup)
        self._plain_kv = len(self._kinds) == 1 and self._kinds[0].window is None
        self._kv_token_s = self.kv_limit_s(1, 1) / fitted.kv_memory
        self._rows = lru_cache(maxsize=16384)(self._price_rows)

    @property
    def num_plain_layers(self) -> float:
        """Layers, in those of a dense model by kernels launched."""
        return self._work.num_layers

    @property
    def provenance(self) -> str:
        """See `LatencyOracle`."""
        return "roofline"

    def _link(self, setup: RooflineSetup) -> None:
        """Two all-reduces a layer over the tensor-parallel group; a hand-over between pipeline stages."""
        tp, pp, card = setup.tensor_parallel_size, setup.pipeline_parallel_size, setup.accelerator
        reaches_all = card.link_gbps is not None and tp * pp <= card.link_world
        gbps = (card.link_gbps if reaches_all else card.pcie_gbps) or _UNKNOWN_LINK_GBPS
        row_s = 2.0 * setup.model.hidden_size / (gbps * 1e9)
        if tp > 1:
            self.num_all_reduces = 2 * setup.model.num_layers
            self._row_network_s = self.num_all_reduces * row_s * 2 * (tp - 1) / tp
        self.num_all_reduces += pp - 1
        self._row_network_s += (pp - 1) * row_s

    # ------------------------------------------------------------------ prices

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        if not shape.chunks and shape.num_decodes == shape.num_decode_tokens == shape.num_sampled:
            device_s = self.decode_pricer(shape.num_decodes)(shape.num_context_tokens)
        else:
            device_s = self._rows(shape.num_tokens, shape.num_decodes + len(shape.chunks), shape.num_sampled)
            device_s += self._decode_attention(shape.num_decodes, shape.num_context_tokens)
            for chunk in shape.chunks:
                device_s += self._chunk_attention(chunk)
            device_s = max(device_s, self._launches_s(shape.num_decodes + len(shape.chunks)))
        return StepTime(device_s, self._host(shape), self.provenance)

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """See `LatencyOracle`."""
        fixed_s, eager_s = self._rows(num_decodes, num_decodes, num_decodes), self._launches_s(num_decodes)
        if not self._plain_kv:
            return lambda context: max(fixed_s + self._decode_attention(num_decodes, context), eager_s)
        token_s = self._kv_token_s
        return lambda context: max(fixed_s + context * token_s, eager_s)

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """See `LatencyOracle`. Without CUDA graphs the device waits for the host, so that the step has it all."""
        if self.setup.enforce_eager:
            return 0.0
        return self.coefficients.host_time_s(self.setup.engine_version, num_requests)

    def _launches_s(self, num_requests: int) -> float:
        """Least time of a step without CUDA graphs: the host's, with every layer's launches."""
        if not self.setup.enforce_eager:
            return 0.0
        fitted, setup = self.coefficients, self.setup
        host_s = fitted.host_time_s(setup.engine_version, num_requests)
        return self._work.num_layers * fitted.eager_layer_s + host_s

    def _host(self, shape: StepShape) -> float:
        return self.host_time(shape.num_tokens, shape.num_decodes + len(shape.chunks))

    def _padded(self, num_rows: int) -> int:
        sizes = self.setup.graph_sizes
        index = bisect_left(sizes, num_rows)
        return sizes[index] if index < len(sizes) else num_rows

    def _price_rows(self, num_rows: int, num_sequences: int, num_sampled: int) -> float:
        """Everything but attention."""
        return sum(self._row_parts(num_rows, num_sequences, num_sampled).values())

    def row_limits(self, num_rows: int, num_sequences: int, num_sampled: int) -> RowLimits:
        """What the rows of a step take at the physical limits; `num_rows` are padded as the engine pads them."""
        work, rows = self._work, self._padded(num_rows)
        sampled = bool(num_sampled)
        return RowLimits(
            (work.weight_bytes + rows * work.product_row_bytes) / self._peak_bytes_per_s,
            rows * work.row_flops / self._wide_flops_per_s,
            (work.experts_for(rows) + rows * work.expert_row_bytes) / self._peak_bytes_per_s,
            work.expert_rows(rows) * work.expert_row_flops / self._wide_flops_per_s,
            rows * work.pass_row_bytes / self._peak_bytes_per_s,
            num_sequences * work.state_bytes / self._peak_bytes_per_s,
            sampled * work.head_bytes / self._peak_bytes_per_s,
            num_sampled * work.head_row_flops / self._wide_flops_per_s,
            rows * self._row_network_s,
        )

    def _row_parts(self, num_rows: int, num_sequences: int, num_sampled: int) -> dict[str, float]:
        limits, fitted = self.row_limits(num_rows, num_sequences, num_sampled), self.coefficients
        gain = self.narrow_ratio**fitted.narrow_gain
        dense_s = _ridge(limits.dense_memory_s / fitted.memory, limits.dense_compute_s / (fitted.compute * gain))
        return {
            "linear": dense_s + limits.state_s / fitted.memory,
            "experts": _ridge(
                limits.expert_memory_s / fitted.memory, limits.expert_compute_s / (fitted.experts * gain)
            ),
            "passes": limits.pass_s / fitted.memory,
            "head": _ridge(limits.head_memory_s / fitted.memory, limits.head_compute_s / fitted.compute),
            "layers": self._work.num_layers * fitted.layer_s,
            "all_reduce": self.num_all_reduces * fitted.all_reduce_s + limits.network_s / fitted.network,
        }

    def kv_limit_s(self, num_decodes: int, num_context_tokens: int) -> float:
        """Reading the KV of all decodes at the full bandwidth."""
        num_bytes = 0.0
        for kind in self._kinds:
            context = num_context_tokens if kind.window is None else min(num_context_tokens, kind.window * num_decodes)
            num_bytes += context * kind.token_bytes
        return num_bytes / self._peak_bytes_per_s

    def _decode_attention(self, num_decodes: int, num_context_tokens: int) -> float:
        if self._plain_kv:
            return num_context_tokens * self._kv_token_s
        return self.kv_limit_s(num_decodes, num_context_tokens) / self.coefficients.kv_memory

    def chunk_limits(self, chunk: Chunk) -> Iterator[tuple[float, float]]:
        """Attention of a chunk by kind of layer, at the physical limits: arithmetic, and reading the KV before it."""
        new, past = chunk
        for kind in self._kinds:
            seen, read = past + (new + 1) / 2, float(past)
            if kind.window is not None:
                seen, read = min(seen, float(kind.window)), min(read, float(kind.window))
            yield (
                new * seen * kind.pair_flops / self._wide_flops_per_s,
                read * kind.token_bytes / self._peak_bytes_per_s,
            )

    def _chunk_attention(self, chunk: Chunk) -> float:
        fitted = self.coefficients
        return sum(max(c / fitted.compute, m / fitted.kv_memory) for c, m in self.chunk_limits(chunk))

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """See `LatencyOracle`. Without CUDA graphs the device may wait for launches: a part of its own."""
        sequences = shape.num_decodes + len(shape.chunks)
        seconds = self._row_parts(shape.num_tokens, sequences, shape.num_sampled)
        seconds["attention_decode"] = self._decode_attention(shape.num_decodes, shape.num_context_tokens)
        seconds["attention_prefill"] = sum(map(self._chunk_attention, shape.chunks))
        seconds["launches"] = max(0.0, self._launches_s(sequences) - sum(seconds.values()))
        seconds["host"] = self._host(shape)
        return [Part(name, value, self.provenance) for name, value in seconds.items() if value]

    def error_bar(self) -> ErrorBar | None:
        """The error of TPOT on sources left out of the fit; None for coefficients of one's own."""
        if not self.is_fitted:
            return None
        fitted = fitted_coefficients()
        return ErrorBar(fitted.step_error(is_moe=self.setup.model.is_moe), _JUDGED_ON)

    def floor_s(self, num_decodes: int, num_context_tokens: int) -> float:
        """Time that no efficiency can beat: the bytes of a decode step over the full bandwidth."""
        shape = decode_shape(num_decodes, num_context_tokens)
        read = self._work.bytes_for(shape.num_tokens) + self._work.head_bytes
        kv_s = self._decode_attention(num_decodes, num_context_tokens) * self.coefficients.kv_memory
        return read / self._peak_bytes_per_s + kv_s


def _ridge(memory_s: float, compute_s: float) -> float:
    return float((memory_s**RIDGE + compute_s**RIDGE) ** (1.0 / RIDGE))
