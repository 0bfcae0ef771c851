"""Command-line options made from the dataclasses in `headway.config`, so that each default is written once."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from headway.config import parse_bytes
from headway.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
D = TypeVar("D")

_BOOLEAN_HELP = "  [default: {}]"


class ByteSize(click.ParamType[int]):
    """A size such as 512MiB or 2GB; becomes a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the text; click reports a bad size as a usage error."""
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(str(value))
        except ConfigError as error:
            self.fail(str(error), param, ctx)


class PolicyName(click.Choice[str]):
    """A batching policy of ours, or a class in a Python file as FILE.py:CLASS; the choices are what completes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name, once there is such a policy.

        Raises:
            ConfigError: there is none; the same words wherever a policy is named.
        """
        from headway.core.policies import make_policy

        if ctx is None or not ctx.resilient_parsing:
            make_policy(str(value))
        return value


def flag_name(field: dataclasses.Field[Any]) -> str:
    """The option's name without leading dashes: the field's own `flag`, or its name with dashes."""
    return field.metadata.get("flag") or field.name.replace("_", "-")


def options_from(
    cls: type, *, envvars: Mapping[str, str] | None = None, exclude: Collection[str] = ()
) -> Callable[[F], F]:
    """Decorator: add one click option for each field of `cls` that was declared with `config.option`.

    Args:
        envvars: environment variable read when the flag is absent, by field name.
        exclude: fields that get no option, and so keep their default.
    """
    hints = typing.get_type_hints(cls)

    def decorate(function: F) -> F:
        for field in reversed(dataclasses.fields(cls)):
            if "help" in field.metadata and field.name not in exclude:
                function = _option(field, hints[field.name], (envvars or {}).get(field.name))(function)
        return function

    return decorate


def options_of(cls: type[D], params: Mapping[str, Any]) -> D:
    """Build `cls` from click's parameters; parameters that are not its fields are left alone."""
    names = {field.name for field in dataclasses.fields(cls) if "help" in field.metadata}  # type: ignore[arg-type]
    return cls(**{name: params[name] for name in names if name in params})


def _option(field: dataclasses.Field[Any], hint: Any, envvar: str | None) -> Callable[[F], F]:
    base = _without_none(hint)
    flag = flag_name(field)
    default, text = field.default, field.metadata["help"]
    if base is bool:
        shown = "" if default is None else _BOOLEAN_HELP.format("on" if default else "off")
        return click.option(f"--{flag}/--no-{flag}", field.name, default=default, help=text + shown, envvar=envvar)
    short, bare = field.metadata.get("short"), field.metadata.get("bare")
    return click.option(
        *([f"--{short}"] if short else []),
        f"--{flag}",
        field.name,
        type=_click_type(field, base),
        default=default,
        show_default=default is not None,
        metavar=_metavar(field, base),
        help=text,
        envvar=envvar,
        **({"is_flag": False, "flag_value": bare} if bare else {}),
    )


def _click_type(field: dataclasses.Field[Any], base: Any) -> Any:
    if choices := field.metadata.get("choices"):
        return (PolicyName if field.metadata.get("or_python") else click.Choice)(choices)
    return ByteSize() if field.metadata.get("unit") == "bytes" else base


def _metavar(field: dataclasses.Field[Any], base: Any) -> str | None:
    if field.metadata.get("choices"):
        return None
    unit = field.metadata.get("unit", "")
    return "SIZE" if unit == "bytes" else unit.upper() or {int: "N", float: "X", str: "TEXT"}[base]


def _without_none(hint: Any) -> Any:
    """The type T of T | None, or the hint itself."""
    if isinstance(hint, types.UnionType):
        (hint,) = (arg for arg in typing.get_args(hint) if arg is not type(None))
    return hint
