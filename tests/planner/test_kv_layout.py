"""KV blocks of models whose layers keep their past in different ways."""

from __future__ import annotations

import pytest

from headway.catalog import Attention, Layer, StateSpace, find_model
from headway.catalog.architecture import CompressedAttention, LatentAttention
from headway.errors import ConfigError
from headway.planner.kv_layout import kv_layout
from headway.planner.kv_parts import LayoutRules
from headway.planner.partition import layer_partition

FULL = Layer(Attention(8, 8, 64, 64), None)
SLIDING = Layer(Attention(8, 8, 64, 64, kind="sliding", window=1024), None)


def test_a_uniform_model_has_one_group_and_a_block_of_all_its_layers() -> None:
    """16 tokens x 8 heads x (64 + 64) x 2 bytes x 32 layers."""
    layout = kv_layout([FULL] * 32, dtype="bfloat16")
    assert layout.num_groups == 1
    assert layout.block_bytes == 16 * 8 * 128 * 2 * 32
    assert layout.blocks_per_request(16384, 1024) == 1024


def test_the_worked_vector_of_vllms_own_test() -> None:
    """Block 16, length 16384, window 1024, budget 1024: 1024 blocks full, 129 sliding, 1153 together."""
    assert kv_layout([SLIDING] * 32, dtype="bfloat16").blocks_per_request(16384, 1024) == 129
    hybrid = kv_layout([SLIDING, FULL] * 16, dtype="bfloat16")
    assert hybrid.blocks_per_request(16384, 1024) == 1153


def test_unequal_counts_make_several_groups_of_the_smaller_size() -> None:
    """Gemma 3 27B: 10 full layers, 52 sliding: one group and six, the last of them padded."""
    model = find_model("google/gemma-3-27b-it")
    layout = kv_layout(model.layers, dtype="bfloat16")
    assert sorted(group.num_groups for group in layout.groups) == [1, 6]
    assert layout.block_bytes == 16 * 16 * 256 * 2 * 10


def test_nearly_equal_counts_make_one_group_each_of_the_larger_size() -> None:
    """Below 1.5 times, padding layers cost less than another group."""
    layout = kv_layout([FULL] * 10 + [SLIDING] * 12, dtype="bfloat16")
    assert layout.num_groups == 2
    assert layout.block_bytes == 16 * 8 * 128 * 2 * 12


def test_without_the_hybrid_manager_a_window_is_sized_as_full_attention() -> None:
    """Versions before 0.9.1, or --disable-hybrid-kv-cache-manager."""
    layout = kv_layout([SLIDING, FULL] * 16, dtype="bfloat16", rules=LayoutRules(hybrid=False))
    assert layout.num_groups == 1 and layout.blocks_per_request(16384, 1024) == 1024


def test_attention_blocks_grow_until_a_page_holds_a_recurrent_state() -> None:
    """A measured start-up of such a model, TP 2 with an FP8 cache: 1568 tokens in a block, 208 blocks in 4.99 GiB, each
    request of 131072 takes 84 and 3 x 2 for its states, so 2.31 fit."""
    attention = Attention(24, 4, 256, 256)
    state = StateSpace("gated_delta", 16, 48, 128, 128, 4, "float32")
    layers = ([Layer(state, None)] * 3 + [Layer(attention, None)]) * 16
    layout = kv_layout(layers, dtype="bfloat16", kv_cache_dtype="fp8", tp=2, rules=LayoutRules(state_blocks=2))
    assert layout.block_size == 1568
    num_blocks = int(4.99 * 2**30) // layout.block_bytes
    needed = layout.blocks_per_request(131072, 8192)
    assert (num_blocks, needed) == (208, 90)
    assert int(num_blocks / needed * 131072) == 302921


def test_smaller_pages_are_filled_with_more_tokens() -> None:
    """Gemma 4 31B at TP 2: full layers have half the bytes a token, so their blocks hold 32 tokens."""
    model = find_model("google/gemma-4-31B")
    layout = kv_layout(model.layers, dtype="bfloat16", tp=2)
    sizes = {group.kind: group.block_size for group in layout.groups}
    assert sizes == {"sliding": 16, "full": 32}


def test_a_page_that_does_not_divide_the_largest_is_padded() -> None:
    """192 elements beside 128: the larger page counts for both, and the smaller layers' blocks stay as they are."""
    wide = Layer(Attention(8, 8, 96, 96, kind="sliding", window=1024), None)
    layout = kv_layout([wide, FULL] * 8, dtype="bfloat16")
    assert {group.kind: group.block_size for group in layout.groups} == {"sliding": 16, "full": 16}
    assert layout.block_bytes == 16 * 8 * 192 * 2 * 8


