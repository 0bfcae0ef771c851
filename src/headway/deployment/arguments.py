"""vLLM's argument grammar on top of argparse's: what a list of words sets, in one exact version.

The rewriting before argparse (underscores, `-O3`, dotted JSON, `--model` after `vllm serve`, `--config`) follows
`FlexibleArgumentParser` of vLLM's utils; the classification of words follows Python's argparse. Nothing exits: every
problem is collected, so that one mistake does not hide the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import Any, Literal

from headway.catalog.flags import Flag, all_flags, flags_of
from headway.catalog.versions import Version
from headway.deployment.values import BadValueError, convert, load_json, parse_size
from headway.deployment.words import Word, join

ProblemKind = Literal["unknown_flag", "ambiguous", "bad_value", "missing_value", "unrecognized", "config", "refused"]
_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")


@dataclass(frozen=True, slots=True)
class Written:
    """A setting as it was written: its value, the option typed, and what is not certain about it."""

    name: str
    value: Any
    option: str
    text: str
    line: int = 0
    unresolved: tuple[str, ...] = ()
    defaults: tuple[str, ...] = ()
    origin: str = "command line"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why the version's parser would stop, or would not do what was meant."""

    kind: ProblemKind
    option: str
    message: str
    line: int = 0


@dataclass(slots=True)
class Parsed:
    """Everything that a list of words says.

    `settings` holds the last value of each; `repeated` the options given twice; `abbreviated` maps a shortened option
    to the full one; `leftover` are values that belong to nothing.
    """

    settings: dict[str, Written] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    abbreviated: dict[str, str] = field(default_factory=dict)
    leftover: list[Word] = field(default_factory=list)

    def value(self, name: str) -> Any:
        """The written value of a setting, or None."""
        written = self.settings.get(name)
        return written.value if written else None


def parse_arguments(given: Sequence[Word], version: Version) -> Parsed:
    """Parse the words after `vllm serve` (or after the api_server module), `--config` already replaced by its content.

    The model may be positional; it ends up in the setting `model`.
    """
    parsed = Parsed()
    prepared = _merge_dotted(_normalise(given, version), version, parsed)
    _Run(prepared, version, parsed).consume()
    return parsed


def _normalise(given: Sequence[Word], version: Version) -> list[Word]:
    """Dashes for underscores in option names, and the short spellings of the optimization level."""
    result: list[Word] = []
    level = "--optimization-level" if version >= (0, 12, 0) else "-O"
    for index, word in enumerate(given):
        text = word.text
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            head, dot, rest = name.partition(".")
            result.append(replace(word, text=head.replace("_", "-") + dot + rest + equals + value))
        elif text.startswith("-O") and text != "-O":
            value = text[3:] if text[2] == "=" else text[2:]
            result += [replace(word, text=level), replace(word, text=value)]
        elif text == "-O" and index + 1 < len(given) and given[index + 1].text in ("0", "1", "2", "3"):
            result.append(replace(word, text=level))
        else:
            result.append(word)
    return result


def _merge_dotted(given: list[Word], version: Version, parsed: Parsed) -> list[Word]:
    """Collect `--config.key value` into one JSON argument a name, after all other words, as vLLM 0.9 and later do."""
    if version < (0, 9, 0):
        return given
    kept: list[Word] = []
    merged: dict[str, dict[str, Any]] = {}
    sources: dict[str, list[Word]] = {}
    seen: set[str] = set()
    rest = iter(given)
    for word in rest:
        name, value = word.partition("=")
        if word.text.startswith("--") and "." not in word.text:
            if name.text in seen and name.text not in parsed.repeated:
                parsed.repeated.append(name.text)
            seen.add(name.text)
        if not (word.text.startswith("-") and "." in name.text) or _NEGATIVE.fullmatch(word.text):
            kept.append(word)
            continue
        if value is None:
            value = next(rest, None)
        if value is None:
            parsed.problems.append(Problem("missing_value", name.text, f"{name.text} has no value", word.line))
            break
        key, *keys = name.text.split(".")
        if len(keys) > _MAX_KEYS:
            parsed.problems.append(Problem("bad_value", key, "too many dotted keys", word.line))
            continue
        _merge_keys(merged.setdefault(key, {}), keys, value, version)
        sources.setdefault(key, []).append(value)
    for key, content in merged.items():
        source = join(sources[key])
        kept += [Word(key, line=source.line), replace(source, text=json.dumps(content))]
    return kept


