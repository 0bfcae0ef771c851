"""The device, the client, speculation and overload, from the evidence that proves it."""

from __future__ import annotations

from typing import Any

import pytest

from headway.doctor.evidence import Evidence, Objective
from headway.doctor.figures import figures_of
from headway.doctor.fixes.candidates import must_not
from headway.doctor.fixes.release_check import refusal
from headway.doctor.rules import find_bottlenecks
from headway.evidence.engine import EngineEvent, EngineSample, EngineTotals, Histogram
from headway.evidence.load import LoadResult
from tests.doctor.building import bottleneck, first, flags, judged, samples

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"

# ---------------------------------------------------------------- device, client, speculation


def test_speculation_that_is_slower_than_none() -> None:
    found, fixes = judged(
        samples=(
            *samples([1], 0, 0.002, 128.3, 1357.9, source="log part 1"),
            *samples([1], 0, 0.001, 342.2, 967.2, source="log part 2"),
        ),
        events=(EngineEvent("spec_decode", 0.0, 2, "drafts", {"acceptance_rate": 0.966}, source="log part 1"),),
    )
    assert found.first == "spec_decode_overhead"
    assert (fixes[0].setting, fixes[0].to_value) == ("speculative_config", None)


def table(values: dict[tuple[bool, bool], float]) -> tuple[LoadResult, ...]:
    """Milliseconds a token with and without (speculation, eager execution)."""
    return tuple(
        LoadResult(
            f"spec={spec} eager={eager}",
            measured={"mean_tpot_ms": value},
            settings={"speculative_config": {"method": "mtp"} if spec else None, "enforce_eager": eager},
        )
        for (spec, eager), value in values.items()
    )


def test_knobs_of_a_measured_table_are_ranked_by_their_effect() -> None:
    runs = table({(True, True): 113.2, (True, False): 108.8, (False, True): 90.3, (False, False): 87.2})
    found, fixes = judged(
        effective=flags("org/Some-27B-NVFP4 --enforce-eager --speculative-config.method mtp", gpu="GB10"), loads=runs
    )
    assert [fix.setting for fix in fixes[:2]] == ["speculative_config", "enforce_eager"]
    assert found.first == "hbm_bound"
    assert fixes[0].predicted[0].after < fixes[0].predicted[0].before


def test_knobs_that_changed_nothing_are_named() -> None:
    before = {"gpu_memory_utilization": 0.8, "max_num_seqs": None}
    after = {"gpu_memory_utilization": 0.85, "max_num_seqs": 16}
    runs = [
        LoadResult("", concurrency=count, mean_prompt_tokens=512, measured={"output_throughput": rate}, settings=chosen)
        for chosen, rates in ((before, {1: 44.59, 2: 66.13, 4: 78.5}), (after, {1: 44.04, 2: 67.82, 4: 82.55}))
        for count, rate in rates.items()
    ]
    found, fixes = judged(loads=tuple(runs))
    assert found.first == "none" and not fixes
    assert found.bottlenecks[0].figures["parallel_efficiency_c4"] == pytest.approx(0.44, abs=0.03)


def test_fewer_requests_in_the_engine_than_the_client_says() -> None:
    found = bottleneck(
        "client_bound",
        samples=samples([4, 5, 4, 4, 5, 4], 0, 0.02, 300.0, 800.0),
        loads=(LoadResult("bench", concurrency=64, measured={"output_throughput": 300.0}),),
    )
    assert found.confidence == "strong"


def test_under_a_hundred_tokens_a_second_on_an_h100_the_client_is_looked_at_first() -> None:
    load = LoadResult("bench", concurrency=16, measured={"output_throughput": 80.0})
    found = bottleneck("client_bound", effective=flags(LLAMA), loads=(load,))
    assert "client first" in " ".join(found.evidence)


def test_a_lightly_loaded_h100_is_not_blamed_on_its_clients() -> None:
    """Few tokens because few are asked for: nobody measured a throughput, nobody complains."""
    assert first(effective=flags(LLAMA), samples=samples([1, 0, 1, 1, 0, 1], 0, 0.01, 40.0, 300.0)) == "none"


def test_a_single_stream_of_a_large_model_is_not_blamed_on_the_client() -> None:
    load = LoadResult("bench", concurrency=1, measured={"output_throughput": 36.0, "mean_tpot_ms": 27.0})
    found, _ = judged(
        effective=flags("meta-llama/Llama-3.3-70B-Instruct --quantization fp8 --max-model-len 8192"), loads=(load,)
    )
    assert not found.has("client_bound")


def test_a_missed_bound_at_the_bandwidth_floor_is_hbm_bound() -> None:
    load = LoadResult(
        "bench", concurrency=1, mean_prompt_tokens=1000, mean_output_tokens=200,
        measured={"mean_tpot_ms": 24.0, "p99_itl_ms": 26.0, "median_itl_ms": 24.0, "output_throughput": 41.0},
    )  # fmt: skip
    found, fixes = judged(
        effective=flags(LLAMA, gpu="l40s"), loads=(load,), objective=Objective({"mean_tpot_ms": 15.0})
    )
    assert found.first == "hbm_bound"
    assert fixes[0].setting == "quantization"


