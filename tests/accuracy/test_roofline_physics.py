"""The roofline against arithmetic done by hand, and against what physics forbids."""

from __future__ import annotations

import pytest

from headway.catalog import find_accelerator, find_model
from headway.errors import ConfigError
from headway.executors.simulated.coefficients import RooflineCoefficients, fitted_coefficients, read_coefficients
from headway.executors.simulated.oracle import Chunk, StepShape, decode_shape
from headway.executors.simulated.roofline import RooflineOracle, RooflineSetup
from headway.executors.simulated.work import linear_work, narrow_ratio, wide_flops

IDEAL = RooflineCoefficients(
    memory=1.0,
    kv_memory=1.0,
    compute=1.0,
    narrow_gain=1.0,
    experts=1.0,
    network=1.0,
    all_reduce_s=0.0,
    layer_s=0.0,
    eager_layer_s=0.0,
    host_s=0.0,
    host_v0_s=0.0,
    host_request_s=0.0,
)


def oracle(model: str, gpu: str, coefficients: RooflineCoefficients | None = None, **setup: object) -> RooflineOracle:
    """An oracle by names."""
    return RooflineOracle(RooflineSetup(find_model(model), find_accelerator(gpu), **setup), coefficients)  # type: ignore[arg-type]


class TestDecode:
    """Steps of one token a sequence are bound by memory."""

    def test_a_70b_fp8_step_on_one_h100_takes_at_least_20_8_ms(self) -> None:
        """67.7 to 70.6 GB over 3.35 TB/s: no P99 of 15 ms on one H100, whatever the scheduler does."""
        floor = oracle("llama-3.3-70b", "h100", quantization="fp8").floor_s(1, 1)
        assert 20.6e-3 < floor < 21.6e-3

    def test_no_prediction_beats_the_floor(self) -> None:
        """For any batch and context, with the fitted coefficients."""
        for tp in (1, 2, 4):
            priced = oracle("llama-3.3-70b", "h100", quantization="fp8", tensor_parallel_size=tp)
            for num, context in ((1, 100), (16, 16000), (128, 512000)):
                assert priced.step_time(decode_shape(num, context)).device_s > priced.floor_s(num, context)

    def test_the_kv_of_grouped_queries_is_read_once_a_head_group(self) -> None:
        """Llama 3.1 8B: 32 layers × 2 × 8 heads × 128 × 2 bytes = 128 KiB a token."""
        priced = oracle("llama-3.1-8b", "a100", IDEAL)
        price = priced.decode_pricer(4)
        assert price(5000) - price(4000) == pytest.approx(1000 * 131072 / 2.039e12, rel=1e-9)

    def test_fp8_kv_is_half(self) -> None:
        """Number format of the cache."""
        wide, narrow = (oracle("llama-3.1-8b", "a100", IDEAL, kv_cache_dtype=kind) for kind in ("auto", "fp8"))
        assert narrow.kv_limit_s(4, 4000) == pytest.approx(wide.kv_limit_s(4, 4000) / 2)

    def test_a_window_bounds_what_is_read(self) -> None:
        """Half of gpt-oss's layers forget all but 128 tokens."""
        priced = oracle("openai/gpt-oss-20b", "h100", IDEAL)
        near, far = priced.kv_limit_s(1, 1128) - priced.kv_limit_s(1, 128), priced.kv_limit_s(1, 128)
        assert near == pytest.approx(far / 2 * 1000 / 128, rel=1e-6)

    def test_more_rows_reach_more_experts(self) -> None:
        """One row of Qwen3 30B A3B reads 8 of 128 experts; 512 rows nearly all."""
        work = linear_work(find_model("qwen3-30b-a3b"), None, 1)
        assert work.bytes_for(1) == pytest.approx(work.weight_bytes + work.expert_bytes / 16)
        assert work.bytes_for(512) == pytest.approx(work.weight_bytes + work.expert_bytes, rel=1e-9)

    def test_latent_attention_keeps_one_vector_whatever_the_heads(self) -> None:
        """DeepSeek: 512 + 64 numbers a token and layer, the same on each GPU."""
        one, eight = (oracle("deepseek-ai/DeepSeek-R1", "h200", IDEAL, tensor_parallel_size=tp) for tp in (1, 8))
        assert one.kv_limit_s(1, 1000) == pytest.approx(1000 * 61 * 576 * 2 / 4.8e12)
        assert one.kv_limit_s(1, 1000) == pytest.approx(eight.kv_limit_s(1, 1000))

    def test_a_batch_is_padded_to_the_next_graph(self) -> None:
        """17 rows cost what 24 do, since 24 are executed."""
        padded = oracle("llama-3.1-8b", "a100", graph_sizes=(8, 16, 24))
        assert padded.row_limits(17, 17, 17)[:2] == padded.row_limits(24, 17, 17)[:2]
        assert padded.row_limits(25, 17, 17).dense_compute_s > padded.row_limits(24, 17, 17).dense_compute_s


