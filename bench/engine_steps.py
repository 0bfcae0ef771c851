"""Steps of the real engine, timed one by one, and what each has to compute and to read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from bench.native.library import take_times, timed_kernels
from headway.config import EngineOptions
from headway.core.arrivals import Arrival, TraceSource
from headway.core.clock import WallClock
from headway.core.events import Event, StepFinished
from headway.core.plan import StepPlan
from headway.core.request import Request, TokenContent
from headway.core.sampling import SamplingParams
from headway.executors.torch import LoadedModel
from headway.executors.torch.loader import QuantizedModel
from headway.executors.torch.native.library import GROUP, MatrixStruct
from headway.factory import Model, build_engine, load_model

BLOCK_SIZE = 16
_DECODE_BUDGET = 512
_GROUP_BYTES = {16: GROUP * 32 // 2 + 2 * 32 * 2, 256: GROUP * 32 + 2 * 32 * 4}
"""Of 32 outputs' weights for 32 inputs, by number of levels: see csrc/kernels.h."""


class Share(NamedTuple):
    """What one request has of a step."""

    num_tokens: int
    first_position: int
    samples: bool


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """One call of `Engine.step`.

    Args:
        seconds: all of it; `forward_s` of them within the native call.
        kernel_s: seconds in each kind of kernel, over all threads; empty with plain kernels.
    """

    seconds: float
    forward_s: float
    shares: tuple[Share, ...]
    kernel_s: dict[str, float] = field(default_factory=dict)