_MAX_KEYS = 32


def _merge_keys(target: dict[str, Any], keys: list[str], value: Word, version: Version) -> None:
    text = value.text
    if keys and keys[-1].endswith("+"):
        keys = [*keys[:-1], keys[-1][:-1]]
        text = json.dumps(text.split(","))
    content: Any = _dotted_value(text, version)
    for key in reversed(keys):
        content = {key: content}
    _update(target, content)


def _dotted_value(text: str, version: Version) -> Any:
    try:
        return load_json(text)
    except ValueError:
        pass
    if version >= (0, 20, 0):
        try:
            return parse_size(text)
        except ValueError:
            pass
    return text


def _update(target: dict[str, Any], update: Mapping[str, Any]) -> None:
    for key, value in update.items():
        have = target.get(key)
        if isinstance(value, dict) and isinstance(have, dict):
            _update(have, value)
        elif isinstance(value, list) and isinstance(have, list):
            have += value
        else:
            target[key] = value


@dataclass(frozen=True, slots=True)
class _Option:
    """A word that names an option: the flag, whether it is a `--no-` form, and a value after `=`."""

    flag: Flag | None
    spelling: str
    negated: bool
    explicit: Word | None


class _Run:
    """One pass of argparse's algorithm over the words."""

    def __init__(self, given: list[Word], version: Version, parsed: Parsed) -> None:
        self._words = given
        self._version = version
        self._parsed = parsed
        self._options = _option_strings(version)
        self._kinds = [self._classify(word) for word in given]
        self._model_seen = False

    def consume(self) -> None:
        index = 0
        while index < len(self._words):
            option = self._kinds[index]
            if option is None:
                self._positional(self._words[index])
                index += 1
            else:
                index = self._option(index, option)

    def _classify(self, word: Word) -> _Option | None:
        """The option that a word names; None where it is a value."""
        text = word.text
        if len(text) < 2 or text[0] != "-" or text == "--":
            return None
        if text in self._options:
            return self._make(text, None)
        name, explicit = word.partition("=")
        if explicit is not None and name.text in self._options:
            return self._make(name.text, explicit)
        matches = [
            (option, explicit if value is None else word.with_text(value))
            for option, value in self._matches(name.text, text)
        ]
        if len(matches) == 1:
            spelling, value = matches[0]
            self._parsed.abbreviated.setdefault(name.text, spelling)
            return self._make(spelling, value)
        if matches:
            near = ", ".join(spelling for spelling, _ in matches)
            self._parsed.problems.append(
                Problem("ambiguous", name.text, f"ambiguous option: {text} could match {near}", word.line)
            )
            return _Option(None, name.text, False, explicit)
        if _NEGATIVE.fullmatch(text) or " " in text:
            return None
        return _Option(None, name.text, False, explicit)

    def _matches(self, name: str, text: str) -> tuple[tuple[str, str | None], ...]:
        """Options that a word may abbreviate; with the value glued to a short one (`-q8`)."""
        return _abbreviations(name, text if not text.startswith("--") else "", self._version)

    def _make(self, spelling: str, explicit: Word | None) -> _Option:
        flag, negated = self._options[spelling]
        return _Option(flag, spelling, negated, explicit)

    def _positional(self, word: Word) -> None:
        is_rest = word.text in ("$@", "$*", "${@}", "${*}")
        if is_rest or (self._model_seen and word.is_open):
            self._parsed.leftover.append(word)
            return
        if self._model_seen or not word.text:
            if word.text:
                self._parsed.leftover.append(word)
                self._problem("unrecognized", word.text, f"unrecognized arguments: {word.text}", word.line)
            return
        self._model_seen = True
        self._set(
            Written("model", word.text, "", word.text, word.line, word.unresolved, word.defaults), positional=True
        )

    def _option(self, index: int, option: _Option) -> int:
        word = self._words[index]
        if option.flag is None:
            return self._unknown(index, option)
        flag, kind = option.flag, option.flag.kind(self._version)
        following = self._following(index + 1)
        if kind in ("bool", "switch"):
            if option.explicit is not None:
                message = f"argument {option.spelling}: ignored explicit argument {option.explicit.text!r}"
                self._problem("bad_value", option.spelling, message, word.line)
                return index + 1
            self._set(Written(flag.name, not option.negated, option.spelling, "", word.line))
            return index + 1
        if option.explicit is not None:
            taken, step = [option.explicit], 1
        elif flag.nargs in ("+", "*"):
            taken, step = following, 1 + len(following)
        else:
            taken, step = following[:1], 1 + len(following[:1])
        if not taken:
            return self._no_value(index, option, flag)
        self._store(flag, option.spelling, taken, word.line)
        return index + step

    def _no_value(self, index: int, option: _Option, flag: Flag) -> int:
        line = self._words[index].line
        if flag.nargs == "?" or flag.kind(self._version) == "store_bool":
            self._set(Written(flag.name, True, option.spelling, "", line))
        elif flag.nargs == "*":
            self._set(Written(flag.name, [], option.spelling, "", line))
        else:
            count = "at least one argument" if flag.nargs == "+" else "one argument"
            self._problem("missing_value", option.spelling, f"argument {_label(flag)}: expected {count}", line)
        return index + 1

    def _following(self, start: int) -> list[Word]:
        end = start
        while end < len(self._words) and self._kinds[end] is None:
            end += 1
        return self._words[start:end]

    def _unknown(self, index: int, option: _Option) -> int:
        """An option that this version does not have. Its values are skipped by what other versions say of it."""
        word = self._words[index]
        if not any(problem.option == option.spelling for problem in self._parsed.problems):
            self._problem("unknown_flag", option.spelling, f"unrecognized arguments: {option.spelling}", word.line)
        if option.explicit is not None:
            return index + 1
        other = _any_version(option.spelling)
        following = self._following(index + 1)
        if other is not None and other.kind(other.spans[-1][0]) in ("bool", "switch"):
            return index + 1
        if other is not None and other.nargs in ("+", "*"):
            return index + 1 + len(following)
        if other is None and self._model_seen is False and len(following) == 1 and "/" in following[0].text:
            return index + 1
        return index + 1 + len(following[:1])

    def _store(self, flag: Flag, spelling: str, taken: list[Word], line: int) -> None:
        values: list[Any] = []
        whole = join(taken)
        for word in taken:
            if word.unresolved:
                values.append(word.text)
                continue
            try:
                values.append(convert(flag, self._version, word.text))
            except BadValueError as error:
                self._problem("bad_value", spelling, f"argument {_label(flag)}: {error}", line)
                return
        value = values if flag.nargs in ("+", "*") else values[0]
        if flag.nargs == "append":
            earlier = self._parsed.value(flag.name) or []
            value = [*earlier, values[0]]
        text = " ".join(word.text for word in taken)
        self._set(Written(flag.name, value, spelling, text, line, whole.unresolved, whole.defaults))

    def _set(self, written: Written, *, positional: bool = False) -> None:
        earlier = self._parsed.settings.get(written.name)
        if written.name == "model" and earlier is not None and earlier.option == "" and not positional:
            return
        self._parsed.settings[written.name] = written

    def _problem(self, kind: ProblemKind, option: str, message: str, line: int) -> None:
        self._parsed.problems.append(Problem(kind, option, message, line))


@lru_cache(maxsize=4096)
def _abbreviations(name: str, short: str, version: Version) -> tuple[tuple[str, str | None], ...]:
    found: list[tuple[str, str | None]] = []
    for option in _option_strings(version):
        if short and option == short[:2]:
            found.append((option, short[2:]))
        elif option.startswith(name):
            found.append((option, None))
    return tuple(found)


@cache
def _option_strings(version: Version) -> dict[str, tuple[Flag, bool]]:
    """Every option string of a version, `--no-` forms included."""
    options: dict[str, tuple[Flag, bool]] = {}
    for flag in flags_of(version).values():
        for spelling in flag.spellings(version):
            options[spelling] = (flag, False)
            if flag.kind(version) == "bool" and spelling.startswith("--"):
                options[f"--no-{spelling[2:]}"] = (flag, True)
    return options


@lru_cache(maxsize=4096)
def _any_version(spelling: str) -> Flag | None:
    for flag in all_flags().values():
        if any(spelling == name for name, _ in flag.names):
            return flag
    return None


def _label(flag: Flag) -> str:
    return "/".join(name for name, _ in flag.names)
