"""Reading traces: the spellings of public files, and what is said about bad ones."""

from __future__ import annotations

import gzip
import itertools
import json
import tracemalloc
from pathlib import Path

import pytest

from headway.errors import WorkloadError
from headway.workload import TraceRequest, read_trace
from tests.shared_data import shared_path


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("arrival_s,input_tokens,output_tokens", "1.5,10,20"),
        ("arrival,prompt_tokens,output_tokens", "1.5,10,20"),
        ("Arrival S;Prompt Tokens;Output Tokens", "1.5;10;20"),
        ("arrived_at\tnum_prefill_tokens\tnum_decode_tokens", "1.5\t10\t20"),
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "1.5,GPT-4,10,20,30,API log"),
        ("output_tokens,comment,timestamp_ms,prompt_tokens", '20,"a, b",1500,10'),
        ("\ufeffarrival_s,num_prompt_tokens,num_output_tokens", "1.5,10.0,20"),
    ],
)
def test_column_spellings_of_csv_traces_mean_the_same(tmp_path: Path, header: str, row: str) -> None:
    path = write(tmp_path, f"{header}\n{row}\n")
    assert list(read_trace(path)) == [TraceRequest(1.5, 10, 20)]


def test_dates_become_seconds_since_the_first_row(tmp_path: Path) -> None:
    """Azure's 2023 files have seven decimals and no time zone, the 2024 ones six and a zone."""
    for first, second in (
        ("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600"),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:00.061930+00:00"),
    ):
        path = write(tmp_path, f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},4808,10\n{second},3180,8\n")
        requests = list(read_trace(path))
        assert [request.num_prompt_tokens for request in requests] == [4808, 3180]
        assert [request.arrival_s for request in requests] == [0.0, pytest.approx(0.052)]


def test_mooncake_times_are_milliseconds_and_its_keys_cover_512_tokens(tmp_path: Path) -> None:
    row = {"timestamp": 27482, "input_length": 1300, "output_length": 5, "hash_ids": [46, 47, 48]}
    (request,) = read_trace(write(tmp_path, json.dumps(row) + "\n\n", "trace.jsonl"))
    assert request == TraceRequest(27.482, 1300, 5, block_keys=(46, 47, 48), block_key_tokens=512)


def test_gzip_is_recognised_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n0,1,2\n"))
    assert list(read_trace(path)) == [TraceRequest(0.0, 1, 2)]


def test_limit_stops_before_a_bad_row_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, "arrival_s,prompt_tokens,output_tokens\n0,1,2\nbad,1,2\n")
    assert len(list(read_trace(path, limit=1))) == 1
    with pytest.raises(WorkloadError):
        list(read_trace(path, limit=2))


HEADER = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER + "0,1,2\n-0.5,1,2\n", "row 3, column 'arrival_s': '-0.5' is negative"),
        (HEADER + "soon,1,2\n", "row 2, column 'arrival_s': 'soon' is not a time"),
        (HEADER + "nan,1,2\n", "row 2, column 'arrival_s': 'nan' is not a finite time"),
        (HEADER + "0,0,2\n", "row 2, column 'prompt_tokens': '0' is zero"),
        (HEADER + "0,1,0\n", "row 2, column 'output_tokens': '0' is zero"),
        (HEADER + "0,1,-2\n", "row 2, column 'output_tokens': '-2' is negative"),
        (HEADER + "0,1.5,2\n", "row 2, column 'prompt_tokens': '1.5' is not a whole number"),
        (HEADER + "0,inf,2\n", "row 2, column 'prompt_tokens': 'inf' is not a whole number"),
        (HEADER + "\n0,1\n", "row 3, column 'output_tokens': the value is missing"),
        (HEADER + "0,,2\n", "row 2, column 'prompt_tokens': the value is missing"),
        (
            "arrival_s,prompt_tokens\n0,1\n",
            "no column for the output's tokens; the file has 'arrival_s', 'prompt_tokens'",
        ),
        ("prompt_tokens,output_tokens\n1,2\n", "no column for the arrival"),
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        (HEADER, "the file holds no requests"),
        ('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 2}\n{"arrival_s":\n', "row 2: not JSON"),
        ('{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 2}\n[1]\n', "row 2: not a JSON object"),
        ('{"arrival_s": null, "prompt_tokens": 1, "output_tokens": 2}\n', "row 1, column 'arrival_s': the value is"),
        ('{"arrival_s": 0, "prompt_tokens": true, "output_tokens": 2}\n', "row 1, column 'prompt_tokens': True is not"),
        ('{"arrival_s": [], "prompt_tokens": 1, "output_tokens": 2}\n', "row 1, column 'arrival_s': [] is not a time"),
        ('[{"arrival_s": 0}]\n', "a JSON array"),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [[1]]}\n',
            "row 1, column 'hash_ids': [[1]] is not a list of block keys",
        ),
        (
            "timestamp,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01,1,1\n2024-05-10 00:00:00,1,1\n",
            "row 3, column 'timestamp': '2024-05-10 00:00:00' is before the first row",
        ),
        (
            "timestamp,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01,1,1\n2024-05-10 00:00:02Z,1,1\n",
            "row 3, column 'timestamp': '2024-05-10 00:00:02Z' has a time zone where others have none",
        ),
        (
            "arrival_s,prompt_tokens,output_tokens,block_keys\n0,1,1,a b\n",
            "the column 'block_keys' does not say how many tokens a key covers",
        ),
    ],
)
def test_a_bad_trace_is_refused_with_file_row_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(WorkloadError) as caught:
        list(read_trace(path))
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_dates_and_numbers_do_not_mix_silently(tmp_path: Path) -> None:
    path = write(tmp_path, "timestamp,ContextTokens,GeneratedTokens\n2024-05-10 00:00:01,1,1\n5,1,1\n")
    with pytest.raises(WorkloadError, match="row 3, column 'timestamp': '5' is a number where others are dates"):
        list(read_trace(path))


