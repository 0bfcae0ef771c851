"""Prices from physics: bytes over bandwidth or operations over arithmetic, whichever takes longer, times efficiencies.

Works for any model and accelerator of the catalogue. Each step reads the weights once (of the experts, those that its
tokens are expected to reach), reads the KV of every decoding sequence, and computes its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from headway.catalog.accelerators import Accelerator
from headway.catalog.architecture import Attention, ExpertFeedForward, LatentAttention, ModelArchitecture, token_bytes
from headway.catalog.dtypes import dtype_bytes
from headway.catalog.parameters import all_parts, resolve_quantization
from headway.errors import ConfigError
from headway.executors.simulated.oracle import Chunk, DecodePricer, ErrorBar, Part, StepShape, StepTime, decode_shape


@dataclass(frozen=True, slots=True)
class RooflineCoefficients:
    """How far from the physical limit things run, and what the limits leave out.

    Args:
        memory: share of the bandwidth that reading weights and KV reaches.
        compute: share of the arithmetic that matrix products reach.
        attention: share of it that prefill attention reaches.
        network: share of the link's bandwidth that an all-reduce reaches.
        all_reduce_s: fixed time of one all-reduce.
        layer_s: fixed device time of one layer: launches and small kernels.
        host_s: host time of one step.
        host_request_s: host time of one request in a step.
    """

    memory: float = 0.80
    compute: float = 0.60
    attention: float = 0.35
    network: float = 0.60
    all_reduce_s: float = 12e-6
    layer_s: float = 12e-6
    host_s: float = 1.5e-3
    host_request_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RooflineSetup:
    """What is priced: one replica, of `tensor_parallel_size` × `pipeline_parallel_size` GPUs.

    Raises:
        ConfigError: the accelerator's bandwidth or arithmetic is not known, or the weights' size is not.
    """

    model: ModelArchitecture
    accelerator: Accelerator
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    engine_version: str = ""
    graph_sizes: tuple[int, ...] = ()
    """Decode batches are padded to the next of these."""


class RooflineOracle:
    """See `LatencyOracle`. Attributes are per step and in seconds, bytes or operations on one GPU of the replica."""

    def __init__(self, setup: RooflineSetup, coefficients: RooflineCoefficients | None = None) -> None:
        self.setup = setup
        self.coefficients = fitted = coefficients or RooflineCoefficients()
        card = setup.accelerator
        if card.bandwidth_gbps is None:
            raise ConfigError(f"The memory bandwidth of {card.id} is not known.", hint="Use --latency constant:….")
        self._bytes_per_s = card.bandwidth_gbps * 1e9 * fitted.memory
        self._weigh(setup)
        self._measure_attention(setup)
        peak = card.flops(self._arithmetic) or card.flops("bf16")
        wide = card.flops("bf16")
        if peak is None or wide is None:
            raise ConfigError(f"The arithmetic of {card.id} is not known.", hint="Use --latency constant:….")
        self._flops_per_s = peak * fitted.compute
        self._attention_flops_per_s = wide * fitted.attention
        self._fixed_s = setup.model.num_layers * fitted.layer_s
        self._all_reduce(setup)

    @property
    def provenance(self) -> str:
        """See `LatencyOracle`."""
        return "roofline"

    def _weigh(self, setup: RooflineSetup) -> None:
        """Bytes of weights read a step and operations a row, experts apart."""
        model, tp = setup.model, setup.tensor_parallel_size
        quantization = resolve_quantization(model, setup.quantization)
        wide = dtype_bytes(model.dtype)
        self._weight_bytes = self._expert_bytes = self._head_bytes = 0.0
        self._row_flops = 0.0
        for part in all_parts(model, model.layers, first=True, last=True):
            narrow = quantization is not None and part.name in quantization.parts
            each = quantization.bits / 8 if quantization is not None and narrow else wide
            size = (part.split / tp + part.copied) * each
            if part.name == "experts":
                self._expert_bytes += size
                self._row_flops += 2.0 * (part.active or 0) / tp
            elif part.name == "head" or (part.name == "embedding" and model.tie_word_embeddings):
                self._head_bytes += size
                self._head_flops = 2.0 * (part.split + part.copied) / tp
            elif part.name not in ("embedding", "vision", "extra"):
                self._weight_bytes += size
                self._row_flops += 2.0 * (part.split / tp + part.copied)
        experts = [ffn for ffn in model.ffn_counts if isinstance(ffn, ExpertFeedForward)]
        self._expert_share = experts[0].experts_per_token / experts[0].num_experts if experts else 0.0
        method = quantization.method if quantization is not None else ""
        self._arithmetic = {"fp8": "fp8", "fbgemm_fp8": "fp8", "int8": "int8", "nvfp4": "fp4"}.get(method, "bf16")

    def _measure_attention(self, setup: RooflineSetup) -> None:
        """Windows and bytes a token of each kind of layer; operations a pair of positions."""
        model, tp = setup.model, setup.tensor_parallel_size
        self._kv_layers: list[tuple[int | None, float, float]] = []
        for mixer, count in model.mixer_counts.items():
            if isinstance(mixer, Attention):
                each = count * token_bytes(mixer, setup.kv_cache_dtype, model.dtype, tp)
                pairs = 2.0 * count * mixer.num_heads * (mixer.head_dim + mixer.v_head_dim) / tp
                self._kv_layers.append((mixer.window, each, pairs))
            elif isinstance(mixer, LatentAttention):
                each = count * token_bytes(mixer, setup.kv_cache_dtype, model.dtype, tp)
                head_dim = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
                self._kv_layers.append((mixer.index_topk or None, each, 2.0 * count * mixer.num_heads * head_dim / tp))

    def _all_reduce(self, setup: RooflineSetup) -> None:
        """Two all-reduces a layer over the tensor-parallel group; a hand-over between pipeline stages."""
        tp, card, fitted = setup.tensor_parallel_size, setup.accelerator, self.coefficients
        self._row_network_s = 0.0
        if tp > 1:
            link = (card.link_gbps or card.pcie_gbps or 32.0) * 1e9 * fitted.network
            num_bytes = 2.0 * setup.model.num_layers * setup.model.hidden_size * 2
            self._row_network_s = num_bytes * 2 * (tp - 1) / tp / link
            self._fixed_s += 2 * setup.model.num_layers * fitted.all_reduce_s

    # ------------------------------------------------------------------ prices

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        if not shape.chunks and shape.num_decodes == shape.num_decode_tokens == shape.num_sampled:
            device_s = self.decode_pricer(shape.num_decodes)(shape.num_context_tokens)
        else:
            device_s = self._rows(shape.num_tokens, shape.num_sampled) + self._decode_attention(
                shape.num_decodes, shape.num_context_tokens
            )
            for chunk in shape.chunks:
                device_s += self._chunk_attention(chunk)
        return StepTime(device_s, self._host(shape), self.provenance)

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """See `LatencyOracle`."""
        fixed_s = self._rows(num_decodes, num_decodes)
        if len(self._kv_layers) == 1 and self._kv_layers[0][0] is None:
            token_s = self._kv_layers[0][1] / self._bytes_per_s
            return lambda context: fixed_s + context * token_s
        return lambda context: fixed_s + self._decode_attention(num_decodes, context)

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """See `LatencyOracle`."""
        return self.coefficients.host_s + num_requests * self.coefficients.host_request_s

    def _host(self, shape: StepShape) -> float:
        return self.host_time(shape.num_tokens, shape.num_decodes + len(shape.chunks))

    def _padded(self, num_rows: int) -> int:
        return next((size for size in self.setup.graph_sizes if size >= num_rows), num_rows)

    @lru_cache(maxsize=16384)  # noqa: B019 - an oracle lives as long as its process
    def _rows(self, num_rows: int, num_sampled: int) -> float:
        """Everything but attention."""
        rows = self._padded(num_rows)
        reached = 1.0 - (1.0 - self._expert_share) ** rows
        weights_s = (self._weight_bytes + self._expert_bytes * reached) / self._bytes_per_s
        linear_s = max(weights_s, rows * self._row_flops / self._flops_per_s)
        head_s = max(self._head_bytes / self._bytes_per_s, num_sampled * self._head_flops / self._flops_per_s)
        return linear_s + (head_s if num_sampled else 0.0) + self._fixed_s + rows * self._row_network_s

    def _decode_attention(self, num_decodes: int, num_context_tokens: int) -> float:
        num_bytes = 0.0
        for window, each, _ in self._kv_layers:
            context = num_context_tokens if window is None else min(num_context_tokens, window * num_decodes)
            num_bytes += context * each
        return num_bytes / self._bytes_per_s

    def _chunk_attention(self, chunk: Chunk) -> float:
        new, past = chunk
        seconds = 0.0
        for window, each, pairs in self._kv_layers:
            seen = past + (new + 1) / 2
            if window is not None:
                seen = min(seen, float(window))
            kv_s = min(past, window or past) * each / self._bytes_per_s
            seconds += max(new * seen * pairs / self._attention_flops_per_s, kv_s)
        return seconds

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """See `LatencyOracle`."""
        parts = [
            Part("linear", self._rows(shape.num_tokens, shape.num_sampled), self.provenance),
            Part(
                "attention_decode",
                self._decode_attention(shape.num_decodes, shape.num_context_tokens),
                self.provenance,
            ),
            Part("attention_prefill", sum(map(self._chunk_attention, shape.chunks)), self.provenance),
            Part("host", self._host(shape), self.provenance),
        ]
        return [part for part in parts if part.seconds]

    def error_bar(self) -> ErrorBar | None:
        """None until the coefficients are fitted."""
        return None

    def floor_s(self, num_decodes: int, num_context_tokens: int) -> float:
        """Time that no efficiency can beat: the bytes of a decode step over the full bandwidth."""
        shape = decode_shape(num_decodes, num_context_tokens)
        read = (
            self._weight_bytes
            + self._head_bytes
            + self._expert_bytes * (1.0 - (1.0 - self._expert_share) ** shape.num_tokens)
        )
        attention_s = self._decode_attention(num_decodes, num_context_tokens) * self.coefficients.memory
        return read / (self._bytes_per_s / self.coefficients.memory) + attention_s
