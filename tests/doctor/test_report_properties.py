"""Whatever the evidence says, there is an answer, and it can be written in every format."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from headway.deployment.effective import resolve_effective
from headway.deployment.read import read_text
from headway.doctor.diagnose import diagnose
from headway.doctor.evidence import Evidence
from headway.doctor.figures import figures_of
from headway.doctor.page.html import html_page, plots_of
from headway.doctor.page.json_form import diagnosis_json
from headway.doctor.page.json_schema import SCHEMA
from headway.doctor.page.markdown import markdown_page
from headway.doctor.page.page import make_page
from headway.doctor.page.terminal import terminal_page
from headway.evidence.engine import EngineEvent, EngineFacts, EngineSample, EngineTotals, Histogram
from headway.evidence.load import LoadResult
from tests.doctor.page_support import schema_errors

_NUMBERS = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, 1.0, 256.0, 1e12, -1.0]))
_COUNTS = st.one_of(st.none(), st.integers(-1, 1 << 40))
_TEXTS = st.sampled_from(["0", "", "[bold]", "a|b", "<script>", "preemption"])
_SAMPLES = st.builds(
    EngineSample,
    at_s=_NUMBERS,
    engine=_TEXTS,
    num_running=_NUMBERS,
    num_waiting=_NUMBERS,
    kv_usage=_NUMBERS,
    prompt_tokens_per_s=_NUMBERS,
    generation_tokens_per_s=_NUMBERS,
    prefix_hit_rate=_NUMBERS,
    num_preemptions=_NUMBERS,
    source=_TEXTS,
)
_FACTS = st.builds(
    EngineFacts,
    engine=st.sampled_from([None, "vllm", "sglang"]),
    version=st.sampled_from([None, "0.6.3", "0.32.0", "nonsense"]),
    num_gpu_blocks=_COUNTS,
    block_size=_COUNTS,
    kv_cache_tokens=_COUNTS,
    max_model_len=_COUNTS,
    max_num_seqs=_COUNTS,
    max_num_batched_tokens=_COUNTS,
    gpu_memory_utilization=_NUMBERS,
    enable_prefix_caching=st.sampled_from([None, True, False]),
)
_HISTOGRAMS = st.builds(
    lambda counts, total: Histogram(tuple(0.1 * (i + 1) for i in range(len(counts))), tuple(counts), total, total),
    st.lists(st.floats(), max_size=4),
    _NUMBERS,
)
_TOTALS = st.builds(
    EngineTotals,
    duration_s=_NUMBERS,
    counters=st.dictionaries(
        st.sampled_from(["preemptions", "prompt_tokens", "draft_tokens", "requests"]), st.floats()
    ),
    histograms=st.dictionaries(st.sampled_from(["ttft_s", "itl_s", "prompt_tokens", "generation_tokens"]), _HISTOGRAMS),
)
_LOADS = st.builds(
    LoadResult,
    source=_TEXTS,
    concurrency=_COUNTS,
    requests_per_s=_NUMBERS,
    mean_prompt_tokens=_NUMBERS,
    mean_output_tokens=_NUMBERS,
    measured=st.dictionaries(st.sampled_from(["p99_ttft_ms", "mean_itl_ms", "output_throughput"]), st.floats()),
)
_EVENTS = st.builds(EngineEvent, st.just("spec_decode"), _NUMBERS, st.just(1), _TEXTS)
_EFFECTIVE = [
    None,
    *(
        resolve_effective(read_text(f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}")[0], accelerator="l40s")
        for flags in ("", "--max-num-seqs 8 --gpu-memory-utilization 0.5", "--max-num-seqs $N --not-a-flag")
    ),
]
_EVIDENCE = st.builds(
    Evidence,
    effective=st.sampled_from(_EFFECTIVE),
    facts=_FACTS,
    samples=st.lists(_SAMPLES, max_size=6).map(tuple),
    totals=st.one_of(st.none(), _TOTALS),
    events=st.lists(_EVENTS, max_size=2).map(tuple),
    loads=st.lists(_LOADS, max_size=2).map(tuple),
)


@pytest.mark.slow
@given(_EVIDENCE)
@settings(max_examples=30, deadline=None)
def test_any_evidence_has_an_answer_in_every_format(evidence: Evidence) -> None:
    diagnosis = diagnose(evidence)
    document = json.loads(json.dumps(diagnosis_json(diagnosis), allow_nan=False))
    assert schema_errors(document, SCHEMA) == []
    page = make_page(diagnosis)
    assert page.headline and markdown_page(page) and html_page(page, plots_of(figures_of(evidence)))
    Console(file=io.StringIO(), width=100).print(terminal_page(page))
