"""Simulated deployments: measurements, loops, routers, workloads, and problems that real users had."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from headway.config import CacheConfig, SchedulerConfig
from headway.core.arrivals import TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import ConfigError
from headway.executors.simulated.constant import ConstantOracle
from headway.executors.simulated.executor import SimulatedExecutor
from headway.frontends.replay import replay
from headway.report.error_bars import error_bars
from headway.report.explain import RequestStory
from headway.report.slo import Slo
from headway.report.summary import Summary
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedWorkload, simulate
from headway.simulation.stories import StoryTeller
from headway.simulation.workload_options import WorkloadOptions
from tests.simulation.support import ORACLE, make_deployment, make_requests


def _close(found: Summary, expected: Summary) -> list[str]:
    """Keys that differ by more than 1e-9."""
    return [
        key
        for key, value in expected.items()
        if key in found and found[key] != value and found[key] != pytest.approx(value, rel=1e-9)
    ]


class TestMeasurement:
    """The same figures, however they are come by."""

    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("concurrency", [None, 6])
    def test_fast_forward_changes_no_figure(self, is_async: bool, concurrency: int | None) -> None:
        """Every percentile of every metric, with preemption and queueing, in both loops."""
        num_preemptions = 0
        for seed in range(15):
            deployment = make_deployment(blocks=140, is_async=is_async)
            workload = SimulatedWorkload(make_requests(60, seed, rate=15.0), concurrency)
            ways = [
                simulate(
                    deployment, workload, slo=Slo(itl_ms=60.0), keep_records=True, fast_forward=fast, may_stride=far
                )
                for fast, far in ((False, False), (True, False), (True, True))
            ]
            for way in ways[1:]:
                assert not _close(way.summary, ways[0].summary), f"seed {seed}"
                for found, expected in zip(way.records, ways[0].records, strict=True):
                    assert found[0] == expected[0]
                    assert found[1:] == pytest.approx(expected[1:], rel=1e-9)
            num_preemptions += int(ways[0].summary["num_preemptions"] or 0)
        assert num_preemptions > 20, "the pool was never short"

    @pytest.mark.parametrize("concurrency", [None, 5])
    def test_a_simulation_measures_what_a_replay_does(self, concurrency: int | None) -> None:
        """`bench` and `simulate` share keys and meanings."""
        requests = make_requests(50, seed=3)
        scheduler = Scheduler(SchedulerConfig(16, 256, 2048), CacheConfig(140, 16), engine_version="0.32.0")
        engine = Engine(scheduler, SimulatedExecutor(ORACLE), VirtualClock(), TraceSource([]))
        arrivals = []
        for index, item in enumerate(requests):
            name = f"request-{index}"
            sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=item.num_output_tokens)
            request = Request(name, SyntheticContent(name), item.num_prompt_tokens, sampling, 2048)
            arrivals.append((item.arrival_s, request))
        replayed = replay(engine, arrivals, concurrency=concurrency)
        simulated = simulate(make_deployment(blocks=140), SimulatedWorkload(requests, concurrency), keep_records=True)
        assert not _close(simulated.summary, replayed.summary)
        by_id = {record.request_id: record for record in simulated.records}
        for record in replayed.records:
            assert by_id[record.request_id][1:] == pytest.approx(record[1:], rel=1e-9)

    @pytest.mark.parametrize(("ranks", "is_async"), [(1, False), (1, True), (2, False)])
    def test_an_idle_engine_runs_nothing(self, ranks: int, is_async: bool) -> None:
        """Little's law: requests under way are their rate × their latency, to a step."""
        workload, _ = WorkloadOptions(
            num_prompts=60, request_rate=0.05, prompt_tokens="100", output_tokens="40-80", burstiness=0.5
        ).open()
        summary = simulate(make_deployment(ranks=ranks, is_async=is_async), workload).summary
        expected = (summary["request_throughput"] or 0.0) * (summary["mean_e2el_ms"] or 0.0) / 1e3
        assert expected < 0.2
        assert summary["mean_num_running"] == pytest.approx(expected, rel=0.1)

    def test_stories_add_up(self) -> None:
        """Queued, prefilling, decoding, stalled and preempted times are the whole latency; some of each occur."""
        stories: list[RequestStory] = []
        teller = StoryTeller(ORACLE, stories.append)
        workload = SimulatedWorkload(make_requests(80, seed=5, rate=15.0))
        for seats, blocks in ((4, 400), (32, 140)):
            simulate(make_deployment(seats=seats, blocks=blocks), workload, observers=[teller])
        assert len(stories) == 160
        for story in stories:
            parts = (story.queued_s, story.prefill_s, story.decode_s, story.stalled_s, story.preempted_s)
            assert sum(parts) == pytest.approx(story.e2el_s) and min(parts) >= 0.0
            known = story.queued_for_seats_s + story.queued_for_blocks_s + story.queued_for_budget_s
            assert known <= story.queued_s + 1e-9
        for name in ("queued_for_seats_s", "queued_for_blocks_s", "stalled_s", "preempted_s"):
            assert any(getattr(story, name) > 0 for story in stories), name
        slowest = max(stories, key=lambda story: story.e2el_s)
        assert "%" in slowest.why

    def test_error_bars_grow_with_saturation(self) -> None:
        """What an idle open loop completes is what arrived; a queue amplifies the time to first token."""
        idle: dict[str, Any] = {
            "saturation": 0.0,
            "mean_ttft_ms": 10.0,
            "mean_e2el_ms": 100.0,
            "output_throughput": 5.0,
        }
        full = idle | {"saturation": 1.0}
        assert error_bars(idle, 0.1, is_closed=False)["output_throughput"] == 0.0
        assert error_bars(idle, 0.1, is_closed=False)["mean_ttft_ms"] == pytest.approx(0.1)
        assert error_bars(full, 0.1, is_closed=False)["mean_ttft_ms"] == pytest.approx(0.25)
        assert error_bars(full, 0.1, is_closed=True)["output_throughput"] == pytest.approx(0.1)
        assert error_bars(full, None, is_closed=True)["mean_ttft_ms"] is None


