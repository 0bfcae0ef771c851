"""Splits a POSIX or bash script into commands and words, keeping quoting; nothing is expanded or run.

A lexer of our own rather than shlex, which knows neither expansions, nor here-documents, nor arrays, and rather than a
full grammar in C: what is to be reported (a space after a backslash, a comment in a continuation) a tree has lost.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from headway.errors import InputError

MAX_DEPTH = 24
MAX_PIECES = 200_000
_OPERATORS = (
    ";;&", "<<<", "&>>", "<<-", ";;", ";&", "&&", "||", "|&", "<<", ">>", "<&", ">&", "<>", ">|", "&>", ";", "&",
    "|", "<", ">", "(", ")",
)  # fmt: skip
_REDIRECTS = frozenset(("<", ">", ">>", "<&", ">&", "<>", ">|", "&>", "&>>", "<<<", "<<", "<<-"))
_NAME = re.compile(r"[A-Za-z_]\w*")
_SPECIAL = frozenset("@*#?$!-0123456789")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word. kind: `text`, `param` (text is what stands in the braces) or `command` (a substitution).

    `raw` is the piece as written.
    """

    kind: str
    text: str
    raw: str
    quoted: bool


@dataclass(frozen=True, slots=True)
class RawWord:
    """A word before expansion. `array`: the words of `NAME=( … )`, the name being in `pieces`."""

    pieces: tuple[Piece, ...]
    line: int
    array: tuple[RawWord, ...] | None = None

    @property
    def plain(self) -> str | None:
        """The text, where nothing is to be expanded; None otherwise."""
        if all(piece.kind == "text" for piece in self.pieces):
            return "".join(piece.text for piece in self.pieces)
        return None


@dataclass(slots=True)
class RawCommand:
    """Words up to an operator. `opener` is the operator or newline before, `closer` the one after."""

    words: list[RawWord] = field(default_factory=list)
    line: int = 0
    opener: str = "\n"
    closer: str = "\n"
    documents: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Remark:
    """A fact about the script's text that matters to its reader."""

    kind: str
    line: int
    text: str = ""


@dataclass(slots=True)
class Script:
    """Commands in order, with remarks: `space_after_backslash`, `comment_in_continuation`, `unclosed`."""

    commands: list[RawCommand] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def lex(text: str, *, line: int = 1, depth: int = 0) -> Script:
    """Read a script.

    Raises:
        InputError: nested too deeply or too long.
    """
    return _Lexer(text, line, depth).script()


