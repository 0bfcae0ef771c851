"""The plan: terms, defaults, slopes, pipeline ranks, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from headway.catalog import find_accelerator, find_model
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
        "0.8.5": "fitted: kernels, CUDA context, collectives",
        "0.9.2": "fitted: kernels, collectives",
        "0.11.0": "fitted: kernels, all-reduce workspaces",
    }


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


def test_experts_spread_over_all_ranks_with_expert_parallelism() -> None:
    """DP attention copies the rest: eight times fewer experts, the same attention."""
    flags: dict[str, Any] = {"max_model_len": 4096, "data_parallel_size": 8, "engine_version": "0.32.0"}
    spread = plan("deepseek-ai/DeepSeek-R1", "h200", enable_expert_parallel=True, **flags)
    copied = plan("deepseek-ai/DeepSeek-R1", "h200", **flags)
    assert spread.binding.term("weights").num_bytes < 0.2 * copied.binding.term("weights").num_bytes


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
    ],
)
def test_flags_that_cannot_be_or_go_together_are_refused(flags: dict[str, Any], message: str) -> None:
    """Each with a message that names the value."""
    with pytest.raises(ConfigError, match=message):
        plan("Qwen/Qwen3-8B", "h100", **flags)


def test_a_model_with_an_unknown_cache_is_not_planned() -> None:
    """Compressed caches are unknown, not guessed."""
    with pytest.raises(ConfigError, match=r"not modelled|mixes"):
        plan(find_model("sgl-project/DeepSeek-V4-Flash-FP8"), find_accelerator("b200"), max_model_len=4096)


def test_a_planned_configuration_is_simulated_with_exactly_the_planned_blocks() -> None:
    """The simulator takes num_gpu_blocks from the plan, with the same defaults of the version."""
    flags: dict[str, Any] = {"tensor_parallel_size": 2, "quantization": "fp8", "engine_version": "0.20.0"}
    made = plan("llama-3.3-70b", "h100", max_model_len=8192, **flags)
    options = DeploymentOptions(model="llama-3.3-70b", gpu="h100", max_model_len=8192, **flags)
    config = options.resolve().deployment.config
    assert config.cache.num_blocks == made.num_gpu_blocks
    assert config.scheduler.max_num_seqs == made.resolved.defaults.max_num_seqs
    assert config.scheduler.max_num_batched_tokens == made.resolved.defaults.max_num_batched_tokens
