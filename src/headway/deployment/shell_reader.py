"""Reads a shell script for the vLLM starts in it, with what its text gets wrong."""

from __future__ import annotations

import re

from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.shell import ShellCommand, ShellScript, read_script

MAX_DOCUMENTS = 50


def read_shell(text: str, *, depth: int = 0) -> list[Invocation]:
    """The vLLM starts of a script, here-documents included.

    Raises:
        InputError: nested too deeply or too long.
    """
    has_returns = "\r\n" in text
    script = read_script(text.replace("\r\n", "\n"), depth=depth)
    taken = [command for command in script.commands if not command.is_skipped]
    found = _starts(taken, script) or _starts(script.commands, script)
    for command in script.commands:
        for document in command.documents[:MAX_DOCUMENTS]:
            found += _here_document(document, depth)
    for invocation in found:
        if has_returns and invocation.source == "shell command":
            invocation.lint(
                "carriage-returns", "error", "The script has Windows line ends; a shell sees \\r in values."
            )
    return found


def _starts(commands: list[ShellCommand], script: ShellScript) -> list[Invocation]:
    found: list[Invocation] = []
    for index, command in enumerate(commands):
        invocation = find_start(command.words, command.environment, source="shell command")
        if invocation is None:
            continue
        invocation.line = command.line
        following = commands[index + 1] if index + 1 < len(commands) else None
        _remarks(invocation, command, following, script)
        found.append(invocation)
    return found


def _remarks(
    invocation: Invocation, command: ShellCommand, following: ShellCommand | None, script: ShellScript
) -> None:
    last = max((word.line for word in command.words), default=command.line)
    for remark in script.remarks:
        if remark.kind == "space_after_backslash" and command.line <= remark.line <= last:
            invocation.lint(
                "space-after-backslash",
                "error",
                f"Line {remark.line} has blanks after its backslash: the shell ends the command there. "
                "Read here as if it went on.",
                remark.line,
            )
        elif remark.kind == "unclosed":
            invocation.lint(
                "unclosed-quote", "error", f"Line {remark.line}: {remark.text} is never closed.", remark.line
            )
    lost = following is not None and following.words[0].text.startswith("-") and following.words[0].line > last
    if lost and following is not None:
        flags = " ".join(word.text for word in following.words if word.text.startswith("--"))[:300]
        comment = next(
            (mark for mark in script.remarks if mark.kind == "comment_in_continuation" and mark.line >= last), None
        )
        if comment is not None and comment.line < following.line:
            message = f"The comment on line {comment.line} ends the command; these flags are lost: {flags}"
            invocation.lint("comment-ends-command", "error", message, comment.line)
        else:
            message = f"Line {last} does not continue; these flags on line {following.line} are lost: {flags}"
            invocation.lint("flags-after-command", "error", message, following.line)
    if command.is_conditional:
        invocation.lint("conditional", "note", "Whether this command runs depends on the environment.", command.line)
    for name, line in script.variables.uncertain.items():
        invocation.lint("conditional-value", "note", f"{name} may be set otherwise on line {line}.", line)


def _here_document(text: str, depth: int) -> list[Invocation]:
    """A here-document may hold a script, or YAML."""
    from headway.deployment.read import read_text
    from headway.errors import InputError

    if "vllm" not in text or depth > 3:
        return []
    is_yaml = re.search(r"(?m)^(apiVersion|kind|services|spec):", text)
    try:
        return read_text(text, "document.yaml") if is_yaml else read_shell(text, depth=depth + 1)
    except InputError:
        return []
