"""What layers ask for besides weights, counted, against kernels that others timed."""

from __future__ import annotations

import csv
import gzip

import pytest

from headway.catalog import find_accelerator, find_model
from headway.catalog.architecture import Attention, DenseFeedForward, ExpertFeedForward, Layer, StateSpace
from headway.executors.simulated.coefficients import fitted_coefficients
from headway.executors.simulated.layers import PLAIN, layer_traffic
from headway.executors.simulated.oracle import Chunk, StepShape
from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup
from headway.executors.simulated.work import linear_work
from tests.shared_data import shared_path

ATTENTION = Attention(32, 8, 128, 128)
DENSE = DenseFeedForward(14336)
EXPERTS = ExpertFeedForward(128, 8, 768)
TOKENS = 2048


def _table(name: str) -> list[dict[str, str]]:
    path = shared_path(f"kernel/llmservingsim__{name}.csv.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class TestCounts:
    """By hand, and in proportion."""

    def test_a_plain_layer_has_eleven_kernels(self) -> None:
        """Norm, projection, rotation, cache, attention in two, output; norm, up, activation, down."""
        assert layer_traffic(Layer(ATTENTION, DENSE), 4096, 1).num_kernels == PLAIN == 11

    def test_activations_of_llama_8b_by_hand(self) -> None:
        """In and out of four products; eight widths for norms, three inner ones for the activation."""
        found = layer_traffic(Layer(ATTENTION, DENSE), 4096, 1)
        assert found.products == (4096 + 6144) + (4096 + 4096) + (4096 + 28672) + (14336 + 4096)
        assert found.passes == 8 * 4096 + 2 * 5120 + 2 * 2048 + 2 * 4096 + 3 * 14336

    def test_experts_launch_more_and_move_more(self) -> None:
        """Router, top k, sorting and the sum of eight come on top of three kernels."""
        plain, mixture = (layer_traffic(Layer(ATTENTION, ffn), 2048, 1) for ffn in (DENSE, EXPERTS))
        assert 1.5 < mixture.num_kernels / plain.num_kernels < 2.0
        assert mixture.experts == 8 * (2048 + 3 * 768 + 2048) and plain.experts == 0.0

    def test_a_shared_expert_is_a_dense_part_beside(self) -> None:
        """It is computed for every row."""
        alone, shared = (
            layer_traffic(Layer(None, ExpertFeedForward(128, 8, 768, shared_intermediate_size=size)), 2048, 1)
            for size in (0, 768)
        )
        assert shared.products == alone.products + 2 * 2048 + 3 * 768 and shared.experts == alone.experts

    def test_tensor_parallelism_splits_what_is_between_products_but_not_norms(self) -> None:
        """Each GPU normalises whole rows."""
        state = StateSpace("gated_delta", 16, 32, 128, 128, 4)
        for mixer in (ATTENTION, state):
            one, four = (layer_traffic(Layer(mixer, DENSE), 4096, tp) for tp in (1, 4))
            assert four.passes - 8 * 4096 == pytest.approx((one.passes - 8 * 4096) / 4)
            assert four.num_kernels == one.num_kernels


class TestMixtures:
    """Experts: which are read, and how full their tiles are."""

    def test_few_rows_of_an_expert_leave_its_tile_half_empty(self) -> None:
        """One row reaches 8 experts, each with 16 empty rows; many rows fill them."""
        work = linear_work(find_model("qwen3-30b-a3b"), None, 1)
        assert work.expert_rows(1) == pytest.approx(1 + 16)
        assert work.expert_rows(8192) / 8192 == pytest.approx(1 + 16 * 128 / 8 / 8192, rel=1e-6)

    def test_a_dense_model_has_none(self) -> None:
        """Nor any time for them."""
        work = linear_work(find_model("llama-3.1-8b"), None, 1)
        assert work.expert_rows(64) == work.experts_for(64) == work.expert_row_bytes == 0.0

    def test_prompts_of_a_mixture_cost_more_than_its_weights(self) -> None:
        """On a card with little bandwidth a chunk four times as long takes longer, although all experts are read for
        either."""
        model, card = find_model("qwen3.5-35b-a3b"), find_accelerator("gb10")
        oracle = RooflineOracle(RooflineSetup(model, card, quantization="fp8"))
        short, long = (oracle.step_time(StepShape((Chunk(tokens, 8192),), 4, 4, 1024, 4)) for tokens in (512, 2048))
        assert long.device_s > 1.5 * short.device_s

    def test_the_error_bar_is_that_of_mixtures(self) -> None:
        """They are predicted less well than dense models."""
        card, residuals = find_accelerator("h200"), fitted_coefficients().residuals
        for name, key in (("llama-3.1-8b", "tpot"), ("qwen3-30b-a3b", "tpot_experts")):
            bar = RooflineOracle(RooflineSetup(find_model(name), card)).error_bar()
            assert bar is not None and bar.relative == residuals[key]
        assert residuals["tpot_experts"] > residuals["tpot"]


class TestTimedKernels:
    """LLMServingSim's tables: real vLLM 0.19 layers on real cards."""

    @pytest.mark.parametrize(
        ("table", "model", "gpu"),
        [
            ("RTX4090__meta-llama__Llama-3.1-8B__bf16__tp1__dense", "llama-3.1-8b", "rtx-4090"),
            ("RTXPRO6000__meta-llama__Llama-3.1-8B__bf16__tp1__dense", "llama-3.1-8b", "rtx-pro-6000"),
            ("RTXPRO6000__Qwen__Qwen3-32B__bf16__tp1__dense", "qwen3-32b", "rtx-pro-6000"),
        ],
    )
    def test_what_lies_between_products_is_bound_by_memory(self, table: str, model: str, gpu: str) -> None:
        """Two norms, the rotation and the activation of 2,048 rows take 0.65 to 1.05 of their bytes over the bandwidth:
        part of what a norm reads is still in the card's cache."""
        timed = {row["layer"]: float(row["time_us"]) * 1e-6 for row in _table(table) if int(row["tokens"]) == TOKENS}
        found, card = find_model(model), find_accelerator(gpu)
        mixer, ffn = found.layers[0].mixer, found.layers[0].ffn
        assert isinstance(mixer, Attention) and isinstance(ffn, DenseFeedForward) and card.bandwidth_gbps
        passes = layer_traffic(found.layers[0], found.hidden_size, 1).passes
        # The tables have no rows for the cache, nor for what attention reads and writes.
        passes -= 2 * mixer.kv_elements_per_token() + 2 * mixer.num_heads * mixer.head_dim
        counted_s = 2 * TOKENS * passes / (card.bandwidth_gbps * 1e9)
        measured_s = 2 * timed["layernorm"] + timed["rotary_emb"] + timed["act_fn"]
        assert 0.65 < measured_s / counted_s < 1.05

    def test_experts_of_a_few_rows_take_as_long_as_their_weights(self) -> None:
        """All 128 experts of Qwen3 30B A3B, 128 tokens: 849 µs a layer on an RTX PRO 6000."""
        rows = _table("RTXPRO6000__Qwen__Qwen3-30B-A3B-Instruct-2507__bf16__tp1__moe")
        timed = {(int(row["tokens"]), int(row["activated_experts"])): float(row["time_us"]) * 1e-6 for row in rows}
        oracle = RooflineOracle(RooflineSetup(find_model("qwen3-30b-a3b"), find_accelerator("rtx-pro-6000")))
        limits, fitted = oracle.row_limits(128, 128, 128), oracle.coefficients
        assert limits.expert_memory_s / fitted.memory / 48 == pytest.approx(timed[128, 128], rel=0.1)
