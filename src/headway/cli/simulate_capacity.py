"""`headway simulate --capacity`: how much the deployment carries, and how many of it the offered load needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from headway.report.slo import Slo
from headway.report.tables import format_number
from headway.simulation.capacity import LoadLimit, Saturation, highest_load, saturation
from headway.simulation.options import ResolvedDeployment
from headway.simulation.workload_options import WorkloadOptions


@dataclass(frozen=True, slots=True)
class Carried:
    """Answers about one deployment. `offered` is the load that was asked about: requests/s, or clients."""

    saturated: Saturation
    limit: LoadLimit | None
    offered: float
    is_closed: bool
    num_gpus: int

    def rows(self, slo: Slo) -> list[tuple[str, str, str]]:
        """What was found, in words: name, value, remark."""
        saturated, rate = self.saturated, self.offered
        rows = [
            (
                "capacity",
                f"{format_number(saturated.requests_per_s)} requests/s",
                f"{format_number(saturated.output_tokens_per_s)} output tok/s, with {saturated.offered}",
            )
        ]
        if self._has_rate:
            growth = saturated.queue_growth_per_s(rate)
            remark = f"{format_number(rate)} requests/s"
            if growth:
                remark += f"; a queue grows by {format_number(growth)} requests/s for as long as they come"
                remark += f"; {self._count(saturated.num_replicas(rate))} at least"
            rows.append(("offered", f"{saturated.utilisation(rate):.0%} of that", remark))
        if self.limit is not None:
            rows.append(self._within(self.limit, slo))
        return rows

    def _within(self, limit: LoadLimit, slo: Slo) -> tuple[str, str, str]:
        unit = "clients" if self.is_closed else "requests/s"
        if not limit.load:
            return "within objectives", "nothing", f"{limit.share:.0%} of the requests meet {slo} at the lowest load"
        remark = f"{limit.share:.1%} of the requests meet {slo}"
        remark += "; more only wait" if limit.is_saturated else ""
        replicas = limit.num_replicas(self.offered) if self.is_closed or self._has_rate else None
        if replicas is not None:
            remark += f"; {format_number(self.offered)} {unit} need {self._count(replicas)}"
        return "within objectives", f"{format_number(limit.load)} {unit}", remark

    @property
    def _has_rate(self) -> bool:
        return not self.is_closed and 0.0 < self.offered < math.inf

    def _count(self, replicas: int) -> str:
        gpus = replicas * self.num_gpus
        return f"{replicas} {'replica' if replicas == 1 else 'replicas'} ({gpus} {'GPU' if gpus == 1 else 'GPUs'})"

    def facts(self) -> Mapping[str, object]:
        """For a JSON row."""
        saturated, limit, rate = self.saturated, self.limit, self.offered
        is_rate = self._has_rate
        return {
            "saturated_requests_per_s": saturated.requests_per_s,
            "saturated_output_tokens_per_s": saturated.output_tokens_per_s,
            "utilisation": saturated.utilisation(rate) if is_rate else None,
            "queue_growth_per_s": saturated.queue_growth_per_s(rate) if is_rate else None,
            "min_replicas": saturated.num_replicas(rate) if is_rate else None,
            "slo_load": None if limit is None else limit.load,
            "slo_share": None if limit is None else limit.share,
            "slo_replicas": limit.num_replicas(rate) if limit is not None and (is_rate or self.is_closed) else None,
            "num_gpus_per_replica": self.num_gpus,
        }


def carried(resolved: ResolvedDeployment, workload: WorkloadOptions, offered: float, slo: Slo, share: float) -> Carried:
    """Find out; some dozen simulations if there are objectives, else one.

    Args:
        offered: requests/s of an open loop, clients of a closed one.

    Raises:
        ConfigError, WorkloadError: as for `highest_load`.
    """
    limit = highest_load(resolved.deployment, workload, slo, share=share) if slo else None
    options = resolved.options
    gpus = options.tensor_parallel_size * options.pipeline_parallel_size * options.data_parallel_size
    return Carried(saturation(resolved.deployment, workload), limit, offered, workload.loop == "closed", gpus)