class TestReplicas:
    """Data parallelism behind a router."""

    @pytest.mark.parametrize("router", ["least_loaded", "round_robin"])
    @pytest.mark.parametrize("concurrency", [None, 24])
    def test_two_replicas_share_the_work(self, router: str, concurrency: int | None) -> None:
        """Everybody is served, and sooner than by one; fast-forward changes nothing here either."""
        workload = SimulatedWorkload(make_requests(120, seed=1, rate=30.0), concurrency)
        alone = simulate(make_deployment(seats=8), workload).summary
        for ranks in (2, 3):
            ways = [
                simulate(make_deployment(seats=8, ranks=ranks, router=router), workload, fast_forward=fast).summary
                for fast in (True, False)
            ]
            assert ways[0]["completed"] == 120
            assert (ways[0]["mean_e2el_ms"] or 0.0) < 0.8 * (alone["mean_e2el_ms"] or 0.0)
            assert not _close(ways[0], ways[1])

    def test_an_unknown_router_is_refused(self) -> None:
        """With the known ones."""
        with pytest.raises(ConfigError, match="least_loaded"):
            simulate(make_deployment(ranks=2, router="magic"), SimulatedWorkload(make_requests(2, 0)))


@pytest.fixture(scope="module")
def prefill_shares() -> list[tuple[float, float, float]]:
    """vLLM issue 52906: 8 loops of 16k prompts beside 4 decoding clients on a GB10, at four token budgets.

    Time per token of the decoding clients (ms), prompts a minute, and median TTFT of the prompts (ms).
    """
    curve = []
    for budget in (2048, 1024, 512, 256):
        options = DeploymentOptions(
            model="qwen3.5-35b-a3b",
            gpu="gb10",
            quantization="fp8",
            max_model_len=32_768,
            max_num_batched_tokens=budget,
            enable_prefix_caching=False,
        )
        workload, _ = WorkloadOptions(num_prompts=240, clients="4x128/512,8x16384/1").open()
        groups = simulate(options.resolve().deployment, workload).groups
        decoding, prompts = groups["4x128/512"], groups["8x16384/1"]
        per_minute = 60.0 * (prompts["request_throughput"] or 0.0)
        curve.append((decoding["mean_tpot_ms"] or 0.0, per_minute, prompts["median_ttft_ms"] or 0.0))
    return curve


