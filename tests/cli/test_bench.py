"""`headway bench` from flags to table, JSON and plot, on scripted steps under a virtual clock."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headway import factory
from headway.cli import bench_run
from headway.cli.bench import bench
from headway.config import EngineConfig, EngineOptions, ModelFacts, resolve
from headway.core.arrivals import ArrivalSource
from headway.core.clock import Clock, VirtualClock
from headway.core.engine import Engine
from headway.core.plan import StepPlan, StepResult
from headway.core.request import TokenContent
from headway.errors import ConfigError, HeadwayError, WorkloadError
from headway.executors.scripted import ScriptedExecutor
from headway.workload import TraceRequest, write_trace

FACTS = ModelFacts(max_model_len=2048, kv_bytes_per_token=1024)


class PricedExecutor(ScriptedExecutor):
    """A step costs 2 ms and 0.2 ms a row; Ctrl-C comes at the step that is named."""

    interrupt_at: int | None = None
    seen_ids: set[int] = set()  # noqa: RUF012  (read by the tests, reset by the fixture)
    num_open = 0

    def __init__(self) -> None:
        super().__init__(step_duration_s=_price)
        PricedExecutor.num_open += 1

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.step_id == self.interrupt_at and plan.num_tokens > 0:
            raise KeyboardInterrupt
        for item in plan.new:
            assert isinstance(item.content, TokenContent)
            self.seen_ids.update(item.content.token_ids)
        return super().execute(plan)

    def close(self) -> None:
        PricedExecutor.num_open -= 1


def _price(plan: StepPlan) -> float:
    return 0.002 + 0.0002 * (plan.num_tokens + sum(item.num_padding_tokens for item in plan.scheduled))


def build_engine(
    model: object, options: EngineOptions, source: ArrivalSource, clock: Clock, listeners: Iterable[Any] = ()
) -> tuple[Engine, EngineConfig]:
    assert PricedExecutor.num_open == 0, "two KV pools at once may not fit into memory"
    config = resolve(options, FACTS, free_memory_bytes=2**28)
    return factory.assemble(config, PricedExecutor(), source, clock, listeners), config


@pytest.fixture(autouse=True)
def scripted_model(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = SimpleNamespace(
        vocab_size=100,
        special_token_ids=frozenset({0, 1}),
        added_token_ids=frozenset({1, 99}),
        eos_token_ids=frozenset(),
    )
    monkeypatch.setattr(factory, "load_model", lambda *_: SimpleNamespace(name="tiny", tokenizer=tokenizer))
    monkeypatch.setattr(factory, "build_engine", build_engine)
    monkeypatch.setattr(bench_run, "WallClock", VirtualClock)
    monkeypatch.setattr(PricedExecutor, "interrupt_at", None)
    monkeypatch.setattr(PricedExecutor, "seen_ids", set())
    monkeypatch.setattr(PricedExecutor, "num_open", 0)


def run(*arguments: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(bench, ["--num-prompts", "40", *arguments])
    if not fails and result.exception is not None:
        raise result.exception
    return result


def rows_of(result: Result) -> dict[str, dict[str, Any]]:
    return {row["policy"]: row for row in json.loads(result.stdout)}


def test_the_table_has_every_policy_and_what_was_resolved() -> None:
    output = " ".join(run("--slo", "ttft_ms=2000,itl_ms=100").output.split())
    for text in ("naive static continuous chunked", "ITL p99, ms", "KV waste peak", "Goodput", "Preemptions"):
        assert text in output
    assert "KV cache" in output and "step budget" in output and "default on a CPU" in output
    assert "under continuous" in output and "2,048 tokens" in output
    assert "70% of the capacity under chunked" in output
    assert "naive and static reserve 2,048 tokens for each request" in output


def test_json_is_alone_on_stdout_and_the_table_on_stderr() -> None:
    result = run("--json", "-", "--policies", "static,chunked", "--load", "0.5")
    rows = rows_of(result)
    assert list(rows) == ["static", "chunked"]
    assert "ITL p99" in result.stderr and "ITL p99" not in result.stdout
    chunked = rows["chunked"]
    assert chunked["completed"] == chunked["num_prompts"] == 40 and chunked["backend"] == "headway"
    assert chunked["request_rate"] == pytest.approx(0.5 * chunked["capacity_requests_per_s"])
    assert chunked["expected_kv_waste"] is None
    assert rows["static"]["mean_kv_waste"] == pytest.approx(rows["static"]["expected_kv_waste"], abs=0.02)


def test_all_policies_get_the_same_pool_and_each_engine_is_closed() -> None:
    rows = rows_of(run("--json", "-"))
    assert len({row["num_blocks"] for row in rows.values()}) == 1
    assert PricedExecutor.num_open == 0


def test_prompts_have_no_special_tokens() -> None:
    run("--policies", "chunked", "--request-rate", "inf")
    assert PricedExecutor.seen_ids == set(range(2, 99))


def test_equal_seeds_give_equal_results_and_other_seeds_others() -> None:
    def throughput(seed: str) -> float:
        arguments = ("--json", "-", "--policies", "chunked", "--request-rate", "3", "--seed", seed)
        return float(rows_of(run(*arguments))["chunked"]["output_throughput"])

    assert throughput("1") == throughput("1") != throughput("2")


def test_a_trace_is_divided_by_four_and_stretched_to_the_load(tmp_path: Path) -> None:
    write_trace(tmp_path / "my.csv", [TraceRequest(7.0 + i, 400, 40) for i in range(60)])
    row = rows_of(run("--trace", str(tmp_path / "my.csv"), "--json", "-", "--policies", "chunked"))["chunked"]
    assert (row["completed"], row["total_input_tokens"], row["total_output_tokens"]) == (40, 4000, 400)
    assert (row["workload"], row["load"], row["burstiness"]) == ("my", 0.7, None)


@pytest.mark.parametrize(
    ("flags", "says"), [((), "4"), (("--length-divisor", "2.5"), "2.5"), (("--length-divisor", "1"), "")]
)
def test_the_workload_row_says_by_what_lengths_are_divided(tmp_path: Path, flags: tuple[str, ...], says: str) -> None:
    write_trace(tmp_path / "my.csv", [TraceRequest(7.0 + i, 400, 40) for i in range(5)])
    output = run("--trace", str(tmp_path / "my.csv"), *flags, "--policies", "chunked", "--as-recorded").output
    (row,) = (line for line in output.splitlines() if line.startswith("workload"))
    assert row.rstrip().endswith(f"output tokens, lengths ÷ {says}" if says else "output tokens")


def test_a_trace_can_be_replayed_as_recorded(tmp_path: Path) -> None:
    write_trace(tmp_path / "my.csv", [TraceRequest(7.0 + 2 * i, 40, 4) for i in range(10)])
    arguments = ("--trace", str(tmp_path / "my.csv"), "--as-recorded", "--length-divisor", "1", "--json", "-")
    row = rows_of(run(*arguments, "--policies", "chunked"))["chunked"]
    assert row["request_rate"] == pytest.approx(0.5) and row["load"] is None
    assert 18.0 < row["duration"] < 18.1


def test_a_closed_loop_says_so() -> None:
    result = run("--concurrency", "4", "--json", "-", "--policies", "chunked")
    row = rows_of(result)["chunked"]
    assert (row["loop"], row["max_concurrency"], row["request_rate"]) == ("closed", 4, "inf")
    assert "closed loop" in result.stderr


def test_files_are_written_where_asked(tmp_path: Path) -> None:
    result = run("--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.svg"), "--capacity", "4")
    assert json.loads((tmp_path / "out.json").read_text())[0]["policy"] == "naive"
    svg = (tmp_path / "out.svg").read_text()
    assert "tiny, generated: 40 requests" in svg and "70% of the capacity given, 4.00 requests/s" in svg
    assert "out.svg" in result.output.replace("\n", "")


def test_ctrl_c_reports_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """The 300th step exists in the replay alone, not in the warm-up of two short requests."""
    monkeypatch.setattr(PricedExecutor, "interrupt_at", 300)
    result = run("--request-rate", "5", "--policies", "naive,chunked", fails=True)
    assert result.exit_code == 1, "click's own code for an abort; the entry point makes it 130"
    lines = result.output.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("Output tok/s"))
    assert lines[row - 1].split() == ["naive"]
    done = re.search(r"naive had done (\d+) of 40", result.output)
    assert done is not None and 0 < int(done[1]) < 40
    assert "naive: 40 requests …" in result.output and "naive: done" not in result.output


def test_ctrl_c_while_capacity_is_measured_says_so_and_not_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PricedExecutor, "interrupt_at", 20)
    output = run("--policies", "chunked", fails=True).output
    assert "capacity: 40 requests …" in output and "Interrupted while capacity was measured" in output
    assert "done" not in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policies", "chunked,fast"], "no batching policy 'fast'"),
        (["--policies", ","], "No policies"),
        (["--load", "0.5", "--concurrency", "3"], "--load and --concurrency are different ways"),
        (["--as-recorded"], "--as-recorded needs a trace"),
        (["--capacity", "3", "--request-rate", "2"], "--capacity goes with --load"),
        (["--num-prompts", "0"], "--num-prompts must be at least 1"),
        (["--load", "-1"], "--load must be positive"),
        (["--concurrency", "0"], "--concurrency must be positive"),
        (["--slo", "speed=3"], "is not an objective"),
        (["--plot", "out.png"], "written as SVG"),
        (["--json", "absent/out.json"], "no folder absent"),
        (["--num-gpu-blocks-override", "120", "--max-model-len", "2048"], "naive and static reserve 2048 tokens"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: list[str], message: str) -> None:
    error = run(*arguments, fails=True).exception
    assert isinstance(error, ConfigError) and message in str(error)


@pytest.mark.parametrize("question", ["queue(self, usual)", "reserve(self, max_model_len)", "__init__(self)"])
def test_a_policy_of_ones_own_that_fails_is_told_with_its_line(
    question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a path from here, as it is typed."""
    monkeypatch.chdir(tmp_path)
    text = f"from headway.core.policies import ChunkedPolicy\nclass A(ChunkedPolicy):\n  def {question}:\n    1 / 0\n"
    path = Path(f"fails_in_{question.partition('(')[0]}.py")  # a name of its own: a file is read once
    path.write_text(text)
    error = run("--policies", str(path), "--request-rate", "5", fails=True).exception
    assert isinstance(error, ConfigError) and isinstance(error.__cause__, ZeroDivisionError)
    assert str(error) == f"The policy fails: ZeroDivisionError: division by zero ({path}, line 4)."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "absent.csv"], "absent.csv: no such file"),
        (["--prompt-tokens", "many"], "'many' is not a length"),
        (["--prompt-tokens", "3000"], "Request 1 of the workload has 3000 + "),
    ],
)
def test_workloads_that_cannot_work_are_refused(arguments: list[str], message: str) -> None:
    error = run(*arguments, fails=True).exception
    assert isinstance(error, WorkloadError) and message in str(error)
    assert isinstance(error, HeadwayError) and error.exit_code == 2


def test_help_needs_neither_torch_nor_numpy_nor_rich() -> None:
    script = (
        "import sys, headway.cli.bench, headway.frontends.replay, headway.frontends.comparison, headway.report;"
        "print(sorted({'torch', 'numpy', 'rich', 'headway.factory'} & sys.modules.keys()))"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert output.strip() == "[]"
