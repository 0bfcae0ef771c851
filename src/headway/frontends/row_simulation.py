"""Predicting measured rows: by simulation, and by pricing again the steps that one simulation took.

In a closed loop the schedule does not depend on how long steps take, so a recording of the steps' shapes prices any
coefficients exactly, some hundred times sooner than another simulation: that is what fitting needs. In an open loop it
is exact only for the coefficients of the recording, so a fit records again between rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from headway.catalog.defaults import resolve_defaults
from headway.catalog.versions import parse_version
from headway.core.engine import Engine, Listener
from headway.core.events import Event, RequestArrived, StepFinished, StrideFinished
from headway.core.request import Request
from headway.errors import ConfigError
from headway.executors.simulated.coefficients import V1_ENGINE, RooflineCoefficients
from headway.executors.simulated.oracle import Chunk, LatencyOracle, StepShape, decode_shape
from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup
from headway.executors.simulated.shape import shape_of
from headway.frontends.measured_rows import MeasuredRow
from headway.frontends.simulation import SimulatedDeployment, SimulatedWorkload, simulate
from headway.frontends.simulation_options import DeploymentOptions
from headway.report.summary import Summary
from headway.workload.lengths import FixedLength, Length, LogNormalLength, UniformLength
from headway.workload.trace import TraceRequest

_OLDEST_SCHEDULER = "0.8.0"
_CHAT_PROMPT_SIGMA, _CHAT_OUTPUT_SIGMA = 1.0, 0.5
_CONTEXT_BUCKETS = 32
_MERGE_WITHIN = 0.16
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class RowSimulation:
    """A row made runnable. `deployment.oracle` prices with the coefficients that it was made with."""

    row: MeasuredRow
    deployment: SimulatedDeployment
    setup: RooflineSetup
    workload: SimulatedWorkload

    def predict(self, *, fast_forward: bool = True) -> Summary:
        """The summary of a simulation."""
        return simulate(self.deployment, self.workload, fast_forward=fast_forward).summary


def prepare(row: MeasuredRow, coefficients: RooflineCoefficients | None = None) -> RowSimulation:
    """The deployment and the workload of a row.

    Raises:
        ConfigError: it cannot run as described, or does not fit.
    """
    version, flags = _scheduler_of(row)
    options = DeploymentOptions(
        model=row.model_name,
        gpu=row.gpu,
        engine_version=version,
        tensor_parallel_size=row.tensor_parallel_size,
        pipeline_parallel_size=row.pipeline_parallel_size,
        data_parallel_size=row.data_parallel_size,
        quantization=row.quantization,
        kv_cache_dtype=row.kv_cache_dtype,
        max_model_len=row.max_model_len,
        gpu_memory_utilization=row.gpu_memory_utilization,
        num_gpu_blocks_override=row.num_gpu_blocks,
        enforce_eager=row.enforce_eager,
        **flags,
    )
    resolved = options.resolve()
    plan = resolved.plan
    assert plan is not None
    setup = RooflineSetup(
        row.model,
        row.accelerator,
        row.tensor_parallel_size,
        row.pipeline_parallel_size,
        row.quantization,
        row.kv_cache_dtype,
        row.engine_version,
        plan.resolved.defaults.cuda_graph_sizes,
        row.enforce_eager,
    )
    base = resolved.deployment
    deployment = SimulatedDeployment(
        base.config, RooflineOracle(setup, coefficients), base.num_ranks, base.router, None, base.pipeline_stages
    )
    longest = base.config.scheduler.max_model_len
    if row.num_prompt_tokens + row.num_output_tokens > longest:
        raise ConfigError(f"Requests of {row.row_id} are longer than max_model_len {longest}.")
    return RowSimulation(row, deployment, setup, workload_of(row, longest))


def _scheduler_of(row: MeasuredRow) -> tuple[str, dict[str, Any]]:
    """The scheduler that stands in for the row's, and its flags: for V0 the oldest one, with V0's defaults."""
    given = {
        "max_num_seqs": row.max_num_seqs,
        "max_num_batched_tokens": row.max_num_batched_tokens,
        "enable_chunked_prefill": row.enable_chunked_prefill,
        "enable_prefix_caching": row.enable_prefix_caching,
    }
    if parse_version(row.engine_version) >= V1_ENGINE:
        return row.engine_version, given
    longest = row.max_model_len or row.model.max_model_len or 4096
    defaults = resolve_defaults(row.engine_version, row.accelerator, max_model_len=longest, **given)
    return _OLDEST_SCHEDULER, {
        "policy": "chunked" if defaults.enable_chunked_prefill else "continuous",
        "max_num_seqs": defaults.max_num_seqs,
        "max_num_batched_tokens": max(defaults.max_num_batched_tokens, defaults.max_num_seqs),
        "enable_prefix_caching": defaults.enable_prefix_caching,
    }


def workload_of(row: MeasuredRow, max_model_len: int) -> SimulatedWorkload:
    """Requests of the row's lengths: at its rate, or by its clients, or both, whichever holds them back."""
    rng = Random(0)
    prompt = _length(row.num_prompt_tokens, row.spread, _CHAT_PROMPT_SIGMA)
    output = _length(row.num_output_tokens, row.spread, _CHAT_OUTPUT_SIGMA)
    requests = []
    at = 0.0
    for _ in range(row.num_requests):
        num_output = min(output.draw(rng), max_model_len - 1)
        num_prompt = min(prompt.draw(rng), max_model_len - num_output)
        requests.append(TraceRequest(at, num_prompt, num_output))
        if row.requests_per_s is not None:
            at += rng.expovariate(row.requests_per_s)
    return SimulatedWorkload(
        requests, row.concurrency, skip_too_long=True, is_paced=row.requests_per_s is not None and at > 0.0
    )


def _length(mean: float, spread: str, chat_sigma: float) -> Length:
    if spread == "range":
        return UniformLength(max(1, round(0.8 * mean)), max(1, round(mean)))
    if spread == "chat":
        return LogNormalLength(max(1.0, mean * math.exp(-(chat_sigma**2) / 2)), chat_sigma)
    return FixedLength(max(1, round(mean)))


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
        """See `headway.frontends.simulation.Observer`."""
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


def record(simulation: RowSimulation) -> tuple[Recording, Summary]:
    """Simulate once and keep the steps' shapes."""
    recorder = _Recorder()
    summary = simulate(simulation.deployment, simulation.workload, observers=[recorder]).summary
    recording = Recording(
        tuple(recorder.steps()),
        recorder.num_requests,
        recorder.num_decoding,
        recorder.num_output_tokens,
        simulation.deployment.config.scheduler.async_scheduling,
        idle_s=0.0,
    )
    busy_s = recorder.num_output_tokens / recording.price(simulation.deployment.oracle)["output_throughput"]
    idle_s = float(summary["duration"] or 0.0) - busy_s
    return replace(recording, idle_s=idle_s if idle_s > _ROUNDING * busy_s else 0.0), summary
