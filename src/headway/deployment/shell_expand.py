"""Expands shell words from what the script itself says; what only the environment knows stays as written."""

from __future__ import annotations

import ast
import fnmatch
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from headway.deployment.shell_lexer import MAX_DEPTH, Piece, RawWord, lex
from headway.deployment.words import Word, join
from headway.errors import InputError

MAX_WORDS = 100_000
MAX_TEXT = 5_000_000


@dataclass(slots=True)
class Variables:
    """What the script has set. A value is a list of words: one for a plain variable, any number for an array."""

    values: dict[str, tuple[Word, ...]] = field(default_factory=dict)
    arrays: set[str] = field(default_factory=set)
    exported: set[str] = field(default_factory=set)
    uncertain: dict[str, int] = field(default_factory=dict)
    """Variables that a branch not taken here may set, by line."""

    spent: int = 0

    def charge(self, value: tuple[Word, ...]) -> None:
        """Count what an expansion brings in.

        Raises:
            InputError: the script expands to more than MAX_TEXT characters or MAX_WORDS words in all.
        """
        self.spent += sum(len(word.text) for word in value) + len(value) * (MAX_TEXT // MAX_WORDS)
        if self.spent > MAX_TEXT:
            raise InputError("The script's variables grow too large to be read.")

    def set(self, name: str, value: tuple[Word, ...], *, is_array: bool = False) -> None:
        """Assign a variable."""
        self.values[name] = value
        (self.arrays.add if is_array else self.arrays.discard)(name)


def expand_word(word: RawWord, variables: Variables, depth: int = 0) -> list[Word]:
    """The words that one word becomes: none for an empty unquoted expansion, several for an array or a split value."""
    fields: list[list[Word]] = [[]]
    is_quoted = False
    for piece in _braces(word.pieces):
        if piece.quoted:
            is_quoted = True
        if piece is _BREAK:
            fields.append([])
            continue
        parts = _expand_piece(piece, variables, word.line, depth)
        for index, part in enumerate(parts):
            if index:
                fields.append([])
            if part.text or part.unresolved or piece.quoted:
                fields[-1].append(part)
    result: list[Word] = []
    for parts in fields:
        if not parts and not (is_quoted and len(fields) == 1):
            continue
        whole = replace(join(parts), line=word.line)
        is_open = len(parts) == 1 and bool(whole.unresolved) and whole.text == whole.unresolved[0] and not is_quoted
        is_array_parameter = whole.text in ("$@", "$*", "${@}", "${*}")
        result.append(replace(whole, is_open=is_open or is_array_parameter))
    if len(result) == 1 and _is_lone_array(word, variables):
        return []
    return result


def _is_lone_array(word: RawWord, variables: Variables) -> bool:
    """`"${EMPTY[@]}"` is no word at all."""
    piece = [piece for piece in word.pieces if piece.kind == "param"]
    if len(piece) != 1 or any(other.text for other in word.pieces if other.kind == "text"):
        return False
    match = re.fullmatch(r"(\w+)\[@\]", piece[0].text)
    return bool(match and match.group(1) in variables.arrays and not variables.values.get(match.group(1)))


def expand_scalar(word: RawWord, variables: Variables, depth: int = 0) -> Word:
    """A word where no splitting happens, as on the right of an assignment."""
    parts = [join(_expand_piece(piece, variables, word.line, depth), " ") for piece in word.pieces]
    return replace(join(parts), line=word.line)


def _expand_piece(piece: Piece, variables: Variables, line: int, depth: int) -> list[Word]:
    if piece.kind == "text":
        return [Word(piece.text, line=line)]
    if piece.kind == "command":
        return [_substitution(piece, variables, line)]
    values, is_split = _parameter(piece, variables, line, depth)
    if piece.quoted:
        return values or [Word("", line=line)]
    return values if is_split else _split(values)


def _split(values: list[Word]) -> list[Word]:
    """Word splitting of an unquoted expansion."""
    result: list[Word] = []
    for value in values:
        if value.unresolved and value.text == "".join(value.unresolved):
            result.append(value)
            continue
        parts = value.text.split()
        if value.text[:1].isspace():
            parts.insert(0, "")
        if len(value.text) > 1 and value.text[-1:].isspace():
            parts.append("")
        result += [value.with_text(part) for part in parts]
    return result[:MAX_WORDS] or [Word("", defaults=tuple(name for value in values for name in value.defaults))]


_PARAMETER = re.compile(r"(?s)(!?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(\[[^\]]*\])?(.*)")


def _parameter(piece: Piece, variables: Variables, line: int, depth: int) -> tuple[list[Word], bool]:
    """The values of an expansion, and whether they are words already, not to be split again."""
    unknown = [Word(piece.raw, (piece.raw,), line=line)]
    match = _PARAMETER.fullmatch(piece.text)
    if match is None or depth > MAX_DEPTH or match.group(1):
        return unknown, False
    _, name, subscript, rest = match.groups()
    value = _stored(name, subscript, variables)
    if value is not None:
        variables.charge(value)
    if value is not None and subscript == "[*]" and piece.quoted:
        value = (join(value, " "),)
    if not rest:
        return (list(value) if value is not None else unknown), False
    operation = re.fullmatch(r"(?s)(:?[-=+?])(.*)", rest)
    if operation is None:
        return _edit(rest, value) or unknown, False
    action, argument = operation.groups()
    is_null = value is None or (action[0] == ":" and not any(word.text for word in value))
    if action[-1] == "+":
        used = [Word("", defaults=(name,), line=line)]
        return (used, False) if is_null else (_argument(argument, piece.quoted, variables, line, depth), True)
    if value is not None and not is_null:
        return list(value), False
    if action[-1] == "?":
        return unknown, False
    result = [
        replace(word, defaults=tuple(dict.fromkeys((*word.defaults, name))))
        for word in _argument(argument, piece.quoted, variables, line, depth)
    ]
    if action[-1] == "=":
        variables.set(name, (join(result, " "),))
    return result, True


def _stored(name: str, subscript: str | None, variables: Variables) -> tuple[Word, ...] | None:
    """A variable's value, an element of an array, or None where it is not set."""
    value = variables.values.get(name)
    if value is None or subscript in ("[@]", "[*]"):
        return value
    if subscript is None:
        return value[:1] if name in variables.arrays else value
    index = subscript.strip("[]")
    position = int(index) if re.fullmatch(r"-?\d{1,8}", index) else None
    return None if position is None or not -len(value) <= position < len(value) else (value[position],)


def _argument(text: str, is_quoted: bool, variables: Variables, line: int, depth: int) -> list[Word]:
    """The words of an operator's argument; between double quotes it is one word, and quotes inside it count."""
    if is_quoted and not set(text) & set("'\""):
        text = f'"{text}"'
    found: list[Word] = []
    for command in lex(text, line=line, depth=depth + 1).commands:
        for word in command.words:
            found += expand_word(word, variables, depth + 1)
    if is_quoted and len(found) > 1:
        return [join(found, " ")]
    return found or [Word("", line=line)]


_EDITS: Mapping[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}


def _edit(rest: str, value: tuple[Word, ...] | None) -> list[Word] | None:
    """Trimming, replacing, slicing and changing case of a known value; None where it cannot be told."""
    if value is None or any(word.unresolved for word in value) or "$" in rest or "`" in rest:
        return None
    if rest in _EDITS:
        return [word.with_text(_EDITS[rest](word.text)) for word in value]
    if match := re.fullmatch(r":(\d{1,6})(?::(\d{1,6}))?", rest):
        start, length = int(match.group(1)), match.group(2)
        return [
            word.with_text(word.text[start:] if length is None else word.text[start:][: int(length)]) for word in value
        ]
    if match := re.fullmatch(r"(?s)(##?|%%?)(.*)", rest):
        return [word.with_text(_trim(word.text, *match.groups())) for word in value]
    if (match := re.fullmatch(r"(?s)(//?)([^/*?\[]+)/(.*)", rest)) is not None:
        count = -1 if match.group(1) == "//" else 1
        return [word.with_text(word.text.replace(match.group(2), match.group(3), count)) for word in value]
    return None


def _trim(text: str, action: str, pattern: str) -> str:
    if len(text) > 2000:
        return text
    cuts = range(len(text) + 1)
    if action[0] == "#":
        order = cuts if action == "#" else reversed(cuts)
        return next((text[cut:] for cut in order if fnmatch.fnmatchcase(text[:cut], pattern)), text)
    order = reversed(cuts) if action == "%" else cuts
    return next((text[:cut] for cut in order if fnmatch.fnmatchcase(text[cut:], pattern)), text)


_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: int(left / right),
    ast.Mod: lambda left, right: left - right * int(left / right),
}


