"""One setting changed at a time: the direction and shape that users have measured, on any model and card."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from headway.errors import ConfigError
from headway.report.summary import Summary
from headway.simulation.options import DeploymentOptions
from headway.simulation.run import simulate
from headway.simulation.workload_options import WorkloadOptions

LLAMA: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "a100", "max_model_len": 8192}
CHAT: dict[str, Any] = {"num_prompts": 160, "concurrency": 64, "prompt_tokens": "512", "output_tokens": "128"}


def sweep(setting: str, values: Sequence[Any], load: dict[str, Any], **deployment: Any) -> list[Summary]:
    """A simulation for each value of one setting of the deployment."""
    workload, _ = WorkloadOptions(**load).open()
    return [
        simulate(DeploymentOptions(**(LLAMA | deployment | {setting: value})).resolve().deployment, workload).summary
        for value in values
    ]


def column(summaries: Sequence[Summary], key: str) -> list[float]:
    """One figure of each."""
    return [float(summary[key] or 0.0) for summary in summaries]


def rises(values: Sequence[float], by: float = 1.0) -> bool:
    """Each is larger than the one before by more than that factor."""
    return all(after > by * before for before, after in itertools.pairwise(values))


class TestSeats:
    """max_num_seqs."""

    def test_seats_trade_waiting_for_steps(self) -> None:
        found = sweep("max_num_seqs", (4, 16, 64), CHAT)
        assert rises(column(found, "output_throughput"), 1.5)
        assert rises(column(found, "mean_tpot_ms"))
        assert rises(column(found, "mean_ttft_ms")[::-1], 1.5)

    def test_more_seats_than_clients_change_nothing(self) -> None:
        few, many = sweep("max_num_seqs", (64, 256), CHAT)
        assert many["output_throughput"] == pytest.approx(few["output_throughput"], rel=0.02)


class TestBudget:
    """max_num_batched_tokens: vLLM's manual has smaller ones for gaps between tokens, larger ones for first tokens."""

    LOAD: ClassVar[dict[str, Any]] = {
        "num_prompts": 120,
        "request_rate": 2.5,
        "prompt_tokens": "2000-6000",
        "output_tokens": "150",
    }

    def test_gaps_grow_with_the_budget(self) -> None:
        found = sweep("max_num_batched_tokens", (512, 2048, 8192), self.LOAD)
        assert rises(column(found, "p99_itl_ms"), 1.5)

    def test_a_tiny_budget_makes_prompts_wait(self) -> None:
        small, usual = sweep("max_num_batched_tokens", (256, 2048), self.LOAD)
        assert (small["mean_ttft_ms"] or 0) > 1.2 * (usual["mean_ttft_ms"] or 0)

    def test_a_budget_takes_memory_from_the_cache(self) -> None:
        """Activations of a step are planned for; on a full card that costs seats."""
        plain = DeploymentOptions(model="llama-3.3-70b", gpu="h100", quantization="fp8", max_model_len=4096)
        options = [replace(plain, max_num_batched_tokens=budget) for budget in (2048, 8192)]
        blocks = [given.resolve().deployment.config.cache.num_blocks for given in options]
        assert blocks[0] > 1.5 * blocks[1]

    def test_fewer_scheduled_tokens_cost_no_memory(self) -> None:
        """max_num_scheduled_tokens cuts steps as a budget of that size does, and leaves the plan alone."""
        plain = DeploymentOptions(**LLAMA, max_num_batched_tokens=8192)
        options = (
            plain,
            replace(plain, max_num_scheduled_tokens=1024),
            replace(plain, max_num_batched_tokens=1024),
        )
        configs = [given.resolve().deployment.config for given in options]
        assert [config.scheduler.max_num_batched_tokens for config in configs] == [8192, 1024, 1024]
        assert configs[0].cache == configs[1].cache != configs[2].cache

    def test_a_threshold_lets_short_prompts_past_long_ones(self) -> None:
        """Prompts of 30k beside chats: no long one may take the step from the short ones."""
        workload, _ = WorkloadOptions(num_prompts=100, clients="8x200/100,2x30000/20").open()
        waits = []
        for threshold in (0, 1024):
            options = DeploymentOptions(
                model="llama-3.1-8b",
                gpu="a100",
                max_model_len=32_768,
                max_num_batched_tokens=2048,
                long_prefill_token_threshold=threshold,
                enable_prefix_caching=False,
            )
            groups = simulate(options.resolve().deployment, workload).groups
            waits.append([groups[name]["mean_ttft_ms"] or 0.0 for name in ("8x200/100", "2x30000/20")])
        (short, long), (short_then, long_then) = waits
        assert short_then < 0.7 * short and long_then > long


