"""The plan: terms, defaults, slopes, pipeline ranks, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from headway.catalog import find_accelerator
from headway.catalog.hf_config import architecture_from_config
from headway.errors import ConfigError
from headway.planner import Plan, plan
from headway.planner.advice import at_lengths, estimate_by_whole_model, next_limit, warnings
from headway.planner.lengths import LengthStats
from headway.simulation.options import DeploymentOptions

GIB = 2**30
STUDY: dict[str, Any] = {
    "engine_version": "0.17.1",
    "usage": "llm",
    "gpu_memory_utilization": 0.9,
    "max_model_len": 2668,
    "max_num_batched_tokens": 8192,
}
"""The one-knob study: Llama 3.1 8B in bf16 on 69.65 GiB."""


def study(**changes: Any) -> Plan:
    """The study's configuration with one knob turned."""
    return plan("meta-llama/Llama-3.1-8B-Instruct", "h200-mig-3g.71gb", **{**STUDY, **changes})


def test_counted_terms_and_the_kv_cache_add_up_to_the_request() -> None:
    """requested = weights + activations + non-torch + graphs (where counted) + KV cache."""
    for version in ("0.17.1", "0.32.0"):
        made = study(engine_version=version)
        taken = sum(term.num_bytes for term in made.terms[1:] if term.counted)
        assert made.binding.term("requested").num_bytes == taken + made.available_kv_cache_bytes
        assert all(term.source and term.low <= term.num_bytes <= term.high for term in made.terms)


def test_kv_memory_falls_by_0_115_mib_for_each_batched_token() -> None:
    """Measured between 8,192 and 65,536 tokens: 6.36 GiB."""
    large = study(max_num_batched_tokens=65536).available_kv_cache_bytes
    slope = (study().available_kv_cache_bytes - large) / (65536 - 8192) / 2**20
    assert slope == pytest.approx(0.115, rel=0.05)


def test_kv_memory_grows_by_3_48_gib_for_0_05_of_utilization() -> None:
    """0.05 of what torch sees (69.65 GiB), not of what nvidia-smi shows."""
    gained = study(gpu_memory_utilization=0.95).available_kv_cache_bytes - study().available_kv_cache_bytes
    assert gained / GIB == pytest.approx(3.48, abs=0.01)


def test_kv_memory_does_not_change_with_max_model_len() -> None:
    """At the same token budget 131,072 and 2,668 gave the same pool."""
    assert study(max_model_len=131072).available_kv_cache_bytes == study().available_kv_cache_bytes


def test_fp8_cache_doubles_the_tokens_of_the_same_bytes() -> None:
    """The pool stays; its tokens double."""
    plain, fp8 = study(), study(kv_cache_dtype="fp8")
    assert fp8.available_kv_cache_bytes == plain.available_kv_cache_bytes
    assert fp8.kv_cache_tokens.likely == pytest.approx(2 * plain.kv_cache_tokens.likely, rel=1e-4)


def test_more_seats_cost_kv_memory_once_sampling_sets_the_peak() -> None:
    """At 16,384 tokens, 512 seats are free and 1,024 cost a few tenths of a GiB (measured 0.31)."""
    few, many = (
        study(quantization="fp8", max_num_batched_tokens=16384, max_num_seqs=seats).available_kv_cache_bytes / GIB
        for seats in (512, 1024)
    )
    assert 0.1 < few - many < 0.6


def test_graphs_are_taken_off_the_budget_from_0_20_on() -> None:
    """Before, they come on top of it."""
    old, new = study(engine_version="0.19.1"), study(engine_version="0.20.0")
    graphs = new.binding.term("cuda_graphs")
    assert graphs.counted and not old.binding.term("cuda_graphs").counted
    assert old.available_kv_cache_bytes - new.available_kv_cache_bytes == graphs.num_bytes


def test_sorting_every_seats_logits_is_what_profiling_costs_before_0_17() -> None:
    """PyTorch's segmented sort holds 38 bytes a 16-bit logit at once, what came after 14: 0.15 logged 1.4 GiB more for
    256 seats of 152,064 logits than the forward pass takes."""
    flags: dict[str, Any] = {"max_model_len": 4096, "max_num_seqs": 256, "max_num_batched_tokens": 2048}
    peaks = [
        plan("Qwen/Qwen2.5-7B", "h100", engine_version=version, **flags).binding.term("activation_peak").num_bytes
        for version in ("0.16.0", "0.17.0")
    ]
    assert peaks == [256 * 152064 * 38, 256 * 152064 * 14]


