"""Turns the text of one argument into its value, as vLLM's parser does."""

from __future__ import annotations

import json
import re
from typing import Any

from headway.catalog.flags import Flag
from headway.catalog.versions import Version

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MAX_DIGITS = 400


class BadValueError(ValueError):
    """A value that the parser refuses; the message reads as the parser's own."""


def parse_size(text: str) -> int:
    """`8k` is 8,000 and `8K` is 8,192; `25.6k` is 25,600; binary suffixes take no fraction.

    Raises:
        ValueError: not a size.
    """
    stripped = text.strip()
    match = _SIZE.fullmatch(stripped)
    if match is None:
        return _parse_int(stripped)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    if "." in number:
        raise BadValueError(
            f"Decimals are not allowed with binary suffixes like {suffix}. "
            f"Did you mean to use {number}{suffix.lower()} instead?"
        )
    return _parse_int(number) * _BINARY[suffix]


def convert(flag: Flag, version: Version, text: str) -> Any:
    """The value of one argument of `flag`.

    Raises:
        BadValueError: the version's parser would refuse it.
    """
    kind = flag.kind(version)
    if flag.is_optional and text in ("", "None"):
        return None
    try:
        value = _convert(kind, version, text)
    except BadValueError:
        raise
    except (ValueError, OverflowError, RecursionError):
        raise BadValueError(f"invalid {_KIND_NAMES.get(kind, kind)} value: {text!r}") from None
    if flag.choices and kind not in ("json", "dict_or_str") and str(value) not in flag.choices:
        known = ", ".join(map(repr, flag.choices))
        raise BadValueError(f"invalid choice: {value!r} (choose from {known})")
    return value


_KIND_NAMES = {"size": "human_readable_int", "size_or_auto": "human_readable_int_or_auto", "json": "JSON"}


def _convert(kind: str, version: Version, text: str) -> Any:
    if kind == "int":
        return _parse_int(text)
    if kind == "float":
        return float(text)
    if kind == "size":
        return parse_size(text)
    if kind == "size_or_auto":
        return -1 if text.strip().lower() in ("-1", "auto") else parse_size(text)
    if kind == "json":
        return load_json(expand_json_sizes(text) if version >= (0, 20, 0) else text)
    if kind == "dict_or_str":
        return load_json(text) if re.fullmatch(r"(?s)\s*{.*}\s*", text) else text
    if kind == "store_bool":
        if text.lower() not in ("true", "false"):
            raise BadValueError(f"Invalid boolean value: {text}. Expected 'true' or 'false'.")
        return text.lower() == "true"
    if kind == "lora":
        return _lora(text)
    return text


def _lora(text: str) -> dict[str, Any]:
    if "=" in text and "," not in text:
        name, _, path = text.partition("=")
        return {"name": name, "path": path}
    value = load_json(text)
    if not isinstance(value, dict) or not {"name", "path"} <= set(value):
        raise BadValueError(f"Invalid fields for --lora-modules: {text}")
    return value


def load_json(text: str) -> Any:
    """JSON as Python's json module reads it, with a bound on depth.

    Raises:
        ValueError: not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def expand_json_sizes(text: str) -> str:
    """Numbers with a size suffix outside JSON strings (`{"cpu_bytes_to_use": 80m}`), written out."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", lambda found: str(parse_size(found.group())), parts[index]
        )
    return "".join(parts)


def _parse_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError("a number of too many digits")
    return int(text)
