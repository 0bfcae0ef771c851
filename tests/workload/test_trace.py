"""Block keys at another block size, and workloads that make no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import WorkloadError
from headway.workload import TraceRequest, Workload


def test_a_hash_id_of_512_tokens_becomes_32_keys_at_block_size_16() -> None:
    request = TraceRequest(0.0, 1300, 1, block_keys=(46, 47, 48), block_key_tokens=512)
    keys = request.keys_at(16)
    assert len(keys) == 1300 // 16
    assert keys[0] == (46, 0) and keys[31] == (46, 31) and keys[32] == (47, 0) and keys[-1] == (48, 16)
    with pytest.raises(IndexError):
        keys[81]


def test_keys_of_the_block_size_map_one_to_one() -> None:
    request = TraceRequest(0.0, 40, 1, block_keys=("a", "b", "c"), block_key_tokens=16)
    assert list(request.keys_at(16)) == ["a", "b"]


def test_a_request_without_keys_has_none_at_any_size() -> None:
    assert list(TraceRequest(0.0, 100, 1).keys_at(16)) == []


@given(
    key_tokens=st.integers(1, 40),
    block_size=st.integers(1, 40),
    shared=st.integers(0, 6),
    own=st.integers(0, 6),
    cut=st.integers(0, 39),
)
def test_two_prompts_share_blocks_only_where_they_share_tokens(
    key_tokens: int, block_size: int, shared: int, own: int, cut: int
) -> None:
    """Keys at another size never claim more than the shared prefix, and all of it where the sizes divide."""

    def request(name: str) -> TraceRequest:
        keys = tuple(range(shared)) + tuple(f"{name}{i}" for i in range(own))
        return TraceRequest(0.0, max(1, len(keys) * key_tokens - cut % key_tokens), 1, None, keys, key_tokens)

    left, right = request("l").keys_at(block_size), request("r").keys_at(block_size)
    num_equal = sum(a == b for a, b in zip(left, right, strict=True))
    num_shared_tokens = min(shared * key_tokens, request("l").num_prompt_tokens)
    assert num_equal <= num_shared_tokens // block_size
    assert list(left[:num_equal]) == list(right[:num_equal])
    if key_tokens % block_size == 0 or block_size % key_tokens == 0:
        assert num_equal == min(num_shared_tokens, (shared + own) * key_tokens) // block_size


def test_a_workload_without_requests_is_refused() -> None:
    with pytest.raises(WorkloadError, match="no requests"):
        Workload([])


def test_open_and_closed_loops_are_told_apart() -> None:
    requests = [TraceRequest(0.0, 1, 1)]
    with pytest.raises(WorkloadError, match="needs a concurrency"):
        Workload(requests, loop="closed")
    with pytest.raises(WorkloadError, match="has no concurrency"):
        Workload(requests, concurrency=4)
    assert Workload(requests, loop="closed", concurrency=4).concurrency == 4


def test_totals_of_a_workload() -> None:
    workload = Workload([TraceRequest(0.0, 3, 4), TraceRequest(1.0, 10, 1)])
    assert (workload.num_prompt_tokens, workload.num_output_tokens, workload.max_request_tokens) == (13, 5, 11)