def test_chunk_local_layers_keep_a_chunk_and_what_is_in_flight() -> None:
    """Llama 4: three of four layers forget at each 8,192 tokens; sized as full attention from 0.10.1 to 0.13."""
    model = find_model("meta-llama/Llama-4-Scout-17B-16E-Instruct")
    layout = kv_layout(model.layers, dtype="bfloat16")
    assert layout.num_groups == 4
    assert layout.blocks_per_request(65536, 8192) == 65536 // 16 + 3 * (8192 + 8192) // 16
    old = kv_layout(model.layers, dtype="bfloat16", rules=LayoutRules(chunked_groups=False))
    assert old.num_groups == 1 and old.blocks_per_request(65536, 8192) == 65536 // 16


def test_a_pipeline_rank_holds_its_part_of_the_whole_models_groups() -> None:
    """Gemma 3 27B on two ranks: seven groups on each, with the pages that the rank has of the fullest of them."""
    model = find_model("google/gemma-3-27b-it")
    whole = kv_layout(model.layers, dtype="bfloat16")
    first, second = (kv_layout(model.layers, dtype="bfloat16", here=here) for here in (range(31), range(31, 62)))
    assert first.num_groups == second.num_groups == whole.num_groups == 7
    assert first.blocks_per_request(32768, 2048) == whole.blocks_per_request(32768, 2048)
    assert first.block_bytes == second.block_bytes == 16 * 16 * 256 * 2 * 5


def test_latent_attention_beside_states_grows_in_larger_steps() -> None:
    """Its kernels want blocks of 64 tokens, from 0.27 on of 128."""
    latent = LatentAttention(32, 512, 128, 64, 128)
    state = StateSpace("kda", 32, 32, 128, 128, 4, "float32")
    layers = ([Layer(state, None)] * 3 + [Layer(latent, None)]) * 6
    sizes = [kv_layout(layers, dtype="bfloat16", rules=LayoutRules(latent_step=step)).block_size for step in (16, 64)]
    assert sizes == [1888, 1920]


def test_layers_that_all_attend_fully_share_a_group_whatever_their_size() -> None:
    """Searched architectures and sparse-attention indexes: one block holds all their pages."""
    wide, narrow = Layer(Attention(8, 8, 64, 64), None), Layer(Attention(8, 2, 64, 64), None)
    layout = kv_layout([wide, narrow, Layer(None, None)], dtype="bfloat16")
    assert layout.num_groups == 1 and layout.block_bytes == 16 * (8 + 2) * 128 * 2


def test_kinds_of_nearly_equal_number_are_padded_only_in_the_releases_that_do() -> None:
    """Eight and seven layers: one group each from 0.12.0, three groups of seven before."""
    layers = [SLIDING, FULL] * 7 + [SLIDING]
    for pad_below, num_groups, pages in ((1.0, 3, 7), (1.25, 2, 8), (1.5, 2, 8)):
        layout = kv_layout(layers, dtype="bfloat16", rules=LayoutRules(pad_below=pad_below))
        assert (layout.num_groups, layout.block_bytes) == (num_groups, pages * 16 * 2 * 8 * 64 * 2)


def test_the_longest_request_is_the_last_that_fits() -> None:
    """One token more needs a block that is not there."""
    layout = kv_layout([SLIDING, FULL] * 4, dtype="bfloat16")
    longest = layout.longest_request(500, 1024)
    assert layout.blocks_per_request(longest, 1024) <= 500 < layout.blocks_per_request(longest + 1, 1024)


def test_a_cache_that_is_compressed_in_an_unknown_way_is_unknown() -> None:
    """Nothing is guessed."""
    with pytest.raises(ConfigError, match="not modelled"):
        kv_layout([Layer(CompressedAttention(num_heads=8), None)], dtype="bfloat16")


@pytest.mark.parametrize(
    ("num_layers", "pp", "sizes"),
    [(32, 1, (32,)), (32, 2, (16, 16)), (61, 4, (15, 15, 16, 15)), (62, 4, (15, 16, 16, 15))],
)
def test_what_is_left_over_goes_before_the_last_rank(num_layers: int, pp: int, sizes: tuple[int, ...]) -> None:
    """As vLLM splits layers: the last rank also has the head."""
    assert layer_partition(num_layers, pp) == sizes


@pytest.mark.parametrize("given", [(16, 16), (48,), (0, 48)])
def test_a_partition_must_add_up(given: tuple[int, ...]) -> None:
    """The number of layers and ranks is checked."""
    with pytest.raises(ConfigError, match="does not split 48 layers"):
        layer_partition(48, 2, given)
