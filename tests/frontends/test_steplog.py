"""`headway steplog`: decisions of the scheduler as records, and one clear line for whatever is wrong with the input."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headway.cli import cli, main
from headway.errors import ConfigError, HeadwayError, WorkloadError
from headway.frontends.steplog import Record, run_workload

REQUEST = {"id": "r", "prompt_token_ids": [1, 2, 3], "max_tokens": 2}


def _records(requests: Sequence[dict[str, Any]], version: str = "0.32.0", **config: Any) -> list[Record]:
    return list(run_workload({"config": config, "requests": requests}, version))


def _run(*args: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["steplog", *args], input=text)


def _steps(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["type"] == "step"]


# ---------------------------------------------------------------------- good input


def test_a_log_has_a_config_then_steps_then_totals() -> None:
    records = _records([REQUEST], max_num_batched_tokens=2)
    assert [record["type"] for record in records] == ["config", "step", "step", "step", "end"]
    assert [record["scheduled"] for record in _steps(records)] == [[["r", 2]], [["r", 1]], [["r", 1]]]
    end = records[-1]
    assert (end["tokens_scheduled"], end["tokens_emitted"], end["finished"], end["free_blocks"]) == (4, 2, 1, 999)


def test_the_command_prints_one_json_record_a_line_from_a_file_or_stdin(tmp_path: Path) -> None:
    text = json.dumps({"requests": [REQUEST]})
    path = tmp_path / "workload.json"
    path.write_text(text)
    from_file, from_stdin = _run(str(path)), _run("-", text=text)
    assert from_file.exit_code == 0 and from_file.stdout == from_stdin.stdout
    assert [json.loads(line)["type"] for line in from_file.stdout.splitlines()] == ["config", "step", "step", "end"]


def test_the_version_changes_decisions() -> None:
    requests = [REQUEST | {"id": "long", "prompt_token_ids": list(range(100))}]
    old = _records(requests, "0.30.0", long_prefill_token_threshold=10)
    new = _records(requests, "0.31.0", long_prefill_token_threshold=10)
    assert (_steps(old)[0]["total_tokens"], _steps(new)[0]["total_tokens"]) == (10, 100)


def test_an_idle_gap_is_skipped_and_aborts_are_recorded() -> None:
    late = REQUEST | {"id": "late", "arrival_step": 1000, "max_tokens": 50, "abort_step": 1002}
    records = _records([REQUEST, late])
    assert [record["step"] for record in _steps(records)] == [0, 1, 1000, 1001, 1002]
    assert _steps(records)[-1]["aborted"] == ["late"]


def test_where_vllm_would_wait_for_ever_the_log_says_deadlock() -> None:
    records = _records([REQUEST | {"prompt_token_ids": list(range(100))}], num_blocks=3)
    assert records[-2]["type"] == "deadlock" and records[-2]["waiting"] == ["r"]


def test_where_a_release_would_die_the_log_says_error() -> None:
    """0.9.2 to 0.10.1, priority: a victim that this step has already scheduled trips an assertion of vLLM's own."""
    requests = [
        {"id": "low", "prompt_token_ids": list(range(15)), "max_tokens": 9, "priority": 5},
        {"id": "high", "prompt_token_ids": list(range(100, 116)), "max_tokens": 9, "priority": 0, "arrival_step": 1},
    ]
    records = _records(requests, "0.9.2", policy="priority", num_blocks=4)
    assert records[-1]["type"] == "error"
    assert _records(requests, "0.11.1", policy="priority", num_blocks=4)[-1]["type"] == "end"


def test_equal_inputs_give_equal_logs() -> None:
    requests = [REQUEST | {"id": i, "prompt_token_ids": list(range(10 * i + 1)), "max_tokens": 30} for i in range(8)]
    settings: dict[str, Any] = {"num_blocks": 12, "enable_prefix_caching": True, "async_scheduling": True}
    first, second = (_records(requests, **settings) for _ in range(2))
    assert first == second and first[-1]["preemptions"] > 0


def test_max_tokens_beyond_the_context_ends_at_max_model_len() -> None:
    records = _records([REQUEST | {"max_tokens": 10**15}], max_model_len=10)
    assert records[-1]["tokens_emitted"] == 7 and records[-1]["finished"] == 1


def test_the_smallest_pool_serves_what_fits() -> None:
    records = _records([REQUEST, REQUEST | {"id": "s"}], num_blocks=2, block_size=4)
    assert (records[-1]["finished"], records[-1]["free_blocks"]) == (2, 1)


def test_a_workload_without_requests_is_an_empty_log() -> None:
    assert [record["type"] for record in _records([])] == ["config", "end"]


