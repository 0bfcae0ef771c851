"""DeepSeek V4's cache: the numbers are those of each release's own functions for the same layers."""

from __future__ import annotations

import pytest

from headway.catalog import find_model
from headway.catalog.defaults import version_fact
from headway.errors import ConfigError
from headway.planner import plan
from headway.planner.advice import warnings
from headway.planner.kv_layout import kv_layout
from headway.planner.kv_parts import KVLayout, LayoutRules

POOL = 32 * 2**30
RATIOS = {
    "flash": [0, 0, *[4, 128] * 20, 4],
    "pro": [128, 128, *[4, 128] * 29, 4],
    "uneven": [0] * 3 + [4] * 5 + [128] * 9,
}


def layout(name: str, version: str) -> KVLayout:
    """The layers of `RATIOS` as a release lays them out."""
    by_ratio = {getattr(layer.mixer, "ratio", None): layer for layer in find_model("deepseek-v4-flash").layers}
    rules = LayoutRules(
        compressed_blocks=version_fact("compressed_blocks", version),
        compressed_requests_in_bytes=bool(version_fact("compressed_requests_in_bytes", version)),
    )
    layers = [by_ratio[ratio] for ratio in RATIOS[name]]
    return kv_layout(layers, dtype="bfloat16", kv_cache_dtype="fp8", block_size=256, rules=rules)


@pytest.mark.parametrize(
    ("name", "version", "num_blocks", "concurrency"),
    [
        ("flash", "0.21.0", 32668, 8.181317305284248),
        ("pro", "0.21.0", 23183, 5.72561126204001),
        ("uneven", "0.21.0", 79855, 16.950753555508385),
        ("flash", "0.23.0", 33048, 8.27648384673178),
        ("pro", "0.26.0", 23319, 5.75919980242035),
        ("uneven", "0.26.0", 86830, 18.431330927616216),
        ("flash", "0.28.0", 34282, 4.448741240591747),
        ("uneven", "0.28.0", 101969, 13.232416298987802),
        ("pro", "0.33.0", 23927, 3.104983130028549),
        ("uneven", "0.33.0", 139700, 13.577607153270483),
    ],
)
def test_blocks_and_concurrency_are_the_releases_own(
    name: str, version: str, num_blocks: int, concurrency: float
) -> None:
    """262,144 tokens at most, 8,192 a step; from 0.27.0 two steps are in flight."""
    found = layout(name, version)
    steps = 2 if version_fact("window_counts_steps_in_flight", version) else 1
    assert POOL // found.block_bytes == num_blocks
    assert num_blocks / found.blocks_logged(262144, steps * 8192) == pytest.approx(concurrency, rel=1e-12)


def test_a_request_takes_more_blocks_than_the_log_of_older_releases_counts() -> None:
    """Each group takes blocks of its own; 0.26.0 divided a request's bytes by a block of the entries."""
    older, newer = layout("flash", "0.26.0"), layout("flash", "0.27.0")
    assert older.blocks_logged(262144, 8192) < older.blocks_per_request(262144, 8192)
    assert newer.blocks_logged(262144, 8192) == newer.blocks_per_request(262144, 8192)
    assert older.blocks_per_request(262144, 8192) == newer.blocks_per_request(262144, 8192)


def test_tensor_parallelism_does_not_shrink_the_cache_and_pipelining_does() -> None:
    """Entries are the same on every GPU of a group; a pipeline rank has those of its layers."""
    flags = {"kv_cache_dtype": "fp8", "engine_version": "0.31.0", "max_model_len": 65536, "kv_cache_memory_bytes": POOL}
    one, two = (plan("deepseek-v4-flash", "h200", tensor_parallel_size=tp, **flags) for tp in (2, 4))
    assert one.num_gpu_blocks == two.num_gpu_blocks
    piped = plan("deepseek-v4-flash", "h200", tensor_parallel_size=2, pipeline_parallel_size=2, **flags)
    assert piped.num_gpu_blocks == pytest.approx(2 * one.num_gpu_blocks, rel=0.08)


def test_the_block_size_is_256_and_fp8_must_be_asked_for_before_0_30() -> None:
    """From 0.30.0 `auto` is FP8; 16 bits are not planned; 0.19.0 does not have this attention."""
    assert plan("deepseek-v4-flash", "h200", tensor_parallel_size=4, engine_version="0.31.0").block_size == 256
    for flags, words in (
        ({"engine_version": "0.28.0"}, "only with its KV cache type given"),
        ({"engine_version": "0.31.0", "kv_cache_dtype": "bfloat16"}, "in bfloat16 is not modelled"),
        ({"engine_version": "0.19.0", "kv_cache_dtype": "fp8"}, "no compressed KV cache"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan("deepseek-v4-flash", "h200", tensor_parallel_size=4, **flags)


def test_what_is_not_known_of_its_profiling_is_said_and_widens_the_range_downwards() -> None:
    """Nobody is promised blocks that may not be there."""
    flags = {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8", "engine_version": "0.28.0", "max_model_len": 65536}
    planned = plan("deepseek-v4-flash", "h200", **flags)
    tokens = planned.kv_cache_tokens
    assert tokens.likely - tokens.low > 2 * (tokens.high - tokens.likely)
    assert any("only partly known" in line for line in warnings(planned))


def test_where_the_log_promises_too_much_the_plan_says_how_many_fit() -> None:
    """Until 0.26."""
    flags = {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8", "max_model_len": 65536}
    older, newer = (
        plan("deepseek-v4-flash", "h200", engine_version=version, **flags) for version in ("0.26.0", "0.27.0")
    )
    assert any("fit at once" in line for line in warnings(older))
    assert not any("fit at once" in line for line in warnings(newer))


def test_the_buffer_for_prefills_grows_with_the_length() -> None:
    """Sparse attention alone profiles a buffer of as many keys as max_model_len asks for."""
    lengths = (65536, 1048576)
    flags = {"tensor_parallel_size": 4, "kv_cache_dtype": "fp8", "engine_version": "0.28.0"}
    short, long = (plan("deepseek-v4-flash", "h200", max_model_len=length, **flags) for length in lengths)
    grown = short.available_kv_cache_bytes - long.available_kv_cache_bytes
    whole = 40 * lengths[1] // 4 * 132
    assert 0.5 * whole < grown < whole  # At the shorter length the experts' results need more than the keys do.
    dense = [plan("qwen3-8b", "h200", max_model_len=length) for length in (8192, 40960)]
    assert dense[0].available_kv_cache_bytes == dense[1].available_kv_cache_bytes
