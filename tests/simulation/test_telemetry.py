"""What a simulated server shows: scrapes that Prometheus reads, log lines that vLLM's readers read, true figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from headway.cli.simulate import simulate as simulate_command
from headway.config import CacheConfig, EngineConfig, SchedulerConfig
from headway.core.arrivals import TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.scheduler import Scheduler
from headway.errors import ConfigError
from headway.executors.simulated.constant import ConstantOracle
from headway.executors.simulated.executor import SimulatedExecutor
from headway.executors.simulated.speculation import SpeculationModel
from headway.frontends.server.metrics import ServerMetrics
from headway.planner.startup_log import read_startup_logs
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedDeployment, SimulatedWorkload, SimulationResult, simulate
from headway.simulation.server_log import startup_lines
from headway.simulation.telemetry import Telemetry
from headway.status_log import HitRate
from headway.workload import TraceRequest

ORACLE = ConstantOracle(step_ms=1.0, prefill_us=40.0, decode_ms=9.0, decode_token_us=20.0, host_ms=1.0)
BUSY = [TraceRequest(i * 0.2, 40 + 37 * i % 300, 1 + 53 * i % 160) for i in range(120)]

Key = tuple[str, frozenset[tuple[str, str]]]


class Seen:
    """One run, its scrapes as values by name and labels, and its log."""

    def __init__(
        self,
        requests: Sequence[TraceRequest] = BUSY,
        *,
        blocks: int = 120,
        oracle: ConstantOracle = ORACLE,
        is_async: bool = False,
        ranks: int = 1,
        drafts: int = 0,
        fast_forward: bool = True,
        scrape_interval_s: float = 3.0,
    ) -> None:
        scheduler = SchedulerConfig(
            16, 256, 2048, async_scheduling=is_async, num_speculative_tokens=drafts, num_lookahead_tokens=drafts
        )
        config = EngineConfig("chunked", scheduler, CacheConfig(blocks, 16), "0.32.0", {})
        speculation = SpeculationModel(drafts, 0.5) if drafts else None
        self.texts: list[str] = []
        self.times: list[float] = []
        self.log: list[str] = []
        telemetry = Telemetry(
            model_name="m", on_scrape=self._scraped, on_log=self._logged, scrape_interval_s=scrape_interval_s
        )
        self.result: SimulationResult = simulate(
            SimulatedDeployment(config, oracle, ranks, speculation=speculation),
            SimulatedWorkload(requests),
            observers=[telemetry],
            fast_forward=fast_forward,
            keep_records=True,
        )
        telemetry.close()

    def _scraped(self, at_s: float, text: str) -> None:
        self.times.append(at_s)
        self.texts.append(text)

    def _logged(self, at_s: float, line: str) -> None:
        self.log.append(line)

    @property
    def scrapes(self) -> list[dict[Key, float]]:
        """Values by name and labels, scrape by scrape."""
        return [{(s.name, frozenset(s.labels.items())): s.value for s in samples(text)} for text in self.texts]

    def series(self, name: str, **labels: str) -> list[float]:
        """One metric over time, summed over what the labels leave open."""
        wanted = set(labels.items())
        return [
            sum(value for (found, its), value in scrape.items() if found == name and wanted <= its)
            for scrape in self.scrapes
        ]


def samples(text: str) -> list[Sample]:
    """All samples of one scrape, as Prometheus' own parser reads them."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_names_types_and_buckets_are_those_of_the_server() -> None:
    scheduler = Scheduler(SchedulerConfig(16, 256, 2048), CacheConfig(120), engine_version="0.32.0")
    engine = Engine(scheduler, SimulatedExecutor(ORACLE), VirtualClock(), TraceSource([]))
    server = ServerMetrics(engine, "m", 2048).render().decode()

    def shown(text: str) -> set[tuple[str, str, str]]:
        families = list(text_string_to_metric_families(text))
        return {
            (family.type, sample.name, sample.labels.get("le", ""))
            for family in families
            for sample in family.samples
            if sample.name.startswith("vllm:") and not sample.name.endswith("_created")
        }

    assert shown(Seen().texts[0]) == shown(server)


