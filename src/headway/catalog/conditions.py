"""Conditions in data files: small expressions over named facts, with "unknown" as a third answer.

Allowed: names, numbers, strings, None, True, False, tuples, and/or/not, comparisons, in, is None, + - * %. Nothing is
executed; an expression with anything else is refused when it is read.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from headway.errors import ConfigError

_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
    ast.Is: lambda left, right: left is right,
    ast.IsNot: lambda left, right: left is not right,
}
_OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Mod: operator.mod,
}


class _Unknown:
    """A fact that is not known."""

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed expression."""

    text: str
    tree: ast.expr
    names: frozenset[str]

    def holds(self, facts: Mapping[str, Any]) -> bool | None:
        """True, False, or None where it depends on a fact that is not known."""
        value = _evaluate(self.tree, facts)
        return None if value is UNKNOWN else bool(value)


@cache
def condition(text: str) -> Condition:
    """Parse an expression.

    Raises:
        ConfigError: not an expression of the allowed kind.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise ConfigError(f"{text!r} is not a condition.") from None
    names: set[str] = set()
    _check(tree, text, names)
    return Condition(text, tree, frozenset(names))


def _check(node: ast.expr, text: str, names: set[str]) -> None:
    match node:
        case ast.Name(id=name):
            names.add(name)
        case ast.Constant(value=None | bool() | int() | float() | str()):
            pass
        case ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
            for part in parts:
                _check(part, text, names)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            _check(operand, text, names)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Mod(), right=right):
            _check(left, text, names)
            _check(right, text, names)
        case ast.Compare(left=left, comparators=[right]):
            _check(left, text, names)
            _check(right, text, names)
        case _:
            raise ConfigError(f"{ast.unparse(node)!r} is not allowed in the condition {text!r}.")


def _evaluate(node: ast.expr, facts: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(id=name):
            return facts.get(name, UNKNOWN)
        case ast.Constant(value=value):
            return value
        case ast.Tuple(elts=parts):
            return tuple(_evaluate(part, facts) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            value = _evaluate(operand, facts)
            return UNKNOWN if value is UNKNOWN else not value
        case ast.UnaryOp(operand=operand):
            return _apply(operator.sub, 0, _evaluate(operand, facts))
        case ast.BoolOp(op=op, values=parts):
            return _combine([_evaluate(part, facts) for part in parts], isinstance(op, ast.And))
        case ast.BinOp(left=left, op=operation, right=right):
            return _apply(_OPERATIONS[type(operation)], _evaluate(left, facts), _evaluate(right, facts))
        case ast.Compare(left=left, ops=[compare], comparators=[right]):
            return _apply(_COMPARISONS[type(compare)], _evaluate(left, facts), _evaluate(right, facts))
    raise AssertionError(node)


def _apply(function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """A comparison with None or between kinds that do not compare is False or unknown, never an error."""
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    try:
        return function(left, right)
    except (TypeError, ZeroDivisionError, OverflowError):
        return False if left is None or right is None else UNKNOWN


def _combine(values: list[Any], is_and: bool) -> Any:
    decisive = [value for value in values if value is not UNKNOWN and bool(value) is not is_and]
    if decisive:
        return decisive[0]
    return UNKNOWN if any(value is UNKNOWN for value in values) else values[-1]
