"""One run of `headway config`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.markup import escape

from headway.catalog.compatibility import coverage_note
from headway.catalog.flags import flags_of
from headway.catalog.versions import Version
from headway.cli.console import make_console, print_next
from headway.compat.judge import lints_and_rejections
from headway.compat.sarif import Report, sarif_log
from headway.deployment.effective import Effective, Setting, resolve_effective
from headway.deployment.invocation import Lint
from headway.deployment.read import read_deployment
from headway.errors import ConfigError, InputError
from headway.report.files import check_writable, write_file
from headway.report.tables import new_table, titled

FINE, FINDINGS, UNREADABLE = 0, 1, 2
_SECRETS = frozenset(("api_key", "hf_token", "ssl_keyfile_password"))


def run_config(
    deployments: Sequence[str],
    *,
    engine_version: str | None,
    gpu: str | None,
    model: str | None,
    as_json: bool,
    sarif: Path | None,
    show_all: bool,
    quiet: bool,
) -> int:
    """Read, print, and return the exit code. A file that cannot be read does not stop the others."""
    check_writable(sarif, "--sarif")
    results: list[tuple[str, Effective]] = []
    failed = False
    for path in deployments:
        try:
            for invocation in read_deployment(path):
                results.append(
                    (path, resolve_effective(invocation, engine_version=engine_version, accelerator=gpu, model=model))
                )
        except ConfigError:
            raise
        except InputError as error:
            click.echo(f"headway: {error}", err=True)
            failed = True
    lints = {index: lints_and_rejections(effective) for index, (_, effective) in enumerate(results)}
    warn_of_releases(effective.version for _, effective in results)
    if as_json:
        click.echo(json.dumps(_document(results, lints, show_all), indent=2, default=str))
    elif str(sarif) != "-":
        _print(results, lints, show_all=show_all, quiet=quiet)
    if sarif is not None:
        write_sarif(sarif, [_report(path, lint) for index, (path, _) in enumerate(results) for lint in lints[index]])
    if failed:
        return UNREADABLE
    return FINDINGS if any(lint.level != "note" for found in lints.values() for lint in found) else FINE


def warn_of_releases(versions: Iterable[Version]) -> None:
    """Say on standard error, once for each release, that the data does not reach it."""
    for note in dict.fromkeys(coverage_note(version) for version in versions):
        if note is not None:
            click.echo(f"headway: {note}", err=True)


def write_sarif(path: Path, reports: list[Report]) -> None:
    """Write a SARIF log to a file, or print it for `-`."""
    text = json.dumps(sarif_log(reports), indent=2)
    if str(path) == "-":
        click.echo(text)
    else:
        write_file(path, text + "\n")


def _report(path: str, lint: Lint) -> Report:
    return Report(lint.rule, lint.level, lint.message, path, lint.line)


def _document(results: list[tuple[str, Effective]], lints: dict[int, list[Lint]], show_all: bool) -> dict[str, Any]:
    """`invocations` holds every start; the first one's keys are repeated at the top."""
    entries = [
        invocation_json(path, effective, lints[index], show_all) for index, (path, effective) in enumerate(results)
    ]
    first = entries[0] if entries else {"effective": {}, "lints": [], "unresolved": {}}
    return {**first, "invocations": entries}


def invocation_json(path: str, effective: Effective, lints: Sequence[Lint], show_all: bool) -> dict[str, Any]:
    """One start as JSON."""
    invocation = effective.invocation
    return {
        "file": path,
        "source": invocation.source,
        "name": invocation.name,
        "line": invocation.line,
        "image": invocation.image,
        "engine_version": effective.version_text,
        "engine_version_reason": effective.version_reason,
        "engine_version_note": coverage_note(effective.version),
        "engine": effective.engine,
        "engine_reason": effective.engine_reason,
        "accelerator": effective.accelerator.id if effective.accelerator else invocation.facts.get("accelerator"),
        "effective": {name: setting_json(setting) for name, setting in shown(effective, show_all).items()},
        "environment": {name: hidden(name, word.text) for name, word in invocation.environment.items()},
        "lints": [
            {"rule": lint.rule, "level": lint.level, "message": lint.message, "line": lint.line,
             "settings": list(lint.settings)}
            for lint in lints
        ],
        "unresolved": {name: list(parts) for name, parts in effective.unresolved.items()},
    }  # fmt: skip


def setting_json(setting: Setting) -> dict[str, Any]:
    """A setting as JSON; secrets are not printed."""
    return {
        "value": hidden(setting.name, setting.value),
        "written": hidden(setting.name, setting.written),
        "source": setting.source,
        "reason": setting.reason,
        "line": setting.line,
    }


def hidden(name: str, value: Any) -> Any:
    """The value, or stars for a secret. A reference such as $KEY is no secret."""
    lowered = name.lower()
    secret = lowered in _SECRETS or lowered.endswith(("_token", "_secret", "password", "api_key"))
    text = value[0] if isinstance(value, list) and value else value
    return "***" if secret and isinstance(text, str) and text and not text.startswith(("$", "{")) else value


def shown(effective: Effective, show_all: bool) -> dict[str, Setting]:
    """Settings to show: written ones first, then defaults that matter, then, if asked, all others."""
    written = {name: setting for name, setting in effective.settings.items() if setting.is_written}
    others = {name: setting for name, setting in effective.settings.items() if not setting.is_written}
    found = written | others
    if show_all:
        release = f"default of vLLM {effective.version_text}"
        for name, flag in flags_of(effective.version).items():
            found.setdefault(name, Setting(name, flag.default(effective.version), None, "default", release))
    return found


def _print(results: list[tuple[str, Effective]], lints: dict[int, list[Lint]], *, show_all: bool, quiet: bool) -> None:
    console = make_console()
    for index, (path, effective) in enumerate(results):
        if index and not quiet:
            console.print()
        if not quiet:
            console.print(settings_table(path, effective, show_all))
        for lint in lints[index]:
            color = {"error": "red", "warning": "yellow", "note": "dim"}[lint.level]
            where = f"{path}:{lint.line}" if lint.line else str(path)
            text = f"[{color}]{lint.level}[/] {escape(where)}: {escape(lint.message)} [dim]({lint.rule})[/]"
            console.print(text, soft_wrap=True)
    if results and not quiet:
        path, effective = results[0]
        print_next(
            console,
            f"headway compat {shlex.quote(path)} --engine-version {effective.version_text}",
            "what does not go together in that release",
        )


def settings_table(path: str, effective: Effective, show_all: bool) -> Group:
    """Settings with value, what was written, and why."""
    invocation = effective.invocation
    title = f"{path}:{invocation.line} {invocation.source}" + (f" {invocation.name}" if invocation.name else "")
    caption = f"vLLM {effective.version_text} ({effective.version_reason}), engine {effective.engine}"
    table = new_table("setting", "value", "written", "why")
    for name, setting in shown(effective, show_all).items():
        if setting.value is None and setting.written is None and setting.reason.startswith("default of"):
            continue
        hide = replace(setting, value=hidden(name, setting.value), written=hidden(name, setting.written))
        style = "bold" if setting.is_written else ("yellow" if setting.source == "forced" else "dim")
        table.add_row(name, _text(hide.value), _text(hide.written), escape(setting.reason), style=style)
    return titled(title, table, caption)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return escape(json.dumps(value, default=str) if isinstance(value, dict | list | bool) else str(value))
