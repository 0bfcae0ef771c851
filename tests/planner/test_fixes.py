"""What to change when it does not fit, on problems that people had."""

from __future__ import annotations

from typing import Any

import pytest

from headway.catalog import find_accelerator
from headway.planner import Plan, make_plan, plan
from headway.planner.advice import warnings
from headway.planner.deployment import Deployment
from headway.planner.fixes import HARM_ORDER, Fix, find_fixes, find_gains

GIB = 2**30


def fixes_of(made: Plan) -> dict[str, Fix]:
    """Fixes by setting."""
    return {fix.setting: fix for fix in find_fixes(made)[0]}


def reasons_of(made: Plan) -> dict[str, str]:
    """Why a knob cannot help, by setting."""
    return {item.setting: item.reason for item in find_fixes(made)[1]}


def without(made: Plan, **changes: Any) -> Plan:
    """The same deployment with other flags."""
    fields = {name: getattr(made.deployment, name) for name in Deployment.__dataclass_fields__}
    return make_plan(Deployment(**{**fields, **changes}))


def test_every_fix_makes_it_fit_and_its_break_even_is_the_last_value_that_does() -> None:
    """One step beyond the break-even value of a counting knob no longer fits."""
    made = plan("Qwen/Qwen2.5-7B", "3090", engine_version="0.8.1", max_model_len=32768, gpu_memory_utilization=0.9)
    assert not made.fits
    found = fixes_of(made)
    assert list(found) == sorted(found, key=HARM_ORDER.index)
    assert [fix.order for fix in found.values()] == list(range(1, len(found) + 1))
    for setting in ("max_num_seqs", "max_model_len"):
        fix = found[setting]
        assert without(made, **{setting: fix.value}).fits and without(made, **{setting: fix.break_even}).fits
        assert not without(made, **{setting: fix.break_even + 1}).fits
    share = found["gpu_memory_utilization"]
    assert without(made, gpu_memory_utilization=share.value).fits
    assert not without(made, gpu_memory_utilization=share.break_even - 0.002).fits
    for setting in ("kv_cache_dtype", "quantization", "tensor_parallel_size"):
        assert without(made, **{setting: found[setting].value}).fits
    assert without(made, accelerator=find_accelerator(found["accelerator"].value)).fits


def test_unset_seats_on_early_v1_are_the_first_thing_to_lower_after_an_upgrade() -> None:
    """0.8.0 raised the default from 256 to 1024 seats, and sampling for them all broke start-ups on small cards."""
    made = plan("Qwen/Qwen2.5-7B", "3090", engine_version="0.8.0", max_model_len=32768, gpu_memory_utilization=0.8)
    assert not made.fits and made.resolved.defaults.max_num_seqs == 1024
    first = find_fixes(made)[0][0]
    assert first.setting == "max_num_seqs" and first.value <= 256
    assert plan(
        "Qwen/Qwen2.5-7B",
        "3090",
        engine_version="0.7.3",
        max_model_len=32768,
        gpu_memory_utilization=0.8,
        enable_chunked_prefill=True,
        max_num_batched_tokens=2048,
    ).fits


@pytest.mark.parametrize(
    ("length", "blocks", "concurrency", "fits"), [(20000, 1952, 1.56, True), (29000, 1478, 0.82, False)]
)
def test_v0_profiles_a_whole_prompt_so_kv_memory_shrinks_with_max_model_len(
    length: int, blocks: int, concurrency: float, fits: bool
) -> None:
    """Llama 3.1 8B on a 3090, measured: the pool loses 0.9 GiB between 20,000 and 29,000 tokens."""
    made = plan("meta-llama/Llama-3.1-8B-Instruct", "3090", engine_version="0.6.4", max_model_len=length)
    assert made.kv_bytes_per_token == 131072
    assert made.fits is fits
    assert made.num_gpu_blocks == pytest.approx(blocks, rel=0.07)
    assert made.max_concurrency == pytest.approx(concurrency, rel=0.07)


def test_v0_fits_longer_lengths_again_once_chunked_prefill_turns_itself_on() -> None:
    """29,000 does not fit, 35,000 and 45,000 do: not monotone. Chunked prefill is the first thing to try. (The log's
    peak of 0.06 GiB above the weights at 35,000 is that of few seats; 256 would take 1.2 GiB to sample.)"""
    flags: dict[str, Any] = {"engine_version": "0.6.4", "max_num_seqs": 8}
    fits = {
        length: plan("meta-llama/Llama-3.1-8B-Instruct", "3090", max_model_len=length, **flags).fits
        for length in (20000, 29000, 35000, 45000)
    }
    assert fits == {20000: True, 29000: False, 35000: True, 45000: True}
    made = plan("meta-llama/Llama-3.1-8B-Instruct", "3090", max_model_len=29000, **flags)
    assert find_fixes(made)[0][0].setting == "enable_chunked_prefill"


def test_a_utilization_at_its_ceiling_is_not_offered_again() -> None:
    """A 14B model in 16 bits on a 32 GB card at 0.95: the error says to raise what is exhausted."""
    made = plan("Qwen1.5-14B-Chat", "v100-32gb", gpu_memory_utilization=0.95, engine_version="0.3.0")
    assert not made.fits
    assert "already at 0.95" in reasons_of(made)["gpu_memory_utilization"]
    assert {"max_model_len", "quantization", "tensor_parallel_size"} & set(fixes_of(made))


