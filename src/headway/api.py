"""What a script calls: a deployment simulated, judged or diagnosed in one call, with the command line's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headway.compat import Judgement
from headway.compat import judge as judge_effective
from headway.deployment.effective import resolve_effective
from headway.deployment.read import read_deployment, read_file
from headway.doctor.diagnose import diagnose as diagnose_evidence
from headway.doctor.diagnosis import Diagnosis
from headway.doctor.gather import gather
from headway.doctor.objective import parse_objective
from headway.errors import ConfigError
from headway.report.slo import parse_slo
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulationResult
from headway.simulation.run import simulate as run_simulation
from headway.simulation.workload_options import WorkloadOptions


def simulate(model: str | None = None, gpu: str | None = None, *, slo: str = "", **settings: Any) -> SimulationResult:
    """Predict what a deployment does with a workload, as `headway simulate` does.

    Args:
        model: a name of the catalogue, a Hugging Face id, or a folder with config.json.
        gpu: an accelerator of the catalogue.
        slo: objectives for goodput, such as `"ttft_ms=2000,tpot_ms=50"`.
        settings: any field of `DeploymentOptions` (vLLM's flags) or of `WorkloadOptions` (the requests), by name.

    Returns:
        Its `summary` has the keys of `headway bench --json`, times in milliseconds; `records` one entry a request.

    Example::

        >>> from headway import simulate
        >>> result = simulate("llama-3.1-8b", "l40s", num_prompts=100, request_rate=5.0, max_num_seqs=64)
        >>> result.summary["completed"], len(result.records)
        (100, 100)

    Raises:
        ConfigError: a setting that does not exist, or settings that cannot work. WorkloadError: a trace that cannot be
            used, or a request that the deployment could never hold.
    """
    names = {field.name for field in fields(WorkloadOptions)}
    unknown = set(settings) - names - {field.name for field in fields(DeploymentOptions)}
    if unknown:
        raise ConfigError(
            f"There is no setting {sorted(unknown)[0]!r}.",
            hint="Those of `headway simulate --help`, with underscores for dashes, are understood.",
        )
    workload = WorkloadOptions(**{name: value for name, value in settings.items() if name in names})
    flags = {name: value for name, value in settings.items() if name not in names}
    resolved = DeploymentOptions(model=model, gpu=gpu, **flags).resolve()
    requests, _ = workload.open()
    return run_simulation(resolved.deployment, requests, slo=parse_slo(slo), keep_records=True)


def judge(deployment: str | Path, *, engine_version: str | None = None, gpu: str | None = None) -> list[Judgement]:
    """Judge every start of vLLM in a deployment against one exact release, as `headway config` and `compat` do.

    Args:
        deployment: a file in any form that `headway config` reads, or a command line as text.
        engine_version: default: what the deployment says, else the reference release.

    Returns:
        One judgement for each start: its `verdict`, its `findings`, and what is in effect (`effective.value(name)`).

    Example::

        >>> from headway import judge
        >>> [start] = judge("vllm serve m --max-num-seqs 8 --max-num-batched-tokens 4", engine_version="0.18.0")
        >>> start.verdict, start.effective.value("max_num_seqs")
        ('rejected', 8)

    Raises:
        InputError: the file cannot be read, or holds no start of vLLM. ConfigError: no such version or accelerator.
    """
    found = read_file(deployment) if isinstance(deployment, Path) else read_deployment(deployment)
    return [
        judge_effective(resolve_effective(invocation, engine_version=engine_version, accelerator=gpu))
        for invocation in found
    ]


def diagnose(
    deployment: str | Path | None = None,
    *,
    metrics: Sequence[str | Path] = (),
    logs: Sequence[str | Path] = (),
    benches: Sequence[str | Path] = (),
    observed: Sequence[str] = (),
    trace: str | Path | None = None,
    engine_version: str | None = None,
    gpu: str | None = None,
    model: str | None = None,
    slo: str = "",
    goal: str = "latency",
) -> Diagnosis:
    """What limits a deployment and what to change first, as `headway doctor` says it.

    Args:
        deployment: a file in any form that `headway config` reads, or a command line as text.
        metrics: scrapes of /metrics in order of time, saved answers of Prometheus, or addresses, which are only read.
        logs: the server's log. benches: results of `vllm bench serve`, GuideLLM or `headway bench`.
        observed: figures that you know, such as `"concurrency=64,p99_ttft_ms=8200"`.
        slo: what it should achieve, such as `"ttft_p99=2s,itl_p99=100ms"`.
        goal: `latency`, or `throughput` where nobody waits for single tokens.

    Returns:
        `bottlenecks`, most limiting first; `fixes` in the order in which to try them, each with its simulated effect.

    Example::

        >>> from headway import diagnose
        >>> found = diagnose("vllm serve m --max-num-seqs 256", observed=["running=256,waiting=251,kv=20.5%"])
        >>> found.bottlenecks[0].kind, found.fixes[0].setting
        ('waiting_queue_stall', 'max_num_seqs')

    Raises:
        InputError: something that is named cannot be read. ConfigError: no such model, accelerator or release.
    """
    evidence = gather(
        deployment,
        metrics=metrics,
        logs=[Path(path) for path in logs],
        benches=[Path(path) for path in benches],
        observed=observed,
        trace=None if trace is None else Path(trace),
        engine_version=engine_version,
        gpu=gpu,
        model=model,
        objective=parse_objective(slo or None, goal),
    )
    return diagnose_evidence(evidence)
