"""Values of Python expressions that can be told without running them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from headway.deployment.words import Word

MAX_DEPTH = 40


class Unknown(Word):
    """An expression that only running the program could tell; `text` is its source."""


def unknown(node: ast.AST) -> Unknown:
    """Mark an expression as unresolved."""
    text = ast.unparse(node)[:200]
    return Unknown(text, (text,), line=getattr(node, "lineno", 0))


class Evaluator:
    """Evaluates literals, names assigned from literals, `dict(...)`, f-strings, and defaults of `os.environ.get`."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self.names = names
        self.defaults: set[str] = set()
        """Environment variables whose default was used."""

    def value(self, node: ast.expr, depth: int = 0) -> Any:
        """The value, or an `Unknown`."""
        if depth > MAX_DEPTH:
            return unknown(node)
        match node:
            case ast.Constant(value=value):
                return value if isinstance(value, str | int | float | bool | None) else unknown(node)
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return self._items(items, depth)
            case ast.Dict(keys=keys, values=values):
                return self._mapping(list(zip(keys, values, strict=True)), depth)
            case ast.Call():
                return self._call(node, depth)
            case ast.JoinedStr(values=parts):
                return self._joined(node, parts, depth)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                value = self.value(operand, depth + 1)
                return -value if type(value) in (int, float) else unknown(node)
            case ast.BinOp(left=left, op=op, right=right):
                return self._binary(node, self.value(left, depth + 1), op, self.value(right, depth + 1))
            case ast.BoolOp(op=ast.Or(), values=[_, last]):
                return self.value(last, depth + 1) if isinstance(self.value(node.values[0]), Unknown) else unknown(node)
        return unknown(node)

    def _items(self, items: list[ast.expr], depth: int) -> list[Any]:
        result: list[Any] = []
        for item in items:
            if isinstance(item, ast.Starred):
                value = self.value(item.value, depth + 1)
                result += value if isinstance(value, list) else [unknown(item)]
            else:
                result.append(self.value(item, depth + 1))
        return result

    def _mapping(self, pairs: list[tuple[ast.expr | None, ast.expr]], depth: int) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        for key, node in pairs:
            value = self.value(node, depth + 1)
            if key is None:
                result |= value if isinstance(value, dict) else {}
            else:
                name = self.value(key, depth + 1)
                result[name if isinstance(name, str | int | float | bool) else str(name)] = value
        return result

    def _call(self, node: ast.Call, depth: int) -> Any:
        name = dotted_name(node.func)
        if name == "dict" and not node.args:
            return self.keywords(node, depth)
        if name in ("os.environ.get", "os.getenv", "environ.get", "getenv") and len(node.args) == 2:
            variable = self.value(node.args[0], depth + 1)
            self.defaults.add(str(variable))
            return self.value(node.args[1], depth + 1)
        if name in ("int", "float", "str", "bool") and len(node.args) == 1:
            value = self.value(node.args[0], depth + 1)
            if isinstance(value, str | int | float) and len(str(value)) < 100:
                try:
                    return {"int": int, "float": float, "str": str, "bool": bool}[name](value)
                except (ValueError, OverflowError):
                    return unknown(node)
        if name == "json.dumps" and len(node.args) == 1:
            return self._dumps(node, self.value(node.args[0], depth + 1))
        return unknown(node)

    def _dumps(self, node: ast.Call, value: Any) -> Any:
        import json

        try:
            return json.dumps(value)
        except TypeError:
            return unknown(node)

    def keywords(self, node: ast.Call, depth: int = 0) -> dict[str, Any]:
        """The keyword arguments of a call; `**name` counts where the mapping is known."""
        result: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self.value(keyword.value, depth + 1)
            if keyword.arg is not None:
                result[keyword.arg] = value
            elif isinstance(value, dict):
                result |= {str(name): item for name, item in value.items()}
        return result

    def _joined(self, node: ast.expr, parts: list[ast.expr], depth: int) -> Any:
        texts: list[str] = []
        unresolved: list[str] = []
        for part in parts:
            value = self.value(part.value if isinstance(part, ast.FormattedValue) else part, depth + 1)
            if isinstance(value, Unknown | list | dict):
                texts.append("{" + str(getattr(value, "text", "...")) + "}")
                unresolved.append(texts[-1])
            else:
                texts.append(str(value))
        text = "".join(texts)
        return Unknown(text, tuple(unresolved), line=node.lineno) if unresolved else text

    def _binary(self, node: ast.expr, left: Any, op: ast.operator, right: Any) -> Any:
        both = (left, right)
        if isinstance(op, ast.Add) and (
            all(isinstance(side, str) for side in both) or all(isinstance(side, list) for side in both)
        ):
            return left + right
        if any(type(side) not in (int, float) or abs(side) > 2**53 for side in both):
            return unknown(node)
        try:
            match op:
                case ast.Add():
                    return left + right
                case ast.Sub():
                    return left - right
                case ast.Mult():
                    return left * right
                case ast.Div():
                    return left / right
                case ast.FloorDiv():
                    return left // right
                case ast.Pow() if abs(left) <= 1024 and 0 <= right <= 6:
                    return left**right
        except (ZeroDivisionError, OverflowError):
            pass
        return unknown(node)


def dotted_name(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes; empty where it is something else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""