def test_what_another_term_hides_cannot_help() -> None:
    """Where sampling sets the peak, a smaller token budget changes nothing; graphs cannot help before 0.20."""
    made = plan("Qwen/Qwen2.5-7B", "3090", engine_version="0.8.1", max_model_len=32768, gpu_memory_utilization=0.8)
    reasons = reasons_of(made)
    assert "another term" in reasons["max_num_batched_tokens"]
    assert "does not take CUDA graphs" in reasons["enforce_eager"]


def test_what_is_short_counts_what_weights_lack_already() -> None:
    """Weights beyond the card: the pool's own deficit and one request together, for every change that is no help."""
    made = plan("llama-3.3-70b", "l40s")
    request = made.blocks_per_request * made.binding.layout.block_bytes
    assert made.available_kv_cache_bytes < 0
    assert request <= made.shortfall_bytes + made.available_kv_cache_bytes <= request + made.binding.layout.block_bytes
    smaller = without(made, kv_cache_dtype="fp8")
    assert f"{smaller.shortfall_bytes / GIB:.2f} GiB short" in reasons_of(made)["kv_cache_dtype"]
    assert made.shortfall_bytes - smaller.shortfall_bytes < 0.6 * request


def test_what_is_short_of_a_given_number_of_blocks_is_counted_in_blocks() -> None:
    """The memory that the number leaves unused does not hold the request."""
    made = plan("Qwen/Qwen3-8B", "h100", max_model_len=4096, num_gpu_blocks_override=100)
    lacking = made.shortfall_bytes / made.binding.layout.block_bytes
    assert not made.fits and lacking - (made.blocks_per_request - 100) in (0, 1)


def test_a_near_miss_gets_the_smallest_change() -> None:
    """A few MiB short: a thousandth of utilization, or a fraction of a percent of the length."""
    base = plan("Qwen/Qwen3-8B", "l40s", engine_version="0.15.0", max_model_len=4096, gpu_memory_utilization=0.45)
    length = base.max_model_len_that_fits + 64
    made = without(base, max_model_len=length)
    assert not made.fits and made.shortfall_bytes < 16 * 2**20
    found = fixes_of(made)
    assert found["gpu_memory_utilization"].break_even <= 0.452
    assert found["max_model_len"].break_even >= 0.99 * length


def test_a_huge_token_budget_is_lowered_first() -> None:
    """With chunked prefill a 64k budget only costs activations: nothing is lost by lowering it."""
    made = plan(
        "Qwen/Qwen3-8B",
        "3090",
        engine_version="0.15.0",
        max_model_len=32768,
        max_num_batched_tokens=65536,
        max_num_seqs=8,
    )
    assert not made.fits
    first = find_fixes(made)[0][0]
    assert first.setting == "max_num_batched_tokens" and first.value < 32768


def test_long_contexts_on_a_full_card_hold_one_request_and_an_fp8_cache_doubles_it() -> None:
    """QwQ 32B FP8 on one L40 at 32,000 tokens: about one request whatever max_num_seqs says."""
    made = plan(
        "QwQ-32B-FP8-Dynamic",
        "l40",
        engine_version="0.7.3",
        max_model_len=32000,
        max_num_seqs=20,
        gpu_memory_utilization=0.95,
        enable_chunked_prefill=True,
    )
    assert made.kv_bytes_per_token == 262144
    assert 0.8 <= made.max_concurrency <= 1.4
    changes = find_gains(made) if made.fits else find_fixes(made)[0]
    assert changes[0].setting in ("kv_cache_dtype", "quantization", "max_model_len")


def test_a_length_that_starts_but_is_never_scheduled_is_flagged() -> None:
    """0.19 admits by the whole sequence and sizes sliding windows as if nothing came back: Gemma 4 31B on two H100
    logged 76,640 tokens, and longer requests hung. 0.20 fixed the count. The vision tower's activations are not
    planned, so the likely value lies above and the range goes further down."""
    flags: dict[str, Any] = {"tensor_parallel_size": 2, "max_model_len": 262144}
    made = plan("google/gemma-4-31B", "h100", engine_version="0.19.1", **flags)
    assert made.fits
    assert made.kv_cache_tokens.low <= 76640 <= made.kv_cache_tokens.likely
    assert made.kv_cache_tokens.likely == pytest.approx(76640, rel=0.15)
    assert made.longest_admissible is not None and made.longest_admissible < 100_000
    assert any("--max-model-len" in warning for warning in warnings(made))
    assert plan("google/gemma-4-31B", "h100", engine_version="0.20.2", **flags).longest_admissible is None


def test_a_fitting_plan_has_no_fixes_but_gains() -> None:
    """Each gain gives at least a twentieth more tokens."""
    made = plan("Qwen/Qwen3-8B", "l40s")
    assert find_fixes(made) == ((), ())
    gains = find_gains(made)
    assert gains and all(gain.kv_cache_tokens >= 1.05 * made.kv_cache_tokens.likely for gain in gains)