def _substitution(piece: Piece, variables: Variables, line: int) -> Word:
    """`$((…))` of known numbers is worked out; a command's output is never known."""
    match = re.fullmatch(r"(?s)\$\(\((.*)\)\)", piece.raw)
    if match is not None and len(match.group(1)) < 200:
        text, defaults = _numbers(match.group(1), variables)
        try:
            tree = ast.parse(text.replace("/", "//").strip(), mode="eval")
            return Word(str(_calculate(tree.body)), defaults=defaults, line=line)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError, OverflowError):
            pass
    return Word(piece.raw, (piece.raw,), line=line)


def _numbers(text: str, variables: Variables) -> tuple[str, tuple[str, ...]]:
    defaults: list[str] = []

    def known(found: re.Match[str]) -> str:
        name = found.group().lstrip("${").rstrip("}")
        value = variables.values.get(name, ())
        if len(value) != 1 or not value[0].text.isdigit():
            raise_text = f"_{name}"
            return raise_text
        defaults.extend(value[0].defaults)
        return value[0].text

    return re.sub(r"\$?\{?[A-Za-z_]\w*\}?", known, text), tuple(defaults)


def _calculate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**63:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        value = _OPERATIONS[type(node.op)](_calculate(node.left), _calculate(node.right))
        if abs(value) < 2**63:
            return value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_calculate(node.operand)
    raise ValueError("not plain arithmetic")


_BREAK = Piece("text", "", "", False)


def _braces(pieces: tuple[Piece, ...]) -> list[Piece]:
    """Brace expansion of `{a,b}` where it is written without quotes; nested braces are left alone."""
    text = "".join(piece.text if piece.kind == "text" and not piece.quoted else "\0" for piece in pieces)
    match = re.fullmatch(r"([^{}]*)\{([^{}]*,[^{}]*)\}([^{}]*)", text)
    if match is None or sum(piece.kind != "text" for piece in pieces):
        return list(pieces)
    opening, closing = match.end(1), match.start(3) - 1
    flat = [(char, piece.quoted) for piece in pieces for char in (piece.text if not piece.quoted else (piece.text,))]
    head, body, tail = flat[:opening], flat[opening + 1 : closing], flat[closing + 1 :]
    choices: list[list[tuple[str, bool]]] = [[]]
    for char, quoted in body:
        if char == "," and not quoted:
            choices.append([])
        else:
            choices[-1].append((char, quoted))
    result: list[Piece] = []
    for index, choice in enumerate(choices):
        if index:
            result.append(_BREAK)
        result += [Piece("text", char, char, quoted) for char, quoted in (*head, *choice, *tail)]
    return result
