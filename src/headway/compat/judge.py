"""Judges a deployment: every row of the data that speaks of it, and every flag that its version does not take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headway.catalog.compatibility import WORST_FIRST, Row, Verdict, compat_data, worst
from headway.compat.sizing import planned_block_size
from headway.deployment.arguments import Problem
from headway.deployment.effective import Effective
from headway.deployment.facts import row_holds
from headway.deployment.invocation import Lint
from headway.deployment.lints import lints_of, problem_lint


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or worth knowing, about a deployment in its version.

    `basis`: docs, code, issue, or parser (the version's own argument parser). `at` says when it shows.
    """

    verdict: Verdict
    features: tuple[str, ...]
    versions: str
    message: str
    source: str
    basis: str
    at: str
    settings: tuple[str, ...] = ()
    fix: str = ""
    line: int = 0
    id: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a deployment, with the findings behind it, worst first. `open` are rows that depend on facts
    which the deployment does not tell, such as the model's own."""

    effective: Effective
    verdict: Verdict
    findings: tuple[Finding, ...]
    open: tuple[Row, ...]

    @property
    def bad(self) -> tuple[Finding, ...]:
        """Findings other than `ok`."""
        return tuple(finding for finding in self.findings if finding.verdict != "ok")

    @property
    def is_clean(self) -> bool:
        """Nothing but what works, falls back by itself, or is open."""
        return all(finding.verdict in ("ok", "fallback", "unknown") for finding in self.findings)


def judge(effective: Effective) -> Judgement:
    """Judge an effective configuration."""
    data = compat_data()
    findings = [_from_problem(problem, effective) for problem in effective.problems]
    undecided: list[Row] = []
    held = [row for row in data.at(effective.version) if _speaks(row, effective, undecided)]
    held += [row for row in effective.rows if row not in held]
    for row in _without_overruled(held):
        findings.append(_from_row(row, effective))
    findings.sort(key=lambda finding: _RANK[finding.verdict])
    verdict = worst([finding.verdict for finding in findings]) if findings else "ok"
    return Judgement(effective, verdict, tuple(findings), tuple(undecided))


def lints_and_rejections(effective: Effective) -> list[Lint]:
    """The lints of a configuration, and as errors what the data says its version rejects, errors first.

    A rejection that a lint tells already, by an error about the same settings, is not told twice.
    """
    lints = lints_of(effective)
    told = {frozenset(lint.settings) for lint in lints if lint.level == "error" and lint.settings}
    rejections = [
        Lint(finding.id, "error", f"{finding.message} {finding.fix}".strip(), finding.line, finding.settings)
        for finding in judge(effective).findings
        if finding.verdict == "rejected" and finding.basis != "parser" and frozenset(finding.settings) not in told
    ]
    return sorted([*lints, *rejections], key=lambda lint: lint.level != "error")


_RANK = {verdict: index for index, verdict in enumerate(WORST_FIRST)}


def _speaks(row: Row, effective: Effective, undecided: list[Row]) -> bool:
    """A row speaks of the deployment. Pairs that the documentation marks as working, or leaves open, say nothing."""
    if row.basis == "docs" and row.verdict in ("ok", "unknown"):
        return False
    if row.verdict == "ok" and row.when is None:
        return False
    if row.basis == "docs" and any(name in _ON_BY_DEFAULT and not _asked(name, effective) for name in row.features):
        return False
    holds = row_holds(row, effective.facts, compat_data())
    if holds is None and row.basis != "docs" and row.verdict != "ok":
        undecided.append(row)
    return bool(holds)


_ON_BY_DEFAULT = {
    "cuda_graph": "enforce_eager",
    "chunked_prefill": "enable_chunked_prefill",
    "prefix_caching": "enable_prefix_caching",
    "async_scheduling": "async_scheduling",
    "async_output": "disable_async_output_proc",
    "hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
}
"""Features that a version may leave off by itself: a documented "not supported" counts only if asked for."""


def _asked(feature: str, effective: Effective) -> bool:
    return _ON_BY_DEFAULT[feature] in effective.parsed.settings


def _without_overruled(rows: list[Row]) -> Iterable[Row]:
    """A documented "not supported" gives way to what the code does with the same features."""
    known = {frozenset(row.features) for row in rows if row.basis != "docs" and row.features}
    return [row for row in rows if row.basis != "docs" or frozenset(row.features) not in known]


def _from_problem(problem: Problem, effective: Effective) -> Finding:
    lint = problem_lint(problem, effective)
    verdict: Verdict = "unknown_flag" if problem.kind in ("unknown_flag", "ambiguous") else "rejected"
    return Finding(
        verdict=verdict,
        features=lint.settings or (problem.option,),
        versions=effective.version_text,
        message=lint.message,
        source=f"argument parser of vLLM {effective.version_text}",
        basis="parser",
        at="start",
        settings=lint.settings,
        line=problem.line,
        id=lint.rule,
    )


def _measured(row: Row, effective: Effective) -> str:
    """For prefix caching of a hybrid model: the block size that the planner finds, and what it means here."""
    if "hybrid_model" not in row.features or (block_size := planned_block_size(effective)) is None:
        return ""
    text = f" Here a block is planned to hold {block_size} tokens"
    length = effective.value("max_model_len")
    if isinstance(length, int) and length <= block_size:
        return f"{text}: no prompt within max_model_len {length} can ever hit."
    return f"{text}: prompts below that never hit."


def _from_row(row: Row, effective: Effective) -> Finding:
    names = [*row.settings, *row.sets]
    line = next((effective.settings[name].line for name in names if name in effective.settings), 0)
    is_asked = not names or any(name in effective.parsed.settings for name in names)
    quiet = row.verdict in ("ignored", "silent_noop") and not is_asked
    return Finding(
        verdict="fallback" if quiet else row.verdict,
        features=row.features or row.settings or (row.platform,),
        versions=row.versions,
        message=row.message + _measured(row, effective),
        source=row.source,
        basis=row.basis,
        at=row.at,
        settings=tuple(names),
        fix=row.fix,
        line=line,
        id=row.id,
    )
