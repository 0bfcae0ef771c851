"""The shapes of a simulation's steps, merged, so that other prices can be tried without another simulation.

In a closed loop the schedule does not depend on how long steps take, so a recording prices any coefficients exactly,
some hundred times sooner than another simulation: that is what fitting needs. In an open loop it is exact only for the
coefficients of the recording, so a fit records again between rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headway.core.engine import Engine, Listener
from headway.core.events import Event, RequestArrived, StepFinished, StrideFinished
from headway.core.request import Request
from headway.executors.simulated.oracle import Chunk, LatencyOracle, StepShape, decode_shape
from headway.executors.simulated.shape import shape_of
from headway.report.summary import Summary
from headway.simulation.run import Observer, SimulatedDeployment, SimulatedWorkload, simulate

_CONTEXT_BUCKETS = 32
_MERGE_WITHIN = 0.16
_ROUNDING = 1e-6


@dataclass(slots=True)
class _Group:
    """Steps that are alike, with the weight of their time in each mean."""

    num_steps: int = 0
    context_sum: float = 0.0
    tpot_weight: float = 0.0
    ttft_weight: float = 0.0


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A kind of step: its mean time × these weights adds up to the sums behind the row's metrics."""

    shape: StepShape
    num_steps: int
    tpot_weight: float
    ttft_weight: float


@dataclass(frozen=True, slots=True)
class Recording:
    """The steps of one simulation, merged by shape; `price` gives means for any oracle of the same deployment."""

    steps: tuple[RecordedStep, ...]
    num_requests: int
    num_decoding: int
    num_output_tokens: int
    is_async: bool
    idle_s: float

    def price(self, oracle: LatencyOracle) -> dict[str, float]:
        """`mean_tpot_ms`, `mean_ttft_ms` and `output_throughput`."""
        tpot_s = ttft_s = 0.0
        duration_s = self.idle_s
        for step in self.steps:
            time = oracle.step_time(step.shape)
            seconds = max(time.device_s, time.host_s) if self.is_async else time.device_s + time.host_s
            tpot_s += seconds * step.tpot_weight
            ttft_s += seconds * step.ttft_weight
            duration_s += seconds * step.num_steps
        return {
            "mean_tpot_ms": tpot_s / max(1, self.num_decoding) * 1e3,
            "mean_ttft_ms": ttft_s / self.num_requests * 1e3,
            "output_throughput": self.num_output_tokens / duration_s,
        }


def merge(recording: Recording, oracle: LatencyOracle) -> tuple[Recording, dict[str, float]]:
    """A recording of fewer steps, each standing for those within 8 % of it: ten times sooner to price. Its answers are
    to be multiplied by the factors returned, which make them exact for `oracle`."""
    groups: dict[tuple[int, ...], list[RecordedStep]] = {}
    for step in recording.steps:
        shape = step.shape
        sizes = (shape.num_prefill_tokens, shape.num_decodes, shape.num_context_tokens if shape.chunks else 0)
        groups.setdefault((len(shape.chunks), *map(_bucket, sizes)), []).append(step)
    merged = []
    for steps in groups.values():
        main = max(steps, key=lambda step: step.tpot_weight + step.ttft_weight + step.num_steps)
        merged.append(
            RecordedStep(
                main.shape,
                sum(step.num_steps for step in steps),
                sum(step.tpot_weight for step in steps),
                sum(step.ttft_weight for step in steps),
            )
        )
    coarse = replace(recording, steps=tuple(merged))
    exact, rough = recording.price(oracle), coarse.price(oracle)
    return coarse, {key: exact[key] / rough[key] if rough[key] else 1.0 for key in exact}


def _bucket(value: int) -> int:
    return round(math.log(value) / _MERGE_WITHIN) if value else -1


class _Recorder:
    """Listens to one engine. Each step's time counts once for every request that waits for its first token, and
    1 / (output tokens - 1) for every request between its first and last."""

    def __init__(self) -> None:
        self.groups: dict[tuple[object, ...], _Group] = {}
        self._num_waiting = 0
        self._decode_weight = 0.0
        self.num_requests = self.num_decoding = self.num_output_tokens = 0
        self._seen: dict[str, float] = {}

    def attach(self, rank: int, engine: Engine) -> Listener:
        """See `headway.simulation.run.Observer`."""
        return self

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestArrived):
            self._num_waiting += 1
        elif isinstance(event, StepFinished):
            if event.plan.num_tokens:
                shape = shape_of(event.plan)
                self._add(shape, 1, float(shape.num_context_tokens))
            for output in event.outputs:
                self._output(output.request, output.finish_reason is not None)
        elif isinstance(event, StrideFinished):
            stride = event.stride
            count, last = stride.num_steps, stride.num_steps - 1
            context = count * (stride.num_context_tokens + last * stride.num_requests / 2)
            self._add(decode_shape(stride.num_requests, 0), count, context)

    def _add(self, shape: StepShape, count: int, context: float) -> None:
        mean = context / count
        bucket = round(_CONTEXT_BUCKETS * (mean / max(1, shape.num_decodes) / 1024)) // 8 if shape.chunks else 0
        key = (shape.chunks, shape.num_decodes, shape.num_decode_tokens, shape.num_sampled, bucket)
        group = self.groups.setdefault(key, _Group())
        group.num_steps += count
        group.context_sum += context
        group.tpot_weight += count * self._decode_weight
        group.ttft_weight += count * self._num_waiting

    def _output(self, request: Request, is_finished: bool) -> None:
        request_id = request.request_id
        if request_id not in self._seen:
            num_tokens = request.sampling.max_tokens or 1
            self._num_waiting -= 1
            self.num_requests += 1
            self.num_output_tokens += num_tokens
            self._seen[request_id] = 1.0 / (num_tokens - 1) if num_tokens > 1 else 0.0
            self.num_decoding += num_tokens > 1
            self._decode_weight += self._seen[request_id]
        if is_finished:
            self._decode_weight -= self._seen[request_id]

    def steps(self) -> Iterable[RecordedStep]:
        for key, group in self.groups.items():
            chunks, num_decodes, num_rows, num_sampled, _ = key
            assert isinstance(chunks, tuple) and isinstance(num_decodes, int)
            assert isinstance(num_rows, int) and isinstance(num_sampled, int)
            shape = StepShape(
                tuple(Chunk(*chunk) for chunk in chunks),
                num_decodes,
                num_rows,
                round(group.context_sum / group.num_steps),
                num_sampled,
            )
            yield RecordedStep(shape, group.num_steps, group.tpot_weight, group.ttft_weight)


def record(
    deployment: SimulatedDeployment, workload: SimulatedWorkload, *, observers: Sequence[Observer] = ()
) -> tuple[Recording, Summary]:
    """Simulate once and keep the steps' shapes."""
    recorder = _Recorder()
    summary = simulate(deployment, workload, observers=[recorder, *observers]).summary
    recording = Recording(
        tuple(recorder.steps()),
        recorder.num_requests,
        recorder.num_decoding,
        recorder.num_output_tokens,
        deployment.config.scheduler.async_scheduling,
        idle_s=0.0,
    )
    busy_s = recorder.num_output_tokens / recording.price(deployment.oracle)["output_throughput"]
    idle_s = float(summary["duration"] or 0.0) - busy_s
    return replace(recording, idle_s=idle_s if idle_s > _ROUNDING * busy_s else 0.0), summary
