"""One run of `headway bench`: from options to a table, a JSON file and a plot."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from headway import factory
from headway.cli.console import make_console, print_next
from headway.cli.json_output import write_json
from headway.config import EngineConfig, EngineOptions
from headway.core.arrivals import TraceSource
from headway.core.clock import WallClock
from headway.core.engine import Engine
from headway.core.policies import blaming, make_policy
from headway.errors import ConfigError
from headway.frontends.bench_options import BenchOptions, describe_lengths
from headway.frontends.comparison import (
    CAPACITY_POLICY,
    PromptSource,
    check_fits,
    expected_reservation_waste,
    measure_capacity,
    offer,
    offered_rate,
    result_row,
    run_policy,
)
from headway.frontends.replay import ReplayResult, progress_bar
from headway.report.files import check_writable
from headway.report.plots import check_plot_path, write_comparison_plot
from headway.report.slo import parse_slo
from headway.report.tables import comparison_table, facts_table, format_number
from headway.report.words import counted
from headway.workload import TraceRequest, Workload

_NUM_WARM_UP_REQUESTS = 2
_NUM_WARM_UP_TOKENS = 4


class EngineFactory:
    """Makes engines on one loaded model, all with the KV pool that the first one found room for."""

    def __init__(self, model: factory.Model, options: EngineOptions) -> None:
        self._model = model
        self._options = options
        self.config: EngineConfig | None = None
        """What was resolved for the first engine; its reasons hold for all."""

    def __call__(self, policy: str) -> Engine:
        gc.collect()  # The pool of the engine before this one must be gone before the next is made.
        engine, config = factory.build_engine(
            self._model, replace(self._options, policy=policy), TraceSource([]), WallClock()
        )
        if self.config is None:
            self.config = config
            self._options = replace(self._options, num_blocks=config.cache.num_blocks)
        return engine


class BenchRun:
    """Everything that one invocation does.

    Raises:
        ConfigError: settings that cannot work; those that can be seen without the model, before it is loaded.
        WorkloadError: a workload that cannot be used.
    """

    def __init__(self, model: str | None, options: BenchOptions, engine_options: EngineOptions) -> None:
        self._options = options
        self._policies = options.policy_names()
        self._slo = parse_slo(options.slo)
        if options.plot_path is not None:
            check_plot_path(options.plot_path)
        check_writable(options.json_path, "--json")
        self._workload = options.workload()
        self._capacity = options.capacity
        self._console = make_console(stderr=options.json_path == "-")
        self._engine_options = engine_options
        self._model = factory.load_model(model, engine_options)
        self._make_engine = EngineFactory(self._model, engine_options)
        tokenizer = self._model.tokenizer
        kept_apart = tokenizer.special_token_ids | tokenizer.added_token_ids
        vocabulary = [token_id for token_id in range(tokenizer.vocab_size) if token_id not in kept_apart]
        self._prompts = PromptSource(vocabulary, options.seed)

    def execute(self) -> bool:
        """Replay, print and write. Returns whether Ctrl-C ended it early; what was done until then is reported."""
        results: dict[str, ReplayResult] = {}
        if self._prepare():
            return True
        for policy in self._policies:
            with blaming(policy), progress_bar(make_policy(policy).name, len(self._workload.requests)) as on_progress:
                results[policy] = run_policy(
                    self._make_engine, policy, self._workload, self._prompts, slo=self._slo, on_progress=on_progress
                )
            if results[policy].interrupted:
                break
        self._report(results)
        print_next(
            self._console, "headway simulate --model llama-3.1-8b --gpu l40s --compare-policies", "the same on a GPU"
        )
        return any(result.interrupted for result in results.values())

    def _prepare(self) -> bool:
        """Warm up, say what was resolved, and set the arrivals. Returns whether Ctrl-C came."""
        warm_up = [_shortened(request) for request in self._workload.requests[:_NUM_WARM_UP_REQUESTS]]
        if run_policy(self._make_engine, CAPACITY_POLICY, Workload(warm_up), self._prompts).interrupted:
            return True
        self._check_room()
        self._console.print(facts_table(f"headway bench: {self._model.name}", self._facts()))
        load = self._options.effective_load
        if load is not None:
            if self._capacity is None and self._measure_capacity():
                return True
            assert self._capacity is not None
            self._workload = offer(self._workload, load * self._capacity)
        elif self._options.request_rate is not None:
            self._workload = offer(self._workload, self._options.request_rate)
        self._console.print(facts_table("", [("arrivals", *self._arrivals())]))
        self._console.print()
        return False

    def _check_room(self) -> None:
        """Refuse what some policy could not hold before any of them has run for minutes."""
        config = self._config
        check_fits(self._workload, config.scheduler.max_model_len, _pool_tokens(config))
        reserving = _reserving(self._policies)
        if reserving and _pool_tokens(config) < config.scheduler.max_model_len:
            raise ConfigError(
                f"{_listed(reserving)} {config.scheduler.max_model_len} tokens for each request, "
                f"but the KV cache holds {_pool_tokens(config)}.",
                hint="Lower --max-model-len or raise --kv-cache-memory-bytes.",
            )

    def _measure_capacity(self) -> bool:
        with progress_bar("capacity", len(self._workload.requests)) as on_progress:
            result = measure_capacity(self._make_engine, self._workload, self._prompts, on_progress=on_progress)
        self._capacity = result.summary["request_throughput"]
        if result.interrupted:
            self._console.print("Interrupted while capacity was measured; --request-rate or --capacity skip that.")
        return result.interrupted

    @property
    def _config(self) -> EngineConfig:
        assert self._make_engine.config is not None, "an engine has been made"
        return self._make_engine.config

    def _facts(self) -> Iterator[tuple[str, str, str]]:
        """What was resolved, and why."""
        config = self._config
        scheduler, reasons = config.scheduler, config.reasons
        pool_tokens, max_model_len = _pool_tokens(config), scheduler.max_model_len
        lengths = ", ".join(filter(None, (describe_lengths(self._workload.requests), self._divided())))
        yield "workload", self._options.workload_name(), lengths
        yield "KV cache", f"{pool_tokens:,} tokens", f"{config.cache.num_blocks - 1:,} blocks; " + reasons["num_blocks"]
        concurrency = format_number(pool_tokens / max_model_len)
        yield "concurrency", f"{concurrency} requests", f"of the full {max_model_len:,} tokens"
        yield "max_model_len", f"{max_model_len:,} tokens", reasons.get("max_model_len", "given")
        yield "max_num_seqs", counted(scheduler.max_num_seqs, "request"), reasons.get("max_num_seqs", "given")
        budget_reason = reasons.get("max_num_batched_tokens", "given")
        yield "step budget", f"{scheduler.max_num_batched_tokens:,} tokens", budget_reason
        if "continuous" in self._policies:
            budget = make_policy("continuous").limits(scheduler).max_num_batched_tokens
            yield "  under continuous", f"{budget:,} tokens", "a prompt is never cut, so the longest must fit"
        if self._slo:
            yield "goodput counts", str(self._slo), ""

    def _arrivals(self) -> tuple[str, str]:
        workload, options = self._workload, self._options
        rate = offered_rate(workload)
        if rate is None:
            return f"{workload.concurrency} at a time", "closed loop"
        shown = "all at once" if rate == float("inf") else f"{format_number(rate)} requests/s"
        if options.effective_load is not None:
            assert self._capacity is not None
            origin = "given" if options.capacity is not None else f"under {CAPACITY_POLICY}"
            why = f"{options.effective_load:.0%} of the capacity {origin}, {format_number(self._capacity)} requests/s"
            return shown, f"open loop; {why}"
        return shown, "open loop; as recorded" if options.as_recorded else "open loop; given"

    def _report(self, results: dict[str, ReplayResult]) -> None:
        summaries = {make_policy(policy).name: result.summary for policy, result in results.items()}
        self._console.print(comparison_table(self._title(), summaries))
        self._explain_reservations(results)
        for policy, result in results.items():
            if result.interrupted:
                num_done, num_all = result.summary["completed"], len(self._workload.requests)
                self._console.print(f"Interrupted: {policy} had done {num_done} of {counted(num_all, 'request')}.")
        if self._options.plot_path is not None:
            path = write_comparison_plot(
                self._options.plot_path, summaries, title=self._title(), subtitle=self._subtitle()
            )
            self._console.print(f"Plot written to {path}.")
        write_json(
            [result_row(policy, result, self._workload, self._row_facts(policy)) for policy, result in results.items()],
            self._options.json_path,
            self._console,
        )

    def _explain_reservations(self, policies: Iterable[str]) -> None:
        """Say what the lengths alone foretell of the waste of policies that reserve, beside what was measured."""
        reserving = _reserving(policies)
        if reserving:
            self._console.print(
                f"{_listed(reserving)} {self._config.scheduler.max_model_len:,} tokens for each request: from the "
                f"lengths alone, a KV waste of {self._expected_waste():.1%} (1 - mean length / maximum length)."
            )

    def _title(self) -> str:
        count = counted(len(self._workload.requests), "request")
        return f"{self._model.name}, {self._options.workload_name()}: {count}"

    def _subtitle(self) -> str:
        divided = f"{self._divided()} · " if self._divided() else ""
        shown, why = self._arrivals()
        threads = self._engine_options.num_threads or os.cpu_count()
        return f"{divided}{shown}, {why} · {threads} CPU thread{'s' if threads != 1 else ''}"

    def _divided(self) -> str:
        divisor = self._options.divisor
        return f"lengths ÷ {divisor:g}" if divisor != 1 else ""

    def _expected_waste(self) -> float:
        return expected_reservation_waste(self._workload.requests, self._config.scheduler.max_model_len)

    def _row_facts(self, policy: str) -> dict[str, object]:
        options, config = self._options, self._config
        return {
            "date": time.strftime("%Y%m%d-%H%M%S"),
            "backend": "headway",
            "endpoint_type": "headway",
            "model_id": self._model.name,
            "tokenizer_id": self._model.name,
            "burstiness": None if options.trace is not None else options.burstiness,
            "workload": options.workload_name(),
            "length_divisor": options.divisor,
            "seed": options.seed,
            "load": options.effective_load,
            "capacity_requests_per_s": self._capacity if options.effective_load is not None else None,
            "slo": str(self._slo) or None,
            "engine_version": config.engine_version,
            "num_blocks": config.cache.num_blocks,
            "block_size": config.cache.block_size,
            "max_model_len": config.scheduler.max_model_len,
            "max_num_seqs": config.scheduler.max_num_seqs,
            "max_num_batched_tokens": make_policy(policy).limits(config.scheduler).max_num_batched_tokens,
            "expected_kv_waste": self._expected_waste() if _reserving([policy]) else None,
        }


def _reserving(policies: Iterable[str]) -> list[str]:
    """Those that take KV slots for the longest sequence at admission."""
    reserving = []
    for policy in policies:
        with blaming(policy):
            if make_policy(policy).reserve(1):
                reserving.append(policy)
    return reserving


def _listed(policies: Sequence[str]) -> str:
    return f"{' and '.join(policies)} {'reserve' if len(policies) > 1 else 'reserves'}"


def _pool_tokens(config: EngineConfig) -> int:
    return (config.cache.num_blocks - 1) * config.cache.block_size


def _shortened(request: TraceRequest) -> TraceRequest:
    return replace(request, arrival_s=0.0, num_output_tokens=min(request.num_output_tokens, _NUM_WARM_UP_TOKENS))