def test_totals_of_the_last_scrape_are_those_of_the_run() -> None:
    seen = Seen()
    summary, last = seen.result.summary, -1
    completed = summary["completed"]
    assert completed == len(BUSY) and summary["num_preemptions"]
    assert seen.series("vllm:request_success_total")[last] == completed
    assert seen.series("vllm:prompt_tokens_total")[last] == sum(r.num_prompt_tokens for r in BUSY)
    assert seen.series("vllm:generation_tokens_total")[last] == sum(r.num_output_tokens for r in BUSY)
    assert seen.series("vllm:num_preemptions_total")[last] == summary["num_preemptions"]
    for name, key in (
        ("time_to_first_token_seconds", "mean_ttft_ms"),
        ("inter_token_latency_seconds", "mean_itl_ms"),
        ("request_time_per_output_token_seconds", "mean_tpot_ms"),
        ("e2e_request_latency_seconds", "mean_e2el_ms"),
    ):
        mean = seen.series(f"vllm:{name}_sum")[last] / seen.series(f"vllm:{name}_count")[last]
        assert mean * 1e3 == pytest.approx(summary[key])
    assert seen.series("vllm:num_requests_running")[last] == seen.series("vllm:kv_cache_usage_perc")[last] == 0
    assert max(seen.series("vllm:kv_cache_usage_perc")) > 0.8


@pytest.mark.parametrize("is_async", [False, True])
def test_fast_forward_shows_the_same(is_async: bool) -> None:
    """Also in the middle of a stride: block by block, token by token."""
    requests = [*BUSY, TraceRequest(30.0, 100, 900), TraceRequest(30.1, 400, 1200)]
    fast, slow = (Seen(requests, is_async=is_async, fast_forward=fast, scrape_interval_s=0.7) for fast in (True, False))
    assert fast.log == slow.log and fast.times == slow.times and len(fast.times) > 40
    for found, expected in zip(fast.scrapes, slow.scrapes, strict=True):
        assert found == pytest.approx(expected, rel=1e-9)


def test_samples_carry_their_time_and_counters_never_fall() -> None:
    seen = Seen()
    assert seen.times == [3.0 * (i + 1) for i in range(len(seen.times))]
    stamps = [[float(str(sample.timestamp)) for sample in samples(text)] for text in seen.texts]
    assert all(len(set(each)) == 1 for each in stamps)
    assert [each[0] - stamps[0][0] for each in stamps] == pytest.approx([at - 3.0 for at in seen.times])
    for before, after in zip(seen.scrapes, seen.scrapes[1:], strict=False):
        for key, value in before.items():
            if key[0].endswith(("_total", "_bucket", "_count", "_sum")):
                assert after[key] >= value, key