class _Lexer:
    def __init__(self, text: str, line: int, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise InputError("The shell text is nested too deeply to be read.")
        self._text = text
        self._at = 0
        self._line = line
        self._depth = depth
        self._pieces = 0
        self._pending: list[tuple[str, bool]] = []
        self._script = Script()
        self._command = RawCommand(line=line)
        self._continued = False

    def script(self) -> Script:
        while self._at < len(self._text):
            self._step()
        self._end("\n")
        return self._script

    def _step(self) -> None:
        char = self._text[self._at]
        if char == "\n":
            self._newline()
        elif char in " \t\r":
            self._at += 1
        elif char == "\\" and (skip := self._continuation()):
            self._at += skip
            self._line += 1
            self._continued = True
        elif char == "#":
            self._comment()
        elif operator := self._operator():
            self._take_operator(operator)
        else:
            self._continued = False
            self._command.words.append(self._word())

    def _continuation(self) -> int:
        """Length of a backslash at the end of the line; blanks after it are remarked on and taken along."""
        match = re.compile(r"\\([ \t]*)\r?\n").match(self._text, self._at)
        if match is None:
            return 0
        if match.group(1):
            self._script.remarks.append(Remark("space_after_backslash", self._line))
        return match.end() - self._at

    def _comment(self) -> None:
        end = self._text.find("\n", self._at)
        end = len(self._text) if end < 0 else end
        if self._continued and self._command.words:
            self._script.remarks.append(
                Remark("comment_in_continuation", self._line, self._text[self._at : end].strip()[:200])
            )
        self._at = end

    def _newline(self) -> None:
        self._at += 1
        self._line += 1
        self._continued = False
        self._end("\n")
        for delimiter, strip in self._pending:
            self._document(delimiter, strip)
        self._pending.clear()

    def _document(self, delimiter: str, strip: bool) -> None:
        lines: list[str] = []
        while self._at < len(self._text):
            end = self._text.find("\n", self._at)
            end = len(self._text) if end < 0 else end
            current = self._text[self._at : end].rstrip("\r")
            self._at = min(end + 1, len(self._text))
            self._line += 1
            if (current.lstrip("\t") if strip else current) == delimiter:
                break
            lines.append(current.lstrip("\t") if strip else current)
        if self._script.commands:
            self._script.commands[-1].documents.append("\n".join(lines) + "\n")

    def _operator(self) -> str | None:
        if self._text[self._at] not in ";&|<>()":
            return None
        return next((name for name in _OPERATORS if self._text.startswith(name, self._at)), None)

    def _take_operator(self, operator: str) -> None:
        self._at += len(operator)
        if operator not in _REDIRECTS:
            self._end(operator)
            return
        last = self._command.words[-1].plain if self._command.words else None
        if last is not None and last.isdigit() and self._text[self._at - len(operator) - 1].isdigit():
            self._command.words.pop()
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1
        if self._at >= len(self._text) or self._text[self._at] in "\n;&|()":
            return
        target = self._word()
        if operator in ("<<", "<<-"):
            self._pending.append(("".join(piece.text for piece in target.pieces), operator == "<<-"))

    def _end(self, closer: str) -> None:
        command = self._command
        command.closer = closer
        if command.words:
            self._script.commands.append(command)
        opener = closer if command.words or closer != "\n" else command.opener
        self._command = RawCommand(line=self._line, opener=opener)

    def _word(self) -> RawWord:
        line = self._line
        pieces: list[Piece] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\r\n" or char in ";&|<>)":
                break
            if char == "(":
                if pieces and re.fullmatch(r"[A-Za-z_]\w*\+?=", "".join(piece.text for piece in pieces)):
                    return RawWord(tuple(pieces), line, self._array())
                break
            if char == "\\":
                if skip := self._continuation():
                    self._at += skip
                    self._line += 1
                    self._continued = True
                    if self._text[self._at : self._at + 1] in ("", " ", "\t", "\n"):
                        break
                    continue
                self._add(
                    pieces,
                    Piece("text", self._text[self._at + 1 : self._at + 2], self._text[self._at : self._at + 2], True),
                )
                self._at += 2
            elif char == "'":
                self._add(pieces, self._single())
            elif char == '"':
                self._double(pieces)
            elif char == "$" or char == "`":
                self._add(pieces, self._dollar(False))
            else:
                match = _PLAIN.match(self._text, self._at)
                end = match.end() if match else self._at + 1
                self._add(pieces, Piece("text", self._text[self._at : end], self._text[self._at : end], False))
                self._at = end
        return RawWord(tuple(pieces), line)

    def _add(self, pieces: list[Piece], piece: Piece) -> None:
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            raise InputError("The shell text has too many parts to be read.")
        pieces.append(piece)

    def _array(self) -> tuple[RawWord, ...]:
        self._at += 1
        found: list[RawWord] = []
        while self._at < len(self._text) and self._text[self._at] != ")":
            char = self._text[self._at]
            if char == "\n":
                self._line += 1
                self._at += 1
            elif char in " \t\r":
                self._at += 1
            elif char == "\\" and (skip := self._continuation()):
                self._at += skip
                self._line += 1
            elif char == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif char in ";&|<>(":
                self._at += 1
            else:
                found.append(self._word())
        self._at += 1
        return tuple(found)

    def _single(self) -> Piece:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            self._script.remarks.append(Remark("unclosed", self._line, "'"))
            end = len(self._text)
        content = self._text[self._at + 1 : end]
        self._line += content.count("\n")
        self._at = end + 1
        return Piece("text", content, f"'{content}'", True)

    def _double(self, pieces: list[Piece]) -> None:
        start, line = self._at, self._line
        self._at += 1
        buffer: list[str] = []
        self._add(pieces, Piece("text", "", "", True))
        while self._at < len(self._text) and self._text[self._at] != '"':
            char = self._text[self._at]
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ('"', "\\", "$", "`", "\n"):
                escaped = self._text[self._at + 1]
                buffer.append("" if escaped == "\n" else escaped)
                self._line += escaped == "\n"
                self._at += 2
            elif char in "$`":
                if buffer:
                    self._add(pieces, Piece("text", "".join(buffer), "".join(buffer), True))
                    buffer = []
                self._add(pieces, self._dollar(True))
            else:
                match = _IN_QUOTES.match(self._text, self._at)
                end = match.end() if match else self._at + 1
                buffer.append(self._text[self._at : end])
                self._line += self._text.count("\n", self._at, end)
                self._at = end
        if self._at >= len(self._text):
            self._script.remarks.append(Remark("unclosed", line, self._text[start : start + 20]))
        self._at += 1
        if buffer:
            self._add(pieces, Piece("text", "".join(buffer), "".join(buffer), True))

    def _dollar(self, quoted: bool) -> Piece:
        start = self._at
        if self._text[start] == "`":
            end = self._text.find("`", start + 1)
            end = len(self._text) if end < 0 else end + 1
            return self._piece("command", start, end, quoted)
        following = self._text[start + 1 : start + 2]
        if following == "{":
            return self._piece("param", start, self._closing(start + 2, "{", "}"), quoted, 2, 1)
        if following == "(":
            return self._piece("command", start, self._closing(start + 2, "(", ")"), quoted)
        if following == "'" and not quoted:
            self._at += 1
            piece = self._single()
            return Piece("text", _ansi(piece.text), "$" + piece.raw, True)
        name = _NAME.match(self._text, start + 1)
        if name is not None:
            return self._piece("param", start, name.end(), quoted, 1)
        if following and following in _SPECIAL:
            return self._piece("param", start, start + 2, quoted, 1)
        self._at += 1
        return Piece("text", "$", "$", quoted)

    def _piece(self, kind: str, start: int, end: int, quoted: bool, head: int = 0, tail: int = 0) -> Piece:
        raw = self._text[start:end]
        self._at = end
        self._line += raw.count("\n")
        return Piece(kind, raw[head : len(raw) - tail] if kind == "param" else raw, raw, quoted)

    def _closing(self, start: int, opening: str, closing: str) -> int:
        """The position after the bracket that closes one opened just before `start`, quotes respected."""
        depth, at = 1, start
        while at < len(self._text):
            char = self._text[at]
            if char == "\\":
                at += 1
            elif char == "'" and opening == "(":
                at = self._text.find("'", at + 1)
                if at < 0:
                    break
            elif char == opening:
                depth += 1
                if depth + self._depth > MAX_DEPTH:
                    raise InputError("The shell text is nested too deeply to be read.")
            elif char == closing:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        self._script.remarks.append(Remark("unclosed", self._line, f"${opening}"))
        return len(self._text)


_PLAIN = re.compile(r"[^\s;&|<>()\\'\"$`]+")
_IN_QUOTES = re.compile(r"[^\"\\$`]+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "0": "\0"}


def _ansi(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found.group(1), found.group()), text, flags=re.DOTALL)
