"""GPUs that split each layer and gain nothing by it: measured, by physics, or said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.doctor.evidence import Evidence
from headway.doctor.fixes.candidates import candidates
from headway.doctor.gather import gather
from headway.doctor.rules import Findings, find_bottlenecks
from headway.doctor.rules.base import case_of
from headway.doctor.rules.healthy import no_effect_settings
from tests.doctor.building import samples


def _told(figures: Any, deployment: str = "vllm serve m -tp 4", gpu: str | None = None) -> tuple[Findings, list[Any]]:
    evidence = gather(deployment, observed=[json.dumps(figures)], gpu=gpu)
    findings = find_bottlenecks(evidence)
    return findings, [(fix.setting, fix.to_value) for fix in candidates(evidence, findings)]


@pytest.mark.parametrize(
    "figures",
    [
        {"tok_s": {"tp1": 1210, "tp2": 1235, "tp4": 1198}},
        {"tok_s": {"1 gpu": 1210, "2 gpus": 1235, "4 gpus": 1198}},
        {"single_gpu_tok_s": 29.0, "tp4_tok_s": 17.0},
        {"runs": [{"tensor_parallel_size": 1, "tok_s": 1200}, {"tensor_parallel_size": 4, "tok_s": 1180}]},
        {"runs": [{"tensor_parallel_size": 1.0, "tok_s": 1200}, {"tensor_parallel_size": 4.0, "tok_s": 1180}]},
        {"prefill_tok_s": {"without tp": 1045.8, "with tp": 378.9}},
    ],
)
def test_more_gpus_that_bring_nothing_are_given_back(figures: Any) -> None:
    findings, fixes = _told(figures)
    assert findings.first == "decode_compute_bound"
    assert fixes[0] == ("tensor_parallel_size", 1)


def test_more_gpus_that_pay_are_kept() -> None:
    findings, fixes = _told({"tok_s": {"tp1": 1000, "tp4": 2900}})
    assert not findings.has("decode_compute_bound")
    assert not fixes


def test_a_deployment_on_one_gpu_is_not_told_to_use_fewer() -> None:
    findings, fixes = _told({"tok_s": {"tp1": 45.0, "tp2": 31.0}}, "vllm serve m -tp 1")
    assert not findings.has("decode_compute_bound") and not fixes


def test_gpus_that_change_nothing_are_no_setting_to_leave_alone() -> None:
    evidence = gather("vllm serve m -tp 4", observed=[json.dumps({"tok_s": {"tp1": 1200, "tp4": 1190}})])
    assert "tensor_parallel_size" not in no_effect_settings(case_of(evidence))


def test_somebody_who_only_says_so_is_asked_for_a_run_on_fewer() -> None:
    findings, fixes = _told({"finding": "throughput is unchanged with more GPUs"})
    assert findings.first == "decode_compute_bound"
    assert findings.bottlenecks[0].confidence == "weak"
    assert fixes[0] == ("tensor_parallel_size", 2)
    assert "throughput with half the GPUs" in {item.figure for item in findings.missing}


def _pressed(deployment: str, gpu: str, waiting: float) -> Findings:
    gathered = gather(deployment, gpu=gpu)
    evidence = Evidence(
        effective=gathered.effective,
        plan=gathered.plan,
        facts=gathered.facts,
        samples=samples([20] * 8, [waiting * index for index in range(8)], 0.2, 100.0, 20_000.0),
    )
    return find_bottlenecks(evidence)


def test_prompts_that_wait_for_all_reduces_over_slow_links() -> None:
    found = _pressed("vllm serve llama-3.1-8b -tp 4 --max-model-len 8192", "l40s", 10).get("prefill_compute_bound")
    assert found is not None
    assert float(found.figures["all_reduce_share"]) >= 0.5
    assert float(found.figures["gain_of_replicas"]) > 1.5


@pytest.mark.parametrize(
    ("deployment", "gpu", "waiting"),
    [
        ("vllm serve llama-3.1-8b -tp 4 --max-model-len 8192", "l40s", 0),
        ("vllm serve llama-3.1-8b -tp 4 --max-model-len 8192", "h100", 10),
        ("vllm serve llama-3.3-70b -tp 8 --max-model-len 8192 --gpu-memory-utilization 0.5", "l40s", 10),
        ("vllm serve llama-3.1-8b --max-model-len 8192", "l40s", 10),
    ],
)
def test_without_pressure_over_fast_links_and_where_weights_need_them_gpus_are_left_alone(
    deployment: str, gpu: str, waiting: float
) -> None:
    findings = _pressed(deployment, gpu, waiting)
    assert not any("communication" in item.figures for item in findings.bottlenecks)