def test_more_is_offered_than_the_device_can_serve() -> None:
    """Physics says that a larger batch gives little more: no flag helps."""
    tokens = Histogram((1000.0,), (600.0,), 600.0, 120_000.0)
    prompts = Histogram((8000.0,), (600.0,), 600.0, 600 * 3000.0)
    totals = EngineTotals(
        duration_s=100.0,
        finished={"stop": 600.0},
        histograms={"generation_tokens": tokens, "prompt_tokens": prompts},
    )
    load = LoadResult("bench", requests_per_s=18.0)
    found, fixes = judged(
        effective=flags(f"{LLAMA} --max-num-seqs 256"),
        samples=samples([256] * 6, [100, 340, 580, 820, 1060, 1300], 0.8, 1200.0, 18000.0, interval_s=20.0),
        totals=totals,
        loads=(load,),
    )
    offered = found.get("offered_load_too_high")
    assert offered is not None and offered.figures["replicas_needed"] == 4
    assert offered.figures["min_replicas"] == 3 and offered.figures["backlog_growth_per_s"] == pytest.approx(12.0)
    assert any(fix.setting == "replicas" and fix.to_value == 4 for fix in fixes)


def test_eager_execution_of_a_small_model_waits_for_launches() -> None:
    found, fixes = judged(
        effective=flags("Qwen/Qwen2-0.5B --enforce-eager"), samples=samples([2] * 6, 0, 0.01, 100.0, 200.0)
    )
    assert found.first == "cpu_launch_bound"
    assert (fixes[0].setting, fixes[0].to_value) == ("enforce_eager", False)


def test_a_plan_that_does_not_fit_is_hbm_bound_with_the_planners_fixes() -> None:
    from headway.planner import plan

    planned = plan("llama-3.3-70b", "h100", max_model_len=8192)
    found, fixes = judged(plan=planned)
    assert found.first == "hbm_bound"
    assert fixes and fixes[0].setting in {"quantization", "tensor_parallel_size"}


def test_engines_of_one_server_are_judged_one_by_one() -> None:
    """One replica starves; the mean over both would look healthy."""
    series: tuple[EngineSample, ...] = (
        *samples([250] * 5, 80, 0.4, 3000.0, 900.0, engine="0"),
        *samples([20] * 5, 0, 0.05, 600.0, 900.0, engine="1"),
    )
    assert first(effective=flags(f"{LLAMA} --max-num-seqs 250"), samples=series) == "waiting_queue_stall"


def test_figures_that_cannot_be_become_unknown() -> None:
    """NaN, negative and absurd values neither crash a rule nor count."""
    nan, inf = float("nan"), float("inf")
    series = samples(
        [nan, -3, 20, inf], [nan, 4, -1, 2], [nan, 7.0, 0.3, -1.0], [nan, inf, 500.0, -1.0], [0, 1, nan, 2]
    )
    figures = figures_of(Evidence(samples=series))
    assert figures.series[0].values("num_running") == (20,)
    assert figures.series[0].values("kv_usage") == (0.3,)


def test_a_counter_that_restarts_counts_from_zero() -> None:
    figures = figures_of(Evidence(samples=samples([9] * 4, 0, 0.5, 100.0, 0.0, preemptions=[10, 12, 1, 4])))
    assert figures.preemptions is not None and figures.preemptions.count == 6


def test_every_finding_says_what_would_refute_it() -> None:
    found = find_bottlenecks(Evidence(samples=samples([256] * 3, 99, 0.2, 700.0, 0.0)))
    assert all(item.evidence and item.refuted_by for item in found.bottlenecks)


def test_a_refused_change_comes_with_the_datas_own_words() -> None:
    """Only what the change adds counts: the pipeline alone is fine, drafts beside it are not, up to 0.15.0."""
    effective = flags(f"{LLAMA} --pipeline-parallel-size 2", version="0.15.0")
    against = refusal(effective, "speculative_config", {"method": "ngram", "num_speculative_tokens": 3})
    assert against is not None and "unsupported" in against.reason
    assert refusal(effective, "max_num_seqs", 64) is None
    assert refusal(flags(f"{LLAMA} --pipeline-parallel-size 2", version="0.18.0"), "max_num_seqs", 64) is None


def test_duty_cycle_is_named_as_no_reason_to_scale_wherever_more_gpus_are() -> None:
    parts: dict[str, Any] = {
        "effective": flags(f"{LLAMA} --max-num-seqs 256"),
        "samples": samples([20] * 6, [100, 120, 140, 165, 190, 215], 0.3, 30.0, 31000.0),
    }
    found, fixes = judged(**parts)
    assert any(fix.setting == "replicas" for fix in fixes)
    assert "GPU duty cycle" in {item.setting for item in must_not(Evidence(**parts), found)}