class TestConcurrency:
    """Clients in a closed loop."""

    def test_throughput_saturates_and_gaps_grow(self) -> None:
        found = [sweep("max_num_seqs", (256,), CHAT | {"concurrency": n, "num_prompts": 3 * n})[0] for n in (1, 8, 64)]
        rates, gaps = column(found, "output_throughput"), column(found, "mean_tpot_ms")
        assert 5.0 < rates[1] / rates[0] < 8.0 and rates[1] < rates[2] < 8 * rates[1]
        assert rises(gaps)

    def test_a_single_client_is_bound_by_weights(self) -> None:
        """A100 with 40 GB, Llama 3.1 8B in 16 bits: about 75 tokens a second measured, 77 % of the bandwidth."""
        (found,) = sweep("gpu", ("a100-40gb",), CHAT | {"concurrency": 1, "num_prompts": 4}, engine_version="0.23.0")
        assert 1e3 / (found["mean_tpot_ms"] or 1.0) == pytest.approx(75.0, rel=0.15)


class TestParallelism:
    """Tensor, pipeline and data parallelism."""

    def test_more_gpus_a_replica_answer_sooner_but_not_in_proportion(self) -> None:
        load = CHAT | {"concurrency": 8, "num_prompts": 24}
        found = sweep("tensor_parallel_size", (1, 2, 4, 8), load, gpu="h100")
        assert rises(column(found, "mean_tpot_ms")[::-1]) and rises(column(found, "mean_ttft_ms")[::-1])
        rates = column(found, "output_throughput")
        assert rises(rates) and rises([rate / gpus for rate, gpus in zip(rates, (1, 2, 4, 8), strict=True)][::-1])

    def test_replicas_of_a_small_model_do_more_together_than_a_split_one(self) -> None:
        load = CHAT | {"concurrency": 256, "num_prompts": 768}
        (split,) = sweep("tensor_parallel_size", (2,), load, gpu="h100")
        (copies,) = sweep("data_parallel_size", (2,), load, gpu="h100")
        assert (copies["output_throughput"] or 0) > 1.05 * (split["output_throughput"] or 0)

    def test_a_split_model_answers_a_single_client_sooner(self) -> None:
        load = CHAT | {"concurrency": 1, "num_prompts": 4}
        (split,) = sweep("tensor_parallel_size", (2,), load, gpu="h100")
        (copies,) = sweep("data_parallel_size", (2,), load, gpu="h100")
        assert (split["mean_tpot_ms"] or 0) < 0.8 * (copies["mean_tpot_ms"] or 0)

    def test_a_pipeline_answers_a_single_client_no_sooner(self) -> None:
        """A token needs the one before it, through all stages; working ahead saves the host's time alone."""
        load = CHAT | {"concurrency": 1, "num_prompts": 4}
        (single,) = sweep("async_scheduling", (True,), load)
        waits, ahead = sweep("async_scheduling", (False, True), load, pipeline_parallel_size=2)
        assert ahead["mean_tpot_ms"] == pytest.approx(single["mean_tpot_ms"], rel=0.02)
        assert 1.01 < (waits["mean_tpot_ms"] or 0) / (ahead["mean_tpot_ms"] or 1) < 1.5

    @pytest.mark.parametrize(("version", "works_ahead"), [("0.14.0", False), ("0.15.0", True), ("0.11.0", False)])
    def test_pipelines_work_ahead_since_0_15(self, version: str, works_ahead: bool) -> None:
        options = DeploymentOptions(**LLAMA, pipeline_parallel_size=2, engine_version=version)
        deployment = options.resolve().deployment
        assert deployment.prepares_ahead is works_ahead
        assert not deployment.config.scheduler.async_scheduling and deployment.depth == 2
        if not works_ahead:
            with pytest.raises(ConfigError, match="over a pipeline"):
                replace(options, async_scheduling=True).resolve()


