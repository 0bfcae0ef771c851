"""The same words for the same thing, whichever command is asked."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from headway.accuracy.calibration import Calibration
from headway.cli import calibrate, cli, main
from headway.errors import ConfigError
from headway.report.files import check_writable
from headway.report.words import counted
from headway.simulation.profile_file import Profile

START = "vllm serve llama-3.1-8b --max-num-seqs 64"
MODEL = ("--model", "llama-3.1-8b", "--gpu", "l40s")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("simulate", "--gpus", "l40s"), "headway: No such option '--gpus'. "),
        (("plan", "m", "--tp", "x"), "headway: Invalid value for '--tp'"),
        (("validate",), "headway: Missing argument 'FOLDER'. See: headway validate --help"),
        (("bnech",), "headway: There is no command 'bnech'. Did you mean bench? See: headway --help"),
        (("plan", "nonsense-9b", "--gpu", "h100"), "headway: "),
    ],
)
def test_a_mistake_is_one_line(
    line: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["headway", *line])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert ended.value.code == 2 and told.out == ""
    assert told.err.startswith(said) and told.err.count("\n") == 1


@pytest.mark.parametrize(
    "line",
    [
        ("simulate", *MODEL, "--policy", "fast"),
        ("serve", "--executor", "sim", *MODEL, "--policy", "fast"),
        ("bench", "--policies", "chunked,fast"),
    ],
)
def test_a_policy_that_does_not_exist_is_told_alike(line: tuple[str, ...]) -> None:
    error = CliRunner().invoke(cli, line).exception
    assert isinstance(error, ConfigError)
    assert str(error) == (
        "There is no batching policy 'fast'. Known: naive, static, continuous, chunked, or FILE.py:CLASS."
    )


@pytest.mark.parametrize(
    "line",
    [
        ("simulate", *MODEL, "--html", "absent/r.html"),
        ("simulate", *MODEL, "--json", "absent/r.json"),
        ("simulate", *MODEL, "--requests-out", "absent/r.csv"),
        ("bench", "--plot", "absent/r.svg"),
        ("bench", "--json", "absent/r.json"),
        ("doctor", START, "--output", "absent/r.md"),
        ("config", START, "--sarif", "absent/r.sarif"),
        ("compat", START, "--sarif", "absent/r.sarif"),
        ("calibrate", *MODEL, "--out", "absent/p.json", "--bench", "nowhere.json"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_the_work(line: tuple[str, ...]) -> None:
    error = CliRunner().invoke(cli, line).exception
    assert isinstance(error, ConfigError) and "There is no folder absent" in str(error)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--html names a folder"):
        check_writable(tmp_path, "--html")
    check_writable(tmp_path / "new.html", "--html")
    check_writable("-", "--json")
    check_writable(None, "--json")


def test_files_of_one_policy_do_not_go_with_a_comparison(tmp_path: Path) -> None:
    """They would be left out without a word otherwise."""
    line = ("simulate", *MODEL, "--compare-policies", "--html", str(tmp_path / "r.html"))
    error = CliRunner().invoke(cli, line).exception
    assert isinstance(error, ConfigError) and "--html shows one policy" in str(error)


def test_capacity_is_of_one_policy() -> None:
    """Else every policy's row would have that of the first."""
    error = CliRunner().invoke(cli, ("simulate", *MODEL, "--compare-policies", "--capacity")).exception
    assert isinstance(error, ConfigError) and "--capacity shows one policy" in str(error)


def test_one_is_singular() -> None:
    assert [counted(count, "request") for count in (0, 1, 2, 2000)] == [
        "0 requests",
        "1 request",
        "2 requests",
        "2,000 requests",
    ]
    line = ("simulate", "--latency", "constant:decode_ms=12", "--num-gpu-blocks-override", "100", "--num-prompts", "1")
    output = CliRunner().invoke(cli, [*line, "--max-model-len", "512", "--prompt-tokens", "9"]).output
    assert "1 request" in output and not re.search(r"\b1 requests(?!/s)", output)


@pytest.mark.parametrize("command", ["config", "compat"])
def test_a_command_line_is_a_deployment_too(command: str, tmp_path: Path) -> None:
    """In quotes, as a file of the same words; flags alone are those of `vllm serve`."""
    path = tmp_path / "start.sh"
    path.write_text(START + "\n", encoding="utf-8")
    from_words, from_file = (
        json.loads(CliRunner().invoke(cli, [command, place, "--json"]).stdout) for place in (START, str(path))
    )
    assert from_words.pop("file") == START and from_file.pop("file") == str(path)
    assert from_words["engine_version"] == from_file["engine_version"]
    assert from_words.get("effective") == from_file.get("effective")
    flags_alone = CliRunner().invoke(cli, [command, "--json", "--", "--max-num-seqs 64"])
    assert json.loads(flags_alone.stdout)["file"] == "--max-num-seqs 64"


@pytest.mark.parametrize("place", ["-", "", "absent.yml", "\0", "absent file.yml"])
def test_what_is_neither_a_file_nor_words_cannot_be_read(place: str) -> None:
    result = CliRunner().invoke(cli, ["config", "--", place])
    assert result.exit_code == 2 and "No start" not in result.output


def test_the_next_command_can_be_pasted() -> None:
    output = CliRunner().invoke(cli, ["config", START]).output
    assert f"headway compat '{START}' --engine-version" in output


def test_defaults_are_written_as_a_flag_takes_them() -> None:
    """Not as Python shows the members of an enumeration."""
    document = json.loads(CliRunner().invoke(cli, ["config", START, "--all", "--json"]).stdout)
    values = {name: setting["value"] for name, setting in document["effective"].items()}
    assert values["optimization_level"] == "2" and values["load_format"] == "auto"


@pytest.mark.parametrize(("host_ms", "is_said"), [(-0.4, True), (0.4, False)])
def test_a_negative_host_time_is_explained(host_ms: float, is_said: bool, capsys: pytest.CaptureFixture[str]) -> None:
    profile = Profile(latency="roofline", kernel_scale=1.0, host_ms_per_step=host_ms, num_measurements=2)
    calibrate._print(Calibration(profile, ()), Path("p.json"))
    assert ("A negative host time takes away" in capsys.readouterr().out) is is_said