def test_files_that_are_no_traces_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="no such file"):
        next(read_trace(tmp_path / "absent.csv"))
    with pytest.raises(WorkloadError, match="is a folder"):
        next(read_trace(tmp_path))
    binary = tmp_path / "trace.png"
    binary.write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(WorkloadError, match="not text"):
        next(read_trace(binary))


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{i},{i + 1},2\n" for i in range(20_000))
    whole = gzip.compress((HEADER + rows).encode())
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WorkloadError, match=r"trace\.csv\.gz: cannot be read after row \d+"):
        list(read_trace(path))


def test_rows_without_tokens_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "0,1,2\n1,0,0\n2,3,4\n")
    assert [request.num_prompt_tokens for request in read_trace(path, skip_empty=True)] == [1, 3]


@pytest.mark.slow
def test_a_long_trace_is_read_in_bounded_memory(tmp_path: Path) -> None:
    """200,000 rows are 3 MB as text and some 50 MB as objects; reading them in passing must need far less."""
    path = tmp_path / "trace.csv"
    with path.open("w") as file:
        file.write(HEADER)
        file.writelines(f"{i},{i % 100 + 1},2\n" for i in range(200_000))
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_trace(path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 200_000
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("name", "count", "mean_prompt", "mean_output"),
    [
        ("azure2023_code", 8819, 2047.8, 27.9),
        ("azure2023_conv", 19366, 1154.7, 211.1),
        ("mooncake_conversation", 12031, 12035.1, 342.6),
        ("burstgpt1_first379rows", 364, 558.5, 283.9),
    ],
)
def test_public_traces_read_to_their_published_means(
    name: str, count: int, mean_prompt: float, mean_output: float
) -> None:
    suffix = "jsonl.gz" if name.startswith("mooncake") else "csv.gz"
    requests = list(read_trace(shared_path(f"traces/{name}.{suffix}"), skip_empty=True))
    assert len(requests) == count
    assert sum(request.num_prompt_tokens for request in requests) / count == pytest.approx(mean_prompt, abs=0.06)
    assert sum(request.num_output_tokens for request in requests) / count == pytest.approx(mean_output, abs=0.06)
    assert all(a.arrival_s <= b.arrival_s for a, b in itertools.pairwise(requests))


def test_mooncake_prefix_reuse_is_kept() -> None:
    """With an endless cache 36.6 % of the conversation trace's 512-token blocks are hits."""
    seen: set[object] = set()
    num_blocks = num_hits = 0
    for request in read_trace(shared_path("traces/mooncake_conversation.jsonl.gz")):
        num_blocks += len(request.block_keys)
        num_hits += sum(key in seen for key in request.block_keys)
        seen.update(request.block_keys)
    assert (num_hits, num_blocks) == (105710, 288500)


def test_failed_requests_of_burstgpt_are_named() -> None:
    with pytest.raises(WorkloadError, match=r"column 'Request tokens': '0' is zero.*--skip-empty"):
        list(read_trace(shared_path("traces/burstgpt1_first379rows.csv.gz")))