def test_each_version_counts_what_its_profiling_sees() -> None:
    """Only torch's peak at first; the whole card, context included, in early V1; what the process took since before its
    group formed in 0.9.1 to 0.10.2; since after that from 0.11 on."""
    non_torch = {
        version: plan("meta-llama/Llama-2-70b-hf", "a100", engine_version=version, tensor_parallel_size=4)
        .binding.term("non_torch")
        .source
        for version in ("0.2.4", "0.8.5", "0.9.2", "0.11.0")
    }
    assert non_torch == {
        "0.2.4": "fitted: not counted in this version",
        "0.8.5": "fitted: kernels, CUDA context, collectives over NVLink",
        "0.9.2": "fitted: kernels, collectives over NVLink",
        "0.11.0": "fitted: kernels, all-reduce workspaces",
    }


def test_collectives_take_more_memory_where_the_gpus_share_nvlink() -> None:
    """NCCL keeps a buffer for each channel on the GPU there: vLLM's pull request 10511 logged 1.8 GiB more on two H100
    than on one. Over PCIe, or with one GPU in each machine, there are few channels."""

    def non_torch(gpu: str, **changes: Any) -> float:
        flags: dict[str, Any] = {"engine_version": "0.9.2", "tensor_parallel_size": 2, "max_model_len": 4096, **changes}
        return plan("Qwen/Qwen3-8B", gpu, **flags).binding.term("non_torch").num_bytes / GIB

    assert non_torch("h100") == pytest.approx(non_torch("h100", tensor_parallel_size=1) + 2.1, abs=0.5)
    assert non_torch("l40s") < non_torch("h100") - 1
    assert non_torch("h100", nnodes=2) == non_torch("l40s")


def test_v0_profiles_sampling_with_a_sort_and_the_hidden_vectors_beside_it() -> None:
    """0.6.5 logged 1.26 GiB for Llama 3 8B at 8,192 tokens, on one GPU and on two: more than its forward pass takes."""
    peaks = {
        tp: plan("meta-llama/Meta-Llama-3-8B", "h100", engine_version="0.6.5", tensor_parallel_size=tp)
        .binding.term("activation_peak")
        .num_bytes
        for tp in (1, 2)
    }
    assert peaks[1] == peaks[2] == 256 * 128256 * 38 + 8192 * 4096 * 2
    assert peaks[1] / GIB == pytest.approx(1.26, rel=0.05)


def test_0_2_5_counted_the_inputs_that_all_reduce_held() -> None:
    """Two of each layer, kept to the end of the step: 20,865 blocks for Llama 2 70B on four A100 (vLLM's pull request
    2031), fixed in 0.2.6."""
    made = {
        version: plan("meta-llama/Llama-2-70b-hf", "a100", engine_version=version, tensor_parallel_size=4)
        for version in ("0.2.5", "0.2.6")
    }
    peaks = [plan.binding.term("activation_peak").num_bytes for plan in made.values()]
    assert peaks[0] - peaks[1] == (2 * 80 + 1) * 4096 * 8192 * 2
    assert made["0.2.5"].num_gpu_blocks == pytest.approx(20865, rel=0.03)


def test_graphs_of_few_batch_sizes_take_less_memory() -> None:
    """The largest is captured in any case; each further size adds to it."""
    few, many = (
        plan("Qwen/Qwen3-8B", "h100", max_num_seqs=seats, max_model_len=4096).binding.term("cuda_graphs").num_bytes
        for seats in (2, 256)
    )
    assert 0.3 * many < few < 0.8 * many


def test_the_second_model_runner_counts_no_graphs_before_0_29() -> None:
    """Its profiling returned nothing for them; it was the default for dense models from 0.25 on."""
    counted = {
        version: plan("meta-llama/Llama-3.1-8B-Instruct", "h100", engine_version=version)
        .binding.term("cuda_graphs")
        .counted
        for version in ("0.22.0", "0.25.0", "0.28.0", "0.29.0")
    }
    assert counted == {"0.22.0": True, "0.25.0": False, "0.28.0": False, "0.29.0": True}
    moe = plan("openai/gpt-oss-120b", "h200", engine_version="0.25.0")
    assert moe.binding.term("cuda_graphs").counted


def test_the_range_is_one_of_bytes_so_small_pools_have_wide_ones() -> None:
    """A GiB is a fifth of a small pool and nothing of a large one; where FlashInfer decides, the range holds both."""

    def width(share: float, version: str) -> float:
        made = plan("Qwen/Qwen2.5-7B", "a100", gpu_memory_utilization=share, engine_version=version, max_model_len=4096)
        tokens = made.kv_cache_tokens
        return (tokens.high - tokens.low) / tokens.likely

    assert width(0.25, "0.17.0") > 0.3 > 0.06 > width(0.9, "0.17.0")
    assert width(0.25, "0.10.0") > width(0.25, "0.17.0")


