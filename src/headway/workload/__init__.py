"""Workloads: traces from files, generated ones, and changes to both. Standard library only."""

from __future__ import annotations

from headway.workload.conversations import MultiTurn, Ramp
from headway.workload.formats import read_requests
from headway.workload.generators import Generated, SharedPrefix, arrival_times
from headway.workload.lengths import (
    EmpiricalLength,
    FixedLength,
    Length,
    LogNormalLength,
    NormalLength,
    UniformLength,
    parse_length,
)
from headway.workload.prompts import draw_prompt
from headway.workload.readers import read_trace
from headway.workload.trace import Loop, TraceRequest, Workload
from headway.workload.transforms import at_rate, from_zero, request_rate, scale_arrivals, scale_lengths
from headway.workload.writers import write_trace

__all__ = [
    "EmpiricalLength",
    "FixedLength",
    "Generated",
    "Length",
    "LogNormalLength",
    "Loop",
    "MultiTurn",
    "NormalLength",
    "Ramp",
    "SharedPrefix",
    "TraceRequest",
    "UniformLength",
    "Workload",
    "arrival_times",
    "at_rate",
    "draw_prompt",
    "from_zero",
    "parse_length",
    "read_requests",
    "read_trace",
    "request_rate",
    "scale_arrivals",
    "scale_lengths",
    "write_trace",
]