class TestPrefixCache:
    """enable_prefix_caching."""

    SHARED: ClassVar[dict[str, Any]] = {
        "num_prompts": 120,
        "request_rate": 3.0,
        "prompt_tokens": "100",
        "output_tokens": "60",
        "shared_prefix_tokens": 4000,
        "shared_prefix_groups": 4,
    }

    def test_a_shared_beginning_is_computed_once(self) -> None:
        off, on = sweep("enable_prefix_caching", (False, True), self.SHARED)
        assert (on["mean_ttft_ms"] or 0) < 0.3 * (off["mean_ttft_ms"] or 0)
        assert on["prefix_cache_hits"] == pytest.approx(116 * 4000, rel=0.02)

    def test_prompts_of_their_own_gain_nothing(self) -> None:
        off, on = sweep("enable_prefix_caching", (False, True), CHAT)
        assert on["mean_e2el_ms"] == pytest.approx(off["mean_e2el_ms"], rel=0.02)

    def test_a_conversation_costs_its_new_part(self) -> None:
        load = {"num_prompts": 96, "concurrency": 8, "turns": 8, "prompt_tokens": "300", "output_tokens": "100"}
        off, on = sweep("enable_prefix_caching", (False, True), load)
        assert (on["mean_ttft_ms"] or 0) < 0.6 * (off["mean_ttft_ms"] or 0)
        assert (on["prefix_cache_hits"] or 0) > 0.75 * (on["total_input_tokens"] or 0)

    def test_a_block_size_hardly_matters(self) -> None:
        found = sweep("block_size", (16, 32, 128), self.SHARED)
        assert column(found, "mean_e2el_ms") == pytest.approx([found[0]["mean_e2el_ms"]] * 3, rel=0.05)


class TestCache:
    """The size of the KV cache, and its numbers."""

    TIGHT: ClassVar[dict[str, Any]] = {
        "num_prompts": 120,
        "concurrency": 60,
        "prompt_tokens": "1000",
        "output_tokens": "500",
    }

    def test_half_the_bytes_hold_twice_the_requests(self) -> None:
        wide, narrow = sweep("kv_cache_dtype", ("auto", "fp8"), self.TIGHT, gpu="rtx-4090")
        assert (narrow["mean_num_running"] or 0) > 1.4 * (wide["mean_num_running"] or 0)
        assert (narrow["output_throughput"] or 0) > 1.15 * (wide["output_throughput"] or 0)
        assert (narrow["mean_ttft_ms"] or 0) < (wide["mean_ttft_ms"] or 0)

    def test_where_there_is_room_they_bring_little(self) -> None:
        """vLLM issue 42058: Qwen3 8B on an A100, eight clients: 0 to 5 % of the decode rate at 1k to 16k tokens."""
        load = CHAT | {"concurrency": 8, "num_prompts": 16, "prompt_tokens": "4096"}
        wide, narrow = sweep("kv_cache_dtype", ("auto", "fp8"), load, model="qwen3-8b", max_model_len=16384)
        assert 1.0 <= (wide["mean_tpot_ms"] or 0) / (narrow["mean_tpot_ms"] or 1) < 1.15

    def test_more_memory_preempts_less(self) -> None:
        load = self.TIGHT | {"output_tokens": "1000"}
        found = sweep("gpu_memory_utilization", (0.8, 0.95), load, gpu="rtx-4090")
        assert (found[0]["num_preemptions"] or 0) > (found[1]["num_preemptions"] or 0)
        assert (found[0]["output_throughput"] or 0) < (found[1]["output_throughput"] or 0)

    def test_a_longer_limit_alone_changes_nothing(self) -> None:
        short, long = sweep("max_model_len", (4096, 32768), CHAT, gpu="h100")
        assert long["output_throughput"] == pytest.approx(short["output_throughput"], rel=0.02)


