"""One run of `headway compat`."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.markup import escape

from headway.catalog.compatibility import Row, coverage_note
from headway.cli.compat_tables import diff_tables, findings_table, matrix_table
from headway.cli.config_run import FINDINGS, FINE, UNREADABLE, warn_of_releases, write_sarif
from headway.cli.console import make_console, print_next
from headway.compat.diff import VersionDiff, diff_versions
from headway.compat.judge import Finding, Judgement, judge
from headway.compat.matrix import LEGEND, feature_matrix, pairs_of
from headway.compat.query import query
from headway.compat.sarif import Report
from headway.config import REFERENCE_ENGINE_VERSION
from headway.deployment.effective import resolve_effective
from headway.deployment.invocation import Invocation
from headway.deployment.read import read_deployment
from headway.errors import ConfigError, InputError
from headway.report.files import check_writable

_T = TypeVar("_T")
_SARIF_LEVELS = {"ok": "note", "fallback": "note", "unknown": "note", "ignored": "warning", "silent_noop": "warning"}


class CompatRun:
    """Output and hardware that all forms of the command share. Each method prints and returns the exit code."""

    def __init__(self, *, as_json: bool, sarif: Path | None, gpu: str | None, model: str | None) -> None:
        check_writable(sarif, "--sarif")
        self._as_json = as_json
        self._sarif = sarif
        self._gpu = gpu
        self._model = model
        self._console = make_console()

    def matrix(self, version: str, engine: str | None) -> int:
        """The feature × feature table."""
        table = feature_matrix(version, engine=engine)
        warn_of_releases([table.version])
        if self._as_json:
            pairs = [
                {"features": [one, other], "verdict": cell.verdict, "documented": cell.documented,
                 **_row_json(cell.rows[0])}
                for one, other, cell in pairs_of(table)
            ]  # fmt: skip
            note = coverage_note(table.version)
            self._echo(
                {
                    "engine_version": version,
                    "engine_version_note": note,
                    "features": list(table.features),
                    "pairs": pairs,
                }
            )
            return FINE
        click.echo(matrix_table(table))
        click.echo(LEGEND)
        for pair, row in table.notes():
            click.echo(f"  {pair}: {row.verdict}. {row.message} [{row.source}]")
        return FINE

    def features(self, names: Sequence[str], version: str | None, engine: str | None, platform: str | None) -> int:
        """A bare combination."""
        number = version or REFERENCE_ENGINE_VERSION
        answer = query(names, number, engine=engine, platform=platform)
        warn_of_releases([answer.version])
        document = {
            "verdict": answer.verdict,
            "features": list(answer.features),
            "engine_version": number,
            "engine_version_note": coverage_note(answer.version),
            "engine": answer.engine,
            "versions": answer.rows[0].versions if answer.rows else None,
            "message": answer.message,
            "source": answer.rows[0].source if answer.rows else None,
            "rows": [_row_json(row) for row in answer.rows],
            "conditional": [_row_json(row) for row in answer.conditional],
            "documented": [_row_json(row) for row in answer.documented],
        }
        if self._as_json:
            self._echo(document)
        else:
            self._console.print(
                f"[bold]{answer.verdict}[/] {' + '.join(answer.features)} in {number} ({answer.engine})"
            )
            for row in (*answer.rows, *answer.documented):
                self._console.print(escape(f"  {row.verdict}: {row.message} ({row.versions}; {row.source})"))
            for row in answer.conditional:
                condition = row.when.text if row.when else ""
                self._console.print(
                    escape(f"  {row.verdict} where {condition}: {row.message} ({row.versions})"), style="dim"
                )
        return FINE if answer.verdict == "ok" else FINDINGS

    def judge(self, deployments: Sequence[str], version: str | None) -> int:
        """Deployments in one version."""

        def one(invocation: Invocation) -> Judgement:
            effective = resolve_effective(invocation, engine_version=version, accelerator=self._gpu, model=self._model)
            return judge(effective)

        found, failed = self._each(deployments, one)
        warn_of_releases(judgement.effective.version for _, judgement in found)
        if self._as_json:
            entries = [_judgement_json(path, judgement) for path, judgement in found]
            self._echo({**(entries[0] if entries else {"verdict": "unknown"}), "deployments": entries})
        elif str(self._sarif) != "-":
            for path, judgement in found:
                self._console.print(findings_table(path, judgement))
            self._next(deployments, "--from X.Y.Z --to X.Y.Z", "what another release would change")
        self._write([(path, finding) for path, judgement in found for finding in judgement.bad])
        if failed:
            return UNREADABLE
        return FINE if all(judgement.is_clean for _, judgement in found) else FINDINGS

    def difference(self, deployments: Sequence[str], before: str, after: str, *, workload: str | None) -> int:
        """Deployments in two versions; `workload` None leaves latency out."""

        def one(invocation: Invocation) -> VersionDiff:
            return diff_versions(invocation, before, after, accelerator=self._gpu, model=self._model)

        found, failed = self._each(deployments, one)
        warn_of_releases(side.effective.version for _, diff in found for side in (diff.before, diff.after))
        latency = [_latency(diff, workload) for _, diff in found]
        if self._as_json:
            entries = [_diff_json(path, diff, figures) for (path, diff), figures in zip(found, latency, strict=True)]
            self._echo({**(entries[0] if entries else {}), "deployments": entries})
        elif str(self._sarif) != "-":
            for (path, diff), figures in zip(found, latency, strict=True):
                for table in diff_tables(path, diff, figures):
                    self._console.print(table)
            self._next(deployments, f"--engine-version {after}", "what is wrong with it there")
        self._write([(path, finding) for path, diff in found for finding in diff.appeared])
        if failed:
            return UNREADABLE
        return FINDINGS if any(diff.is_breaking for _, diff in found) else FINE

    def _next(self, deployments: Sequence[str], flags: str, purpose: str) -> None:
        print_next(self._console, f"headway compat {shlex.join(deployments)} {flags}", purpose)

    def _each(self, deployments: Sequence[str], one: Callable[[Invocation], _T]) -> tuple[list[tuple[str, _T]], bool]:
        found: list[tuple[str, _T]] = []
        failed = False
        for path in deployments:
            try:
                found += [(path, one(invocation)) for invocation in read_deployment(path)]
            except ConfigError:
                raise
            except InputError as error:
                click.echo(f"headway: {error}", err=True)
                failed = True
        return found, failed

    def _write(self, findings: list[tuple[str, Finding]]) -> None:
        if self._sarif is None:
            return
        write_sarif(
            self._sarif,
            [
                Report(
                    finding.id or finding.verdict,
                    _SARIF_LEVELS.get(finding.verdict, "error"),
                    f"{finding.verdict}: {finding.message} {finding.fix}".strip(),
                    path,
                    finding.line,
                )
                for path, finding in findings
            ],
        )

    def _echo(self, document: Any) -> None:
        click.echo(json.dumps(document, indent=2, default=str))


def _latency(diff: VersionDiff, workload: str | None) -> dict[str, Any] | None:
    if workload is None:
        return None
    from headway.cli.compat_latency import simulated

    return simulated(diff, workload)


def _row_json(row: Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "verdict": row.verdict,
        "features": list(row.features),
        "when": row.when.text if row.when else None,
        "versions": row.versions,
        "engine": row.engine,
        "platform": row.platform,
        "basis": row.basis,
        "at": row.at,
        "message": row.message,
        "fix": row.fix,
        "source": row.source,
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return dataclasses.asdict(finding)


def _judgement_json(path: str, judgement: Judgement) -> dict[str, Any]:
    """`features`, `versions`, `message` and `source` are those of the finding that decides."""
    effective = judgement.effective
    decisive = judgement.findings[0] if judgement.findings else None
    return {
        "file": path,
        "name": effective.invocation.name,
        "line": effective.invocation.line,
        "engine_version": effective.version_text,
        "engine_version_reason": effective.version_reason,
        "engine_version_note": coverage_note(effective.version),
        "engine": effective.engine,
        "verdict": judgement.verdict,
        "features": list(decisive.features) if decisive else [],
        "versions": decisive.versions if decisive else effective.version_text,
        "message": decisive.message if decisive else "Nothing is known against this combination.",
        "source": decisive.source if decisive else None,
        "findings": [_finding_json(finding) for finding in judgement.findings],
        "open": [_row_json(row) for row in judgement.open],
    }


def _diff_json(path: str, diff: VersionDiff, latency: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "file": path,
        "from": _judgement_json(path, diff.before),
        "to": _judgement_json(path, diff.after),
        "lost_flags": [dataclasses.asdict(flag) for flag in diff.lost],
        "changed": [dataclasses.asdict(value) for value in diff.changed],
        "appeared": [_finding_json(finding) for finding in diff.appeared],
        "gone": [_finding_json(finding) for finding in diff.gone],
        "memory": {"from": dataclasses.asdict(diff.memory[0]), "to": dataclasses.asdict(diff.memory[1])},
        "latency": latency,
    }
