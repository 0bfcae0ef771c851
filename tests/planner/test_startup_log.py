"""Start-up logs of V0, V1 and SGLang, and what they say."""

from __future__ import annotations

import re

import pytest

from headway.catalog import find_accelerator
from headway.planner import plan
from headway.planner.explain_log import compare_start_ups, compare_terms, explain
from headway.planner.startup_log import StartupLog, read_startup_logs

GIB = 2**30


def only(text: str) -> StartupLog:
    """The one start-up of a log."""
    (log,) = read_startup_logs(text)
    return log


def test_v0_blocks_against_one_request() -> None:
    """378 blocks of 16 are 6,048 tokens: 134 blocks short of one request of 8,192."""
    log = only(
        "INFO gpu_executor.py:84] # GPU blocks: 378, # CPU blocks: 1638\n"
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in "
        "KV cache (6048). Try increasing `gpu_memory_utilization`"
    )
    assert (log.tokens, log.fits, log.max_model_len_that_fits) == (6048, False, 6048)
    assert (log.blocks_needed, log.blocks_have) == (512, 378)
    text = " ".join(explain(log))
    assert "short by 134" in text and "max_model_len 6048" in text and "tensor_parallel_size" in text


def test_v0_terms() -> None:
    """0.6.5 and later print every term."""
    log = only(
        "INFO worker.py:267] the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization "
        "(0.99) = 23.35GiB\n"
        "INFO worker.py:267] model weights take 21.21GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak "
        "memory takes 0.37GiB; the rest of the memory reserved for KV Cache is 1.57GiB.\n"
        "INFO executor_base.py:111] # cuda blocks: 1200, # CPU blocks: 512"
    )
    sizes = (log.total_bytes, log.weights_bytes, log.non_torch_bytes, log.activation_peak_bytes, log.available_bytes)
    assert [round((size or 0) / GIB, 2) for size in sizes] == [23.58, 21.21, 0.20, 0.37, 1.57]
    assert (log.gpu_memory_utilization, log.num_gpu_blocks) == (0.99, 1200)


def test_two_v0_starts_in_one_log_are_told_apart() -> None:
    """0.6.4 prints the peak of weights and activations together."""
    start = (
        "INFO model_runner.py:1077] Loading model weights took 14.9888 GB\n"
        "INFO worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB "
        "peak_torch_memory={peak}GiB non_torch_memory=0.35GiB kv_cache_size={kv}GiB gpu_memory_utilization=0.90\n"
        "INFO gpu_executor.py:113] # GPU blocks: {blocks}, # CPU blocks: 2048\n"
        "INFO gpu_executor.py:117] Maximum concurrency for {length} tokens per request: {times}x\n"
    )
    text = start.format(peak=17.06, kv=3.81, blocks=1952, length=20000, times=1.56)
    first, second = read_startup_logs(text + start.format(peak=17.98, kv=2.89, blocks=1478, length=29000, times=0.82))
    assert (first.fits, second.fits) == (True, False)
    assert (second.activation_peak_bytes or 0) / GIB == pytest.approx(2.99, abs=0.01)
    assert second.bytes_per_token == pytest.approx(131072, rel=0.005)
    assert any("shrank by 0.92 GiB" in line for line in compare_start_ups(first, second))


def test_v1_lines() -> None:
    """What V1 prints, ranks and all; the smallest rank's memory counts."""
    log = only(
        "(EngineCore) INFO [core.py:58] Initializing a V1 LLM engine (v0.9.2) with config: model='Qwen/Qwen3-8B', "
        "speculative_config=None, dtype=torch.bfloat16, max_seq_len=40960, tensor_parallel_size=2, "
        "pipeline_parallel_size=1, quantization=None, enforce_eager=False, kv_cache_dtype=auto\n"
        "INFO [gpu_model_runner.py:1595] Model loading took 7.6500 GiB and 3.2 seconds\n"
        "(rank 0) INFO [gpu_worker.py:227] Available KV cache memory: 18.71 GiB\n"
        "(rank 1) INFO [gpu_worker.py:227] Available KV cache memory: 18.69 GiB\n"
        "INFO [kv_cache_utils.py:715] GPU KV cache size: 272,160 tokens\n"
        "INFO [kv_cache_utils.py:719] Maximum concurrency for 40,960 tokens per request: 6.64x\n"
        "INFO [gpu_model_runner.py:2048] Graph capturing finished in 20 secs, took 2.24 GiB"
    )
    assert (log.version, log.model, log.tensor_parallel_size, log.max_model_len) == ("0.9.2", "Qwen/Qwen3-8B", 2, 40960)
    assert log.quantization is None and log.kv_cache_dtype == "auto" and log.enforce_eager is False
    assert (log.available_bytes or 0) / GIB == pytest.approx(18.69)
    assert (log.kv_cache_tokens, log.max_concurrency, log.fits) == (272160, 6.64, True)
    assert (log.cuda_graph_bytes or 0) / GIB == pytest.approx(2.24)


