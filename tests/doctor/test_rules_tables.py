"""Measured tables in the forms that people write: which setting they speak of, and under which load it counts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headway.doctor.fixes.candidates import candidates
from headway.doctor.gather import gather
from headway.doctor.rules import Findings, find_bottlenecks

_MTP = """vllm serve m --speculative-config '{"method":"mtp","num_speculative_tokens":3}'"""


def _told(
    figures: Any, deployment: str | None = None, gpu: str | None = None
) -> tuple[Findings, list[tuple[str, Any]]]:
    evidence = gather(deployment, observed=[json.dumps(figures)], gpu=gpu)
    findings = find_bottlenecks(evidence)
    return findings, [(fix.setting, fix.to_value) for fix in candidates(evidence, findings)]


def test_drafts_are_judged_under_the_most_load_of_a_table() -> None:
    rates = {"mtp": {"c1": 22.1, "c4": 26.4}, "none": {"c1": 11.1, "c4": 34.1}}
    findings, fixes = _told({"tok_s": rates}, _MTP)
    assert findings.first == "spec_decode_overhead" and fixes == [("speculative_config", None)]
    rates["mtp"]["c4"] = 50.0
    findings, fixes = _told({"tok_s": rates}, _MTP)
    assert not findings.has("spec_decode_overhead") and ("speculative_config", None) not in fixes


@pytest.mark.parametrize(
    ("labels", "deployment", "expected"),
    [
        (("caching off", "caching on"), "vllm serve m --no-enable-prefix-caching", ("enable_prefix_caching", True)),
        (("prefix caching ENABLED", "prefix caching DISABLED"), "vllm serve m", ("enable_prefix_caching", False)),
        (("--enforce-eager", "cudagraph FULL_DECODE_ONLY"), "vllm serve m --enforce-eager", ("enforce_eager", False)),
    ],
)
def test_the_faster_of_two_labelled_runs_is_advised(
    labels: tuple[str, str], deployment: str, expected: tuple[str, bool]
) -> None:
    slow, fast = labels
    assert _told({slow: {"tok_s": 46.5}, fast: {"tok_s": 81.8}}, deployment)[1][0] == expected
    assert _told({fast: {"tok_s": 46.5}, slow: {"tok_s": 81.8}}, deployment)[1] != [expected]


def test_the_time_to_first_token_tells_where_nothing_is_told_of_decoding() -> None:
    rows = [
        {"long_prefill_token_threshold": 0, "short_ttft_s": 18.0},
        {"long_prefill_token_threshold": 2048, "short_ttft_s": 1.1},
    ]
    assert _told(rows, "vllm serve m")[1] == [("long_prefill_token_threshold", 2048)]
    prompts = [
        {"max_num_batched_tokens": budget, "prefill_tok_s": rate} for budget, rate in ((2048, 1584), (8192, 2300))
    ]
    assert _told(prompts, "vllm serve m --max-num-batched-tokens 2048")[1] == [("max_num_batched_tokens", 8192)]


def test_rising_rates_at_which_tokens_no_longer_rise_are_too_much() -> None:
    """640 tokens a request; at most 1,900 tokens/s."""
    runs = [
        {"request_rate": rate, "p99_ttft_ms": ttft, "output_tok_s": tokens}
        for rate, ttft, tokens in ((1, 130, 640), (2, 1800, 1270), (3, 61000, 1901), (4, 118000, 1850))
    ]
    findings, fixes = _told({"runs": runs})
    assert findings.first == "offered_load_too_high"
    assert float(findings.bottlenecks[0].figures["capacity_requests_per_s"]) == pytest.approx(2.97, rel=0.01)
    assert fixes[0][0] == "replicas"
    findings, _ = _told({"runs": runs[:2]})
    assert not findings.has("offered_load_too_high")


def test_a_late_p99_alone_is_not_called_nothing() -> None:
    findings, _ = _told({"request_rate": 2, "p99_ttft_ms": 18800, "output_tok_s": 1270})
    assert findings.first is None


def test_decodes_that_hardly_move_beside_prompts_are_noticed_without_any_flag() -> None:
    rows = [
        {"t": 6 * index, "running": running, "waiting": 0, "kv": kv, "prompt": prompt, "gen_tps": rate}
        for index, (running, kv, prompt, rate) in enumerate(
            [(1, 1.3, 926, 23.2), (4, 7.1, 2155, 0.2), (4, 8.4, 0, 0.2), (4, 15.3, 1480, 1.1), (4, 22.4, 1526, 1.9)]
        )
    ]
    findings, fixes = _told(rows)
    assert findings.first == "chunk_missized" and findings.bottlenecks[0].confidence == "weak"
    assert "max_num_batched_tokens" in {item.figure for item in findings.missing}
    assert not [setting for setting, _ in fixes if setting != "max_num_batched_tokens"]
    embeddings = [{**row, "gen_tps": 1.0} for row in rows]
    assert not _told(embeddings)[0].has("chunk_missized")


def test_a_tail_that_nobody_feels_is_no_long_prompts_doing() -> None:
    figures = {"long_prompts": "90k tokens", "p50_ttft_ms": 46, "p99_ttft_ms": 497}
    deployment = "vllm serve m --max-num-batched-tokens 2048"
    assert not _told(figures, deployment)[0].has("long_prompt_hol")
    assert _told({**figures, "p99_ttft_ms": 19200}, deployment)[0].first == "long_prompt_hol"
