"""`headway doctor` from the command line: formats, exit codes, and a sick server from end to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from headway.cli import cli
from headway.doctor import diagnose as glue
from headway.doctor.diagnose import diagnose
from headway.doctor.gather import gather
from headway.doctor.page.json_schema import SCHEMA
from headway.errors import ConfigError, HeadwayError
from tests.cli.test_exit_codes import headway
from tests.doctor.page_support import schema_errors

SICK = Path(__file__).parents[2] / "examples" / "sick-server"
EVIDENCE = ["--metrics", str(SICK / "scrapes.prom"), "--log", str(SICK / "server.log")]
FLAGS = "vllm serve meta-llama/Llama-3.1-8B-Instruct"


def doctor(*args: str) -> Result:
    """Run it in this process; a user's mistake is the result's exception."""
    return CliRunner().invoke(cli, ["doctor", *args])


def exit_code(result: Result) -> int:
    """As `headway.cli.main` makes it of a user's mistake; any other exception is ours."""
    if isinstance(result.exception, HeadwayError):
        return result.exception.exit_code
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code


def as_json(*args: str) -> dict[str, Any]:
    """The document that it prints."""
    result = doctor(*args, "--json")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    document: dict[str, Any] = json.loads(result.output)
    assert schema_errors(document, SCHEMA) == []
    return document


@pytest.fixture(scope="module")
def sick() -> dict[str, Any]:
    """The diagnosis of the sick server."""
    return as_json(str(SICK / "docker-compose.yml"), "--gpu", "l40s", *EVIDENCE)


def test_the_sick_server_lacks_seats_and_the_first_fix_gives_it_some(sick: dict[str, Any]) -> None:
    assert sick["bottlenecks"][0]["kind"] == "waiting_queue_stall"
    first = sick["fixes"][0]
    assert first["setting"] == "max_num_seqs" and first["to"] > first["from"] == 24
    assert "gpu_memory_utilization" in [item["setting"] for item in sick["must_not"]]


def test_the_effect_of_the_first_fix_is_simulated_and_has_its_error(sick: dict[str, Any]) -> None:
    assert sick["model_check"]["accepted"]
    effects = {item["metric"]: item for item in sick["fixes"][0]["predicted"]}
    throughput = effects["output_throughput"]
    assert throughput["after"] > throughput["before"]
    assert throughput["low"] < throughput["after"] < throughput["high"]
    assert sick["fixes"][0]["helps"] is True


def test_the_sick_server_s_page_is_the_same_in_every_format() -> None:
    for form in ("terminal", "markdown", "html"):
        result = doctor(*EVIDENCE, "--format", form)
        assert result.exit_code == 1, result.output
        assert "Requests wait for a seat" in result.output and "waiting_queue_stall" in result.output


def test_a_page_can_be_written_to_a_file(tmp_path: Path) -> None:
    result = doctor(*EVIDENCE, "--format", "html", "--output", str(tmp_path / "page.html"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert result.exit_code == 1 and result.output == ""
    assert "<svg" in page and "KV cache in use" in page


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((f"{FLAGS} --max-num-seqs 64",), 0),
        ((f"{FLAGS} --not-a-flag",), 1),
        (tuple(EVIDENCE), 1),
        (("--metrics", "missing.prom"), 2),
        (("--log", "missing.log"), 2),
        (("--bench", "missing.json"), 2),
        (("--trace", "missing.csv"), 2),
        (("--metrics", "http://127.0.0.1:1/metrics"), 2),
        ((FLAGS, "--slo", "ttft_p99=2"), 2),
        ((FLAGS, "--output", "no/such/folder/page"), 2),
        ((), 2),
    ],
)
def test_exit_codes(args: tuple[str, ...], code: int) -> None:
    assert exit_code(doctor(*args)) == code


@pytest.mark.parametrize(("word", "code"), [("--max-num-seqs", 0), ("--not-a-flag", 1), ("--slo", 2)])
def test_exit_codes_reach_the_shell(word: str, code: int) -> None:
    args = [FLAGS, "--slo", "x"] if word == "--slo" else [f"{FLAGS} {word} 64"]
    assert headway("doctor", *args) == code


def test_without_figures_it_names_no_bottleneck_and_asks_for_the_four() -> None:
    document = as_json(FLAGS)
    assert document["bottlenecks"] == [] and document["fixes"] == []
    assert {"ttft", "itl", "throughput", "concurrency"} <= {item["figure"] for item in document["missing"]}


def test_a_failing_simulation_is_a_note_and_the_rules_still_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ConfigError("no oracle")

    monkeypatch.setattr(glue, "predict", fail)
    diagnosis = diagnose(gather(SICK / "docker-compose.yml", metrics=[SICK / "scrapes.prom"], gpu="l40s"))
    assert diagnosis.bottlenecks and diagnosis.fixes
    assert diagnosis.model_check is not None and not diagnosis.model_check.accepted
    assert diagnosis.model_check.note == "The simulation failed: no oracle"


@pytest.mark.parametrize(
    "text",
    ["", "\x00\x01", "vllm:num_requests_running NaN\n", "vllm:kv_cache_usage_perc{", "not metrics at all\n" * 50],
)
def test_hostile_files_end_in_a_page_or_in_a_mistake_of_the_user_s(text: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    for option in ("--metrics", "--log", "--bench", "--observed"):
        assert exit_code(doctor(option, str(path))) in (0, 1, 2)


def test_evidence_that_tells_nothing_is_no_clean_bill(tmp_path: Path) -> None:
    """A file of something else: exit code 2, not the 0 of a healthy server."""
    path = tmp_path / "README.md"
    path.write_text("# A page\n\nNothing that a server would say.\n")
    result = doctor("--metrics", str(path))
    assert exit_code(result) == 2 and "Nothing was found" in str(result.exception)
