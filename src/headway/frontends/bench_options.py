"""Settings of `headway bench`, and the workload and arrivals that they describe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.config import BATCHING_POLICIES, option
from headway.errors import ConfigError
from headway.report.words import counted
from headway.workload import (
    Generated,
    SharedPrefix,
    TraceRequest,
    Workload,
    from_zero,
    parse_length,
    read_trace,
    scale_lengths,
)

DEFAULT_LOAD = 0.7
_TRACE_LENGTH_DIVISOR = 4.0


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to replay, how fast it arrives, and where the results go.

    Raises:
        ConfigError: values out of range, or two ways of arriving at once.
    """

    trace: str | None = option(None, "Trace file, CSV or JSON Lines, plain or gzip; default: a generated workload.")
    num_prompts: int = option(200, "Requests to replay: the first ones of the trace, or as many generated ones.")
    policies: str = option(",".join(BATCHING_POLICIES), "Batching policies to compare, separated by commas.")
    length_divisor: float | None = option(
        None, "Divide prompt and output lengths by this; default: 4 for a trace, 1 for a generated workload."
    )
    load: float | None = option(
        None, "Arrivals at this share of the capacity measured with all requests at once; the default way, at 0.7."
    )
    capacity: float | None = option(None, "Capacity in requests/s for --load, instead of measuring it.")
    request_rate: float | None = option(None, "Arrivals at this many requests/s; inf sends all at once.")
    as_recorded: bool = option(False, "Arrivals at the trace's own instants.")
    concurrency: int | None = option(None, "Closed loop: this many clients, each sending when its last request ended.")
    prompt_tokens: str = option(
        "lognormal:median=200,sigma=0.8,max=1500",
        "Generated prompt length: N, LOW-HIGH or lognormal:median=…,sigma=…,max=….",
    )
    output_tokens: str = option("lognormal:median=50,sigma=0.7,max=300", "Generated output length, written likewise.")
    burstiness: float = option(1.0, "Generated arrivals: 1 is Poisson, less is burstier, inf is constant.")
    shared_prefix_tokens: int = option(0, "Generated prompts begin with this many tokens in common.")
    shared_prefix_groups: int = option(1, "Number of different common beginnings.")
    skip_empty: bool = option(False, "Leave out rows of a trace that have zero tokens (failed requests).")
    slo: str = option(
        "", "Objectives for goodput, such as ttft_ms=2000,itl_ms=200 (also tpot_ms, and e2el_ms for whole requests)."
    )
    seed: int = option(0, "Seed of prompts and generated workloads.")
    json_path: str | None = option(
        None, "Print one JSON object a policy, or write them to this file.", flag="json", bare="-"
    )
    plot_path: str | None = option(None, "Write a plot to this SVG file.", flag="plot")

    def __post_init__(self) -> None:
        self._check_ranges()
        ways = [
            flag
            for flag, given in (
                ("--load", self.load is not None),
                ("--request-rate", self.request_rate is not None),
                ("--as-recorded", self.as_recorded),
                ("--concurrency", self.concurrency is not None),
            )
            if given
        ]
        if len(ways) > 1:
            raise ConfigError(f"{' and '.join(ways)} are different ways to arrive.", hint="Give one of them.")
        if self.as_recorded and self.trace is None:
            raise ConfigError("--as-recorded needs a trace.", hint="Give --trace.")
        if self.capacity is not None and ways and self.load is None:
            raise ConfigError(f"--capacity goes with --load, not with {ways[0]}.")

    def _check_ranges(self) -> None:
        if self.num_prompts < 1:
            raise ConfigError(f"--num-prompts must be at least 1, not {self.num_prompts}.")
        for flag, value in (
            ("--load", self.load),
            ("--capacity", self.capacity),
            ("--request-rate", self.request_rate),
            ("--length-divisor", self.length_divisor),
            ("--concurrency", self.concurrency),
        ):
            if value is not None and not value > 0:
                raise ConfigError(f"{flag} must be positive, not {value:g}.")

    @property
    def divisor(self) -> float:
        """By what lengths are divided."""
        if self.length_divisor is not None:
            return self.length_divisor
        return _TRACE_LENGTH_DIVISOR if self.trace is not None else 1.0

    @property
    def effective_load(self) -> float | None:
        """Share of capacity that is offered; None if arrivals are given otherwise."""
        if self.request_rate is not None or self.as_recorded or self.concurrency is not None:
            return None
        return DEFAULT_LOAD if self.load is None else self.load

    def policy_names(self) -> list[str]:
        """The policies to compare, in the order given, each once.

        Raises:
            ConfigError: an unknown policy, or none.
        """
        from headway.core.policies import make_policy

        names = list(dict.fromkeys(name.strip() for name in self.policies.split(",") if name.strip()))
        if not names:
            raise ConfigError(
                "No policies are given.", hint=f"Known: {', '.join(BATCHING_POLICIES)}, or FILE.py:CLASS."
            )
        for name in names:
            make_policy(name)
        return names

    def workload(self) -> Workload:
        """The requests, lengths divided, the first arrival at 0; their rate is still that of the trace.

        Raises:
            WorkloadError: a trace that cannot be used, or a generated workload that makes no sense.
        """
        source = self._generated() if self.trace is None else self._recorded(self.trace)
        requests = from_zero(list(scale_lengths(source, self.divisor)))
        if self.concurrency is not None:
            return Workload(requests, "closed", self.concurrency)
        return Workload(requests)

    def workload_name(self) -> str:
        """What the workload is called in titles: the trace's name without its endings, or "generated"."""
        return "generated" if self.trace is None else Path(self.trace).name.split(".")[0]

    def _recorded(self, trace: str) -> Sequence[TraceRequest]:
        return list(read_trace(trace, limit=self.num_prompts, skip_empty=self.skip_empty))

    def _generated(self) -> Sequence[TraceRequest]:
        prefix = (
            SharedPrefix(self.shared_prefix_tokens, self.shared_prefix_groups) if self.shared_prefix_tokens else None
        )
        # Made at one request a second; the rate that is asked for is applied to any workload alike, later.
        spec = Generated(
            self.num_prompts,
            requests_per_s=1.0,
            burstiness=self.burstiness,
            prompt=parse_length(self.prompt_tokens),
            output=parse_length(self.output_tokens),
            prefix=prefix,
            seed=self.seed,
        )
        return list(spec.requests())


def describe_lengths(requests: Sequence[TraceRequest]) -> str:
    """Mean lengths of a workload in words."""
    count = len(requests)
    prompt = sum(request.num_prompt_tokens for request in requests) / count
    output = sum(request.num_output_tokens for request in requests) / count
    return f"{counted(count, 'request')}, on average {prompt:,.0f} prompt and {output:,.0f} output tokens"
