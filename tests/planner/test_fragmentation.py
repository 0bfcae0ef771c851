"""KV waste: the paper's shape, and what each kind of waste means."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from headway.errors import ConfigError
from headway.planner.contiguous import Buddy
from headway.planner.fragmentation import KVUse, contiguous_use, paged_use
from headway.planner.lengths import described_lengths, read_lengths
from headway.workload import TraceRequest
from tests.shared_data import shared_path

EXERCISE = described_lengths("1", "normal:mean=1500,std=600,max=8191", 400)
CHAT = described_lengths("lognormal:median=161,sigma=1.0,max=1000", "lognormal:median=338,sigma=0.9,max=1000", 400)


def shares(use: KVUse) -> float:
    """All shares of the pool."""
    return use.used + use.reserved + use.internal + use.external


@pytest.mark.parametrize(("requests", "length"), [(EXERCISE, 8192), (CHAT, 2048)])
def test_the_papers_shape(requests: list[TraceRequest], length: int) -> None:
    """Reservation uses 10 to 41 % of the pool, paging in blocks of 16 more than 96 %; knowing lengths helps."""
    pool = 16 * length
    reserved = [contiguous_use(requests, pool, length, kind) for kind in ("max", "pow2", "oracle")]
    assert all(0.08 < use.used < 0.42 for use in reserved)
    assert all(a.used < b.used for a, b in pairwise(reserved))
    paged = paged_use(requests, pool, length, 16)
    assert paged.used > 0.96
    assert all(shares(use) == pytest.approx(1.0) for use in (*reserved, paged))


def test_the_exercise_of_reserving_8192_slots_for_1500_tokens() -> None:
    """At its end a request has filled 18 % of 8,192 slots (82 % waste), and more than 99 % of its 16-token blocks."""
    assert contiguous_use(EXERCISE, 16 * 8192, 8192, "max").at_completion == pytest.approx(0.183, abs=0.01)
    assert paged_use(EXERCISE, 16 * 8192, 8192, 16).at_completion > 0.99


def test_each_kind_of_waste_belongs_to_its_cause() -> None:
    """Maximum length: never filled. Oracle: only filled later. Paging: only the last block."""
    pool = 16 * 8192
    maximum, oracle = (contiguous_use(EXERCISE, pool, 8192, kind) for kind in ("max", "oracle"))
    assert maximum.internal > 0.7 and maximum.external == pytest.approx(0, abs=1e-9)
    assert oracle.internal == pytest.approx(0, abs=1e-9) and oracle.reserved > 0.2
    paged = paged_use(EXERCISE, pool, 8192, 16)
    assert paged.internal + paged.reserved < 16 / 2 / 700


def test_larger_blocks_waste_more() -> None:
    """From 1 to 256 tokens a block, use of what is allocated falls; at 1 nothing is wasted."""
    uses = [paged_use(CHAT, 32768, 2048, size).of_allocated for size in (1, 16, 64, 256)]
    assert uses[0] == 1.0
    assert all(a > b for a, b in pairwise(uses))


def test_shared_prefixes_let_more_requests_run() -> None:
    """A prefix of 512 tokens is kept once; the tokens it saves are counted apart."""
    requests = described_lengths("200", "100", 200, shared_prefix=512)
    alone, shared = (paged_use(requests, 16384, 1024, 16, sharing=sharing) for sharing in (False, True))
    assert alone.shared == 0 and shared.shared > 1
    assert shared.mean_running > 2 * alone.mean_running
    assert shares(shared) == pytest.approx(1.0)


def test_real_chat_lengths_have_the_same_shape() -> None:
    """ShareGPT lengths: reservation below 40 %, paging above 96 %."""
    requests = read_lengths(shared_path("traces/lengths_sharegpt-vicuna.csv.gz"), 300)
    length = 8192
    assert contiguous_use(requests, 16 * length, length, "oracle").used < 0.4
    assert paged_use(requests, 16 * length, length, 16).used > 0.96


def test_a_request_that_cannot_fit_is_refused() -> None:
    """Both limits are named."""
    requests = [TraceRequest(0.0, 100, 100)]
    with pytest.raises(ConfigError, match="max-model-len 200"):
        contiguous_use(requests, 4096, 128, "max")
    with pytest.raises(ConfigError, match="cannot hold"):
        paged_use(requests, 64, 4096, 16)


def test_buddies_join_again() -> None:
    """Whatever the order of frees, an empty pool is whole; stretches never overlap."""
    rng = Random(0)
    pool, held = Buddy(1024 + 256), dict[int, int]()
    for _ in range(500):
        if held and rng.random() < 0.5:
            start = rng.choice(list(held))
            pool.free(start, held.pop(start))
        else:
            size = 1 << rng.randrange(0, 9)
            found = pool.allocate(size)
            if found is not None:
                assert all(found + size <= other or other + length <= found for other, length in held.items())
                held[found] = size
    for start, size in held.items():
        pool.free(start, size)
    assert {pool.allocate(1024), pool.allocate(256)} == {0, 1024}