class TestRealProblems:
    """Measured by users; the shape, and where the inputs are known the size, must come out."""

    @pytest.mark.slow
    def test_a_watermark_ends_most_preemptions(self) -> None:
        """vLLM PR 44594: 299,584 KV tokens, 450 requests of about 1,000 + 5,000 tokens, 128 at a time.

        Preemptions 1065, 400 and 187 at a watermark of 0, 0.02 and 0.05; more throughput, a lower P99 gap.
        """
        results = []
        for watermark in (0.0, 0.02, 0.05):
            options = DeploymentOptions(
                latency="constant:prefill_us=8,decode_ms=5,decode_token_us=25,context_ns=3",
                num_gpu_blocks_override=299_584 // 16,
                max_model_len=8192,
                max_num_seqs=256,
                max_num_batched_tokens=8192,
                enable_prefix_caching=False,
                watermark=watermark,
                engine_version="0.33.0",
            )
            workload, _ = WorkloadOptions(
                num_prompts=450, concurrency=128, prompt_tokens="800-1200", output_tokens="4000-6000"
            ).open()
            results.append(simulate(options.resolve().deployment, workload).summary)
        preemptions = [result["num_preemptions"] for result in results]
        assert preemptions == pytest.approx([1065, 400, 187], rel=0.25)
        assert (results[1]["output_throughput"] or 0) > (results[0]["output_throughput"] or 0)
        assert (results[1]["p99_itl_ms"] or 0) < 0.5 * (results[0]["p99_itl_ms"] or 0)
        assert (results[1]["median_ttft_ms"] or 0) > (results[0]["median_ttft_ms"] or 0)

    def test_a_smaller_prefill_share_costs_prompts_dearly(
        self, prefill_shares: list[tuple[float, float, float]]
    ) -> None:
        """Measured from a budget of 2,048 to 256: prompts a minute fall from 15 to 5 and their wait triples."""
        _, rates, waits = zip(*prefill_shares, strict=True)
        assert list(rates) == sorted(rates, reverse=True)
        assert list(waits) == sorted(waits)
        assert list(rates) == pytest.approx([15.0, 11.4, 7.0, 4.8], rel=0.3)
        assert list(waits) == pytest.approx([27_200, 34_400, 54_900, 80_000], rel=0.3)

    def test_a_smaller_prefill_share_buys_decode_latency(
        self, prefill_shares: list[tuple[float, float, float]]
    ) -> None:
        """Measured from a budget of 2,048 to 256: time per token falls from 441 to 179 ms."""
        times = [time for time, _, _ in prefill_shares]
        assert times == sorted(times, reverse=True)
        assert times[0] > 1.5 * times[-1]
        assert times == pytest.approx([441, 282, 232, 179], rel=0.3)

    def test_more_seats_move_the_queue_into_the_batch(self) -> None:
        """vLLM issue 17598: 32 seats instead of 16 raise the gap between tokens; whether that is worse, TTFT says."""
        summaries = []
        for seats in (16, 32):
            options = DeploymentOptions(
                model="llama-3-8b", gpu="h100-pcie", max_model_len=4096, max_num_seqs=seats, engine_version="0.8.5"
            )
            workload, _ = WorkloadOptions(
                num_prompts=400, request_rate=16.0, prompt_tokens="1024", output_tokens="128"
            ).open()
            summaries.append(simulate(options.resolve().deployment, workload).summary)
        few, many = summaries
        assert (many["mean_itl_ms"] or 0) > (few["mean_itl_ms"] or 0)
        assert (many["mean_ttft_ms"] or 0) < (few["mean_ttft_ms"] or 0)
        assert (many["mean_e2el_ms"] or 0) < (few["mean_e2el_ms"] or 0)

    def test_overload_grows_a_queue_and_no_throughput(self) -> None:
        """vLLM issue 3096: a deployment that completes 2.3 requests/s, offered 3 or 200.

        Throughput stays, the last of 1,000 waits for what is left of the backlog, and two replicas hold 3 a second.
        """
        oracle = ConstantOracle(prefill_us=100.0, decode_ms=30.0, decode_token_us=1500.0)

        def run(rate: float | None, ranks: int = 1) -> Summary:
            workload, _ = WorkloadOptions(
                num_prompts=1000, request_rate=rate, prompt_tokens="256", output_tokens="200"
            ).open()
            deployment = make_deployment(seats=64, budget=2048, blocks=4000, oracle=oracle, ranks=ranks)
            return simulate(deployment, workload).summary

        capacity = run(None)["request_throughput"] or 0.0
        assert capacity == pytest.approx(2.3, rel=0.05)
        slow, fast, doubled = run(1.3 * capacity), run(87 * capacity), run(1.3 * capacity, ranks=2)
        assert slow["request_throughput"] == pytest.approx(capacity, rel=0.05)
        assert fast["request_throughput"] == pytest.approx(capacity, rel=0.05)
        assert fast["duration"] == pytest.approx(1000 / capacity, rel=0.05)
        assert (fast["mean_ttft_ms"] or 0) > 2 * (slow["mean_ttft_ms"] or 0) > 100 * (doubled["mean_ttft_ms"] or 0)


def test_story_rows_are_written(tmp_path: Path) -> None:
    """As CSV, with the sentence last."""
    from headway.report.explain import StoryWriter

    path = tmp_path / "rows.csv"
    with StoryWriter(path) as writer:
        teller = StoryTeller(ORACLE, writer.write)
        simulate(make_deployment(), SimulatedWorkload(make_requests(5, seed=0)), observers=[teller])
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 5 and all(row["why"] for row in rows)
