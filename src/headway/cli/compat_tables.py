"""Tables of `headway compat`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Group
from rich.markup import escape

from headway.compat.diff import VersionDiff
from headway.compat.judge import Judgement
from headway.compat.matrix import Matrix
from headway.compat.sizing import Memory
from headway.report.tables import new_table, titled

_COLORS = {"ok": "green", "unknown": "dim", "fallback": "yellow", "ignored": "yellow", "silent_noop": "yellow"}


def matrix_table(matrix: Matrix) -> str:
    """The triangle of pairs as plain text: features numbered down the side, their numbers across the top."""
    width = max(len(name) for name in matrix.features)
    lines = [" " * (width + 5) + " ".join(f"{number:>2}" for number in range(1, len(matrix.features) + 1))]
    for row, name in enumerate(matrix.features):
        cells = []
        for column in range(row):
            cell = matrix.cell(name, matrix.features[column])
            cells.append(f"{cell.symbol if cell is not None else '·':>2}")
        lines.append(f"{row + 1:>3} {name:<{width}} " + " ".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def findings_table(path: str, judgement: Judgement) -> Group:
    """The findings of one deployment, worst first."""
    effective = judgement.effective
    title = (
        f"{path}:{effective.invocation.line} in vLLM {effective.version_text} ({effective.engine}): {judgement.verdict}"
    )
    caption = ""
    if judgement.open:
        caption = f"{len(judgement.open)} more rows depend on facts that are not known (--json lists them)."
    table = new_table("verdict", "what", "versions", "why", "source")
    for finding in judgement.findings:
        why = (
            finding.message
            + (f" {finding.fix}" if finding.fix else "")
            + (f" Shows at {finding.at}." if finding.at not in ("start", "always") else "")
        )
        color = _COLORS.get(finding.verdict, "red")
        table.add_row(
            f"[{color}]{finding.verdict}[/]",
            escape(" + ".join(finding.features)),
            finding.versions,
            escape(why),
            escape(finding.source),
        )
    if not judgement.findings:
        table.add_row("[green]ok[/]", "", effective.version_text, "Nothing is known against this combination.", "")
    return titled(title, table, caption)


def diff_tables(path: str, diff: VersionDiff, latency: dict[str, Any] | None) -> Iterator[Group | str]:
    """Everything that the change does: flags, findings, defaults, memory, latency."""
    old, new = diff.before.effective.version_text, diff.after.effective.version_text
    yield f"[bold]{escape(path)}: vLLM {old} to {new}[/]: {diff.before.verdict} to {diff.after.verdict}"
    if diff.lost:
        table = new_table("flag", "removed in", "use instead", "note")
        for flag in diff.lost:
            table.add_row(*map(escape, (flag.option, flag.removed_in, flag.replaced_by or "nothing", flag.note)))
        yield titled("Flags that the new version does not take", table)
    for title, findings in (("New findings", diff.appeared), ("Findings that go away", diff.gone)):
        if findings:
            table = new_table("verdict", "what", "why", "source")
            for finding in findings:
                what = " + ".join(finding.features)
                table.add_row(finding.verdict, *map(escape, (what, f"{finding.message} {finding.fix}", finding.source)))
            yield titled(title, table)
    if diff.changed:
        table = new_table("setting", old, new, "why before", "why after")
        for value in diff.changed:
            cells = (value.name, _text(value.before), _text(value.after), value.reason_before, value.reason_after)
            table.add_row(*map(escape, cells))
        yield titled("Effective values that change", table)
    yield _memory_table(diff.memory, old, new)
    if latency is not None:
        yield _latency_table(latency, old, new)


def _memory_table(memory: tuple[Memory, Memory], old: str, new: str) -> Group | str:
    before, after = memory
    if before.reason or after.reason:
        return f"Memory is not planned: {before.reason or after.reason}"
    table = new_table("", old, new)
    for name in ("available_bytes", "num_gpu_blocks", "kv_cache_tokens", "max_concurrency", "fits"):
        first, second = getattr(before, name), getattr(after, name)
        if name == "available_bytes" and first is not None and second is not None:
            table.add_row("available on each GPU", f"{first / 2**30:.2f} GiB", f"{second / 2**30:.2f} GiB")
        else:
            table.add_row(name, str(first), str(second))
    return titled("KV-cache memory, planned", table)


def _latency_table(latency: dict[str, Any], old: str, new: str) -> Group | str:
    if "reason" in latency:
        return f"Latency is not simulated: {latency['reason']}"
    table = new_table("", old, new)
    for name, value in latency["before"].items():
        other = latency["after"].get(name)
        table.add_row(name, _number(value), _number(other))
    return titled(f"Simulated: {latency['workload']}", table)


def _number(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _text(value: Any) -> str:
    if value is None:
        return ""
    return json.dumps(value, default=str) if isinstance(value, dict | list | bool) else str(value)
