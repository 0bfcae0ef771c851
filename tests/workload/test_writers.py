"""What is written reads back the same."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from headway.errors import WorkloadError
from headway.workload import FixedLength, Generated, TraceRequest, read_trace, write_trace

REQUESTS = [
    TraceRequest(0.0, 10, 5, "first", ("a", "b"), 4),
    TraceRequest(1.25, 700, 1, None, (7,), 512),
    TraceRequest(2.5, 1, 9),
]


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_json_lines_keep_everything(tmp_path: Path, name: str) -> None:
    assert write_trace(tmp_path / name, REQUESTS) == 3
    assert list(read_trace(tmp_path / name)) == REQUESTS


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz"])
def test_csv_keeps_arrivals_and_lengths(tmp_path: Path, name: str) -> None:
    write_trace(tmp_path / name, REQUESTS)
    plain = [TraceRequest(r.arrival_s, r.num_prompt_tokens, r.num_output_tokens) for r in REQUESTS]
    assert list(read_trace(tmp_path / name)) == plain


def test_equal_traces_are_equal_files(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_trace(tmp_path / name, REQUESTS)
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).count(b"\n") == 4


def test_requests_are_written_as_they_come(tmp_path: Path) -> None:
    """A generator is consumed row by row; nothing asks for its length."""
    generated = Generated(100, requests_per_s=5.0, prompt=FixedLength(3)).requests()
    assert write_trace(tmp_path / "trace.csv", generated) == 100


def test_other_names_are_refused(tmp_path: Path) -> None:
    for name in ("trace.parquet", "trace", "trace.gz"):
        with pytest.raises(WorkloadError, match=r"written as \.csv or \.jsonl"):
            write_trace(tmp_path / name, REQUESTS)
    with pytest.raises(WorkloadError, match="cannot be written"):
        write_trace(tmp_path / "absent" / "trace.csv", REQUESTS)