class Subject:
    """The bundled model in int8, on plain or on timed kernels."""

    def __init__(self, num_threads: int | None = None, *, timed: bool = False) -> None:
        self.options = EngineOptions(
            quantization="int8", num_threads=num_threads, block_size=BLOCK_SIZE, enable_prefix_caching=False
        )
        self.timed = timed
        self.model: Model = _load(self.options, timed)
        arithmetic = self.model.weights.arithmetic
        assert isinstance(arithmetic, QuantizedModel), "the kernels cannot be compiled here"
        self.engine = arithmetic.engine
        self.num_threads = self.engine.num_threads
        self._forward_s = 0.0
        self._watch_forward()

    def prefills(self, num_tokens: int, *, context: int = 0, repeats: int = 8) -> list[MeasuredStep]:
        """Steps of `num_tokens` that end a prompt of which `context` tokens are computed."""
        length = context + num_tokens
        steps = self.run([(length, 1)] * repeats, max_num_seqs=1, budget=num_tokens)
        return [step for step in steps if step.shares[0].first_position == context]

    def prompt(self, length: int, *, chunk: int, repeats: int = 3) -> list[list[MeasuredStep]]:
        """All steps of a prompt, several times over."""
        steps = self.run([(length, 1)] * repeats, max_num_seqs=1, budget=chunk)
        each = -(-length // chunk)
        return [steps[first : first + each] for first in range(0, len(steps), each)]

    def decodes(self, num_requests: int, *, context: int, repeats: int = 30) -> list[MeasuredStep]:
        """Steps in which so many requests of about `context` tokens get one token each."""
        warm = -(-num_requests * context // _DECODE_BUDGET) + 2
        requests = [(context, warm + repeats)] * num_requests
        steps = self.run(requests, max_num_seqs=num_requests, budget=max(_DECODE_BUDGET, num_requests))
        all_decode = [step for step in steps if {share.num_tokens for share in step.shares} == {1}]
        return [step for step in all_decode if len(step.shares) == num_requests][2:][:repeats]

    def run(self, requests: Sequence[tuple[int, int]], *, max_num_seqs: int, budget: int) -> list[MeasuredStep]:
        """Serve requests of (prompt, output) tokens that all arrive at once; every step that computed something."""
        longest = max(prompt + output for prompt, output in requests)
        num_blocks = 2 + max_num_seqs * (-(-longest // BLOCK_SIZE) + 1)
        options = replace(self.options, max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, num_blocks=num_blocks)
        plans: list[StepPlan] = []

        def note(event: Event) -> None:
            if isinstance(event, StepFinished):
                plans.append(event.plan)

        arrivals = [(0.0, Arrival(_request(index, *sizes))) for index, sizes in enumerate(requests)]
        engine, _ = build_engine(self.model, options, TraceSource(arrivals), WallClock(), [note])
        steps = []
        while engine.has_work or not engine.source.exhausted:
            self._forward_s = 0.0
            if self.timed:
                take_times()
            begun = time.perf_counter()
            engine.step()
            seconds = time.perf_counter() - begun
            kernel_s = take_times() if self.timed else {}
            if plans and plans[-1].scheduled:
                shares = tuple(Share(i.num_tokens, i.num_computed_tokens, i.samples) for i in plans[-1].scheduled)
                steps.append(MeasuredStep(seconds, self._forward_s, shares, kernel_s))
        return steps

    def _watch_forward(self) -> None:
        plain: Callable[..., None] = self.engine.forward

        def forward(*arguments: Any) -> None:
            begun = time.perf_counter()
            plain(*arguments)
            self._forward_s = time.perf_counter() - begun

        self.engine.forward = forward  # type: ignore[assignment, method-assign]


def _load(options: EngineOptions, timed: bool) -> Model:
    if not timed:
        return load_model(None, options)
    with timed_kernels():
        return load_model(None, options)


def _request(index: int, num_prompt_tokens: int, num_output_tokens: int) -> Request:
    ids = np.random.default_rng(index).integers(1000, 40000, size=num_prompt_tokens).tolist()
    sampling = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, ignore_eos=True)
    return Request(str(index), TokenContent(ids, BLOCK_SIZE), len(ids), sampling, len(ids) + num_output_tokens)


# ---------------------------------------------------------------- work


@dataclass(frozen=True, slots=True)
class Work:
    """What a step needs, whoever computes it: operations are multiplications and additions."""

    product_ops: int
    """Of bytes, with the weight matrices."""
    attention_ops: int
    """Of floats: scores, and mixing of values."""
    weight_bytes: int
    """Each weight that is needed once: activations stay in the processor's caches."""
    kv_bytes: int
    """Keys and values written, and those of earlier steps read once."""


def work_of(model: LoadedModel, shares: Sequence[Share]) -> Work:
    """Count a step's work from the model's shape. Behind the last keys and values only sampled rows go on."""
    spec = model.spec
    assert isinstance(model.arithmetic, QuantizedModel)
    struct = model.arithmetic.weights.model
    num_rows, num_sampled = sum(share.num_tokens for share in shares), sum(share.samples for share in shares)
    first_part = spec.hidden_size * (spec.q_size + 2 * spec.kv_size)
    second_part = spec.q_size * spec.hidden_size + 3 * spec.hidden_size * spec.intermediate_size
    head = spec.hidden_size * spec.vocab_size
    per_row = spec.num_layers * first_part + (spec.num_layers - 1) * second_part
    per_sample = second_part + head
    keys_seen, keys_sampled = 0, 0
    for share in shares:
        end = share.first_position + share.num_tokens
        keys_seen += (share.first_position + 1 + end) * share.num_tokens // 2
        keys_sampled += end * share.samples
    per_key = 2 * 2 * spec.num_heads * spec.head_dim
    layers = [struct.layers[index] for index in range(spec.num_layers)]
    needed = [layer.qkv for layer in layers]
    through = layers if num_sampled else layers[:-1]
    needed += [matrix for layer in through for matrix in (layer.output, layer.gate_up, layer.down)]
    if num_sampled:
        needed.append(struct.head)
    read = sum(share.first_position for share in shares)
    return Work(
        product_ops=2 * (num_rows * per_row + num_sampled * per_sample),
        attention_ops=per_key * ((spec.num_layers - 1) * keys_seen + keys_sampled),
        weight_bytes=sum(map(packed_bytes, needed)),
        kv_bytes=(read + num_rows) * model.kv_bytes_per_token,
    )


def packed_bytes(matrix: MatrixStruct) -> int:
    """Size of a packed matrix."""
    return int(matrix.num_panels * matrix.num_groups * _GROUP_BYTES[matrix.num_levels])
