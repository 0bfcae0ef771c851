"""Evidence at the edge of what it can tell: rare prompts in a histogram, samples a fraction of a second apart."""

from __future__ import annotations

import pytest

from headway.doctor.evidence import Evidence
from headway.doctor.figures import figures_of
from headway.evidence.engine import EngineTotals, Histogram
from tests.doctor.building import first, flags, judged, samples

INFINITE = float("inf")


@pytest.mark.parametrize(
    ("counts", "total", "expected"),
    [
        ((5.0, 9.0, 9.0), 9.0, 10.0),
        ((9.0, 9.0, 9.0), 9.0, 0.0),
        ((0.0, 0.0, 1.0), 1.0, 100.0),
        ((0.0, 0.0, 0.0), 2.0, 1000.0),
        ((0.0, 0.0, 0.0), 0.0, None),
        ((2.0, 3.0, 3.0), None, 10.0),
    ],
)
def test_the_largest_observation_is_at_least_its_buckets_lower_bound(
    counts: tuple[float, ...], total: float | None, expected: float | None
) -> None:
    assert Histogram((10.0, 100.0, 1000.0), counts, total).largest_at_least == expected


def test_a_bound_of_infinity_tells_no_size() -> None:
    assert Histogram((10.0, INFINITE), (3.0, 4.0), 4.0).largest_at_least == 10.0
    assert Histogram((INFINITE,), (4.0,), 5.0).largest_at_least == 0.0


def test_one_long_prompt_in_a_thousand_is_seen() -> None:
    """Below the P99, and still what the others stand behind."""
    prompts = Histogram((500.0, 50_000.0, 100_000.0), (999.0, 999.0, 1000.0), 1000.0, 400_000.0)
    load = figures_of(Evidence(totals=EngineTotals(60.0, histograms={"prompt_tokens": prompts}))).load
    assert load.longest_prompt_tokens == 50_000.0


def test_two_seconds_without_a_token_are_a_step_and_twenty_are_a_stall() -> None:
    deployment = flags("vllm serve meta-llama/Llama-3.1-8B --max-num-batched-tokens 8192")
    counts, rates = [6.0] * 12, [200.0] * 3 + [0.0] * 6 + [200.0] * 3
    quick, slow = (samples(counts, 0.0, 0.2, rates, 0.0, interval_s=interval_s) for interval_s in (0.25, 10.0))
    assert first(effective=deployment, samples=quick) != "engine_stall_other"
    assert first(effective=deployment, samples=slow) == "engine_stall_other"


@pytest.mark.parametrize(("flag", "given"), [("num-gpu-blocks-override", 500), ("kv-cache-memory-bytes", 2**30)])
def test_a_pool_sized_by_hand_is_enlarged_where_it_is_sized(flag: str, given: int) -> None:
    """gpu_memory_utilization has no say there."""
    deployment = flags(f"vllm serve meta-llama/Llama-3.1-8B --gpu-memory-utilization 0.6 --{flag} {given}")
    seen = samples([40.0] * 6, 20.0, 0.99, 800.0, 100.0, preemptions=[0.0, 4.0, 8.0, 12.0, 16.0, 20.0])
    findings, fixes = judged(effective=deployment, samples=seen)
    assert findings.first == "kv_starvation"
    sizes = [fix for fix in fixes if fix.setting in (flag.replace("-", "_"), "gpu_memory_utilization")]
    assert [(fix.setting, fix.from_value, fix.to_value) for fix in sizes] == [
        (flag.replace("-", "_"), given, 2 * given)
    ]


def test_without_physics_the_histogram_and_the_prompt_rate_show_a_chunk_that_is_too_large() -> None:
    """A device that no catalogue knows: one gap in ten is as long as the budget takes at the rate that was seen."""
    gaps = Histogram((0.1, 0.2, 1.0, 2.5), (0.0, 63.0, 63.0, 70.0), 70.0, 16.0)
    deployment = flags("vllm serve local/model --max-num-batched-tokens 460", gpu=None)
    rates = [23.0, 23.0, 11.0, 0.0, 0.0, 0.0, 46.0, 35.0, 23.0]
    prompts = [180.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1720.0, 0.0, 0.0]
    seen = samples([3.0, 3.0, 5.0, 5.0, 5.0, 5.0, 5.0, 3.0, 3.0], 0.0, 0.1, rates, prompts, interval_s=0.26)

    def kinds(histogram: Histogram) -> list[str]:
        totals = EngineTotals(2.0, histograms={"itl_s": histogram})
        findings, _ = judged(effective=deployment, samples=seen, totals=totals)
        return [item.kind for item in findings.bottlenecks if item.confidence != "weak"]

    assert kinds(gaps) == ["chunk_missized"]
    smooth = Histogram((0.1, 0.2, 1.0, 2.5), (0.0, 70.0, 70.0, 70.0), 70.0, 8.0)
    assert "chunk_missized" not in kinds(smooth)


def test_blocks_taken_sample_by_sample_are_a_long_prompt_and_no_stall() -> None:
    """Engines count a prompt when it is done; its chunks take blocks before."""
    deployment = flags("vllm serve meta-llama/Llama-3.1-8B")
    rates = [0.0, 0.0, 0.0, 0.0, 20.0, 20.0]
    growing = samples([1.0] * 6, 0.0, [0.2, 0.35, 0.5, 0.65, 0.7, 0.7], rates, [0.0, 0.0, 0.0, 0.0, 9000.0, 0.0])
    still = samples([1.0] * 6, 0.0, 0.2, rates, 0.0)
    kinds = [
        [item.kind for item in judged(effective=deployment, samples=seen)[0].bottlenecks] for seen in (growing, still)
    ]
    assert "engine_stall_other" not in kinds[0] and kinds[1][0] == "engine_stall_other"
