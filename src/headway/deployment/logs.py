"""Reads settings from vLLM's own output: the "non-default args" line and the `cache_config_info` metric."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

from headway.deployment.arguments import Written
from headway.deployment.invocation import Invocation
from headway.deployment.mapping import settings_of

MAX_LINE = 200_000
_VERSION = re.compile(r"vLLM (?:API server |server )?version (\d+\.\d+\.\d+\S*)", re.IGNORECASE)
_ARGS = re.compile(r"non-default args: (\{.*)")
_NAMESPACE = re.compile(r"\bargs: Namespace\((.*)\)\s*$")
_METRIC = re.compile(r"vllm:cache_config_info\{(.*)\}\s")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_METRIC_NAMES = {"cache_dtype": "kv_cache_dtype", "num_gpu_blocks_override": "num_gpu_blocks_override"}


def read_log(text: str) -> list[Invocation]:
    """One invocation for each "non-default args" line (or Namespace of older releases), and for each metric line."""
    found: list[Invocation] = []
    version: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if len(line) > MAX_LINE:
            continue
        if match := _VERSION.search(line):
            version = match.group(1)
        content: dict[str, Any] | None = None
        source = "non-default args line"
        if match := _ARGS.search(line):
            content = read_dict(match.group(1))
        elif match := _NAMESPACE.search(line):
            content, source = _namespace(match.group(1)), "Namespace line"
        elif match := _METRIC.search(line):
            content, source = _labels(match.group(1)), "cache_config_info metric"
        if content:
            invocation = Invocation("settings", source, line=number, settings=_at(settings_of(content, source), number))
            if "model_tag" in content and "model" not in content:
                invocation.settings["model"] = Written(
                    "model", content["model_tag"], "model_tag", str(content["model_tag"]), number, origin=source
                )
            invocation.settings.pop("model_tag", None)
            if version is not None:
                invocation.facts["engine_version"] = version
            found.append(invocation)
    return found


def _at(settings: dict[str, Written], line: int) -> dict[str, Written]:
    return {name: replace(written, line=line) for name, written in settings.items()}


def read_dict(text: str) -> dict[str, Any] | None:
    """A printed dict at the start of a text: literals as values, anything else as its text."""
    end = _matching(text)
    try:
        tree = ast.parse(text[:end], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.Dict):
        return None
    content: dict[str, Any] = {}
    for key, value in zip(tree.keys, tree.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            content[key.value] = _literal(value)
    return content


def _namespace(text: str) -> dict[str, Any] | None:
    try:
        tree = ast.parse(f"f({text})", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(tree, ast.Call):
        return None
    return {keyword.arg: _literal(keyword.value) for keyword in tree.keywords if keyword.arg is not None}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return ast.unparse(node)


def _matching(text: str) -> int:
    """The end of the bracket that opens at the start; quotes are respected."""
    depth, quote, escaped = 0, "", False
    for index, char in enumerate(text):
        if quote:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == quote:
                quote = ""
        elif char in "'\"":
            quote = char
        elif char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
            if depth == 0:
                return index + 1
    return len(text)


def _labels(text: str) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, raw in _LABEL.findall(text):
        if name in ("engine", "model_name"):
            continue
        value: Any = raw
        if raw in ("None", "True", "False"):
            value = {"None": None, "True": True, "False": False}[raw]
        elif re.fullmatch(r"-?\d{1,18}", raw):
            value = int(raw)
        elif re.fullmatch(r"-?\d{1,18}\.\d{1,18}", raw):
            value = float(raw)
        content[_METRIC_NAMES.get(name, name)] = value
    return content
