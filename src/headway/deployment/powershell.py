"""Reads PowerShell scripts: backtick continuation, both quotes, `$name` and `$env:NAME`, arrays and splatting.

A backslash before a double quote inside quotes is taken away, as programs started by PowerShell up to 7.2 see it.
"""

from __future__ import annotations

import re

from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.words import Word, join

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|`[ \t]*\r?\n|\#[^\n]*|<\#.*?\#>)|(?P<end>[\n;|&]+)|(?P<single>'(?:[^']|'')*')|"""
    r"""(?P<double>"(?:[^"`]|`.|"")*")|(?P<open>@\(|\()|(?P<close>\))|(?P<comma>,)|(?P<splat>@[A-Za-z_]\w*)|"""
    r"""(?P<bare>(?:[^\s'"`;|&(),\#]|(?<=\S)\#|`.)+)|(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_VARIABLE = re.compile(r"\$(?:env:)?(\w+)|\$\{(?:env:)?(\w+)\}|\$\([^)]*\)", re.IGNORECASE)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def read_powershell(text: str) -> list[Invocation]:
    """The vLLM starts of a script."""
    reader = _Reader()
    reader.read(text.replace("\r\n", "\n"))
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: list[Invocation] = []
        self._variables: dict[str, list[Word]] = {}
        self._environment: dict[str, Word] = {}
        self._words: list[Word] = []
        self._array: list[Word] | None = None
        self._depth = 0

    def read(self, text: str) -> None:
        line, previous_end = 1, -1
        for match in _TOKEN.finditer(text):
            self._token(match, line, glued=match.start() == previous_end)
            line += match.group().count("\n")
            previous_end = -1 if match.lastgroup in ("skip", "end", "comma", "open", "close") else match.end()
        self._end()

    def _token(self, match: re.Match[str], line: int, *, glued: bool) -> None:
        kind, text = match.lastgroup, match.group()
        if kind in ("skip", "comma"):
            return
        if kind == "end":
            if self._depth == 0:
                self._end()
        elif kind == "open":
            self._depth += 1
            if text == "@(" and self._array is None:
                self._array = []
        elif kind == "close":
            self._close()
        elif kind == "splat":
            self._words += self._variables.get(text[1:].lower(), [Word(text, (text,), line=line, is_open=True)])
        else:
            self._add(self._expand(kind or "other", text, line), glued=glued)

    def _add(self, parts: list[Word], *, glued: bool) -> None:
        target = self._words if self._array is None else self._array
        if glued and target and len(parts) == 1:
            target[-1] = join([target[-1], parts[0]])
        else:
            target += parts

    def _expand(self, kind: str, text: str, line: int) -> list[Word]:
        if kind == "single":
            return [Word(text[1:-1].replace("''", "'").replace('\\"', '"'), line=line)]
        name = re.fullmatch(r"\$(\w+)", text)
        if kind == "bare" and name and len(known := self._variables.get(name.group(1).lower(), [])) != 0:
            return list(known)
        raw = text[1:-1].replace('""', '"').replace('\\`"', '"') if kind == "double" else text
        unresolved: list[str] = []

        def replace(found: re.Match[str]) -> str:
            key = (found.group(1) or found.group(2) or "").lower()
            values = self._variables.get(key)
            if values and len(values) == 1 and not values[0].unresolved:
                return values[0].text
            unresolved.append(found.group())
            return found.group()

        expanded = _VARIABLE.sub(replace, raw)
        expanded = re.sub(r"`(.)", lambda found: _ESCAPES.get(found.group(1), found.group(1)), expanded)
        return [Word(expanded, tuple(unresolved), line=line)]

    def _close(self) -> None:
        self._depth = max(0, self._depth - 1)
        if self._depth == 0 and self._array is not None:
            self._words += [Word("\0array"), *self._array]
            self._array = None

    def _end(self) -> None:
        words, self._words = self._words, []
        if not words:
            return
        assigned = re.fullmatch(r"\$(env:)?(\w+)", words[0].text, re.IGNORECASE)
        texts = [word.text for word in words]
        if assigned and len(words) > 1 and texts[1] in ("=", "+="):
            value = [word for word in words[2:] if word.text != "\0array"]
            name = assigned.group(2).lower()
            earlier = self._variables.get(name, []) if texts[1] == "+=" else []
            self._variables[name] = [*earlier, *value]
            if assigned.group(1) and value:
                self._environment[assigned.group(2)] = value[0]
            return
        start = next(
            (index for index, text in enumerate(texts) if text not in ("if", "{", "}", "&", "Start-Process")), 0
        )
        command = [
            word for word in words[start:] if word.text not in ("\0array", "-ArgumentList", "-NoNewWindow", "-Wait")
        ]
        invocation = find_start(command, self._environment, source="PowerShell script")
        if invocation is not None:
            self.found.append(invocation)