def test_a_log_is_cut_at_max_steps() -> None:
    assert [record["type"] for record in _records([REQUEST | {"max_tokens": 50}], max_steps=3)][-2:] == [
        "max_steps",
        "end",
    ]


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_token_ids": []}, r"requests\[0\]\.prompt_token_ids must be a non-empty list"),
        ({"prompt_token_ids": None}, r"requests\[0\]\.prompt_token_ids is missing"),
        ({"prompt_token_ids": "abc"}, r"must be a non-empty list of token ids"),
        ({"prompt_token_ids": [1, -2]}, r"must be a non-empty list of token ids"),
        ({"prompt_token_ids": [1.5]}, r"must be a non-empty list of token ids"),
        ({"prompt_token_ids": [True]}, r"must be a non-empty list of token ids"),
        ({"prompt_token_ids": [2**63]}, r"must be a non-empty list of token ids"),
        ({"prompt_token_ids": [0] * 8192}, r"has 8192 tokens, but max_model_len is 8192"),
        ({"max_tokens": 0}, r"max_tokens must be a whole number, 1 or more, not 0"),
        ({"max_tokens": -1}, r"max_tokens must be"),
        ({"max_tokens": "5"}, r"max_tokens must be .* not '5'"),
        ({"max_tokens": True}, r"max_tokens must be .* not True"),
        ({"arrival_step": -1}, r"arrival_step must be"),
        ({"arrival_step": 10**400}, r"arrival_step must be"),
        ({"abort_step": 1.0}, r"abort_step must be"),
        ({"arrival_time": "now"}, r"arrival_time must be a number"),
        ({"arrival_time": float("nan")}, r"arrival_time must be a number"),
        ({"arrival_time": float("inf")}, r"arrival_time must be a number"),
        ({"priority": "high"}, r"priority must be a whole number"),
        ({"cache_salt": 5}, r"cache_salt must be a text"),
        ({"output_token_ids": [None]}, r"output_token_ids must be a list"),
        ({"id": None}, r"id is missing"),
        ({"id": 1.5}, r"id must be a text or a whole number"),
        ({"max_token": 5}, r"requests\[0\] has unknown key\(s\): max_token\. Known: id, "),
    ],
)
def test_a_bad_request_is_named_with_what_it_must_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        _records([REQUEST | change])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"block_sise": 16}, r"config has unknown key\(s\): block_sise\. Known: .*block_size"),
        ({"block_size": 0}, r"config\.block_size must be a whole number, 1 or more, not 0"),
        ({"num_blocks": 1}, r"config\.num_blocks must be a whole number from 2"),
        ({"num_blocks": 10**9}, r"config\.num_blocks must be"),
        ({"max_num_seqs": "16"}, r"config\.max_num_seqs must be"),
        ({"max_num_seqs": True}, r"config\.max_num_seqs must be"),
        ({"max_num_seqs": None}, r"config\.max_num_seqs is missing"),
        ({"max_num_batched_tokens": -5}, r"config\.max_num_batched_tokens must be"),
        ({"max_model_len": 2.5}, r"config\.max_model_len must be"),
        ({"enable_prefix_caching": 1}, r"must be true or false"),
        ({"watermark": "0.1"}, r"config\.watermark must be a number"),
        ({"watermark": 1.5}, r"watermark must be at least 0 and below 1"),
        ({"sliding_window": 0}, r"config\.sliding_window must be"),
        ({"batch_queue": -1}, r"config\.batch_queue must be"),
        ({"max_steps": 0}, r"config\.max_steps must be"),
        ({"policy": "random"}, r"'random' is unknown. Known: fcfs, priority"),
        ({"policy": ["fcfs"]}, r"config\.policy must be a text"),
    ],
)
def test_a_bad_setting_is_named_with_what_it_must_be(config: dict[str, Any], message: str) -> None:
    with pytest.raises((WorkloadError, ConfigError), match=message):
        _records([REQUEST], **config)


@pytest.mark.parametrize(
    "workload",
    [[], "x", 5, None, {}, {"requests": None}, {"requests": {}}, {"config": 5, "requests": []}, {"requests": [5]}],
)
def test_something_else_than_a_workload_is_refused(workload: Any) -> None:
    with pytest.raises(WorkloadError):
        list(run_workload(workload))


def test_unknown_top_level_keys_are_refused() -> None:
    with pytest.raises(WorkloadError, match="request"):
        list(run_workload({"requests": [], "request": []}))


@pytest.mark.parametrize(("first", "second"), [("a", "a"), (1, "1")])
def test_ids_are_unique_also_as_text(first: Any, second: Any) -> None:
    with pytest.raises(WorkloadError, match=r"requests\[1\]\.id .* is also that of requests\[0\]"):
        _records([REQUEST | {"id": first}, REQUEST | {"id": second}])


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.7.3", r"outside the supported releases 0\.8 to 0\.33.*nearest is 0\.8\.0"),
        ("0.99.0", r"outside.*nearest is 0\.33\.0"),
        ("1.0", r"outside.*nearest is 0\.33\.0"),
        ("latest", r"'latest' is not a vLLM version\. Examples"),
        ("", r"is not a vLLM version"),
    ],
)
def test_an_unsupported_version_is_refused_with_the_nearest(version: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _records([REQUEST], version)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.json", None, "Cannot read"),
        ("cut.json", b'{"requests": [', "is not JSON: line 1, column"),
        ("number.json", b"9" * 5000, "cannot be read as JSON"),
        ("deep.json", b"[" * 200_000, "cannot be read as JSON"),
        ("latin.json", b'{"requests": ["\xe9"]}', "Cannot read"),
        ("empty.json", b"", "is not JSON"),
        ("list.json", b"[]", "A workload is a JSON object"),
    ],
)
def test_an_unreadable_file_ends_the_command_with_its_name(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    error = _run(str(path)).exception
    assert isinstance(error, HeadwayError) and error.exit_code == 2
    assert message in str(error) and "\n" not in str(error)


def test_a_folder_is_no_workload(tmp_path: Path) -> None:
    error = _run(str(tmp_path)).exception
    assert isinstance(error, WorkloadError) and "Cannot read" in str(error)


def test_the_process_ends_with_code_2_and_one_line_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"requests": [REQUEST | {"max_tokens": 0}]}))
    done = subprocess.run(
        [sys.executable, "-c", "from headway.cli import main; main()", "steplog", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line == "headway: requests[0].max_tokens must be a whole number, 1 or more, not 0."


def test_a_usage_error_ends_with_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", "steplog"])
    with pytest.raises(SystemExit) as exit_info:
        main()
    assert exit_info.value.code == 2 and "WORKLOAD" in capsys.readouterr().err
