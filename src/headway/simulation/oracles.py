"""From what a user writes after --latency to an oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from headway.errors import ConfigError
from headway.executors.simulated.constant import parse_constants
from headway.executors.simulated.oracle import ErrorBar, LatencyOracle
from headway.planner import Plan

_TYPICAL_STEP_S = 1.7e-3
"""Fitted on vLLM 0.19, Llama 3.1 8B, RTX PRO 6000 (`headway validate`); `headway calibrate` finds one's own."""
_TABLE_ERROR = 0.02
KINDS = "roofline, table:FOLDER, aiconfigurator, constant:prefill_us=…,decode_ms=…"


def make_oracle(latency: str, plan: Plan | None) -> LatencyOracle:
    """The oracle of a latency setting.

    `roofline` prices any model and GPU of the catalogue. `table:FOLDER` reads kernel tables of the model and GPU, or
    what `headway profile` wrote. `aiconfigurator` needs the extra headway[aic]. `constant:…` needs nothing else.

    Raises:
        ConfigError: an unknown kind, or one that lacks what it needs.
        InputError: tables that cannot be read.
    """
    kind, _, detail = latency.partition(":")
    if kind == "constant":
        return parse_constants(detail)
    if kind == "table":
        return _table(Path(detail), plan)
    makers: Mapping[str, Callable[[Plan], LatencyOracle]] = {"roofline": _roofline, "aiconfigurator": _aic}
    if kind not in makers:
        raise ConfigError(f"There is no latency oracle {kind!r}.", hint=f"Known: {KINDS}.")
    return makers[kind](_need(plan, kind))


def _need(plan: Plan | None, kind: str) -> Plan:
    if plan is None:
        raise ConfigError(f"The {kind} oracle needs a model and a GPU.", hint="Give --model and --gpu.")
    return plan


def _roofline(plan: Plan) -> LatencyOracle:
    from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup

    deployment = plan.deployment
    return RooflineOracle(
        RooflineSetup(
            deployment.model,
            deployment.accelerator,
            deployment.tensor_parallel_size,
            deployment.pipeline_parallel_size,
            deployment.quantization,
            deployment.kv_cache_dtype,
            deployment.engine_version,
            plan.resolved.defaults.cuda_graph_sizes,
            deployment.enforce_eager,
        )
    )


def _table(folder: Path, plan: Plan | None) -> LatencyOracle:
    from headway.executors.simulated.coefficients import fitted_coefficients
    from headway.executors.simulated.table import Collective, TableOracle
    from headway.executors.simulated.table_files import STEPS_FILE, find_table, read_steps, read_table

    steps = folder / STEPS_FILE if folder.is_dir() else folder
    if steps.is_file():
        table, step_s = read_steps(steps)
        return TableOracle(table, step_s=step_s)
    if not folder.is_dir():
        raise ConfigError(f"{folder} is neither a folder of tables nor a profile.", hint="As in table:profiles/kernel.")
    deployment = _need(plan, "table").deployment
    tp = deployment.tensor_parallel_size
    files = find_table(folder, deployment.accelerator.id, deployment.model.id, tp)
    if files is None:
        raise ConfigError(
            f"{folder} holds no tables of {deployment.model.id} on {deployment.accelerator.id} at "
            f"tensor-parallel size {tp}.",
            hint="Use --latency roofline, or profile that deployment.",
        )
    fitted, card, collective = fitted_coefficients().coefficients, deployment.accelerator, None
    if tp > 1:
        gbps = (card.link_gbps if tp <= card.link_world else None) or card.pcie_gbps or 32.0
        row_bytes = deployment.model.hidden_size * 2.0 * 2 * (tp - 1) / tp
        count = 2 * deployment.model.num_layers
        collective = Collective(count, row_bytes, fitted.all_reduce_s, gbps * 1e9 * fitted.network)
    assert plan is not None
    return TableOracle(
        read_table(files, deployment.model),
        step_s=_TYPICAL_STEP_S,
        graph_sizes=plan.resolved.defaults.cuda_graph_sizes,
        collective=collective,
        error=ErrorBar(_TABLE_ERROR, "replays of recorded runs, with a host time fitted on each"),
    )


def _aic(plan: Plan) -> LatencyOracle:
    from headway.executors.simulated.aiconfigurator import AicOracle, AicSetup
    from headway.executors.simulated.coefficients import fitted_coefficients

    deployment = plan.deployment
    return AicOracle(
        AicSetup(
            deployment.model.id,
            deployment.accelerator.id,
            deployment.tensor_parallel_size,
            deployment.pipeline_parallel_size,
            deployment.kv_cache_dtype,
            deployment.quantization,
            plan.resolved.defaults.cuda_graph_sizes,
            fitted_coefficients().coefficients.host_s,
        )
    )