class TestPrefill:
    """Prompts are bound by arithmetic."""

    def test_a_long_prompt_costs_two_operations_a_weight_and_token(self) -> None:
        """2,048 tokens of Llama 3.1 8B on an A100 at its peak: 7.0e9 weights × 2 × 2,048 / 312e12, and attention."""
        priced = oracle("llama-3.1-8b", "a100", IDEAL)
        rows = priced.row_limits(2048, 1, 0)
        assert rows.linear_compute_s == pytest.approx(2048 * 2 * 6.98e9 / 312e12, rel=2e-3)
        compute, memory = next(iter(priced.chunk_limits(Chunk(2048, 0))))
        assert memory == 0.0
        assert compute == pytest.approx(2048 * 1024.5 * 4 * 32 * 32 * 128 / 312e12, rel=1e-6)

    def test_32k_tokens_of_70b_fp8_take_seconds_on_one_h100(self) -> None:
        """At the peak 2.3 s for the products alone: 800 ms is not possible on one H100."""
        ideal = oracle("llama-3.3-70b", "h100", IDEAL, quantization="fp8")
        shape = StepShape((Chunk(32768, 0),), 0, 0, 0, 1)
        assert 2.2 < ideal.step_time(shape).device_s < 4.0
        fitted = oracle("llama-3.3-70b", "h100", quantization="fp8")
        assert fitted.step_time(shape).device_s > 3.0

    def test_chunks_of_one_prompt_add_up_to_its_attention(self) -> None:
        """Cutting a prompt changes what is read, not the pairs of positions."""
        priced = oracle("llama-3.1-8b", "a100", IDEAL)
        whole = sum(compute for compute, _ in priced.chunk_limits(Chunk(4096, 0)))
        parts = sum(compute for past in range(0, 4096, 512) for compute, _ in priced.chunk_limits(Chunk(512, past)))
        assert parts == pytest.approx(whole, rel=1e-3)


class TestNumberFormats:
    """What is multiplied narrow gains arithmetic; what is only stored narrow does not."""

    @pytest.mark.parametrize(
        ("gpu", "quantization", "ratio"),
        [
            ("h100", None, 1.0),
            ("h100", "fp8", 1979 / 989),
            ("a100", "fp8", 1.0),
            ("h100", "awq", 1.0),
            ("b200", "nvfp4", 4.0),
            ("h100", "nvfp4", 1.0),
            ("a100", "int8", 2.0),
        ],
    )
    def test_ratio_of_peaks(self, gpu: str, quantization: str | None, ratio: float) -> None:
        """A card without the format multiplies in 16 bits."""
        assert narrow_ratio(find_accelerator(gpu), find_model("llama-3.1-8b"), quantization) == pytest.approx(ratio)

    @pytest.mark.parametrize(("quantization", "share"), [("fp8", 0.5), ("int8", 0.5), ("awq", 0.26), ("nvfp4", 0.28)])
    def test_bytes_of_weights(self, quantization: str, share: float) -> None:
        """Scales included; the head stays wide."""
        model = find_model("llama-3.1-8b")
        wide, narrow = linear_work(model, None, 1), linear_work(model, quantization, 1)
        assert narrow.weight_bytes / wide.weight_bytes == pytest.approx(share, abs=0.01)
        assert narrow.head_bytes == wide.head_bytes

    def test_unknown_arithmetic_is_taken_from_cards_of_the_architecture(self) -> None:
        """The catalogue has the bandwidth of an RTX 5070 Ti, not its peak."""
        card = find_accelerator("rtx-5070-ti")
        assert card.flops("bf16") is None
        assert 50e12 < wide_flops(card) < 300e12


