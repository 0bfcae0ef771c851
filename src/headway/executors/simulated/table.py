"""Prices from measured kernels: dense layers by token count, attention by what it attends to, the head by sequences.

A step is the sum of its parts. Batches within the CUDA-graph sizes are padded before the dense table is asked, as the
engine pads them. Between measured points each axis is linear (`interpolation.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from headway.executors.simulated.interpolation import Curve, Grid
from headway.executors.simulated.oracle import DecodePricer, ErrorBar, Part, StepShape, StepTime


@dataclass(frozen=True, slots=True)
class StepTable:
    """Measured times of a whole model on one GPU of a replica, in seconds.

    Args:
        name: what was measured, for the provenance.
        dense: everything but attention and head, by rows.
        head: head and sampler, by sequences that sample.
        attention: all layers' attention by (prompt tokens, decoding sequences, past tokens of the prompt, context of a
            decode). Without chunks the first coordinate is 0.
        is_mixed: chunks and decodes were measured together; otherwise their times are added.
        min_chunk: the shortest chunk that was measured.
        is_whole: `attention` holds whole steps, so the fixed cost of a step must count once, whatever its chunks.
        experts: expert layers by (rows, experts reached); None for dense models.
        num_experts, experts_per_token: how many rows reach how many experts.
    """

    name: str
    dense: Curve
    head: Curve
    attention: Grid
    is_mixed: bool
    min_chunk: int
    experts: Grid | None = None
    num_experts: int = 0
    experts_per_token: int = 0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """All-reduces of one step: `count` of them, each of fixed time plus bytes over bandwidth.

    `row_bytes` is what one GPU sends for one row in one of them.
    """

    count: int
    row_bytes: float
    latency_s: float
    bytes_per_s: float

    def seconds(self, num_rows: int) -> float:
        """Time of all of them."""
        return self.count * (self.latency_s + num_rows * self.row_bytes / self.bytes_per_s)


class TableOracle:
    """See `LatencyOracle`.

    Args:
        step_s: what a step takes beyond its kernels: scheduling, launches, sampling, detokenising, as far as it is not
            hidden behind the device. Kernel tables do not hold it; one scalar a host and engine version.
        scale: factor on all measured times, for a device that is slower or faster than the one that was profiled.
        error: how far off the oracle was found to be.
    """

    def __init__(
        self,
        table: StepTable,
        *,
        step_s: float = 0.0,
        graph_sizes: tuple[int, ...] = (),
        collective: Collective | None = None,
        scale: float = 1.0,
        error: ErrorBar | None = None,
    ) -> None:
        self.table = table
        self._step_s = step_s
        self._graph_sizes = graph_sizes
        self._collective = collective
        self._scale = scale
        self._error = error
        self._rows = lru_cache(maxsize=16384)(self._price_rows)
        self._decodes = lru_cache(maxsize=1024)(self._decode_curve)
        self._chunk = lru_cache(maxsize=65536)(self._price_chunk)

    @property
    def provenance(self) -> str:
        """See `LatencyOracle`."""
        return f"table: {self.table.name}"

    def step_time(self, shape: StepShape) -> StepTime:
        """See `LatencyOracle`."""
        if not shape.chunks and shape.num_decodes == shape.num_decode_tokens == shape.num_sampled:
            device_s = self.decode_pricer(shape.num_decodes)(shape.num_context_tokens)
        else:
            device_s = self._rows(shape.num_tokens, shape.num_sampled) + self._attention(shape) * self._scale
        return StepTime(device_s, 0.0, self.provenance)

    def decode_pricer(self, num_decodes: int) -> DecodePricer:
        """See `LatencyOracle`."""
        fixed_s, curve, scale = self._rows(num_decodes, num_decodes), self._decodes(num_decodes), self._scale
        return lambda context: fixed_s + curve(context / num_decodes) * scale

    def host_time(self, num_tokens: int, num_requests: int) -> float:
        """0: what the host adds is in the step, since it was found beside steps that overlap it."""
        return 0.0

    def _price_rows(self, num_rows: int, num_sampled: int) -> float:
        return sum(self._row_parts(num_rows, num_sampled).values())

    def _row_parts(self, num_rows: int, num_sampled: int) -> dict[str, float]:
        table, sizes = self.table, self._graph_sizes
        index = bisect_left(sizes, num_rows)
        rows = sizes[index] if index < len(sizes) else num_rows
        parts = {"linear": table.dense(rows) * self._scale, "step": self._step_s}
        if table.experts is not None:
            share = 1.0 - (1.0 - table.experts_per_token / table.num_experts) ** rows
            parts["experts"] = table.experts.at(rows, table.num_experts * share) * self._scale
        if num_sampled:
            parts["head"] = table.head(num_sampled) * self._scale
        if self._collective is not None:
            parts["all_reduce"] = self._collective.seconds(rows)
        return parts

    def _decode_curve(self, num_decodes: int) -> Curve:
        return self.table.attention.along_last(0.0, float(num_decodes), 0.0)

    def _price_chunk(self, num_tokens: int, num_past: int) -> float:
        return self.table.attention.at(max(num_tokens, self.table.min_chunk), 0, num_past, 0)

    def _attention(self, shape: StepShape) -> float:
        """Chunks each by itself; decodes beside them cost what they add to one chunk of the same number of tokens."""
        if self.table.is_whole and shape.chunks:
            return self._whole(shape)
        seconds = sum(self._chunk(chunk.num_tokens, chunk.num_past_tokens) for chunk in shape.chunks)
        if not shape.num_decodes:
            return seconds
        context = shape.num_context_tokens / shape.num_decodes
        if not shape.chunks or not self.table.is_mixed:
            return seconds + self._decodes(shape.num_decodes)(context)
        tokens = shape.num_prefill_tokens
        past = sum(chunk.num_tokens * chunk.num_past_tokens for chunk in shape.chunks) / tokens
        tokens = max(tokens, self.table.min_chunk)
        together = self.table.attention.at(tokens, shape.num_decodes, past, context)
        return seconds + together - self.table.attention.at(tokens, 0, past, 0)

    def _whole(self, shape: StepShape) -> float:
        """One chunk of as many tokens, with the past that gives as many pairs of positions to attend to."""
        tokens = shape.num_prefill_tokens
        pairs = sum(chunk.num_tokens * (chunk.num_past_tokens + chunk.num_tokens / 2) for chunk in shape.chunks)
        past = max(0.0, pairs / tokens - tokens / 2)
        context = shape.num_context_tokens / shape.num_decodes if shape.num_decodes else 0.0
        return self.table.attention.at(max(tokens, self.table.min_chunk), shape.num_decodes, past, context)

    def explain(self, shape: StepShape) -> Sequence[Part]:
        """See `LatencyOracle`."""
        seconds = self._row_parts(shape.num_tokens, shape.num_sampled)
        seconds["attention"] = self._attention(shape) * self._scale
        return [Part(name, value, self.provenance) for name, value in seconds.items() if value]

    def error_bar(self) -> ErrorBar | None:
        """See `LatencyOracle`."""
        return self._error
