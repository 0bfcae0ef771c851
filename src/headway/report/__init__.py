"""What a run was like: statistics in vLLM's words, tables and plots. Standard library and rich only."""

from __future__ import annotations

from headway.report.latency import LatencyAccumulator
from headway.report.slo import RequestRecord, Slo, parse_slo
from headway.report.summary import DEFAULT_PERCENTILES, ServingStats, Summary, latency_keys

__all__ = [
    "DEFAULT_PERCENTILES",
    "LatencyAccumulator",
    "RequestRecord",
    "ServingStats",
    "Slo",
    "Summary",
    "latency_keys",
    "parse_slo",
]