class TestParallel:
    """Tensor and pipeline parallelism."""

    def test_tensor_parallel_splits_bytes_and_adds_all_reduces(self) -> None:
        """Two a layer."""
        one, two = (oracle("llama-3.1-70b", "h100", tensor_parallel_size=tp) for tp in (1, 2))
        halves = [priced.row_limits(1, 1, 1).linear_memory_s for priced in (one, two)]
        assert halves[1] == pytest.approx(halves[0] / 2, rel=1e-4)
        assert (one.num_all_reduces, two.num_all_reduces) == (0, 160)
        assert two.row_limits(1, 1, 1).network_s == pytest.approx(160 * 2 * 8192 / 450e9)

    def test_a_group_larger_than_the_link_goes_over_pcie(self) -> None:
        """An L40S has no NVLink: 32 GB/s."""
        assert oracle("llama-3.1-70b", "l40s", tensor_parallel_size=4).row_limits(1, 1, 1).network_s == pytest.approx(
            160 * 2 * 8192 * 1.5 / 32e9
        )

    def test_a_pipeline_step_is_all_of_the_stages(self) -> None:
        """Stages follow one another; only hand-overs are added."""
        one, two = (oracle("llama-3.1-70b", "h100", pipeline_parallel_size=pp) for pp in (1, 2))
        step = decode_shape(8, 8000)
        assert 0 < two.step_time(step).device_s - one.step_time(step).device_s < 1e-3


class TestHost:
    """What is not the device."""

    def test_engine_age_matters(self) -> None:
        """The engine before V1 took several milliseconds of host a step: 1.3 to 1.6 times the step of an 8B."""
        old, new = (oracle("llama-3.1-8b", "h100", engine_version=version) for version in ("0.7.3", "0.12.0"))
        step = decode_shape(1, 500)
        times = [sum(priced.step_time(step)[:2]) for priced in (old, new)]
        assert 1.3 < times[0] / times[1] < 1.8

    def test_eager_steps_wait_for_launches(self) -> None:
        """A small batch without CUDA graphs takes as long as the host needs for its layers."""
        eager, graphs = (oracle("llama-3.1-8b", "a100", enforce_eager=flag) for flag in (True, False))
        step = decode_shape(1, 500)
        fitted = eager.coefficients
        host_s = fitted.host_s + fitted.host_request_s
        assert eager.step_time(step).device_s == pytest.approx(32 * fitted.eager_layer_s + host_s)
        assert eager.step_time(step).host_s == 0.0
        assert eager.step_time(step).device_s > 1.5 * graphs.step_time(step).device_s
        names = {part.name for part in eager.explain(step)}
        assert "launches" in names


def test_parts_add_up() -> None:
    """`explain` is the price, term by term."""
    priced = oracle("llama-3.1-70b", "h100", tensor_parallel_size=2, quantization="fp8")
    shape = StepShape((Chunk(512, 1024), Chunk(100, 0)), 32, 32, 40000, 33)
    time = priced.step_time(shape)
    assert sum(part.seconds for part in priced.explain(shape)) == pytest.approx(time.device_s + time.host_s)


def test_the_catalogue_s_coefficients_are_a_dozen_and_have_a_source() -> None:
    """None belongs to a model, card or source; the error bar is the residual on sources left out."""
    fitted = fitted_coefficients()
    assert len(RooflineCoefficients.__dataclass_fields__) <= 12
    assert "bench/fit_roofline.py" in fitted.source
    bar = oracle("llama-3.1-8b", "h100").error_bar()
    assert bar is not None and bar.relative == fitted.residuals["tpot"]


def test_wrong_coefficients_are_named() -> None:
    """Missing and unknown names, and values that cannot be."""
    values = {name: getattr(IDEAL, name) for name in RooflineCoefficients.__dataclass_fields__}
    with pytest.raises(ConfigError, match="memory"):
        read_coefficients({key: value for key, value in values.items() if key != "memory"})
    with pytest.raises(ConfigError, match="at least 0"):
        read_coefficients(values | {"layer_s": -1.0})
    with pytest.raises(ConfigError, match="above 0"):
        read_coefficients(values | {"network": 0.0})
