"""Reads a shell script for the commands it would run, without running any."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from headway.deployment.shell_expand import Variables, expand_scalar, expand_word
from headway.deployment.shell_lexer import RawCommand, RawWord, Remark, lex
from headway.deployment.words import Word

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARE = frozenset(("export", "declare", "local", "readonly", "typeset"))
_RESERVED = frozenset(
    ("then", "else", "do", "{", "!", "time", "exec", "command", "builtin", "eval", "if", "elif", "while", "until")
)
_TESTS = frozenset(("[", "[[", "test"))


@dataclass(slots=True)
class ShellCommand:
    """One command: its words after expansion, the environment given or exported to it, and its here-documents."""

    words: list[Word]
    environment: dict[str, Word] = field(default_factory=dict)
    line: int = 0
    documents: list[str] = field(default_factory=list)
    is_conditional: bool = False
    is_skipped: bool = False


@dataclass(slots=True)
class ShellScript:
    """The commands of a script in order, what it sets, and remarks on its text."""

    commands: list[ShellCommand]
    remarks: list[Remark]
    variables: Variables


def read_script(text: str, variables: Variables | None = None, *, line: int = 1, depth: int = 0) -> ShellScript:
    """Follow a script's assignments and expand its commands.

    A branch whose test is known to fail is marked skipped; one whose test is unknown is marked conditional, and what it
    assigns is not taken over.

    Raises:
        InputError: nested too deeply or too long.
    """
    script = lex(text, line=line, depth=depth)
    walker = _Walker(variables or Variables())
    for command in script.commands:
        walker.take(command)
    remarks = [*script.remarks, *walker.remarks]
    return ShellScript(walker.found, remarks, walker.variables)


class _Walker:
    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.found: list[ShellCommand] = []
        self.remarks: list[Remark] = []
        self._last: bool | None = True
        self._branches: list[tuple[bool | None, bool]] = []
        """For each open `if`: whether the current branch runs, and whether an earlier one surely did."""
        self._in_condition = False

    def take(self, command: RawCommand) -> None:
        words = self._keywords(command.words)
        if not words:
            return
        runs = self._runs(command.opener)
        assignments, rest = self._leading_assignments(words)
        if not rest:
            self._assign(assignments, runs)
            self._last = True
            return
        name = rest[0].plain
        if name in _DECLARE:
            self._declare(rest[1:], runs, export=name == "export" or "-x" in {word.plain for word in rest[1:2]})
            self._last = True
        elif name in _TESTS:
            self._last = self._test(rest) if runs is not False else self._last
            if self._in_condition and command.closer not in ("&&", "||"):
                self._condition(self._last)
        else:
            self._command(command, assignments, rest, runs)
            if self._in_condition and command.closer not in ("&&", "||", "|"):
                self._condition(None)
            self._last = None

    def _keywords(self, words: list[RawWord]) -> list[RawWord]:
        while words and words[0].plain in _RESERVED | {"fi", "for", "case", "select"}:
            word = words[0].plain
            if word == "for" and len(words) > 1 and (name := words[1].plain):
                self.variables.set(name, (Word(f"${name}", (f"${name}",), line=words[0].line),))
                return []
            if word in ("for", "case", "select"):
                return []
            if word == "if":
                self._branches.append((None, False))
                self._in_condition = True
            elif word == "elif" and self._branches:
                self._in_condition = True
            elif word == "then":
                self._in_condition = False
            elif word == "else" and self._branches:
                current, done = self._branches[-1]
                self._branches[-1] = (False if done else (True if current is False else None), done)
            elif word == "fi":
                if self._branches:
                    self._branches.pop()
                self._in_condition = False
            words = words[1:]
        return words

    def _condition(self, result: bool | None) -> None:
        self._in_condition = False
        if not self._branches:
            return
        _, done = self._branches[-1]
        self._branches[-1] = (False if done else result, done or result is True)

    def _runs(self, opener: str) -> bool | None:
        """Whether a command runs: True, False, or None where only the environment can tell."""
        states = [current for current, _ in self._branches] if not self._in_condition else []
        if opener == "&&":
            states.append(self._last)
        elif opener == "||":
            states.append(None if self._last is None else not self._last)
        if any(state is False for state in states):
            return False
        return None if any(state is None for state in states) else True

    def _leading_assignments(self, words: list[RawWord]) -> tuple[list[RawWord], list[RawWord]]:
        count = 0
        while count < len(words) and _assignment(words[count]) is not None:
            count += 1
        return words[:count], words[count:]

    def _assign(self, words: list[RawWord], runs: bool | None, *, export: bool = False) -> None:
        for word in words:
            match = _assignment(word)
            assert match is not None
            name, adds = match
            if runs is None and name in self.variables.values:
                self.variables.uncertain[name] = word.line
            if runs is False or (runs is None and name in self.variables.values):
                continue
            if word.array is not None:
                value = tuple(part for item in word.array for part in expand_word(item, self.variables))
                earlier = self.variables.values.get(name, ()) if adds else ()
                self.variables.set(name, (*earlier, *value), is_array=True)
            else:
                scalar = expand_scalar(_value_of(word), self.variables)
                if adds and (old := self.variables.values.get(name)):
                    scalar = replace(
                        scalar, text=old[0].text + scalar.text, defaults=(*old[0].defaults, *scalar.defaults)
                    )
                self.variables.set(name, (scalar,))
            if export:
                self.variables.exported.add(name)

    def _declare(self, words: list[RawWord], runs: bool | None, *, export: bool) -> None:
        for word in words:
            if _assignment(word) is not None:
                self._assign([word], runs, export=export)
            elif export and word.plain and not word.plain.startswith("-"):
                self.variables.exported.add(word.plain)

    def _command(self, command: RawCommand, assignments: list[RawWord], rest: list[RawWord], runs: bool | None) -> None:
        environment = {
            name: self.variables.values[name][0]
            for name in sorted(self.variables.exported)
            if self.variables.values.get(name)
        }
        for word in assignments:
            match = _assignment(word)
            assert match is not None
            environment[match[0]] = expand_scalar(_value_of(word), self.variables)
        expanded = [part for word in rest for part in expand_word(word, self.variables)]
        if rest[0].plain == ":":
            return
        if expanded:
            found = ShellCommand(expanded, environment, rest[0].line, command.documents, runs is None, runs is False)
            self.found.append(found)

    def _test(self, words: list[RawWord]) -> bool | None:
        parts = [part for word in words[1:] for part in expand_word(word, self.variables)]
        if parts and parts[-1].text in ("]", "]]"):
            parts.pop()
        if any(part.unresolved for part in parts):
            return None
        texts = [part.text for part in parts]
        negated = texts[:1] == ["!"]
        result = _compare(texts[1:] if negated else texts)
        return result if result is None or not negated else not result


def _compare(texts: list[str]) -> bool | None:
    match texts:
        case ["-n", text] | [text]:
            return bool(text)
        case ["-z", text]:
            return not text
        case [left, "=" | "==", right]:
            return left == right if not set(right) & set("*?[") else None
        case [left, "!=", right]:
            return left != right if not set(right) & set("*?[") else None
        case [left, "-eq" | "-ne" | "-gt" | "-ge" | "-lt" | "-le" as action, right]:
            return _compare_numbers(left, action, right)
    return None


def _compare_numbers(left: str, action: str, right: str) -> bool | None:
    if not (left.isdigit() and right.isdigit() and len(left) < 19 and len(right) < 19):
        return None
    first, second = int(left), int(right)
    return {
        "-eq": first == second,
        "-ne": first != second,
        "-gt": first > second,
        "-ge": first >= second,
        "-lt": first < second,
        "-le": first <= second,
    }[action]


def _assignment(word: RawWord) -> tuple[str, bool] | None:
    """The name that a word assigns, and whether it adds (`+=`); None if it is no assignment."""
    if not word.pieces or word.pieces[0].kind != "text" or word.pieces[0].quoted:
        return None
    match = _ASSIGNMENT.match(word.pieces[0].text)
    return None if match is None else (match.group(1), match.group(2) == "+")


def _value_of(word: RawWord) -> RawWord:
    first = word.pieces[0]
    cut = first.text.index("=") + 1
    return RawWord((replace(first, text=first.text[cut:]), *word.pieces[1:]), word.line)
