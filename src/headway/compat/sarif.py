"""Findings in SARIF 2.1.0, which code hosts show beside the lines concerned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headway import __version__


@dataclass(frozen=True, slots=True)
class Report:
    """One result: a stable rule, a level of SARIF (error, warning, note), a message, a file and a line."""

    rule: str
    level: str
    message: str
    path: str
    line: int = 0


def sarif_log(reports: Iterable[Report]) -> dict[str, Any]:
    """The whole log, ready for json.dumps."""
    found = list(reports)
    rules = sorted({report.rule for report in found})
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "headway",
                        "version": __version__,
                        "rules": [{"id": rule, "name": rule.title().replace("-", "")} for rule in rules],
                    }
                },
                "results": [_result(report, rules.index(report.rule)) for report in found],
            }
        ],
    }


def _result(report: Report, index: int) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": report.path.replace("\\", "/")}}
    if report.line > 0:
        location["region"] = {"startLine": report.line}
    return {
        "ruleId": report.rule,
        "ruleIndex": index,
        "level": report.level,
        "message": {"text": report.message},
        "locations": [{"physicalLocation": location}],
    }
