"""One run of `headway simulate`: from options to a table and the files that were asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from headway.cli.console import make_console, print_next, repeated
from headway.cli.json_output import write_json
from headway.config import BATCHING_POLICIES
from headway.core.policies import blaming, make_policy
from headway.errors import ConfigError
from headway.report.error_bars import error_bars
from headway.report.metrics import SIMULATION_METRICS
from headway.report.simulation_table import prediction_table
from headway.report.slo import parse_slo
from headway.report.tables import comparison_table, facts_table, format_number
from headway.report.words import counted
from headway.simulation.options import DeploymentOptions, ResolvedDeployment
from headway.simulation.output_options import OutputOptions
from headway.simulation.run import Observer, SimulationResult, simulate
from headway.simulation.workload_options import WorkloadOptions


@dataclass(frozen=True, slots=True)
class Simulated:
    """One policy's simulation."""

    resolved: ResolvedDeployment
    result: SimulationResult
    bars: Mapping[str, float | None]
    wall_s: float


class SimulateRun:
    """Everything that one invocation does.

    Raises:
        ConfigError: settings that cannot work. WorkloadError: a workload that cannot be used.
    """

    def __init__(self, deployment: DeploymentOptions, workload: WorkloadOptions, output: OutputOptions) -> None:
        self._options = deployment
        self._workload = workload
        self._output = output
        self._slo = parse_slo(output.slo)
        self._resolved = deployment.resolve()
        self._requests, self._facts = workload.open()
        self._console = make_console(stderr=output.json_path == "-")
        if output.capacity and workload.clients is not None:
            raise ConfigError("--capacity is of one kind of clients.", hint="Give --concurrency or --request-rate.")

    def execute(self) -> None:
        """Simulate, print and write."""
        self._console.print(facts_table(f"headway simulate: {self._resolved.name}", self._settings()))
        self._console.print()
        if self._output.compare_policies:
            names = dict.fromkeys((*BATCHING_POLICIES, self._options.policy))
            runs = {name: self._simulate(name, []) for name in names}
            summaries = {make_policy(name).name: run.result.summary for name, run in runs.items()}
            self._console.print(comparison_table(self._title(), summaries, SIMULATION_METRICS))
        else:
            runs = {self._options.policy: self._simulate_one()}
        capacity: Mapping[str, object] | None = self._capacity() if self._output.capacity else None
        self._console.print(self._footer(list(runs.values())))
        found = [self._row(name, run) | ({"capacity": capacity} if capacity else {}) for name, run in runs.items()]
        write_json(found, self._output.json_path, self._console)
        self._next()

    def _next(self) -> None:
        flags, purpose = "--html report.html --requests-out requests.csv", "plots, and why each request took so long"
        if self._output.compare_policies:
            print_next(self._console, f"the same with {flags} instead of --compare-policies", purpose)
        elif not self._output.follows_requests:
            print_next(self._console, repeated(flags), purpose)
        else:
            where = f"--model {self._options.model} --gpu {self._options.gpu}"
            print_next(self._console, f"headway calibrate {where} --bench RESULT.json", "fit it to a server of yours")

    def _capacity(self) -> Mapping[str, object]:
        """Print how much the deployment carries, and return it."""
        from headway.cli.simulate_capacity import carried

        workload = self._workload
        offered = float(workload.concurrency or 0) or workload.request_rate or self._facts.requests_per_s
        found = carried(self._resolved, workload, offered, self._slo, self._output.slo_share)
        self._console.print()
        self._console.print(facts_table("Capacity", found.rows(self._slo)))
        return found.facts()

    def _simulate(self, policy: str, observers: Sequence[Observer]) -> Simulated:
        options = self._options
        with blaming(policy):
            if make_policy(policy).reserve(1) and options.async_scheduling is None:
                options = replace(options, async_scheduling=False)
            resolved = options.resolve(policy)
        started = time.perf_counter()
        with blaming(policy):
            result = simulate(
                resolved.deployment,
                self._requests,
                slo=self._slo,
                observers=observers,
                fast_forward=self._output.fast_forward,
            )
        wall_s = time.perf_counter() - started
        bar = resolved.deployment.oracle.error_bar()
        bars = error_bars(result.summary, bar.relative if bar else None, is_closed=self._requests.is_closed)
        return Simulated(resolved, result, bars, wall_s)

    def _simulate_one(self) -> Simulated:
        from headway.cli.simulate_files import Files, TelemetryFiles

        files, observers, lines = None, list[Observer](), list[str]()
        with ExitStack() as stack:
            if self._output.follows_requests:
                files = Files(self._output, self._resolved, self._title(), self._subtitle())
                observers.append(files)
            telemetry = None
            if self._output.emits_telemetry:
                telemetry = stack.enter_context(TelemetryFiles(self._output, self._resolved))
                observers.append(telemetry.telemetry)
            run = self._simulate(self._options.policy, observers)
            if telemetry is not None:
                lines += telemetry.finish()
        self._console.print(prediction_table(self._title(), run.result.summary, run.bars))
        if run.result.groups:
            self._console.print()
            self._console.print(comparison_table("By kind of client", run.result.groups, SIMULATION_METRICS))
        if files is not None:
            lines += files.write(run, self._settings())
        for line in lines:
            self._console.print(line)
        return run

    def _settings(self) -> list[tuple[str, str, str]]:
        deployment, facts = self._resolved.deployment, self._facts
        config = deployment.config
        scheduler, cache, reasons = config.scheduler, config.cache, config.reasons
        count = facts.num_requests
        tokens = (cache.num_blocks - 1) * cache.block_size
        rows = [
            (
                "workload",
                counted(count, "request"),
                f"{self._workload.name}: {facts.num_prompt_tokens / count:,.0f} prompt and "
                f"{facts.num_output_tokens / count:,.0f} output tokens on average; {self._workload.offered(facts)}",
            ),
            ("step times", deployment.oracle.provenance, self._error_of_oracle()),
            ("scheduler", f"vLLM {config.engine_version}", f"policy {config.policy}"),
            ("KV cache", f"{tokens:,} tokens", f"{cache.num_blocks:,} blocks, {reasons.get('num_blocks', 'given')}"),
            ("max_model_len", f"{scheduler.max_model_len:,}", reasons.get("max_model_len", "given")),
            ("max_num_seqs", f"{scheduler.max_num_seqs:,}", reasons.get("max_num_seqs", "given")),
            (
                "max_num_batched_tokens",
                f"{scheduler.max_num_batched_tokens:,}",
                reasons.get("max_num_batched_tokens", "given"),
            ),
            ("prefix caching", _on(cache.enable_prefix_caching), reasons.get("enable_prefix_caching", "given")),
            ("async scheduling", _on(scheduler.async_scheduling), reasons.get("async_scheduling", "given")),
        ]
        if deployment.num_ranks > 1:
            rows.append(("replicas", str(deployment.num_ranks), f"router {deployment.router}"))
        if deployment.speculation is not None:
            mean = deployment.speculation.mean_tokens_per_step
            rows.append(("speculation", f"{mean:.2f} tokens a step", "acceptance model, not a draft model's behaviour"))
        return rows

    def _error_of_oracle(self) -> str:
        bar = self._resolved.deployment.oracle.error_bar()
        return "never judged on measurements: no error bars" if bar is None else f"± {bar.relative:.0%}, {bar.source}"

    def _title(self) -> str:
        return f"{self._resolved.name}: {counted(self._facts.num_requests, 'request')}, {self._workload.name}"

    def _subtitle(self) -> str:
        return f"{self._workload.offered(self._facts)} · step times: {self._resolved.deployment.oracle.provenance}"

    def _footer(self, runs: Sequence[Simulated]) -> str:
        wall_s = sum(run.wall_s for run in runs)
        virtual_s = sum(run.result.summary["duration"] or 0.0 for run in runs)
        count = sum(run.result.summary["completed"] or 0 for run in runs)
        return (
            f"\n{format_number(virtual_s)} s simulated in {format_number(wall_s)} s, "
            f"{count / max(wall_s, 1e-9):,.0f} requests/s."
        )

    def _row(self, policy: str, run: Simulated) -> dict[str, object]:
        """The keys of `bench --json`, and `error_bars`: relative errors by metric."""
        workload, facts = self._workload, self._facts
        rate = workload.request_rate if workload.request_rate is not None else facts.requests_per_s
        bar = run.resolved.deployment.oracle.error_bar()
        row: dict[str, object] = {
            "policy": policy,
            "label": policy,
            "date": time.strftime("%Y%m%d-%H%M%S"),
            "backend": "headway-simulate",
            "num_prompts": facts.num_requests,
            "request_rate": None if self._requests.is_closed else "inf" if math.isinf(rate) else rate,
            "max_concurrency": workload.concurrency,
            "loop": workload.loop,
            "workload": workload.name,
            "length_divisor": workload.length_divisor,
            "burstiness": None if workload.trace is not None else workload.burstiness,
            "seed": workload.seed,
            "slo": str(self._slo) or None,
            "provenance": run.resolved.deployment.oracle.provenance,
            "oracle_error": bar.relative if bar else None,
            "simulation_wall_s": run.wall_s,
        }
        return (
            row
            | dict(run.resolved.facts())
            | dict(run.result.summary)
            | {
                "groups": {name: dict(summary) for name, summary in run.result.groups.items()},
                "error_bars": dict(run.bars),
            }
        )


def _on(value: bool) -> str:
    return "on" if value else "off"