def test_gauges_stand_still_while_a_step_takes_long() -> None:
    """A server's metrics are written at the end of a step."""
    slow = ConstantOracle(step_ms=20_000.0)
    seen = Seen([TraceRequest(0.0, 10, 3)], oracle=slow, scrape_interval_s=5.0)
    assert seen.series("vllm:num_requests_running") == [0] * 3 + [1] * 8 + [0]
    assert seen.series("vllm:generation_tokens_total")[:9] == [0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_replicas_share_a_scrape_and_number_their_lines() -> None:
    seen = Seen(ranks=2)
    assert seen.texts[0].count("# TYPE vllm:num_requests_running gauge") == 1
    counts = [seen.series("vllm:request_success_total", engine=engine)[-1] for engine in "01"]
    assert min(counts) > 20 and sum(counts) == len(BUSY)
    assert {line[line.index("Engine") :][:10] for line in seen.log} == {"Engine 000", "Engine 001"}
    assert [line[20:34] for line in seen.log] == sorted(line[20:34] for line in seen.log)


def test_the_log_is_silent_about_an_idle_engine() -> None:
    """vLLM tells once that nothing happened, then falls silent until something does."""
    seen = Seen([TraceRequest(0.0, 10, 3), TraceRequest(95.0, 10, 3)])
    told = [(line[29:37], "generation throughput: 0.0" in line) for line in seen.log]
    assert told == [("00:00:10", False), ("00:00:20", True), ("00:01:40", False)]


def test_the_log_tells_throughput_preemptions_and_acceptance() -> None:
    seen = Seen(drafts=2, blocks=60)
    status = [line for line in seen.log if "Avg prompt" in line]
    total = sum(float(re.findall(r"generation throughput: ([\d.]+)", line)[0]) * 10 for line in status)
    assert total == pytest.approx(sum(r.num_output_tokens for r in BUSY), abs=len(status))
    preempted = sum(int(count) for line in status for count in re.findall(r"Preemptions: (\d+)", line))
    assert preempted == seen.result.summary["num_preemptions"] != 0
    drafts = [line for line in seen.log if "SpecDecoding" in line]
    accepted, drafted = (
        sum(int(re.findall(f"{w}: (\\d+) tokens", x)[0]) for x in drafts) for w in ("Accepted", "Drafted")
    )
    assert accepted == seen.series("vllm:spec_decode_num_accepted_tokens_total")[-1]
    assert drafted == seen.series("vllm:spec_decode_num_draft_tokens_total")[-1] > accepted > 0


def test_the_hit_rate_forgets_old_requests() -> None:
    rate = HitRate()
    assert rate.value == 0.0
    rate.observe(1000, 1000, 0)
    rate.observe(500, 500, 500)
    assert rate.value == 1.0
    rate.observe(500, 500, 0)
    assert rate.value == 0.5


def test_start_up_lines_tell_what_was_planned() -> None:
    """As the planner's reader of real logs reads them."""
    options = DeploymentOptions(model="llama-3.1-8b", gpu="l40s", max_model_len=8192, max_num_seqs=64)
    resolved = options.resolve()
    (found,) = read_startup_logs("\n".join(startup_lines(resolved)))
    assert resolved.plan is not None
    assert (found.version, found.max_model_len, found.max_num_batched_tokens) == ("0.32.0", 8192, 2048)
    assert found.kv_cache_tokens == resolved.plan.kv_cache_tokens.likely
    assert found.bytes_per_token == pytest.approx(131072, rel=0.01)
    assert "'max_num_seqs': 64" in startup_lines(resolved)[1]


def test_an_interval_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="scrape interval"):
        Telemetry(scrape_interval_s=0.0)


def test_the_command_writes_both_files(tmp_path: Path) -> None:
    metrics, log = tmp_path / "m.prom", tmp_path / "server.log"
    toy = (
        *("--latency", "constant:prefill_us=30,decode_ms=12", "--num-gpu-blocks-override", "1800"),
        *("--max-model-len", "4096", "--num-prompts", "40", "--request-rate", "2"),
    )
    paths = ("--metrics-out", str(metrics), "--log-out", str(log))
    done = CliRunner().invoke(simulate_command, [*toy, *paths, "--scrape-interval-s", "5"], catch_exceptions=False)
    assert done.exit_code == 0 and "Scrapes written" in done.output and "Log written" in done.output
    texts = metrics.read_text().split("# scrape at ")[1:]
    assert len(texts) >= 4 and all(text.startswith(f"{5 * (i + 1)} s\n") for i, text in enumerate(texts))
    lines = log.read_text().splitlines()
    assert "KV cache size: 28,784 tokens" in "".join(lines) and "Engine 000: Avg prompt" in lines[-1]
    with pytest.raises(ConfigError, match="one policy"):
        CliRunner().invoke(simulate_command, [*toy, *paths, "--compare-policies"], catch_exceptions=False)
