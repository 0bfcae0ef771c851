"""Simulated deployments: measurements, loops, routers, workloads, and problems that real users had."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headway.config import CacheConfig, EngineConfig, SchedulerConfig
from headway.core.arrivals import TraceSource
from headway.core.clock import VirtualClock
from headway.core.engine import Engine
from headway.core.request import Request, SyntheticContent
from headway.core.sampling import SamplingParams
from headway.core.scheduler import Scheduler
from headway.errors import ConfigError, HeadwayError, WorkloadError
from headway.executors.simulated.constant import ConstantOracle
from headway.executors.simulated.executor import SimulatedExecutor
from headway.frontends.replay import replay
from headway.report.error_bars import error_bars
from headway.report.explain import RequestStory
from headway.report.slo import Slo
from headway.report.summary import Summary
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import SimulatedDeployment, SimulatedWorkload, SimulationResult, simulate
from headway.simulation.sources import parse_clients
from headway.simulation.stories import StoryTeller
from headway.simulation.workload_options import WorkloadOptions
from headway.workload import TraceRequest
from headway.workload.stream import REORDER_WINDOW, RequestStream
from tests.shared_data import shared_path

ORACLE = ConstantOracle(
    step_ms=1.0, prefill_us=40.0, decode_ms=9.0, decode_token_us=20.0, context_ns=300.0, host_ms=1.0
)


def _deployment(
    *,
    seats: int = 16,
    budget: int = 256,
    blocks: int = 400,
    policy: str = "chunked",
    is_async: bool = False,
    ranks: int = 1,
    router: str = "least_loaded",
    oracle: ConstantOracle = ORACLE,
) -> SimulatedDeployment:
    scheduler = SchedulerConfig(seats, budget, 2048, async_scheduling=is_async)
    config = EngineConfig(policy, scheduler, CacheConfig(blocks, 16), "0.32.0", {})
    return SimulatedDeployment(config, oracle, ranks, router)


def _requests(count: int, seed: int, rate: float = 5.0) -> list[TraceRequest]:
    rng, at = Random(seed), 0.0
    requests = []
    for _ in range(count):
        at += rng.expovariate(rate)
        requests.append(TraceRequest(at, rng.randrange(1, 600), rng.randrange(1, 80)))
    return requests


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
            deployment = _deployment(blocks=140, is_async=is_async)
            workload = SimulatedWorkload(_requests(60, seed, rate=15.0), concurrency)
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
        requests = _requests(50, seed=3)
        scheduler = Scheduler(SchedulerConfig(16, 256, 2048), CacheConfig(140, 16), engine_version="0.32.0")
        engine = Engine(scheduler, SimulatedExecutor(ORACLE), VirtualClock(), TraceSource([]))
        arrivals = []
        for index, item in enumerate(requests):
            name = f"request-{index}"
            sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=item.num_output_tokens)
            request = Request(name, SyntheticContent(name), item.num_prompt_tokens, sampling, 2048)
            arrivals.append((item.arrival_s, request))
        replayed = replay(engine, arrivals, concurrency=concurrency)
        simulated = simulate(_deployment(blocks=140), SimulatedWorkload(requests, concurrency), keep_records=True)
        assert not _close(simulated.summary, replayed.summary)
        by_id = {record.request_id: record for record in simulated.records}
        for record in replayed.records:
            assert by_id[record.request_id][1:] == pytest.approx(record[1:], rel=1e-9)

    def test_stories_add_up(self) -> None:
        """Queued, prefilling, decoding, stalled and preempted times are the whole latency; some of each occur."""
        stories: list[RequestStory] = []
        teller = StoryTeller(ORACLE, stories.append)
        workload = SimulatedWorkload(_requests(80, seed=5, rate=15.0))
        for seats, blocks in ((4, 400), (32, 140)):
            simulate(_deployment(seats=seats, blocks=blocks), workload, observers=[teller])
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
        workload = SimulatedWorkload(_requests(120, seed=1, rate=30.0), concurrency)
        alone = simulate(_deployment(seats=8), workload).summary
        for ranks in (2, 3):
            ways = [
                simulate(_deployment(seats=8, ranks=ranks, router=router), workload, fast_forward=fast).summary
                for fast in (True, False)
            ]
            assert ways[0]["completed"] == 120
            assert (ways[0]["mean_e2el_ms"] or 0.0) < 0.8 * (alone["mean_e2el_ms"] or 0.0)
            assert not _close(ways[0], ways[1])

    def test_an_unknown_router_is_refused(self) -> None:
        """With the known ones."""
        with pytest.raises(ConfigError, match="least_loaded"):
            simulate(_deployment(ranks=2, router="magic"), SimulatedWorkload(_requests(2, 0)))


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
            deployment = _deployment(seats=64, budget=2048, blocks=4000, oracle=oracle, ranks=ranks)
            return simulate(deployment, workload).summary

        capacity = run(None)["request_throughput"] or 0.0
        assert capacity == pytest.approx(2.3, rel=0.05)
        slow, fast, doubled = run(1.3 * capacity), run(87 * capacity), run(1.3 * capacity, ranks=2)
        assert slow["request_throughput"] == pytest.approx(capacity, rel=0.05)
        assert fast["request_throughput"] == pytest.approx(capacity, rel=0.05)
        assert fast["duration"] == pytest.approx(1000 / capacity, rel=0.05)
        assert (fast["mean_ttft_ms"] or 0) > 2 * (slow["mean_ttft_ms"] or 0) > 100 * (doubled["mean_ttft_ms"] or 0)


class TestWorkloads:
    """Where requests come from, and what is said when they are bad."""

    def test_a_mooncake_trace_hits_what_its_hashes_share(self) -> None:
        """512 tokens a hash are 32 blocks of 16; hits are whole blocks of shared hashes."""
        path = shared_path("traces/mooncake_conversation.jsonl.gz")
        workload, facts = WorkloadOptions(trace=str(path), num_prompts=60, skip_too_long=True).open()
        scheduler = SchedulerConfig(64, 8192, 131_072)
        config = EngineConfig("chunked", scheduler, CacheConfig(60_000, 16), "0.32.0", {})
        summary = simulate(SimulatedDeployment(config, ORACLE), workload).summary
        hits = summary["prefix_cache_hits"] or 0
        assert facts.num_requests == 60 and hits % 16 == 0 and 0 < hits < facts.num_prompt_tokens

    def test_rows_out_of_order_are_put_in_order(self) -> None:
        """Within the window; beyond it the row is named."""
        shuffled = [TraceRequest(float(at), 10, 10, row=at + 2) for at in (0, 2, 1, 4, 3)]
        assert [request.arrival_s for request in RequestStream(lambda: shuffled)] == [0.0, 1.0, 2.0, 3.0, 4.0]
        late = [TraceRequest(10.0 + i, 1, 1) for i in range(REORDER_WINDOW + 5)] + [TraceRequest(0.0, 1, 1, row=77)]
        with pytest.raises(WorkloadError, match="Row 77"):
            list(RequestStream(lambda: late))

    @pytest.mark.parametrize(
        ("row", "said"),
        [
            ("-1.0,10,10", r"row 3, column 'arrival_s'.*negative"),
            ("1.0,0,10", r"row 3, column 'num_prompt_tokens'.*zero"),
            ("1.0,10,", r"row 3, column 'num_output_tokens'.*missing"),
            ("1.0,10,x", r"row 3, column 'num_output_tokens'"),
            ("1.0,1900,300", r"Row 3 .*num_prompt_tokens 1900.*= 2200 tokens, more than max_model_len of 2048"),
        ],
    )
    def test_a_bad_row_is_named(self, tmp_path: Path, row: str, said: str) -> None:
        """With its number in the file and its column."""
        path = tmp_path / "bad.csv"
        path.write_text(f"arrival_s,num_prompt_tokens,num_output_tokens\n0.0,10,10\n{row}\n")
        with pytest.raises(WorkloadError, match=said):
            workload, _ = WorkloadOptions(trace=str(path)).open()
            simulate(_deployment(), workload)

    def test_what_cannot_be_held_may_be_left_out(self, tmp_path: Path) -> None:
        """And is counted."""
        path = tmp_path / "long.csv"
        path.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0.0,10,10\n1,1900,300\n2,10,10\n")
        workload, _ = WorkloadOptions(trace=str(path), skip_too_long=True).open()
        summary = simulate(_deployment(), workload).summary
        assert (summary["completed"], summary["num_skipped"]) == (2, 1)

    def test_a_missing_column_is_named(self, tmp_path: Path) -> None:
        """With the columns that are there."""
        path = tmp_path / "columns.csv"
        path.write_text("arrival_s,prompt_tokens\n0.0,10\n")
        with pytest.raises(WorkloadError, match=r"output.*arrival_s.*prompt_tokens"):
            WorkloadOptions(trace=str(path)).open()

    def test_several_traces_are_merged(self, tmp_path: Path) -> None:
        """Each from its own beginning."""
        for name, rows in (("a", "5,10,1\n7,10,2\n"), ("b", "100,20,3\n101,20,4\n")):
            (tmp_path / f"{name}.csv").write_text("arrival_s,num_prompt_tokens,num_output_tokens\n" + rows)
        workload, facts = WorkloadOptions(trace=f"{tmp_path}/a.csv,{tmp_path}/b.csv").open()
        assert [(r.arrival_s, r.num_output_tokens) for r in workload.requests] == [(0, 1), (0, 3), (1, 4), (2, 2)]
        assert facts.num_requests == 4

    @pytest.mark.parametrize(
        "given",
        [
            {"request_rate": 2.0, "ramp": "1-2"},
            {"concurrency": 0},
            {"num_prompts": 0},
            {"clients": "4x128"},
            {"ramp": "5"},
            {"trace": "missing.csv"},
            {"prompt_tokens": "file:missing"},
        ],
    )
    def test_settings_that_make_no_sense_are_refused(self, given: dict[str, Any]) -> None:
        """As errors of the user's."""
        with pytest.raises(HeadwayError):
            WorkloadOptions(**given).open()

    def test_clients_are_counted_by_kind(self) -> None:
        """Each group keeps its own number of requests under way."""
        groups = parse_clients("3x100/20,2x400/5")
        workload = SimulatedWorkload(groups=groups, num_requests=100)
        result: SimulationResult = simulate(_deployment(seats=8), workload)
        assert result.summary["completed"] == 100 and result.summary["peak_num_running"] == 5
        counts: Sequence[float] = [summary["completed"] or 0 for summary in result.groups.values()]
        assert sum(counts) == 100 and min(counts) > 10


