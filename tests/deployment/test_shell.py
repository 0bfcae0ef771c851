"""The shell reader says the words that bash would pass, and marks what only the environment could tell."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.deployment.shell import read_script
from headway.errors import InputError

_SETUP = """A=one B='two words' EMPTY= N=7 P=/models/llama.gguf
LIST=(x 'y z' "$A") NONE=()
LIST+=(last)
B2="$B and ${A}"
"""
_SHOW = 'show() { for word in "$@"; do printf \'%s\\0\' "$word"; done; }\n'

WORDS = [
    "plain",
    "--flag=value",
    "'single $A'",
    '"double $A"',
    "$A",
    "${A}",
    "$B",
    '"$B"',
    "$EMPTY",
    '"$EMPTY"',
    "x$EMPTY",
    "pre${A}post",
    '"${LIST[@]}"',
    "${LIST[1]}",
    '"${LIST[*]}"',
    '"${NONE[@]}"',
    "${EMPTY:-default}",
    "${EMPTY-unused}",
    "${A:-unused}",
    "${A:+yes}",
    "${EMPTY:+no}",
    '"${EMPTY:-a b}"',
    "${EMPTY:-a b}",
    "${EMPTY:-'a b'}",
    "$((N * 2 + 1))",
    "$((N/2))",
    '\'{"k": 1, "l": [2, 3]}\'',
    '"{\\"k\\": \\"$A\\"}"',
    "a\\ b",
    "\\$A",
    "$'tab\\tx'",
    "${P##*/}",
    "${P%.gguf}",
    "${P#/models/}",
    "${A^^}",
    "${P/models/m}",
    "{a,b}",
    "pre{a,b}post",
    "'{a,b}'",
    "${A:0:2}",
    "a#b",
    '"a\\\nb"',
    "c\\\nd",
    "''",
    '""',
    "a''b",
    "\"$A\"'$B'",
    "$B2",
    '"${B2}"',
    "${EMPTY:=}",
    "--x={1,2}",
    "${#}x",
]


def _bash(script: str) -> list[str]:
    result = subprocess.run(
        ["bash", "--norc", "-c", _SETUP + _SHOW + script], capture_output=True, timeout=10, env={}, check=True
    )
    return result.stdout.decode().split("\0")[:-1]


def _ours(script: str) -> list[str]:
    read = read_script(_SETUP + script)
    command = next(command for command in read.commands if command.words[0].text == "show")
    return [word.text for word in command.words[1:]]


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash to compare with")


@needs_bash
@pytest.mark.parametrize("word", [word for word in WORDS if word != "${#}x"])
def test_one_word_is_what_bash_passes(word: str) -> None:
    assert _ours(f"show before {word} after") == _bash(f"show before {word} after")


@needs_bash
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from([word for word in WORDS if word != "${#}x"]), min_size=2, max_size=7))
def test_lines_of_words_are_what_bash_passes(chosen: list[str]) -> None:
    """Continuations, comments, redirections and pipes change nothing about the words."""
    script = "show " + " \\\n   ".join(chosen) + " >/dev/stdout 2>&1 # --not-a-flag"
    assert _ours(script) == _bash(script)


def test_unknown_variables_stay_as_written_and_are_named() -> None:
    words = read_script('vllm serve $MODEL --port ${PORT} --x "a$1" --y $(nproc) --z `date`').commands[0].words
    assert [word.text for word in words[2:]] == [
        "$MODEL",
        "--port",
        "${PORT}",
        "--x",
        "a$1",
        "--y",
        "$(nproc)",
        "--z",
        "`date`",
    ]
    assert [word.unresolved for word in words if word.unresolved] == [
        ("$MODEL",),
        ("${PORT}",),
        ("$1",),
        ("$(nproc)",),
        ("`date`",),
    ]


def test_defaults_are_taken_and_named() -> None:
    word = read_script('run "${LEN:-${OTHER:-4096}}"').commands[0].words[1]
    assert word.text == "4096" and set(word.defaults) == {"LEN", "OTHER"}


def test_nothing_is_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A script that would leave a trace leaves none."""
    trace = tmp_path_factory.mktemp("trace") / "ran"
    read_script(
        f"touch {trace}; X=$(touch {trace}); `touch {trace}`; eval 'touch {trace}'; echo $(rm -rf {trace.parent})"
    )
    assert not trace.exists() and trace.parent.exists()


def test_tests_decide_where_they_can() -> None:
    """A known test takes its branch; an unknown one leaves the earlier value and says so."""
    script = read_script(
        'MODE=${MODE:-fast}\nif [ "$MODE" = fast ]; then F=--fast; else F=--slow; fi\n'
        '[ "$UNKNOWN" = 1 ] && F=--maybe\nrun $F'
    )
    assert [word.text for word in script.commands[-1].words] == ["run", "--fast"]
    assert "F" in script.variables.uncertain


def test_a_comment_ends_a_continued_command() -> None:
    script = read_script("vllm serve m \\\n  --a 1 \\\n  # note \\\n  --b 2\n")
    assert [[word.text for word in command.words] for command in script.commands] == [
        ["vllm", "serve", "m", "--a", "1"],
        ["--b", "2"],
    ]
    assert [remark.kind for remark in script.remarks] == ["comment_in_continuation"]


def test_blanks_after_a_backslash_are_remarked_on() -> None:
    script = read_script("run a \\  \n  b\n")
    assert [remark.kind for remark in script.remarks] == ["space_after_backslash"]
    assert len(script.commands) == 1


def test_here_documents_are_kept_apart() -> None:
    script = read_script("cat <<'EOF' > f\nvllm serve m\nEOF\nrun x\n")
    assert [command.words[0].text for command in script.commands] == ["cat", "run"]
    assert script.commands[0].documents == ["vllm serve m\n"]


@pytest.mark.parametrize("text", ["'open", '"open', "$(open", "${open", "`open", "a=(x"])
def test_what_is_never_closed_ends(text: str) -> None:
    assert read_script(f"run {text}").commands is not None


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        read_script("run " + "$(" * 500 + ")" * 500)
    with pytest.raises(InputError, match="nested too deeply"):
        read_script("run " + "${A:-" * 500 + "}" * 500)
