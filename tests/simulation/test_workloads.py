"""Where requests come from: traces, documents of benchmark tools, seeds; and what is said when they are bad."""

from __future__ import annotations

import gzip
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headway.config import CacheConfig, EngineConfig, SchedulerConfig
from headway.errors import ConfigError, HeadwayError, WorkloadError
from headway.simulation.run import SimulatedDeployment, SimulatedWorkload, SimulationResult, simulate
from headway.simulation.sources import parse_clients
from headway.simulation.workload_options import WorkloadOptions
from headway.workload import TraceRequest
from headway.workload.stream import REORDER_WINDOW, RequestStream
from tests.shared_data import shared_path
from tests.simulation.support import ORACLE, make_deployment


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
            simulate(make_deployment(), workload)

    def test_what_cannot_be_held_may_be_left_out(self, tmp_path: Path) -> None:
        """And is counted."""
        path = tmp_path / "long.csv"
        path.write_text("arrival_s,num_prompt_tokens,num_output_tokens\n0.0,10,10\n1,1900,300\n2,10,10\n")
        workload, _ = WorkloadOptions(trace=str(path), skip_too_long=True).open()
        summary = simulate(make_deployment(), workload).summary
        assert (summary["completed"], summary["num_skipped"]) == (2, 1)

    def test_names_that_come_twice_are_told_apart(self, tmp_path: Path) -> None:
        """Some traces name conversations: all requests of one are served, at the same time too."""
        path = tmp_path / "names.csv"
        path.write_text("id,arrival_s,num_prompt_tokens,num_output_tokens\na,0,10,5\na,0,10,5\na,60,10,5\n")
        workload, _ = WorkloadOptions(trace=str(path)).open()
        result = simulate(make_deployment(), workload, keep_records=True)
        assert [record.request_id for record in result.records] == ["a", "a#2", "a"]

    def test_a_long_value_is_not_shown_whole(self, tmp_path: Path) -> None:
        """A file that is no trace may have lines of any length."""
        path = tmp_path / "long.csv"
        path.write_text(f"arrival_s,num_prompt_tokens,num_output_tokens\n0,{'x' * 5000},1\n")
        with pytest.raises(WorkloadError) as caught:
            WorkloadOptions(trace=str(path)).open()
        assert len(str(caught.value)) < 300 and "row 2" in str(caught.value)

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
        result: SimulationResult = simulate(make_deployment(seats=8), workload)
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

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"input_lens": [1, null], "output_lens": [1, 1]}', "entry 2, key 'input_lens': None is not a number"),
            ('{"input_lens": [1], "output_lens": [NaN]}', "entry 1, key 'output_lens': nan is not a number"),
            (
                '{"input_lens": [1, 1], "output_lens": [1, 1], "start_times": [0, null]}',
                "entry 2, key 'start_times': None is not a time",
            ),
            ('{"input_lens": [1], "output_lens": [1], "start_times": {"a": 1}}', "'start_times' is not a list"),
            ('{"benchmarks": ["x"]}', "entry 1, key 'requests': not a list of requests"),
            ('{"benchmarks": [{"requests": {"successful": ["x"]}}]}', "entry 1, key 'requests': not a list"),
            (
                '{"benchmarks": [{"requests": [{"prompt_tokens": 1, "output_tokens": 1, "start_time": "x"}]}]}',
                "entry 1, key 'request_start_time': 'x' is not a time",
            ),
            ('[{"arrival_s": 0, "num_prompt_tokens": 1}]', "read as ShareGPT's; a trace is one JSON object a line"),
            ("[" * 100_000, "nested too deeply"),
            ('{"arrival_s": 0, "num_prompt_tokens": ' + "9" * 5000 + ', "num_output_tokens": 1}', "cannot be read"),
        ],
    )
    def test_a_document_of_another_shape_is_refused(self, tmp_path: Path, text: str, said: str) -> None:
        """With the entry and the key."""
        path = tmp_path / "odd.json"
        path.write_text(text)
        with pytest.raises(WorkloadError, match=re.escape(said)):
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

    def test_answers_are_in_the_cache_when_a_later_turn_repeats_them(self) -> None:
        """Each turn finds all of the one before, prompt and answer, to the last whole block but for its last token."""
        options = WorkloadOptions(num_prompts=4, turns=4, concurrency=1, prompt_tokens="160", output_tokens="320")
        workload, _ = options.open()
        summary = simulate(make_deployment(blocks=400), workload).summary
        said = [480 * turn for turn in (1, 2, 3)]
        assert summary["prefix_cache_hits"] == sum((tokens - 1) // 16 * 16 for tokens in said)

    def test_a_client_waits_for_the_answer_before_its_next_turn(self) -> None:
        """Eight clients with two conversations of five turns each; as many tokens as the same in an open loop."""
        options = WorkloadOptions(num_prompts=80, turns=5, concurrency=8, prompt_tokens="20-60", output_tokens="10-40")
        workload, facts = options.open()
        result = simulate(make_deployment(blocks=2000), workload, keep_records=True)
        summary = result.summary
        assert (summary["completed"], summary["peak_num_running"]) == (80, 8)
        assert summary["total_input_tokens"] == facts.num_prompt_tokens
        assert summary["total_output_tokens"] == facts.num_output_tokens
        sent = sorted(record.sent_at for record in result.records)
        assert sent[7] == 0.0 < sent[8]

    def test_a_client_holds_conversations_of_divided_lengths_too(self) -> None:
        """Those of the open loop, one conversation after the other."""
        options = WorkloadOptions(num_prompts=6, turns=3, concurrency=2, output_tokens="10-40", length_divisor=2.0)
        workload, _ = options.open()
        assert workload.conversations is not None
        held = sorted(turn.num_prompt_tokens for turns in workload.conversations() for turn in turns)
        assert held == sorted(request.num_prompt_tokens for request in workload.requests)

    def test_a_conversation_ends_with_a_turn_that_cannot_be_held(self) -> None:
        """Where such are left out, the client goes on with another one."""
        options = WorkloadOptions(
            num_prompts=12, turns=6, concurrency=2, prompt_tokens="400", output_tokens="100", skip_too_long=True
        )
        summary = simulate(make_deployment(blocks=400), options.open()[0]).summary
        assert summary["num_skipped"] == 2 and summary["completed"] == 8

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