class TestDocuments:
    """What benchmark tools write."""

    def _read(self, tmp_path: Path, document: Any, **options: Any) -> list[TraceRequest]:
        path = tmp_path / "document.json"
        path.write_text(json.dumps(document))
        workload, _ = WorkloadOptions(trace=str(path), **options).open()
        return list(workload.requests)

    def test_sharegpt(self, tmp_path: Path) -> None:
        """The first exchange of each conversation with an answer; four characters a token."""
        turns = [{"from": "human", "value": "x" * 41}, {"from": "gpt", "value": "y" * 80}]
        document = [{"id": "a", "conversations": turns}, {"id": "b", "conversations": turns[:1]}]
        (request,) = self._read(tmp_path, document, request_rate=1.0)
        assert (request.num_prompt_tokens, request.num_output_tokens) == (11, 20)
        with pytest.raises(ConfigError, match="request-rate"):
            self._read(tmp_path, document)

    def test_vllm_bench_result(self, tmp_path: Path) -> None:
        """With recorded starts the arrivals are those."""
        document = {"input_lens": [10, 20], "output_lens": [3, 4], "start_times": [101.5, 100.0], "ttfts": [0.1, 0.2]}
        found = self._read(tmp_path, document)
        assert [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in found] == [(0, 20, 4), (1.5, 10, 3)]
        with pytest.raises(WorkloadError, match="save-detailed"):
            self._read(tmp_path, {"input_lens": [10], "output_lens": []}, request_rate=1.0)

    def test_guidellm_report(self, tmp_path: Path) -> None:
        """Successful requests, one benchmark after the other."""
        items = [
            {"prompt_tokens": 10, "output_tokens": 5, "request_start_time": 50.0},
            {"input_metrics": {"total_tokens": 30}, "output_metrics": {"total_tokens": 6}, "start_time": 52.0},
        ]
        document = {"benchmarks": [{"requests": {"successful": items, "errored": []}}]}
        found = self._read(tmp_path, document)
        assert [(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in found] == [(0, 10, 5), (2, 30, 6)]

    def test_lines_and_gzip_are_still_traces(self, tmp_path: Path) -> None:
        """One object a line is read row by row."""
        path = tmp_path / "trace.jsonl.gz"
        rows = [{"arrival_s": i, "num_prompt_tokens": 5, "num_output_tokens": 2} for i in range(3)]
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
        workload, facts = WorkloadOptions(trace=str(path)).open()
        assert facts.num_requests == 3 and facts.span_s == 2.0 and len(list(workload.requests)) == 3

    def test_a_damaged_document_is_refused(self, tmp_path: Path) -> None:
        """With line and column."""
        path = tmp_path / "broken.json"
        path.write_text('[{"conversations": [')
        with pytest.raises(WorkloadError, match="line 1"):
            WorkloadOptions(trace=str(path), request_rate=1.0).open()


class TestGenerators:
    """Workloads from a seed."""

    def test_a_conversation_holds_what_was_said(self) -> None:
        """Each prompt is longer than the one before by its answer and more, and shares its keys."""
        workload, _ = WorkloadOptions(num_prompts=30, turns=3, request_rate=3.0, seed=4).open()
        by_conversation: dict[object, list[TraceRequest]] = {}
        for request in workload.requests:
            by_conversation.setdefault(request.block_keys[0], []).append(request)
        assert len(by_conversation) == 10
        for turns in by_conversation.values():
            for before, after in itertools.pairwise(turns):
                assert after.num_prompt_tokens > before.num_prompt_tokens + before.num_output_tokens
                assert after.block_keys[: len(before.block_keys)] == before.block_keys

    def test_a_ramp_ends_at_its_rate(self) -> None:
        """Ten times as dense at the end as at the start, linear or exponential."""
        for ramp in ("1-10", "1-10:exponential"):
            workload, _ = WorkloadOptions(num_prompts=2000, ramp=ramp, burstiness=float("inf")).open()
            arrivals = [request.arrival_s for request in workload.requests]
            assert (arrivals[20] - arrivals[0]) / (arrivals[-1] - arrivals[-21]) == pytest.approx(10.0, rel=0.1)

    def test_observed_lengths_are_drawn(self, tmp_path: Path) -> None:
        """From a file with one count a line."""
        path = tmp_path / "lengths.txt"
        path.write_text("7\n9\n")
        workload, _ = WorkloadOptions(num_prompts=40, prompt_tokens=f"file:{path}").open()
        assert {request.num_prompt_tokens for request in workload.requests} == {7, 9}


def test_story_rows_are_written(tmp_path: Path) -> None:
    """As CSV, with the sentence last."""
    from headway.report.explain import StoryWriter

    path = tmp_path / "rows.csv"
    with StoryWriter(path) as writer:
        teller = StoryTeller(ORACLE, writer.write)
        simulate(_deployment(), SimulatedWorkload(_requests(5, seed=0)), observers=[teller])
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 5 and all(row["why"] for row in rows)
