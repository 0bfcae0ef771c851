"""Reads Python programs by their syntax tree: LLM(...), engine arguments, Ray Serve configs, argument lists."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from headway.deployment.invocation import Invocation
from headway.deployment.launch import find_start
from headway.deployment.mapping import settings_of
from headway.deployment.python_values import Evaluator, Unknown, dotted_name
from headway.deployment.ray_serve import from_llm_config
from headway.deployment.shell import read_script
from headway.deployment.words import Word
from headway.errors import InputError

MAX_BYTES = 1_000_000
MAX_NODES = 100_000
_ENGINE_CLASSES = frozenset(("LLM", "EngineArgs", "AsyncEngineArgs", "AsyncLLMEngine", "LLMEngine", "AsyncLLM"))
_WRAPPED = frozenset(("VLLM", "Vllm"))


def read_python(text: str) -> list[Invocation]:
    """The vLLM starts of a program.

    Raises:
        InputError: not Python, or too large.
    """
    if len(text) > MAX_BYTES:
        raise InputError(f"The Python text has {len(text)} characters; at most {MAX_BYTES} are read.")
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise InputError(f"Not Python: {error}.") from None
    except (RecursionError, MemoryError):
        raise InputError("The Python text is nested too deeply to be read.") from None
    nodes = _walk(tree)
    evaluator = Evaluator(_names(nodes))
    found: list[Invocation] = []
    request: dict[str, Any] = {}
    for node in nodes:
        if isinstance(node, ast.Call):
            found += _call(node, evaluator)
            if dotted_name(node.func).split(".")[-1] == "SamplingParams":
                request |= evaluator.keywords(node)
        elif isinstance(node, ast.List | ast.Tuple):
            found += _list(node, evaluator)
        elif isinstance(node, ast.Constant | ast.JoinedStr):
            found += _string(node, evaluator)
    for invocation in found:
        if request:
            invocation.facts["sampling"] = request
    return found


def _walk(tree: ast.Module) -> list[ast.AST]:
    """All nodes in the order of the text; a list inside a call that is read itself is left to the call."""
    nodes: list[ast.AST] = []
    for node in ast.walk(tree):
        nodes.append(node)
        if len(nodes) > MAX_NODES:
            raise InputError(f"The Python text has more than {MAX_NODES} parts.")
    return sorted(nodes, key=lambda node: (getattr(node, "lineno", 0), getattr(node, "col_offset", 0)))


def _names(nodes: list[ast.AST]) -> dict[str, Any]:
    """Names that are assigned exactly once, from something that can be told."""
    counts: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            counts[node.id] = counts.get(node.id, 0) + 1
    names: dict[str, Any] = {}
    evaluator = Evaluator(names)
    for node in nodes:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and counts.get(target.id) == 1:
            value = evaluator.value(node.value)
            if not isinstance(value, Unknown):
                names[target.id] = value
    return names


def _call(node: ast.Call, evaluator: Evaluator) -> Iterator[Invocation]:
    name = dotted_name(node.func).split(".")[-1]
    evaluator.defaults = set()
    if name == "LLMConfig":
        yield from_llm_config(evaluator.keywords(node), node.lineno)
        return
    if name not in _ENGINE_CLASSES and name not in _WRAPPED:
        return
    content = evaluator.keywords(node)
    if name in _WRAPPED:
        extra = content.pop("vllm_kwargs", None)
        content |= extra if isinstance(extra, dict) else {}
    if node.args and name in ("LLM", *_WRAPPED):
        content.setdefault("model", evaluator.value(node.args[0]))
    if "model" not in content and not (name.endswith("EngineArgs") and content):
        return
    settings = settings_of(content, f"{name}(...)")
    found = Invocation("settings", f"Python {name}(...)", node.lineno, settings=settings)
    if name in ("LLM", *_WRAPPED):
        found.facts["usage"] = "llm"
    if evaluator.defaults:
        found.lint(
            "values-from-defaults",
            "note",
            f"Values come from defaults; the environment may override: {', '.join(sorted(evaluator.defaults))}.",
            node.lineno,
        )
    yield found


def _list(node: ast.List | ast.Tuple, evaluator: Evaluator) -> Iterator[Invocation]:
    """A list of arguments: one a word, or flag and value in one string."""
    values = [evaluator.value(item) for item in node.elts if not isinstance(item, ast.Starred)]
    texts = [value for value in values if isinstance(value, str)]
    flags = [text for text in texts if text.startswith("--")]
    starts = bool(texts) and any("vllm" in text for text in texts[:6])
    if not (len(flags) >= 2 or (starts and flags)):
        return
    words: list[Word] = []
    for value, item in zip(values, node.elts, strict=False):
        if isinstance(value, Unknown):
            words.append(value)
        elif isinstance(value, str) and value.startswith("--") and " " in value:
            words += _split(value, item.lineno)
        elif isinstance(value, str | int | float):
            words.append(Word(str(value), line=item.lineno))
    found = find_start(words, source="Python argument list", image_args=True)
    if found is not None:
        found.line = node.lineno
        yield found


def _split(text: str, line: int) -> list[Word]:
    return [word for command in read_script(text, line=line).commands for word in command.words]


def _string(node: ast.Constant | ast.JoinedStr, evaluator: Evaluator) -> Iterator[Invocation]:
    """A string that holds a shell command."""
    value = evaluator.value(node)
    text = value.text if isinstance(value, Unknown) else value
    if not isinstance(text, str) or not ("vllm serve " in text or "vllm.entrypoints" in text) or "--" not in text:
        return
    for command in read_script(text, line=node.lineno).commands:
        found = find_start(command.words, command.environment, source="command in a Python string")
        if found is not None:
            yield found
