"""Which vLLM features and flags go together in an exact version, and what a change of version does to a deployment."""

from __future__ import annotations

from headway.compat.diff import VersionDiff, diff_versions
from headway.compat.judge import Finding, Judgement, judge
from headway.compat.matrix import Matrix, feature_matrix
from headway.compat.query import Answer, query

__all__ = [
    "Answer",
    "Finding",
    "Judgement",
    "Matrix",
    "VersionDiff",
    "diff_versions",
    "feature_matrix",
    "judge",
    "query",
]
