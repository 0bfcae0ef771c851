"""The latency of both sides of a version change, simulated on the same workload."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from headway.compat.diff import VersionDiff
from headway.compat.sizing import plan_flags
from headway.deployment.effective import Effective
from headway.errors import ConfigError, HeadwayError
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import simulate
from headway.simulation.workload_options import WorkloadOptions

SHOWN = ("request_throughput", "output_throughput", "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_itl_ms",
         "num_preemptions")  # fmt: skip
_NUM_PROMPTS = 300


def simulated(difference: VersionDiff, workload: str) -> dict[str, Any]:
    """Figures of `before` and `after` under the same arrivals, or the `reason` why there are none.

    Args:
        workload: PROMPT/OUTPUT@LOAD; the rate is LOAD of what the old side can do at most.

    Raises:
        ConfigError: not a workload.
    """
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})@(\d*\.?\d+)", workload)
    if match is None or float(match.group(3)) <= 0:
        raise ConfigError(f"{workload!r} is not a workload.", hint="Write PROMPT/OUTPUT@LOAD, such as 512/128@0.7.")
    prompt, output, load = match.groups()
    try:
        old = _options(difference.before.effective)
        new = _options(difference.after.effective)
        capacity = _run(old, prompt, output, None)["request_throughput"]
        rate = float(load) * capacity
        before, after = (_run(side, prompt, output, rate) for side in (old, new))
    except HeadwayError as error:
        return {"reason": str(error)}
    return {
        "workload": f"{prompt}/{output} tokens at {rate:.2f} requests/s, {load} of the old side's most",
        "before": {name: before[name] for name in SHOWN if name in before},
        "after": {name: after[name] for name in SHOWN if name in after},
        "source": "simulated; step times from the roofline",
    }


def _options(effective: Effective) -> DeploymentOptions:
    if effective.model is None or effective.accelerator is None:
        raise ConfigError("Model or GPU is not known.", hint="Give --model and --gpu.")
    flags = plan_flags(effective)
    config = effective.facts.get("speculative_config")
    if isinstance(config, Mapping):
        flags["speculative_config"] = json.dumps(dict(config))
    for name in ("scheduling_policy", "long_prefill_token_threshold", "max_num_active_seqs", "watermark"):
        if (value := effective.value(name)) is not None:
            flags[name] = value
    return DeploymentOptions(
        model=effective.model.id, gpu=effective.accelerator.id, engine_version=effective.version_text, **flags
    )


def _run(options: DeploymentOptions, prompt: str, output: str, rate: float | None) -> Mapping[str, Any]:
    requests, _ = WorkloadOptions(
        num_prompts=_NUM_PROMPTS, prompt_tokens=prompt, output_tokens=output, request_rate=rate
    ).open()
    return simulate(options.resolve().deployment, requests).summary