def test_the_estimate_of_a_pipeline_rank_is_corrected_by_its_own_layers() -> None:
    """3.18 GiB hold 34,736 tokens of 48 layers, but the rank has 16 of them: about 104,200."""
    log = only(
        "ValueError: To serve at least one request with the models's max seq len (262144), (24.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (3.18 GiB). Based on the available memory, the "
        "estimated maximum model length is 34736."
    )
    cards = (find_accelerator("rtx-5070ti"), find_accelerator("rtx-5090"))
    planned = plan(
        "Qwen3-Coder-30B-A3B-Instruct-FP8",
        cards[0],
        engine_version="0.15.0",
        pipeline_parallel_size=2,
        pp_layer_partition=(16, 32),
        rank_accelerators=cards,
    )
    text = " ".join(explain(log, planned))
    assert "of rank 0" in text and "all 48 layers, of which it holds 16" in text
    match = re.search(r"max_model_len (\d+) just fits", text)
    assert match is not None and int(match[1]) == pytest.approx(104200, rel=0.005)
    assert "max_model_len 34734 just fits" in " ".join(explain(log))


def test_ten_mib_short_is_a_near_miss() -> None:
    """4.26 GiB needed, 4.25 there: less than a percent of the length."""
    log = only(
        "ValueError: To serve at least one request with the models's max seq len (100000), (4.26 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (4.25 GiB). Based on the "
        "available memory, the estimated "
        "maximum model length is 99700."
    )
    assert log.fits is False
    assert (log.shortfall_bytes or 0) / 2**20 == pytest.approx(10, abs=1)
    assert log.max_model_len_that_fits == pytest.approx(99700, rel=0.01)
    assert log.estimated_max_model_len == 99700


def test_an_fp8_cache_that_seems_ignored_is_applied_and_the_pool_has_shrunk() -> None:
    """Three ratios agree at 49 kB a token; what changed is the memory that was left."""
    working = StartupLog(max_model_len=100000, available_bytes=int(10.55 * GIB), kv_cache_tokens=230528)
    failing = StartupLog(
        max_model_len=221000, needed_bytes=int(10.12 * GIB), available_bytes=int(5.59 * GIB), error="max_model_len"
    )
    assert working.bytes_per_token == pytest.approx(49150, rel=0.01)
    assert failing.bytes_per_token == pytest.approx(49150, rel=0.01)
    text = " ".join(compare_start_ups(working, failing))
    assert "the same" in text and "shrank by 4.96 GiB" in text and "max_num_batched_tokens" in text


def test_two_engines_with_the_same_bytes_per_token_differ_by_their_budget() -> None:
    """vLLM's 178,880 tokens and SGLang's 367,404 on the same cards: 48 kB each, another share of the card."""
    vllm = only(
        "the current vLLM instance can use total_gpu_memory (79.18GiB) x gpu_memory_utilization (0.90) = 71.26GiB\n"
        "Available KV cache memory: 8.11 GiB\nGPU KV cache size: 178,880 tokens"
    )
    sglang = only("mem_fraction_static=0.93\nKV Cache is allocated. #tokens: 367404, K size: 8.23 GB, V size: 8.23 GB")
    assert sglang.engine == "sglang"
    for log in (vllm, sglang):
        assert log.bytes_per_token == pytest.approx(48128, rel=0.02)
    text = " ".join(compare_start_ups(vllm, sglang))
    assert "not the cause" in text and "sglang 0.93" in text


VLLM_START = (
    "INFO 02-10 10:00:00 worker.py:267] the current vLLM instance can use total_gpu_memory (79.18GiB) x "
    "gpu_memory_utilization ({share}) = 71.26GiB\n"
    "model weights take 62.00GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 1.00GiB; "
    "the rest of the memory reserved for KV Cache is {pool}GiB.\n"
    "# cuda blocks: {blocks}, # CPU blocks: 512\nMaximum concurrency for 8192 tokens per request: 21.8x\n"
)
SGLANG_START = (
    "[2025-02-10 11:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.93)\n"
    "[2025-02-10 11:00:09] KV Cache is allocated. #tokens: {tokens}, K size: {size} GB, V size: {size} GB\n"
    "[2025-02-10 11:00:20] max_total_num_tokens={tokens}, max_running_requests=2049\n"
)