class TestModels:
    """Mixtures, formats, and what the host does."""

    def test_a_mixture_slows_down_sooner_than_a_dense_model(self) -> None:
        """A few requests reach most experts, while a dense model reads the same weights for all."""
        slower = []
        for model in ("qwen3-30b-a3b", "qwen3-32b"):
            found = [
                sweep("max_num_seqs", (64,), CHAT | {"concurrency": n, "num_prompts": 2 * n}, model=model, gpu="h200")[
                    0
                ]
                for n in (1, 16)
            ]
            one, many = column(found, "mean_tpot_ms")
            slower.append(many / one)
        assert slower[0] > 1.5 * slower[1]

    def test_narrow_weights_help_a_single_client_most(self) -> None:
        """Four-bit weights that are widened before the product save bytes, not operations."""
        gains = []
        for clients in (1, 256):
            load = CHAT | {"concurrency": clients, "num_prompts": max(4, 2 * clients)}
            wide, narrow = column(sweep("quantization", (None, "awq"), load), "mean_tpot_ms")
            gains.append(wide / narrow)
        assert gains[0] > 1.7 and 0.8 < gains[1] < 0.8 * gains[0]

    def test_small_models_suffer_most_without_graphs(self) -> None:
        load = CHAT | {"concurrency": 1, "num_prompts": 4}
        losses = []
        for model in ("qwen2.5-0.5b", "llama-3.1-8b"):
            graphs, eager = column(sweep("enforce_eager", (False, True), load, model=model, gpu="h100"), "mean_tpot_ms")
            losses.append(eager / graphs)
        assert losses[0] > 1.5 * losses[1] and losses[1] > 1.0

    def test_asynchronous_scheduling_hides_the_host(self) -> None:
        waits, hides = sweep("async_scheduling", (False, True), CHAT, model="llama-3.2-1b", gpu="h100")
        assert (hides["mean_tpot_ms"] or 0) < 0.85 * (waits["mean_tpot_ms"] or 0)


class TestLoad:
    """What clients do."""

    def test_bursts_wait(self) -> None:
        found = []
        for burstiness in (0.2, 1.0, float("inf")):
            load = {"num_prompts": 300, "request_rate": 3.0, "burstiness": burstiness, "output_tokens": "128"}
            found += sweep("max_num_seqs", (32,), load, gpu="l40s")
        assert rises(column(found, "p99_ttft_ms")[::-1])

    def test_chunks_bring_a_few_percent(self) -> None:
        """L40S, Llama 3.1 8B, vLLM 0.24, 4,096/128, 16 clients: 203 tok/s whole, 214 in chunks."""
        load = {"num_prompts": 80, "concurrency": 16, "prompt_tokens": "4096", "output_tokens": "128"}
        whole, cut = sweep("enable_chunked_prefill", (False, True), load, gpu="l40s", engine_version="0.24.0")
        assert 1.0 < (cut["output_throughput"] or 0) / (whole["output_throughput"] or 1) < 1.2

    @pytest.mark.parametrize("method", ["ngram", "eagle3"])
    def test_drafts_that_are_never_accepted_only_cost(self, method: str) -> None:
        config = json.dumps({"method": method, "num_speculative_tokens": 3})
        load = CHAT | {"num_prompts": 64}
        (plain,) = sweep("max_num_seqs", (64,), load)
        (drafts,) = sweep("speculative_config", (config,), load, acceptance_rate=0.0, max_num_seqs=64)
        assert (drafts["output_throughput"] or 0) < (plain["output_throughput"] or 0)