def test_memory_shared_with_the_host_is_known_to_some_gib_only() -> None:
    """GB10: what the host caches while the model loads is counted as well."""
    made = plan("Qwen/Qwen3-30B-A3B", "gb10", max_model_len=16384)
    low, high = made.binding.available_low, made.binding.available_high
    assert high - low > 10 * GIB
    assert any("shared with the host" in warning for warning in warnings(made))


def test_hybrid_tokens_are_printed_as_that_version_prints_them() -> None:
    """57.24 GiB for gpt-oss-120b: 825,607 tokens at 2,068 and 886,768 at 9,472 in 0.22 (measured); blocks by group
    before 0.21."""
    flags: dict[str, Any] = {
        "kv_cache_memory_bytes": int(57.24 * GIB),
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 4,
    }
    for length, measured in ((2068, 825607), (9472, 886768)):
        made = plan("openai/gpt-oss-120b", "h200", engine_version="0.22.0", max_model_len=length, **flags)
        assert made.kv_cache_tokens.likely == pytest.approx(measured, rel=2e-4)
    old = plan("openai/gpt-oss-120b", "h200", engine_version="0.20.0", max_model_len=2068, **flags)
    assert old.kv_cache_tokens.likely == old.num_gpu_blocks // 2 * 16


def test_each_pipeline_rank_is_planned_with_its_own_layers() -> None:
    """The rank with the fewest blocks binds. vLLM's message divides the smallest rank's memory by all layers: 3.18 GiB
    give 34,736 tokens there, where the 16 layers of that rank have room for 104,200."""
    made = plan(
        "Qwen3-Coder-30B-A3B-Instruct-FP8",
        "rtx-5070ti",
        engine_version="0.15.2rc1.dev93",
        pipeline_parallel_size=2,
        pp_layer_partition=(16, 32),
        max_model_len=4096,
        kv_cache_memory_bytes=int(3.18 * GIB),
    )
    assert [rank.num_layers for rank in made.ranks] == [16, 32]
    assert made.binding_rank == 1 and made.kv_bytes_per_token == 98304
    assert made.ranks[0].layout.block_bytes == 16 * 32768
    assert made.ranks[0].num_blocks() * 16 == pytest.approx(104200, rel=0.02)
    assert estimate_by_whole_model(made) == pytest.approx(34736, rel=0.02)


def test_pipeline_ranks_may_be_different_cards() -> None:
    """A 16 GB card with 16 layers and a 32 GB card with 32: the first had 3.18 GiB left."""
    cards = (find_accelerator("rtx-5070ti"), find_accelerator("rtx-5090"))
    flags: dict[str, Any] = {"engine_version": "0.15.2rc1.dev93", "gpu_memory_utilization": 0.9, "max_model_len": 65536}
    made = plan(
        "Qwen3-Coder-30B-A3B-Instruct-FP8",
        cards[0],
        pipeline_parallel_size=2,
        pp_layer_partition=(16, 32),
        rank_accelerators=cards,
        **flags,
    )
    first, second = made.ranks
    assert first.available_bytes / GIB == pytest.approx(3.18, rel=0.12)
    assert second.term("requested").num_bytes > 2 * first.term("requested").num_bytes - GIB
    with pytest.raises(ConfigError, match="2 GPUs are named for 1"):
        plan("Qwen/Qwen3-8B", cards[0], rank_accelerators=cards)


def test_the_embedding_is_on_the_first_rank_and_the_head_on_the_last() -> None:
    """Ranks between have neither."""
    made = plan("meta-llama/Llama-3.1-8B", "h100", pipeline_parallel_size=4, max_model_len=4096)
    first, middle, _, last = (rank.term("weights").num_bytes for rank in made.ranks)
    table = 128256 * 4096 * 2
    assert first - middle == table and last - middle == table


def test_data_parallel_engines_share_the_experts_whole_or_in_parts() -> None:
    """The experts are split over all GPUs with and without expert parallelism; attention is copied."""
    flags: dict[str, Any] = {"max_model_len": 4096, "engine_version": "0.32.0"}
    whole, parts, four = (
        plan("deepseek-ai/DeepSeek-R1", "h200", **flags, **changes).binding.term("weights").num_bytes / GIB
        for changes in (
            {"data_parallel_size": 8, "enable_expert_parallel": True},
            {"data_parallel_size": 8},
            {"data_parallel_size": 4, "tensor_parallel_size": 2, "enable_expert_parallel": True},
        )
    )
    assert whole == parts
    assert 80 < four < whole < 97