def test_logs_pasted_one_after_the_other_are_told_apart() -> None:
    """Neither borrows a figure of the other, in either order."""
    vllm, sglang = VLLM_START.format(share=0.9, pool=8.11, blocks=11180), SGLANG_START.format(tokens=367404, size=8.23)
    for text, engines in ((vllm + sglang, ["vllm", "sglang"]), (sglang + vllm, ["sglang", "vllm"])):
        logs = {log.engine: log for log in read_startup_logs(text)}
        assert list(logs) == engines
        assert (logs["vllm"].tokens, logs["sglang"].tokens) == (178880, 367404)
        assert (logs["vllm"].gpu_memory_utilization, logs["sglang"].gpu_memory_utilization) == (0.9, 0.93)
        assert logs["sglang"].weights_bytes is None
    assert len(read_startup_logs(vllm * 3)) == 3
    assert len(read_startup_logs(sglang * 2)) == 2


def test_the_engines_of_a_data_parallel_start_are_one_start() -> None:
    """Engines that print the same lines later did not start again."""
    line = (
        "(EngineCore_DP{rank} pid=7) INFO [gpu_worker.py:227] Available KV cache memory: {pool} GiB\n"
        "(EngineCore_DP{rank} pid=7) INFO [kv_cache_utils.py:715] GPU KV cache size: 272,160 tokens\n"
        "(EngineCore_DP{rank} pid=7) INFO Maximum concurrency for 40,960 tokens per request: 6.64x\n"
    )
    log = only(line.format(rank=0, pool=18.71) + line.format(rank=1, pool=18.69))
    assert (log.available_bytes or 0) / GIB == pytest.approx(18.69)


@pytest.mark.parametrize(
    ("tokens", "size", "words"),
    [
        (220000, 5.04, "gpu_memory_utilization 0.93 gives vLLM as large a pool"),
        (367404, 8.23, "About 0.98 is the most"),
    ],
)
def test_parity_with_another_engine_is_a_utilisation_while_there_is_one(tokens: int, size: float, words: str) -> None:
    """The difference of the pools over the card is what the share must rise by."""
    text = VLLM_START.format(share=0.9, pool=8.11, blocks=11180) + SGLANG_START.format(tokens=tokens, size=size)
    assert words in " ".join(compare_start_ups(*read_startup_logs(text)))


def test_a_hybrid_block_is_used_to_count_what_a_request_needs() -> None:
    """302,921 tokens in blocks of 1,568: 262,144 need 168 of 193, and fit 1.16 times."""
    log = only(
        "Setting attention block size to 1568 tokens to ensure that attention page size is >= mamba page size\n"
        "GPU KV cache size: 302,921 tokens\nMaximum concurrency for 262,144 tokens per request: 1.16x"
    )
    assert log.fits
    assert (log.blocks_needed, log.blocks_have) == (168, 193)
    assert log.concurrency_at(262144) == pytest.approx(1.156, rel=0.02)
    assert (log.concurrency_at(262144) or 0) < 3


def test_no_memory_for_blocks_does_not_advise_what_is_exhausted() -> None:
    """At 0.95 the error's own advice is wrong."""
    log = only(
        "gpu_memory_utilization=0.95\nINFO Loading model weights took 26.4 GB\n"
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"
    )
    assert log.fits is False
    assert any("ceiling" in line for line in explain(log))


def test_a_log_beside_the_plan_explains_each_term() -> None:
    """The budget is said as a share of what torch sees."""
    log = only(
        "the current vLLM instance can use total_gpu_memory (79.18GiB) x gpu_memory_utilization (0.92) = 72.85GiB\n"
        "model weights take 67.70GiB; non_torch_memory takes 0.20GiB; PyTorch activation peak memory takes 0.37GiB; "
        "the rest of the memory reserved for KV Cache is 4.57GiB."
    )
    planned = plan("llama-3.3-70b", "h100", quantization="fp8", max_model_len=1024)
    terms = {term.name: term for term in compare_terms(log, planned)}
    assert terms["requested"].explanation == "0.92 of torch's 79.18 GiB"
    assert terms["weights"].logged == pytest.approx(terms["weights"].planned, rel=0.005)
    assert terms["all but weights"].logged == pytest.approx(0.58, abs=0.01)


@pytest.mark.parametrize("text", ["", "INFO hello", "Avg generation throughput: 5 tokens/s, GPU KV cache usage: 5.0%"])
def test_a_log_without_memory_gives_nothing(text: str) -> None:
    """Serving lines are not start-ups."""
    assert read_startup_logs(text) == []
