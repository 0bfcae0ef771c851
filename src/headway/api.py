"""What a script calls: a deployment simulated, judged or diagnosed in one call, with the command line's settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from headway.compat import Judgement
from headway.compat import judge as judge_effective
from headway.deployment.effective import resolve_effective
from headway.deployment.read import read_file, read_text
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
    found = read_file(deployment) if isinstance(deployment, Path) else read_text(deployment, "command.sh")
    return [
        judge_effective(resolve_effective(invocation, engine_version=engine_version, accelerator=gpu))
        for invocation in found
    ]
