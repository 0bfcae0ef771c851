"""Hostile files end in a clear error or a reading, in bounded time and memory, and nothing is ever run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.deployment.effective import resolve_effective
from headway.deployment.lints import lints_of
from headway.deployment.read import decode, read_file, read_text
from headway.errors import HeadwayError, InputError

_NAMES = [
    "x.bat",
    "Dockerfile",
    "x.sh",
    "x.yaml",
    "x.json",
    "x.toml",
    "x.py",
    "x.ps1",
    "x.service",
    "Makefile",
    "x.log",
    "x.prom",
    "x",
    "x.txt",
]

_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{', '.join(['*' + chr(97 + level)] * 9)}]\n" for level in range(12)
)
HOSTILE = {
    "bomb.yaml": _BOMB,
    "self.yaml": "a: &a [*a]\n",
    "merge.yaml": "a: &a {<<: *a}\n",
    "deep.yaml": "[" * 20_000,
    "deep_flow.yaml": "{a: " * 5_000 + "}" * 5_000,
    "deep_block.yaml": "".join(" " * level + "a:\n" for level in range(3_000)),
    "tag.yaml": "!!python/object/apply:os.system ['touch /tmp/never']\n",
    "deep.json": "[" * 100_000,
    "digits.json": '{"model": "m", "max_model_len": ' + "9" * 100_000 + "}",
    "deep.toml": "a = " + "[" * 50_000,
    "deep.py": "x = " + "(" * 5_000 + ")" * 5_000,
    "nested.py": "LLM(model=" + "[" * 90 + "]" * 90 + ")",
    "add.py": "LLM(model='m', max_model_len=" + "+".join(["1"] * 20_000) + ")",
    "power.py": "LLM(model='m', max_model_len=9**9**9**9)",
    "repeat.py": "LLM(model='m' * 10**12)",
    "deep.sh": "vllm serve " + "$(" * 10_000,
    "braces.sh": "vllm serve " + "${A:-" * 10_000,
    "quotes.sh": "vllm serve '" + "x" * 100_000,
    "backtick.sh": "vllm serve `" * 5_000,
    "arith.sh": "vllm serve $((9**9**9)) $((" + "1+" * 90 + "1)) $((1/0))",
    "grow.sh": "A=xxxxxxxxxxxxxxxx\n" + "A=$A$A\n" * 60 + "vllm serve $A\n",
    "array.sh": "A=(x x x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40 + 'vllm serve "${A[@]}"\n',
    "remove.sh": "vllm serve m --port $(rm -rf /) `rm -rf /` --x '$(rm -rf /)'",
    "expand.sh": "vllm serve ${A//a/b} ${!A} ${A@Q} ${A[$(rm)]} ${#} $!",
    "loop.mk": "A = $(B)\nB = $(A)\nx:\n\tvllm serve $(A)\n",
    "grow.mk": "A0 = xx\n" + "".join(f"A{n + 1} = $(A{n})$(A{n})\n" for n in range(60)) + "x:\n\tvllm serve $(A60)\n",
    "dots.sh": "vllm serve m --hf-overrides" + ".a" * 5_000 + " 1",
    "flags.sh": "vllm serve m" + " --no-such-flag" * 20_000,
    "dict.log": "INFO non-default args: {" + "'a': [" * 5_000,
    "labels.prom": "vllm:cache_config_info{" + 'a="' * 10_000 + "} 1\n",
    "here.sh": "cat <<EOF\n" + "vllm serve <<EOF\n" * 3_000,
    "semicolons.sh": ";" * 100_000 + "vllm serve m",
    "open.ps1": "vllm serve @(@(@(" + '"' * 10_001,
    "unit.service": "ExecStart=" + "\\\n" * 50_000,
    "ifs.sh": "if " * 5_000 + "vllm serve m",
    "compose.yaml": "services:\n  v:\n    image: vllm\n    command: m --port ${A:-${B:-${C:-"
    + "${D:-" * 200
    + "}" * 203,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_end_in_bounded_time(name: str) -> None:
    """Each is read, or refused with a message; an outside limit of 20 s and 1 GiB would kill the process."""
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (20, 20))\n"
        "from headway.deployment.read import read_text\n"
        "from headway.deployment.effective import resolve_effective\n"
        "from headway.deployment.lints import lints_of\n"
        "from headway.errors import HeadwayError\n"
        "try:\n"
        "    for found in read_text(sys.stdin.read(), sys.argv[1]):\n"
        "        lints_of(resolve_effective(found))\n"
        "except HeadwayError as error:\n"
        "    print('refused:', error)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, name],
        input=HOSTILE[name].encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()[-600:]


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        (b"\x7fELF\x02\x01\x00", "not text"),
        (b"vllm serve m \x00 x", "NUL"),
        (b"\xff\xfe\x00", "not text"),
        (b"\x80abc", "not text"),
    ],
)
def test_binary_content_is_refused(raw: bytes, part: str) -> None:
    with pytest.raises(InputError, match=part):
        decode(raw, "file")


def test_utf16_of_powershell_is_read() -> None:
    assert decode("vllm serve m".encode("utf-16"), "x.ps1") == "vllm serve m"


@pytest.mark.parametrize("suffix", [".yaml", ".sh", ".py", ".json"])
def test_a_file_of_50_megabytes_is_refused_unread(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"big{suffix}"
    with path.open("wb") as file:
        file.truncate(50_000_000)
    with pytest.raises(InputError, match="at most"):
        read_file(path)


def test_a_log_of_50_megabytes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "big.log"
    line = "INFO 01-01 00:00:00 loggers.py:1] Avg prompt throughput: 0.0 tokens/s\n" * 1000
    with path.open("w", encoding="utf-8") as file:
        file.write("INFO non-default args: {'model': 'm', 'max_num_seqs': 3}\n")
        for _ in range(50_000_000 // len(line)):
            file.write(line)
    assert resolve_effective(read_file(path)[0]).value("max_num_seqs") == 3


def test_folders_and_missing_files_are_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.sh"):
        with pytest.raises(InputError):
            read_file(path)


_PIECES = st.sampled_from(
    [
        "vllm",
        "serve",
        "m",
        "--port",
        "8000",
        "--max-num-seqs",
        "'",
        '"',
        "$",
        "${A:-",
        "}",
        "$(",
        ")",
        "`",
        "\\",
        "\n",
        "\\\n",
        "#",
        ";",
        "&&",
        "|",
        "<<EOF",
        "EOF",
        "(",
        "=",
        "A=",
        "{",
        "[",
        "]",
        ":",
        "-",
        "- ",
        "  ",
        "&a",
        "*a",
        "services:",
        "command:",
        "args:",
        "\t",
        "\r\n",
        "image: vllm/x",
        "LLM(",
        "model=",
        ",",
        "{{.X}}",
        "@(",
        "@x",
        "ExecStart=",
        "x:\n\t",
        "non-default args: {",
        "%",
        "--speculative-config.a.b",
        '{"a":',
        "0x",
        "1e999",
        "\u2028",
        "\ue000",
        "\x0c",
        "--no-",
        "docker run",
        "-e",
        "if",
        "fi",
        "then",
    ]
)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(_NAMES), st.lists(_PIECES, max_size=30).map(" ".join) | st.lists(_PIECES, max_size=30).map("".join)
)
def test_any_mixture_is_read_or_refused(name: str, text: str) -> None:
    """No reader fails otherwise than by saying what is wrong."""
    try:
        found = read_text(text, name)
    except HeadwayError:
        return
    for invocation in found:
        effective = resolve_effective(invocation)
        json.dumps([lint.message for lint in lints_of(effective)])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.sampled_from(_NAMES), st.text(max_size=200))
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    try:
        read_text(text, name)
    except HeadwayError:
        return
