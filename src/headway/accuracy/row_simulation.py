"""Predicting measured rows by simulation, with what the rows leave open filled in."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from headway.accuracy.measured_rows import MeasuredRow
from headway.catalog.defaults import resolve_defaults
from headway.catalog.versions import parse_version
from headway.errors import ConfigError
from headway.executors.simulated.coefficients import V1_ENGINE, RooflineCoefficients
from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup
from headway.report.summary import Summary
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedDeployment, SimulatedWorkload, simulate
from headway.workload.lengths import FixedLength, Length, LogNormalLength, UniformLength
from headway.workload.trace import TraceRequest

_OLDEST_SCHEDULER = "0.8.0"
_CHAT_SIGMA = 1.0
"""ShareGPT's prompts and answers: log-normal with this spread."""
_CAPPED_SIGMA, _CAPPED_ABOVE = 0.25, 400
"""Answers of more tokens on average than ShareGPT's own (200 to 300) were forced towards a limit, and vary little."""


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
    deployment = replace(base, oracle=RooflineOracle(setup, coefficients), speculation=None)
    longest = base.config.scheduler.max_model_len
    if row.num_prompt_tokens + row.num_output_tokens > longest:
        raise ConfigError(f"Requests of {row.row_id} are longer than max_model_len {longest}.")
    return RowSimulation(row, deployment, setup, workload_of(row, longest))


def _scheduler_of(row: MeasuredRow) -> tuple[str, dict[str, Any]]:
    """The scheduler that stands in for the row's, and its flags: for V0 the oldest one, with V0's defaults."""
    given: dict[str, Any] = {
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
    capped = row.num_output_tokens > _CAPPED_ABOVE
    prompt = _length(row.num_prompt_tokens, row.spread, _CHAT_SIGMA)
    output = _length(row.num_output_tokens, row.spread, _CAPPED_SIGMA if capped else _CHAT_SIGMA)
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