def test_engines_that_share_experts_profile_the_tokens_of_all() -> None:
    """Qwen3 Coder 480B FP8 with eight engines of one H20 each: 0.10.1 had 48.66 GiB left at 0.9 and 55.65 at 0.95."""
    flags: dict[str, Any] = {
        "engine_version": "0.10.1",
        "data_parallel_size": 8,
        "enable_expert_parallel": True,
        "max_model_len": 262144,
    }
    for share, measured in ((0.9, 48.66), (0.95, 55.65)):
        made = plan("Qwen3-Coder-480B-A35B-Instruct-FP8", "h20-141gb", gpu_memory_utilization=share, **flags)
        assert made.available_kv_cache_bytes / GIB == pytest.approx(measured, rel=0.05)
        assert not made.fits and made.max_model_len_that_fits == pytest.approx(205728 * measured / 48.66, rel=0.05)


def test_latent_attention_was_cached_head_by_head_before_0_7_1() -> None:
    """A key and a value of 256 elements for every head, until the latent vector was cached instead."""
    flags: dict[str, Any] = {"tensor_parallel_size": 8, "max_model_len": 4096, "quantization": "fp8"}
    old, new = (
        plan("deepseek-ai/DeepSeek-V2", "h100", engine_version=version, **flags) for version in ("0.6.6", "0.7.1")
    )
    assert old.kv_bytes_per_token == 60 * 128 // 8 * 2 * 256 * 2
    assert new.kv_bytes_per_token == 60 * (512 + 64) * 2
    assert old.num_gpu_blocks < new.num_gpu_blocks / 4


@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [
        ("openai/gpt-oss-120b", "h200", 1),
        ("google/gemma-4-31B", "h100", 2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "h200", 2),
    ],
)
def test_a_hybrid_model_is_simulated_with_the_planned_concurrency(model: str, gpu: str, tp: int) -> None:
    """Several groups take blocks for the same tokens: the simulated pool has one group, and as many blocks as hold the
    same number of longest requests."""
    options = DeploymentOptions(
        model=model, gpu=gpu, tensor_parallel_size=tp, engine_version="0.22.0", max_model_len=32768
    )
    resolved = options.resolve()
    made, cache = resolved.plan, resolved.deployment.config.cache
    assert made is not None and cache.num_blocks < made.num_gpu_blocks
    per_request = -(-32768 // cache.block_size)
    assert cache.num_blocks / per_request == pytest.approx(made.max_concurrency, abs=1 / per_request)


def test_the_override_replaces_the_computed_blocks() -> None:
    """num_gpu_blocks_override is taken as it is."""
    assert study(num_gpu_blocks_override=777).num_gpu_blocks == 777


def test_the_null_block_is_held_back_at_start_from_0_32_on() -> None:
    """A pool that is exactly one request large starts before 0.32 and not since."""
    flags: dict[str, Any] = {"num_gpu_blocks_override": 128, "max_model_len": 2048}
    assert plan("Qwen/Qwen3-8B", "h100", engine_version="0.31.0", **flags).fits
    assert not plan("Qwen/Qwen3-8B", "h100", engine_version="0.32.0", **flags).fits


def test_a_range_surrounds_the_likely_tokens_and_a_guessed_card_widens_it() -> None:
    """A card known by its label only is said to be guessed."""
    known, guessed = plan("Qwen/Qwen3-8B", "l40s"), plan("Qwen/Qwen3-8B", "a30")
    for made in (known, guessed):
        assert made.kv_cache_tokens.low < made.kv_cache_tokens.likely < made.kv_cache_tokens.high
    assert any("guessed" in warning for warning in warnings(guessed))
    assert not any("guessed" in warning for warning in warnings(known))


def test_short_sequential_requests_use_next_to_nothing() -> None:
    """One request of 600 tokens at a time: well under 2 % of the pool, so a reading near zero is right."""
    assert plan("meta-llama/Llama-3.2-3B", "l4", engine_version="0.9.2", max_model_len=8192).usage_of(1, 600) < 0.02


def test_what_limits_next_depends_on_the_lengths() -> None:
    """Short requests run out of seats, long ones of blocks, long prompts with few outputs of budget."""
    made = plan("Qwen/Qwen3-8B", "h100", max_num_seqs=256, max_num_batched_tokens=2048)
    assert next_limit(made) == "kv_blocks"
    assert at_lengths(made, LengthStats(1, 64, 64, 128, 128)).limit == "max_num_seqs"
    assert at_lengths(made, LengthStats(1, 8000, 8000, 16000, 16000)).limit == "kv_blocks"
    assert at_lengths(made, LengthStats(1, 1000, 20, 1020, 1020)).limit == "max_num_batched_tokens"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"tensor_parallel_size": 3}, "does not divide"),
        ({"tensor_parallel_size": 0}, "at least 1"),
        ({"gpu_memory_utilization": 0.0}, "above 0"),
        ({"gpu_memory_utilization": 1.2}, "at most 1"),
        ({"gpu_memory_utilization": float("nan")}, "at most 1"),
        ({"max_model_len": 1_000_000}, "longer than"),
        ({"max_num_batched_tokens": 64, "max_num_seqs": 128}, "below max_num_seqs"),
        (
            {"enable_chunked_prefill": False, "max_num_batched_tokens": 512, "max_num_seqs": 8},
            "Without chunked prefill",
        ),
        ({"kv_cache_dtype": "int3"}, "not a known number format"),
        ({"quantization": "q9"}, "unknown"),
        ({"enable_expert_parallel": True}, "no experts"),
        ({"engine_version": "latest"}, "not a vLLM version"),
        ({"pipeline_parallel_size": 64}, "cannot be split"),
        ({"nnodes": 2}, "spread evenly over 2 nodes"),
    ],
)
def test_flags_that_cannot_be_or_go_together_are_refused(flags: dict[str, Any], message: str) -> None:
    """Each with a message that names the value."""
    with pytest.raises(ConfigError, match=message):
        plan("Qwen/Qwen3-8B", "h100", **flags)


