"""How much load a deployment carries: with requests that never lack, and within objectives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from headway.core.request import Request
from headway.errors import ConfigError
from headway.report.slo import RequestRecord, Slo
from headway.report.summary import Summary
from headway.simulation.run import SimulatedDeployment, simulate
from headway.simulation.workload_options import WorkloadOptions

SHARE = 0.99
"""Of the requests that must meet every objective, unless another is asked for."""
_WITHIN = 0.02
_ROUNDS = 5
"""Requests for each client, at least: fewer and the first burst decides."""
_LIVES, _MOST_TURNS = 2, 20_000
"""Conversations begin for as long as two of them take, or their turns come at less than the rate asked for."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """What a deployment completes when requests never lack, and in which way they do not."""

    requests_per_s: float
    output_tokens_per_s: float
    offered: str = "all requests at once"

    def utilisation(self, requests_per_s: float) -> float:
        """Offered over completed at most: above 1 a queue grows for as long as the load lasts."""
        return requests_per_s / self.requests_per_s

    def queue_growth_per_s(self, requests_per_s: float) -> float:
        """Requests that are left over in each second."""
        return max(0.0, requests_per_s - self.requests_per_s)

    def num_replicas(self, requests_per_s: float) -> int:
        """Copies of the deployment without which a queue grows for ever."""
        return max(1, math.ceil(self.utilisation(requests_per_s) - 1e-9))


@dataclass(frozen=True, slots=True)
class LoadLimit:
    """The highest load at which the objectives hold, and the simulation at that load.

    Args:
        load: requests/s in an open loop, clients in a closed one; 0 where not even one request meets them.
        share: of the requests judged, that met every objective there.
        is_saturated: no objective ends here, but the deployment's throughput.
    """

    load: float
    share: float
    is_saturated: bool
    summary: Summary

    def num_replicas(self, load: float) -> int | None:
        """Copies of the deployment that carry a load within the objectives; None where no number does."""
        return max(1, math.ceil(load / self.load - 1e-9)) if self.load else None


def saturation(deployment: SimulatedDeployment, workload: WorkloadOptions) -> Saturation:
    """Throughput with all requests at once; with conversations on every seat, whose turns need the answers before.

    Raises:
        ConfigError: nothing is completed.
        WorkloadError: as for `simulate`.
    """
    offered = replace(workload, request_rate=math.inf, ramp=None, concurrency=None)
    how = "all requests at once"
    if workload.turns > 1 and workload.trace is None:
        seats = _num_seats(deployment)
        count = max(workload.num_prompts or 0, seats * workload.turns)
        offered = replace(offered, request_rate=None, concurrency=seats, num_prompts=count)
        how = "a conversation on every seat"
    summary = simulate(deployment, offered.open()[0]).summary
    if not summary["request_throughput"]:
        raise ConfigError(
            "No request is completed, so that there is no capacity.",
            hint="All are left out as too long: raise --max-model-len.",
        )
    return Saturation(summary["request_throughput"], summary["output_throughput"] or 0.0, how)


def _num_seats(deployment: SimulatedDeployment) -> int:
    return deployment.config.scheduler.max_num_seqs * deployment.num_ranks


def highest_load(
    deployment: SimulatedDeployment, workload: WorkloadOptions, slo: Slo, *, share: float = SHARE
) -> LoadLimit:
    """Search for the highest load within objectives: of clients if the workload has a concurrency, else of arrivals.

    A rate is found to 2 %, and is at most the throughput with all requests at once: above that a queue grows for ever,
    however long the first ones wait. Clients are tried up to the number of seats of all replicas, above which more of
    them only wait; what they send first, all at once, is not judged if they send more.

    Args:
        share: of the requests that must meet every objective, 0 to 1.

    Raises:
        ConfigError: no objectives, a share out of range, clients of several kinds, or nothing is completed.
        WorkloadError: as for `simulate`.
    """
    if not slo:
        raise ConfigError("A limit needs objectives.", hint="Give --slo, as in --slo ttft_ms=2000,tpot_ms=50.")
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"The share of requests must be above 0 and at most 1, not {share:g}.")
    if workload.clients is not None:
        raise ConfigError("The highest load is of one kind of clients.", hint="Give --concurrency or --request-rate.")

    def at(load: float) -> LoadLimit:
        first, later = Counter[bool](), Counter[bool]()

        def judge(record: RequestRecord, request: Request) -> None:
            is_first = workload.concurrency is not None and not record.sent_at
            (first if is_first else later)[slo.met_by(record)] += 1

        summary = simulate(deployment, _offered(workload, load).open()[0], slo=slo, on_record=judge).summary
        judged = later or first  # a trace may have no more requests than clients
        return LoadLimit(load, judged[True] / max(1, judged.total()), False, summary)

    if workload.concurrency is not None:
        return _most_clients(at, share, _num_seats(deployment))
    most = saturation(deployment, workload).requests_per_s
    return _highest_rate(at, share, most)


def _offered(workload: WorkloadOptions, load: float) -> WorkloadOptions:
    count = workload.num_prompts
    if workload.concurrency is None:
        if workload.turns > 1 and workload.trace is None:
            arriving = math.ceil(_LIVES * load * workload.turns * workload.think_time_s)
            count = max(count or 0, min(_MOST_TURNS, arriving))
        return replace(workload, request_rate=load, ramp=None, num_prompts=count)
    if workload.trace is None:
        count = max(count or 0, _ROUNDS * round(load) * workload.turns)
    return replace(workload, concurrency=round(load), num_prompts=count)


def _highest_rate(at: Callable[[float], LoadLimit], share: float, most: float) -> LoadLimit:
    found = at(most)
    if found.share >= share:
        return replace(found, is_saturated=True)
    low, high = most / 64, most
    best = at(low)
    if best.share < share:
        return replace(best, load=0.0)
    while high / low > 1.0 + _WITHIN:
        middle = math.sqrt(low * high)
        tried = at(middle)
        if tried.share >= share:
            low, best = middle, tried
        else:
            high = middle
    return best


def _most_clients(at: Callable[[float], LoadLimit], share: float, seats: int) -> LoadLimit:
    best = at(1)
    if best.share < share:
        return replace(best, load=0.0)
    low, high = 1, 2
    while high < seats and (tried := at(high)).share >= share:
        low, high, best = high, 2 * high, tried
    high = min(high, seats)
    if high == seats and high > low:
        tried = at(seats)
        if tried.share >= share:
            return replace(tried, is_saturated=True)
    while high - low > max(1, _WITHIN * low):
        middle = (low + high) // 2
        tried = at(middle)
        if tried.share >= share:
            low, best = middle, tried
        else:
            high = middle
    return best
