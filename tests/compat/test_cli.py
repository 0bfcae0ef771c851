"""`headway config` and `headway compat` from the outside: exit codes, JSON, SARIF, tables."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from headway.catalog.compatibility import WORST_FIRST
from headway.cli import cli

_FINE = "vllm serve org/model --max-num-seqs 64\n"
_BAD = "vllm serve org/model --swap-space 4 --max-num-seqs 64\n"


def _run(*args: str) -> Result:
    result = CliRunner().invoke(cli, list(args))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def start(tmp_path: Path) -> Path:
    path = tmp_path / "start.sh"
    path.write_text(_FINE, encoding="utf-8")
    return path


def test_config_exit_codes(start: Path, tmp_path: Path) -> None:
    """0 fine, 1 findings, 2 unreadable; one bad file does not hide the others."""
    assert _run("config", str(start)).exit_code == 0
    start.write_text(_BAD, encoding="utf-8")
    assert _run("config", str(start)).exit_code == 1
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [", encoding="utf-8")
    result = _run("config", str(broken), str(start))
    assert result.exit_code == 2 and "Not YAML" in result.output and "swap-space" in result.output
    assert _run("config", str(tmp_path / "missing.sh")).exit_code == 2


def test_config_tells_what_the_version_rejects() -> None:
    """What `compat` rejects at those flags is an error of `config` too, once."""
    command = "vllm serve org/model --max-num-seqs 8 --max-num-batched-tokens 4"
    result = _run("config", command, "--json")
    lints = json.loads(result.stdout)["lints"]
    assert result.exit_code == 1 == _run("compat", command).exit_code
    assert [(lint["level"], set(lint["settings"])) for lint in lints] == [
        ("error", {"max_num_seqs", "max_num_batched_tokens"})
    ]
    assert _run("config", command.replace("-tokens 4", "-tokens 8")).exit_code == 0
    unknown = json.loads(_run("config", "vllm serve org/model --no-such-flag", "--json").stdout)["lints"]
    assert [lint["rule"] for lint in unknown] == ["unknown-flag"]


def test_config_json_has_value_written_source_and_reason(start: Path) -> None:
    document = json.loads(_run("config", str(start), "--json", "--engine-version", "0.18.0", "--gpu", "h100").output)
    seats = document["effective"]["max_num_seqs"]
    assert (seats["value"], seats["written"], seats["source"]) == (64, 64, "command line")
    budget = document["effective"]["max_num_batched_tokens"]
    assert (budget["value"], budget["written"], budget["source"]) == (8192, None, "default")
    assert "vllm serve" in budget["reason"]
    assert document["lints"] == [] and document["unresolved"] == {}
    assert document["engine_version"] == "0.18.0" and len(document["invocations"]) == 1


def test_config_names_what_is_unresolved(start: Path) -> None:
    start.write_text("vllm serve $MODEL --port $1\n", encoding="utf-8")
    document = json.loads(_run("config", str(start), "--json").output)
    assert document["unresolved"] == {"model": ["$MODEL"], "port": ["$1"]}
    assert document["effective"]["port"]["value"] == "$1"


def test_secrets_are_not_printed(start: Path) -> None:
    start.write_text("HF_TOKEN=hf_abc vllm serve m --api-key sk-123 # x\n", encoding="utf-8")
    for options in ([], ["--json"]):
        output = _run("config", str(start), *options).output
        assert "sk-123" not in output and "hf_abc" not in output


def test_the_image_tag_decides_the_version(start: Path) -> None:
    start.write_text("docker run vllm/vllm-openai:v0.10.2 --model org/m --swap-space 4\n", encoding="utf-8")
    document = json.loads(_run("config", str(start), "--json").output)
    assert document["engine_version"] == "0.10.2" and "tag" in document["engine_version_reason"]
    assert not [lint for lint in document["lints"] if lint["rule"] in ("unknown-flag", "refused")]


def test_sarif_points_at_the_line(start: Path, tmp_path: Path) -> None:
    start.write_text("# start\nvllm serve org/model \\\n  --swap-space 4\n", encoding="utf-8")
    out = tmp_path / "out.sarif"
    for command in (["config", str(start)], ["compat", str(start)]):
        assert _run(*command, "--sarif", str(out)).exit_code == 1
        run = json.loads(out.read_text(encoding="utf-8"))["runs"][0]
        found = run["results"][0]
        assert found["level"] == "error" and "--swap-space" in found["message"]["text"]
        place = found["locations"][0]["physicalLocation"]
        assert place["region"]["startLine"] == 3 and place["artifactLocation"]["uri"].endswith("start.sh")
        assert run["tool"]["driver"]["rules"][found["ruleIndex"]]["id"] == found["ruleId"]


def test_compat_judges_with_exit_codes(start: Path) -> None:
    assert _run("compat", str(start), "--engine-version", "0.18.0").exit_code == 0
    start.write_text(_BAD, encoding="utf-8")
    result = _run("compat", str(start), "--engine-version", "0.18.0", "--json")
    document = json.loads(result.output)
    assert result.exit_code == 1
    assert document["verdict"] == "unknown_flag"
    assert {"verdict", "features", "versions", "message", "source"} <= set(document)
    start.write_text("rm -rf /\n", encoding="utf-8")
    assert _run("compat", str(start)).exit_code == 2


def test_compat_answers_for_features() -> None:
    result = _run("compat", "--features", "mtp,pipeline_parallel", "--engine-version", "0.26.0", "--json")
    document = json.loads(result.output)
    assert (result.exit_code, document["verdict"]) == (1, "rejected")
    assert document["versions"] == "0.26.0 to 0.29.0" and "52069" in document["source"]


def test_compat_prints_a_matrix() -> None:
    result = _run("compat", "--matrix", "0.18.0")
    assert result.exit_code == 0
    assert "spec_decode" in result.output and "y works" in result.output
    document = json.loads(_run("compat", "--matrix", "0.18.0", "--json").output)
    pairs = {tuple(pair["features"]): pair["verdict"] for pair in document["pairs"]}
    assert pairs["spec_decode", "chunked_prefill"] == "ok" and pairs["spec_decode", "prefix_caching"] == "ok"


def test_compat_compares_versions_and_simulates_both_sides(start: Path) -> None:
    start.write_text(
        "vllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 4096 --task generate\n", encoding="utf-8"
    )
    result = _run("compat", str(start), "--from", "0.10.2", "--to", "0.33.0", "--gpu", "l40s", "--json",
                  "--workload", "64/16@0.5")  # fmt: skip
    document = json.loads(result.output)
    assert result.exit_code == 1
    assert document["lost_flags"][0]["replaced_by"] == "--runner"
    assert document["memory"]["from"]["kv_cache_tokens"] > 0 and document["memory"]["to"]["fits"] is True
    assert document["latency"]["before"]["median_ttft_ms"] > 0
    assert "request_throughput" in document["latency"]["after"]
    shown = _run("compat", str(start), "--from", "0.10.2", "--to", "0.33.0", "--no-simulate")
    assert "Flags that the new version does not take" in shown.output and "the GPU is not known" in shown.output


@pytest.mark.parametrize("args", [["compat"], ["compat", "x", "--from", "0.18.0"], ["config"]])
def test_wrong_use_is_told(args: list[str]) -> None:
    assert CliRunner().invoke(cli, args).exit_code == 2


def test_pre_commit_hooks_run_commands_that_exist() -> None:
    root = Path(__file__).parents[2]
    for hook in yaml.safe_load((root / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")):
        program, command, *options = hook["entry"].split()
        shown = CliRunner().invoke(cli, [command, "--help"]).output
        assert program == "headway" and all(option in shown for option in options)
        assert re.search(hook["files"], "deploy/docker-compose.yml") and not re.search(hook["files"], "src/main.rs")


def test_the_documented_format_names_every_verdict_and_field() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compat-data.md").read_text(encoding="utf-8")
    text = resources.files("headway.catalog").joinpath("vllm_compat.json").read_text(encoding="utf-8")
    fields = {name for row in json.loads(text)["rows"] for name in row}
    assert all(f"`{name}`" in page for name in (*WORST_FIRST, *fields))


@pytest.mark.parametrize(("version", "said"), [("0.99.0", "newer than the newest"), ("0.3.0", "older than the oldest")])
def test_a_release_beyond_the_data_is_said_and_answered(version: str, said: str) -> None:
    """One line on standard error and a key; the answer is that of the nearest release known."""
    nearest = "0.33.0" if version == "0.99.0" else "0.6.0"
    start = "vllm serve org/model --max-num-seqs 8 --max-num-batched-tokens 4"
    for command in (("config", start), ("compat", start)):
        result, known = (_run(*command, "--json", "--engine-version", release) for release in (version, nearest))
        assert said in result.stderr and nearest in result.stderr and len(result.stderr.splitlines()) == 1
        assert known.stderr == "" and json.loads(known.stdout)["engine_version_note"] is None
        assert said in json.loads(result.stdout)["engine_version_note"]
        assert result.exit_code == known.exit_code == 1
    pair = ("compat", "--features", "spec_decode,pipeline_parallel", "--json", "--engine-version")
    verdicts = [json.loads(_run(*pair, release).stdout)["verdict"] for release in (version, nearest)]
    assert verdicts[0] == verdicts[1]
    both = _run("compat", start, "--from", "0.20.0", "--to", version, "--no-simulate")
    assert said in both.stderr