def test_a_model_with_an_unknown_cache_is_not_planned() -> None:
    """Ratios that no release reads are unknown, not guessed."""
    config = {
        "num_hidden_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 100,
        "intermediate_size": 128,
        "compress_ratios": [4, 8, 16, 8],
        "max_position_embeddings": 4096,
    }
    model = architecture_from_config(config, model_id="m")
    assert not model.kv_is_known
    with pytest.raises(ConfigError, match="not modelled"):
        plan(model, find_accelerator("b200"))


def test_a_release_that_does_not_know_the_model_is_said() -> None:
    """By the registries of the releases."""
    early, late = (
        plan("Qwen/Qwen3.5-27B", "h100", engine_version=version, max_model_len=4096) for version in ("0.16.0", "0.17.0")
    )
    assert any("does not know Qwen3_5ForConditionalGeneration; 0.17.0 does" in text for text in warnings(early))
    assert not any("does not know" in text for text in warnings(late))


def test_a_planned_configuration_is_simulated_with_exactly_the_planned_blocks() -> None:
    """The simulator takes num_gpu_blocks from the plan, with the same defaults of the version."""
    flags: dict[str, Any] = {"tensor_parallel_size": 2, "quantization": "fp8", "engine_version": "0.20.0"}
    made = plan("llama-3.3-70b", "h100", max_model_len=8192, **flags)
    options = DeploymentOptions(model="llama-3.3-70b", gpu="h100", max_model_len=8192, **flags)
    config = options.resolve().deployment.config
    assert config.cache.num_blocks == made.num_gpu_blocks
    assert config.scheduler.max_num_seqs == made.resolved.defaults.max_num_seqs
    assert config.scheduler.max_num_batched_tokens == made.resolved.defaults.max_num_batched_tokens


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"engine_version": "0.99.0"}, "0.99.0 is newer than the newest release known, 0.33.0"),
        ({"block_size": 20}, "multiples of 16, not 20"),
    ],
)
def test_what_is_outside_of_what_was_read_is_said(flags: dict[str, Any], words: str) -> None:
    """A release newer than any that was read, and a block that no kernel takes."""
    assert words in " ".join(warnings(plan("qwen3-8b", "h100", **flags)))
    assert words not in " ".join(warnings(plan("qwen3-8b", "h100")))


def test_a_release_beyond_the_data_is_planned_as_the_nearest_and_said() -> None:
    """A user of a newer release still gets an answer, with one warning; of an older one its defaults are not known."""
    made, known = (plan("Qwen/Qwen3-8B", "h100", engine_version=release) for release in ("0.99.0", "0.33.0"))
    assert made.num_gpu_blocks == known.num_gpu_blocks and made.kv_cache_tokens == known.kv_cache_tokens
    assert len([text for text in warnings(made) if "newest release known, 0.33.0" in text]) == 1
    old = plan("Qwen/Qwen3-8B", "h100", engine_version="0.3.0")
    assert len([text for text in warnings(old) if "whose defaults are known, 0.5.5" in text]) == 1
    for release in ("0.5.5", "0.33.0"):
        assert "known, 0." not in " ".join(warnings(plan("Qwen/Qwen3-8B", "h100", engine_version=release)))
