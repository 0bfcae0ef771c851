"""Settings of a workload for simulation: where requests come from, and how they are offered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from headway.config import option
from headway.errors import ConfigError
from headway.simulation.run import SimulatedWorkload
from headway.simulation.sources import parse_clients
from headway.workload import Generated, MultiTurn, Ramp, SharedPrefix, TraceRequest, parse_length, scale_lengths
from headway.workload.formats import has_arrivals, read_requests
from headway.workload.stream import RequestStream, StreamFacts, merge

_GENERATED_REQUESTS = 1000


@dataclass(frozen=True, slots=True)
class WorkloadOptions:
    """Requests from traces or from a seed, in an open loop (instants of arrival) or a closed one (clients).

    Raises:
        ConfigError: values out of range, or two ways of arriving at once.
    """

    trace: str | None = option(
        None, "Trace files, several separated by commas, merged by arrival; default: a generated workload."
    )
    num_prompts: int | None = option(None, "Requests: the first ones of each trace, or as many generated ones (1000).")
    length_divisor: float = option(1.0, "Divide prompt and output lengths by this.")
    request_rate: float | None = option(
        None, "Open loop at this many requests/s; inf sends all at once. Default: as recorded, or inf if generated."
    )
    ramp: str | None = option(
        None, "Open loop with a rate that grows: START-END in requests/s, or START-END:exponential."
    )
    concurrency: int | None = option(
        None,
        "Closed loop: this many clients, each sending when its last request ended; with a rate, not before its time.",
    )
    clients: str | None = option(
        None, "Closed loop of several kinds of clients: COUNTxPROMPT/OUTPUT,…, as in 4x128/512,8x16384/1."
    )
    prompt_tokens: str = option("512", "Generated prompt length: N, LOW-HIGH, lognormal:median=…,sigma=… or file:PATH.")
    output_tokens: str = option("128", "Generated output length, written likewise.")
    burstiness: float = option(1.0, "Generated arrivals: 1 is Poisson, less is burstier, inf is constant.")
    shared_prefix_tokens: int = option(0, "Generated prompts begin with this many tokens in common.")
    shared_prefix_groups: int = option(1, "Number of different common beginnings.")
    turns: int = option(
        1,
        "Generated requests come in conversations of this many turns, each holding those before; with --concurrency "
        "and no rate each client holds one, and goes on when it is answered.",
    )
    think_time_s: float = option(10.0, "Open loop: mean time between the turns of a conversation.", unit="seconds")
    skip_empty: bool = option(False, "Leave out rows of a trace that have zero tokens (failed requests).")
    skip_too_long: bool = option(False, "Leave out requests that the deployment could never hold.")
    seed: int = option(0, "Seed of generated workloads and of speculation.")

    def __post_init__(self) -> None:
        ways = [
            flag
            for flag, value in (
                ("--request-rate", self.request_rate),
                ("--ramp", self.ramp),
                ("--concurrency", self.concurrency),
                ("--clients", self.clients),
            )
            if value is not None
        ]
        if len(ways) > 1 and ways != ["--request-rate", "--concurrency"]:
            raise ConfigError(f"{' and '.join(ways)} are different ways to arrive.", hint="Give one of them.")
        for flag, number in (
            ("--num-prompts", self.num_prompts),
            ("--length-divisor", self.length_divisor),
            ("--request-rate", self.request_rate),
            ("--concurrency", self.concurrency),
            ("--turns", self.turns),
            ("--think-time-s", self.think_time_s),
        ):
            if number is not None and not number > 0:
                raise ConfigError(f"{flag} must be positive, not {number:g}.")
        for flag, value in (("--ramp", self.ramp), ("--clients", self.clients)):
            if value is not None and self.trace is not None:
                raise ConfigError(f"{flag} is for generated requests.", hint=f"Leave --trace or {flag} out.")

    @property
    def name(self) -> str:
        """What the workload is called in titles."""
        if self.trace is None:
            return "generated"
        return " + ".join(Path(path).name.split(".")[0] for path in self.trace.split(","))

    @property
    def loop(self) -> str:
        """`open` or `closed`."""
        return "open" if self.concurrency is None and self.clients is None else "closed"

    def open(self) -> tuple[SimulatedWorkload, StreamFacts]:
        """The requests, with the arrivals that were asked for, and what they amount to. Files are read once for that.

        Raises:
            WorkloadError: a trace that cannot be used, or a generated workload that makes no sense.
        """
        for path in self.trace.split(",") if self.trace is not None else ():
            if self.request_rate is None and self.concurrency is None and not has_arrivals(path):
                raise ConfigError(f"{path} does not say when its requests came.", hint="Give --request-rate.")
        if self.clients is not None:
            return self._loops(self.clients)
        stream = RequestStream(self._read)
        facts = stream.survey()
        if self.request_rate is not None and self.trace is not None:
            stream = stream.at_rate(self.request_rate, facts)
        is_paced = self.concurrency is not None and self.request_rate is not None
        is_held = self.trace is None and self.turns > 1 and self.loop == "closed" and not is_paced
        workload = SimulatedWorkload(
            stream,
            self.concurrency,
            conversations=self._held if is_held else None,
            num_requests=facts.num_requests,
            skip_too_long=self.skip_too_long,
            is_paced=is_paced,
        )
        return workload, facts

    def _loops(self, clients: str) -> tuple[SimulatedWorkload, StreamFacts]:
        """Loops of several kinds; what they amount to is told from a sample, since it depends on who is fast."""
        groups, count = parse_clients(clients), self.num_prompts or _GENERATED_REQUESTS
        workload = SimulatedWorkload(groups=groups, num_requests=count, seed=self.seed)
        rng = Random(f"{self.seed}/sample")
        sample = [(group.prompt.draw(rng), group.output.draw(rng)) for group in groups for _ in range(100)]
        prompts, outputs = (sum(column) * count // len(sample) for column in zip(*sample, strict=True))
        return workload, StreamFacts(count, prompts, outputs, max(map(sum, sample)), 0.0)

    def offered(self, facts: StreamFacts) -> str:
        """How requests are offered, in words."""
        if self.concurrency is not None:
            paced = f", {self.request_rate:g} requests/s at most" if self.request_rate is not None else ""
            return f"closed loop, {self.concurrency} at a time{paced}"
        if self.clients is not None:
            return f"closed loops {self.clients}"
        if self.ramp is not None:
            return f"open loop, rate growing {self.ramp} requests/s"
        rate = self.request_rate if self.request_rate is not None else facts.requests_per_s
        shown = "all at once" if math.isinf(rate) else f"{rate:.4g} requests/s"
        recorded = ", as recorded" if self.trace is not None and self.request_rate is None else ""
        return f"open loop, {shown}{recorded}"

    def _read(self) -> Iterable[TraceRequest]:
        if self.trace is None:
            source: Iterable[TraceRequest] = self._generated()
        else:
            source = merge([self._recorded(path) for path in self.trace.split(",")])
        return self._scaled(source)

    def _scaled(self, requests: Iterable[TraceRequest]) -> Iterable[TraceRequest]:
        return scale_lengths(requests, self.length_divisor) if self.length_divisor != 1.0 else requests

    def _recorded(self, path: str) -> Iterable[TraceRequest]:
        stream = RequestStream(lambda: read_requests(path, limit=self.num_prompts, skip_empty=self.skip_empty))
        return iter(stream) if "," in (self.trace or "") else stream.read()

    def _generated(self) -> Iterable[TraceRequest]:
        count = self.num_prompts or _GENERATED_REQUESTS
        if self.turns > 1:
            return itertools.islice(self._conversations().requests(), count)
        if self.ramp is not None:
            return Ramp.parse(self.ramp).apply(self._spec(count))
        return self._spec(count).requests()

    def _conversations(self) -> MultiTurn:
        count = self.num_prompts or _GENERATED_REQUESTS
        return MultiTurn(self._spec(-(-count // self.turns)), self.turns, self.think_time_s)

    def _held(self) -> Iterator[Iterator[TraceRequest]]:
        return (iter(self._scaled(turns)) for turns in self._conversations().conversations())

    def _spec(self, num_requests: int) -> Generated:
        prefix = (
            SharedPrefix(self.shared_prefix_tokens, self.shared_prefix_groups) if self.shared_prefix_tokens else None
        )
        return Generated(
            num_requests,
            requests_per_s=self._generated_rate / self.turns,
            burstiness=self.burstiness,
            prompt=parse_length(self.prompt_tokens),
            output=parse_length(self.output_tokens),
            prefix=prefix,
            seed=self.seed,
        )

    @property
    def _generated_rate(self) -> float:
        return math.inf if self.request_rate is None else self.request_rate
