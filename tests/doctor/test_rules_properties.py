"""What holds of findings and fixes whatever the evidence, hostile figures included."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from headway.doctor.diagnosis import BOTTLENECK_KINDS, Fix
from headway.doctor.evidence import Evidence, Objective
from headway.doctor.figures import figures_of
from headway.doctor.fixes.candidates import candidates, must_not
from headway.doctor.fixes.values import OUTSIDE_SETTINGS
from headway.doctor.rules import Findings, find_bottlenecks
from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample, EngineTotals, Histogram
from headway.evidence.load import LoadResult
from headway.planner import plan
from headway.planner.startup_log import StartupLog
from tests.doctor.building import flags

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
DEPLOYMENTS = (
    None,
    flags(LLAMA),
    flags(f"{LLAMA} --max-num-seqs 64 --gpu-memory-utilization 0.6 --max-num-batched-tokens 512", gpu="l40s"),
    flags(f"{LLAMA} --enforce-eager --kv-cache-dtype fp8 --gpu-memory-utilization 0.95"),
    flags("org/Thing-27B-NVFP4 --max-num-batched-tokens 65536 --max-model-len 200000", gpu=None),
    flags("m --enable-chunked-prefill --max-num-seqs 16", version="0.6.4"),
    flags(f'{LLAMA} --speculative-config {{"method":"ngram","num_speculative_tokens":4}}'),
    flags(f"{LLAMA} --enable-lora --max-loras 2 --no-enable-prefix-caching", version="0.11.0", gpu="GB10"),
)
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Evidence is large: shrinking it takes minutes and shows little that the failing example does not."""
PLANS = (None, plan("llama-3.1-8b", "l40s", max_model_len=8192), plan("llama-3.3-70b", "h100", max_model_len=8192))

number = st.one_of(
    st.none(),
    st.floats(0, 5000),
    st.integers(0, 300).map(float),
    st.sampled_from([0.0, math.nan, math.inf, -1.0, 1e12]),
)
share = st.one_of(st.none(), st.floats(0, 1), st.sampled_from([0.0, 1.0, math.nan, 7.0]))
sample = st.builds(
    EngineSample,
    at_s=st.one_of(st.none(), st.floats(-10, 1e5)),
    engine=st.sampled_from(["0", "1"]),
    num_running=number,
    num_waiting=number,
    num_swapped=st.one_of(st.none(), st.just(0.0), number),
    kv_usage=share,
    prompt_tokens_per_s=number,
    generation_tokens_per_s=number,
    prefix_hit_rate=share,
    num_preemptions=number,
    source=st.sampled_from(["log", "metrics"]),
)
event = st.builds(
    EngineEvent,
    kind=st.sampled_from(["preemption", "spec_decode", "error", "jit", "restart", "lora", "never heard of"]),
    at_s=st.one_of(st.none(), st.floats(0, 1e4)),
    line=st.integers(1, 999),
    text=st.text(max_size=20),
    fields=st.dictionaries(
        st.sampled_from(["mode", "cumulative_preemptions", "acceptance_rate", "source"]),
        st.one_of(st.text(max_size=5), st.floats(0, 500)),
    ),
)


@st.composite
def histogram(draw: st.DrawFn) -> Histogram:
    bounds = sorted(draw(st.sets(st.floats(0.001, 1e5), min_size=1, max_size=6)))
    counts, total = [], 0.0
    for _ in bounds:
        total += draw(st.integers(0, 50))
        counts.append(total)
    count = draw(st.one_of(st.none(), st.just(total)))
    return Histogram(tuple(bounds), tuple(counts), count, draw(st.one_of(st.none(), st.floats(0, 1e7))))


totals = st.builds(
    EngineTotals,
    duration_s=st.one_of(st.none(), st.floats(0.0, 1e4)),
    counters=st.dictionaries(
        st.sampled_from(["requests", "preemptions", "draft_tokens", "accepted_tokens", "prefix_cache_queries"]),
        st.floats(0, 1e6),
    ),
    finished=st.dictionaries(st.sampled_from(["stop", "length", "abort"]), st.floats(0, 1e4)),
    histograms=st.dictionaries(
        st.sampled_from(["ttft_s", "itl_s", "prompt_tokens", "generation_tokens", "queue_s"]), histogram()
    ),
)
load = st.builds(
    LoadResult,
    source=st.just("bench"),
    concurrency=st.one_of(st.none(), st.integers(1, 2000)),
    requests_per_s=st.one_of(st.none(), st.floats(0, 500)),
    mean_prompt_tokens=st.one_of(st.none(), st.floats(0, 1e5)),
    mean_output_tokens=st.one_of(st.none(), st.floats(0, 1e4)),
    lengths=st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 2000)), max_size=4).map(tuple),
    measured=st.dictionaries(
        st.sampled_from([
            "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "p99_itl_ms", "median_itl_ms", "mean_tpot_ms",
            "output_throughput", "request_throughput",
        ]),
        st.one_of(st.floats(0, 1e5), st.just(math.nan)),
    ),
    settings=st.dictionaries(
        st.sampled_from(["enforce_eager", "max_num_seqs", "speculative_config"]),
        st.sampled_from([None, True, False, 16]),
        max_size=2,
    ),
)  # fmt: skip
facts = st.builds(
    EngineFacts,
    engine=st.sampled_from([None, "vllm", "sglang"]),
    kv_cache_tokens=st.one_of(st.none(), st.integers(0, 10**7)),
    max_model_len=st.one_of(st.none(), st.integers(1, 10**6)),
    max_num_batched_tokens=st.one_of(st.none(), st.integers(1, 10**5)),
    max_lora=st.one_of(st.none(), st.integers(0, 4)),
    lora_running=st.sampled_from([(), ("a",), ("a", "b")]),
    lora_waiting=st.sampled_from([(), ("c",), ("a", "d")]),
)
objective = st.builds(
    Objective,
    bounds=st.dictionaries(
        st.sampled_from(["p99_ttft_ms", "p99_itl_ms", "mean_tpot_ms"]), st.floats(0.1, 1e4), max_size=2
    ),
    goal=st.sampled_from(["latency", "throughput"]),
)


