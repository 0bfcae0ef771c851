"""A simulated server with a load: what its operator would hand over, and what its clients would notice."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any

from headway.doctor.diagnosis import Fix
from headway.executors.simulated.oracle import LatencyOracle
from headway.report.summary import Summary
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedWorkload, simulate
from headway.simulation.server_log import startup_lines
from headway.simulation.telemetry import Telemetry
from headway.workload import TraceRequest

_NOT_ON_THE_COMMAND_LINE = {"model", "gpu", "latency", "profile", "policy", "router", "engine_version"} | {
    "acceptance_rate",
    "draft_cost",
}
"""Facts of the simulation, which no operator writes."""


@dataclass(frozen=True, slots=True)
class Load:
    """Requests by instant of arrival; with a `concurrency`, that many clients send them one after another."""

    requests: Sequence[TraceRequest]
    concurrency: int | None = None

    @property
    def last_arrival_s(self) -> float:
        """When the last request comes, in an open loop."""
        return max(request.arrival_s for request in self.requests)


def poisson(
    rate: float,
    duration_s: float,
    prompt: tuple[int, int],
    output: tuple[int, int],
    *,
    seed: int = 1,
    start_s: float = 0.0,
) -> list[TraceRequest]:
    """Requests at random instants, with lengths drawn evenly from two ranges."""
    rng, at, found = Random(f"{seed}/{rate}"), start_s, []
    while (at := at + rng.expovariate(rate)) < start_s + duration_s:
        found.append(TraceRequest(at, rng.randint(*prompt), rng.randint(*output)))
    return found


def evenly(count: int, every_s: float, prompt: int, output: int, *, start_s: float = 0.0) -> list[TraceRequest]:
    """Like requests at equal distances."""
    return [TraceRequest(start_s + i * every_s, prompt, output) for i in range(count)]


def sharing(requests: Iterable[TraceRequest], num_tokens: int) -> list[TraceRequest]:
    """Requests whose prompts all begin with the same tokens, as those behind one system prompt do."""
    return [replace(request, block_keys=("shared",), block_key_tokens=num_tokens) for request in requests]


def together(*parts: Iterable[TraceRequest]) -> list[TraceRequest]:
    """Several streams merged by arrival."""
    return sorted((request for part in parts for request in part), key=lambda request: request.arrival_s)


@dataclass(frozen=True, slots=True)
class Server:
    """A deployment under a load. `disturb` makes its machine behave as no model of it knows.

    Args:
        is_steady: whether steps of one shape always take the same time.
    """

    options: DeploymentOptions
    load: Load
    disturb: Callable[[LatencyOracle], LatencyOracle] | None = None
    scrape_interval_s: float = 5.0
    is_steady: bool = True

    @property
    def command(self) -> str:
        """How it was started."""
        words = ["vllm", "serve", str(self.options.model)]
        for option in fields(self.options):
            value = getattr(self.options, option.name)
            if option.name in _NOT_ON_THE_COMMAND_LINE or value == option.default:
                continue
            flag = "--" + option.name.replace("_", "-")
            if isinstance(value, bool):
                words.append(flag if value else flag.replace("--", "--no-", 1))
            else:
                words += [flag, str(value)]
        return shlex.join(words)

    def observe(self) -> Observed:
        """Run it, and keep what was scraped and logged while requests came."""
        resolved = self.options.resolve()
        deployment = resolved.deployment
        if self.disturb is not None:
            deployment = replace(deployment, oracle=self.disturb(deployment.oracle))
        scrapes: list[tuple[float, str]] = []
        log: list[tuple[float, str]] = []
        telemetry = Telemetry(
            model_name=str(self.options.model),
            on_scrape=lambda at_s, text: scrapes.append((at_s, text)),
            on_log=lambda at_s, line: log.append((at_s, line)),
            scrape_interval_s=self.scrape_interval_s,
        )
        result = simulate(
            deployment,
            SimulatedWorkload(self.load.requests, self.load.concurrency),
            observers=[telemetry],
            fast_forward=self.is_steady,
        )
        telemetry.close()
        until = result.summary["duration"] or 0.0
        if self.load.concurrency is None:
            until = max(self.load.last_arrival_s, 3 * self.scrape_interval_s)
        return Observed(
            self,
            "".join(text for at_s, text in scrapes if at_s <= until),
            "\n".join([*startup_lines(resolved), *(line for at_s, line in log if at_s <= until)]) + "\n",
            result.summary,
        )

    def with_fix(self, fix: Fix) -> Server:
        """The same server after a change that the doctor asks for, and nothing else.

        Raises:
            NotImplementedError: a change that the simulation has no counterpart of.
        """
        return self.changed(fix.setting, fix.to_value)

    def changed(self, setting: str, value: Any) -> Server:
        """The same for a setting by name. Fewer GPUs to a replica leave the others to further replicas."""
        if setting == "replicas":
            return replace(self, options=replace(self.options, data_parallel_size=int(value)))
        size = self.options.tensor_parallel_size
        if setting == "tensor_parallel_size" and int(value) < size:
            freed = self.options.data_parallel_size * size // int(value)
            changed = replace(self.options, tensor_parallel_size=int(value), data_parallel_size=freed)
            return replace(self, options=changed)
        if setting == "request_rate":
            return replace(self, load=self._at_rate(float(value)))
        if setting == "max_tokens":
            most = int(value)
            shorter = [_with_output(request, most) for request in self.load.requests]
            return replace(self, load=replace(self.load, requests=shorter))
        if setting == "client" and self.load.concurrency is not None:
            return replace(self, load=replace(self.load, concurrency=int(str(value).split()[0])))
        if setting == "speculative_config":
            value = None if value is None else value if isinstance(value, str) else json.dumps(value)
        if setting not in {option.name for option in fields(self.options)}:
            raise NotImplementedError(f"{setting} = {value!r}")
        return replace(self, options=replace(self.options, **{setting: value}))

    def _at_rate(self, requests_per_s: float) -> Load:
        stretch = (len(self.load.requests) / self.load.last_arrival_s) / requests_per_s
        return replace(self.load, requests=[r.arriving_at(r.arrival_s * stretch) for r in self.load.requests])


def _with_output(request: TraceRequest, most: int) -> TraceRequest:
    return replace(request, num_output_tokens=min(most, request.num_output_tokens))


@dataclass(frozen=True, slots=True)
class Observed:
    """All that the doctor gets to see of a server, and the truth about its clients, which it does not."""

    server: Server
    metrics: str
    log: str
    summary: Summary = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[Path, Path]:
        """The two files that an operator would hand over: scrapes and log."""
        metrics, log = folder / "scrapes.prom", folder / "server.log"
        metrics.write_text(self.metrics)
        log.write_text(self.log)
        return metrics, log