@dataclass(frozen=True)
class Recipe:
    """Evidence by its parts; deployments and plans by index, which a failure can print."""

    deployment: int
    plan: int
    parts: dict[str, Any]

    def build(self) -> Evidence:
        return Evidence(effective=DEPLOYMENTS[self.deployment], plan=PLANS[self.plan], **self.parts)


recipes = st.builds(
    Recipe,
    st.integers(0, len(DEPLOYMENTS) - 1),
    st.integers(0, len(PLANS) - 1),
    st.fixed_dictionaries({
        "startup": st.sampled_from([None, StartupLog(kv_cache_tokens=1000, max_model_len=4000, error="max_model_len")]),
        "facts": facts,
        "samples": st.lists(sample, max_size=8).map(tuple),
        "totals": st.one_of(st.none(), totals),
        "events": st.lists(event, max_size=3).map(tuple),
        "loads": st.lists(load, max_size=4).map(tuple),
        "objective": objective,
    }),
)  # fmt: skip


def _advice(given_evidence: Evidence) -> tuple[Findings, list[Fix]]:
    findings = find_bottlenecks(given_evidence)
    return findings, candidates(given_evidence, findings)


@settings(max_examples=120, deadline=None, phases=PHASES)
@given(recipes)
def test_findings_are_whole(recipe: Recipe) -> None:
    """Known kinds, each once, each with evidence and a way to refute it; nothing wrong is said alone."""
    seen = recipe.build()
    findings = find_bottlenecks(seen)
    kinds = [item.kind for item in findings.bottlenecks]
    assert set(kinds) <= set(BOTTLENECK_KINDS) and len(kinds) == len(set(kinds))
    for item in findings.bottlenecks:
        assert item.evidence and item.refuted_by
        assert all(text.endswith((".", "?")) and " nan" not in text.lower() for text in item.evidence), item.evidence
        assert all(not isinstance(value, float) or math.isfinite(value) for value in item.figures.values()), item
    assert not {"none", "none_idle"} & set(kinds) or len(kinds) == 1
    assert not set(kinds) & set(findings.ruled_out)
    assert all(math.isfinite(value) for value in figures_of(seen).as_mapping().values())


@pytest.mark.slow
@settings(max_examples=120, deadline=None, phases=PHASES)
@given(recipes)
def test_fixes_change_something_and_contradict_nothing(recipe: Recipe) -> None:
    seen = recipe.build()
    findings, fixes = _advice(seen)
    values = figures_of(seen).settings
    warned = {item.setting for item in must_not(seen, findings)}
    for fix in fixes:
        assert fix.setting not in warned
        assert fix.to_value != fix.from_value or isinstance(fix.to_value, bool) != isinstance(fix.from_value, bool)
        if fix.setting not in OUTSIDE_SETTINGS and (now := getattr(values, fix.setting, None)) is not None:
            assert fix.to_value != now, fix
        _check_value(fix, values)
    assert len({(fix.setting, repr(fix.to_value)) for fix in fixes}) == len(fixes)


def _check_value(fix: Fix, values: Any) -> None:
    if fix.setting == "gpu_memory_utilization":
        assert 0 < fix.to_value <= 0.95
    if fix.setting == "max_num_batched_tokens":
        assert fix.to_value >= (values.max_num_seqs or 1) * (1 + values.num_speculative_tokens) or fix.to_value >= 2048
    if fix.setting in ("max_num_seqs", "max_model_len", "max_tokens", "max_loras", "replicas"):
        assert isinstance(fix.to_value, int) and fix.to_value >= 1


@settings(max_examples=40, deadline=None, phases=PHASES)
@given(recipes, st.lists(event, max_size=2), st.lists(load, max_size=1))
def test_more_evidence_never_breaks_a_diagnosis(
    recipe: Recipe, events: list[EngineEvent], loads: list[LoadResult]
) -> None:
    seen = recipe.build()
    _advice(replace(seen, events=(*seen.events, *events), loads=(*seen.loads, *loads)))


@settings(max_examples=40, deadline=None, phases=PHASES)
@given(recipes)
def test_the_same_evidence_gives_the_same_answer(recipe: Recipe) -> None:
    assert _advice(recipe.build()) == _advice(recipe.build())


def test_every_kind_is_placed_in_the_order() -> None:
    from headway.doctor.diagnosis import BottleneckKind
    from headway.doctor.rules import _MOST_LIMITING_FIRST

    assert set(_MOST_LIMITING_FIRST) == set(get_args(BottleneckKind))


def test_a_rate_over_no_time_is_left_out() -> None:
    """Two scrapes a moment apart: the quotient is infinite, which is no figure."""
    totals = EngineTotals(duration_s=1e-308, counters={"requests": 1e6})
    assert all(math.isfinite(value) for value in figures_of(Evidence(totals=totals)).as_mapping().values())
