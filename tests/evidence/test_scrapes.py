"""Metrics: names of every release, several scrapes, several engines, restarts, and texts that are broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InputError
from headway.evidence.metric_names import meaning_of
from headway.evidence.scrapes import Metrics, MetricsFold, read_metrics, read_metrics_text
from tests.shared_data import shared_path


def scrape(
    running: float = 4, tokens: float = 1000, requests: float = 10, engine: str = "0", extra: str = "", kv: float = 0.5
) -> str:
    """One scrape of a V1 server, with its TYPE lines."""
    labels = f'{{engine="{engine}",model_name="m"}}'
    return (
        "# TYPE vllm:num_requests_running gauge\n"
        f"vllm:num_requests_running{labels} {running:.1f}\n"
        f"vllm:num_requests_waiting{labels} 2.0\n"
        f"vllm:kv_cache_usage_perc{labels} {kv}\n"
        f"vllm:generation_tokens_total{labels} {tokens:.1f}\n"
        f"vllm:prompt_tokens_total{labels} {2 * tokens:.1f}\n"
        f"vllm:num_preemptions_total{labels} 3.0\n"
        f'vllm:request_success_total{{engine="{engine}",finished_reason="stop",model_name="m"}} {requests:.1f}\n'
        f"vllm:prefix_cache_queries_total{labels} {2 * tokens:.1f}\n"
        f"vllm:prefix_cache_hits_total{labels} {tokens / 2:.1f}\n"
        f'vllm:time_to_first_token_seconds_bucket{{engine="{engine}",le="0.1",model_name="m"}} {requests / 2:.1f}\n'
        f'vllm:time_to_first_token_seconds_bucket{{engine="{engine}",le="1.0",model_name="m"}} {requests:.1f}\n'
        f'vllm:time_to_first_token_seconds_bucket{{engine="{engine}",le="+Inf",model_name="m"}} {requests:.1f}\n'
        f"vllm:time_to_first_token_seconds_count{labels} {requests:.1f}\n"
        f"vllm:time_to_first_token_seconds_sum{labels} {requests / 5:.1f}\n{extra}"
    )


def counters(metrics: Metrics) -> dict[str, float]:
    """The counters of all engines together."""
    assert metrics.totals is not None
    return dict(metrics.totals.counters)


# ---------------------------------------------------------------- users' metrics


def test_f04_truncated_histogram_has_a_median_where_it_is_bracketed() -> None:
    metrics = read_metrics([shared_path("cases/files/metrics/f04_truncated_hist.prom")])
    assert metrics.totals is not None
    histogram = metrics.totals.histograms["ttft_s"]
    assert histogram.is_truncated and histogram.quantile_between(0.5) == (0.01, 0.02)
    assert counters(metrics) == {"prompt_tokens": 1196.0, "generation_tokens": 218152.0}


def test_f06_sglang_tells_its_capacity() -> None:
    metrics = read_metrics([shared_path("cases/files/metrics/f06_sglang.prom")])
    facts = metrics.facts
    assert (facts.engine, facts.model) == ("sglang", "/models/l3b/")
    assert (facts.kv_cache_tokens, facts.max_model_len, facts.max_num_seqs) == (570979, 131072, 2231)
    assert (facts.kv_cache_tokens or 0) / (facts.max_model_len or 1) == pytest.approx(4.356, rel=0.005)
    assert counters(metrics)["prompt_tokens"] == 230794.0


def test_c05_and_c06_gauges() -> None:
    for name, gauges in (("c05_seats", (256, 251, 0.205)), ("c06_prefill_saturated", (20, 140, 0.32))):
        (sample,) = read_metrics([shared_path(f"cases/files/metrics/{name}.prom")]).samples
        assert (sample.num_running, sample.num_waiting, sample.kv_usage) == gauges


def test_d12_no_hits_in_1131_tokens() -> None:
    metrics = read_metrics([shared_path("cases/files/metrics/d12_hybrid_zero_hits.prom")])
    assert counters(metrics) == {"prefix_cache_queries": 1131.0, "prefix_cache_hits": 0.0}
    assert metrics.samples[0].prefix_hit_rate == 0.0


# ---------------------------------------------------------------- names


def test_every_name_that_counts_is_known_in_all_releases() -> None:
    """Against the list of what vLLM registers: what engines tell of load, latency and cache must not be missed."""
    known: dict[str, str] = {}
    name = ""
    for line in shared_path("vllm_metrics.yaml").read_text(encoding="utf-8").splitlines():
        if line.startswith("  vllm:") and line.endswith(":"):
            name = line.strip()[:-1]
        elif line.startswith("    type: ") and name:
            known[name] = line.split(": ")[1]
    wanted = ("num_requests_", "_cache_usage", "prefix_cache", "generation_tokens", "prompt_tokens", "first_token",
              "latency_seconds", "time_seconds", "per_output_token", "spec_decode_num_draft", "request_success",
              "spec_decode_num_accepted_tokens", "iteration_tokens", "num_preemptions", "config_info",
              "lora_")  # fmt: skip
    others = ("by_stage", "by_source", "_cached", "_recomputed", "per_pos", "nixl", "mooncake", "hisparse", "operation",
              "max_num_generation", "umbp", "connector", "sleep", "kv_block_")  # fmt: skip
    suffix = {"histogram": "_sum", "counter": "_total", "gauge": ""}
    missed = [
        name
        for name, kind in known.items()
        if any(part in name for part in wanted)
        and not any(part in name for part in others)
        and meaning_of(name if name.endswith("_total") and kind == "counter" else name + suffix[kind]) is None
    ]
    assert not missed and len(known) > 60


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("vllm:gpu_cache_usage_perc", "kv_usage"),
        ("vllm_num_requests_waiting", "num_waiting"),
        ("ray_vllm_num_requests_running", "num_running"),
        ("vllm.time_to_first_token.seconds.bucket", "ttft_s"),
        ("vllm:time_per_output_token_seconds_count", "itl_s"),
        ("vllm:iteration_tokens_total_sum", "step_tokens"),
        ("sglang:num_queue_reqs", "num_waiting"),
        ("sglang:token_usage", "kv_usage"),
        ("vllm:num_preemptions", "preemptions"),
    ],
)
def test_spellings(name: str, key: str) -> None:
    meaning = meaning_of(name)
    assert meaning is not None and meaning.key == key


def test_a_deprecated_name_beside_the_new_one_is_not_counted_twice() -> None:
    old = (
        'vllm:gpu_prefix_cache_queries_total{engine="0",model_name="m"} 2000.0\n'
        'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.9\n'
        'vllm:time_per_output_token_seconds_count{engine="0",model_name="m"} 5.0\n'
        'vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 5.0\n'
        'vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 0.1\n'
    )
    metrics = read_metrics_text(scrape(extra=old))
    assert counters(metrics)["prefix_cache_queries"] == 2000.0 and metrics.samples[0].kv_usage == 0.5
    assert metrics.totals is not None and metrics.totals.histograms["itl_s"].mean == pytest.approx(0.02)


def test_v0_tells_rates_and_swapped_requests() -> None:
    text = (
        'vllm:num_requests_running{model_name="m"} 3.0\nvllm:num_requests_swapped{model_name="m"} 1.0\n'
        'vllm:avg_generation_throughput_toks_per_s{model_name="m"} 55.5\n'
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.25\n'
        'vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0\n'
    )
    metrics = read_metrics_text(text)
    (sample,) = metrics.samples
    assert metrics.facts.generation == "V0" and sample.num_swapped == 1 and sample.generation_tokens_per_s == 55.5
    assert sample.prefix_hit_rate is None, "-1 says that there is no cache"


# ---------------------------------------------------------------- over time


def test_one_scrape_counts_from_the_start() -> None:
    metrics = read_metrics_text(scrape(tokens=1000, requests=10))
    assert metrics.totals is not None and metrics.totals.is_since_start and metrics.totals.duration_s is None
    assert counters(metrics)["generation_tokens"] == 1000 and metrics.totals.finished == {"stop": 10}
    assert metrics.samples[0].prefix_hit_rate == 0.25


def test_two_scrapes_give_rates_and_what_grew() -> None:
    metrics = read_metrics_text("# two scrapes 60 s apart\n" + scrape(requests=10) + scrape(tokens=4000, requests=40))
    first, second = metrics.samples
    assert (first.at_s, second.at_s) == (0.0, 60.0)
    assert first.generation_tokens_per_s is None and second.generation_tokens_per_s == 50.0
    assert second.prompt_tokens_per_s == 100.0
    assert metrics.totals is not None and metrics.totals.duration_s == 60.0 and not metrics.totals.is_since_start
    assert counters(metrics)["requests"] == 30
    histogram = metrics.totals.histograms["ttft_s"]
    assert (histogram.counts, histogram.count) == ((15.0, 30.0), 30.0) and histogram.sum == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# 2025-01-01T00:00:00Z\n", "# 2025-01-01T00:00:30Z\n"),
        ("# scrape at 15 s\n", "# scrape at 45 s\n"),
        ("# t=0\n", "# t=30s\n"),
        ("# 1700000000\n", "# 1700000030\n"),
        (
            "HTTP/1.1 200 OK\nDate: Thu, 01 Jan 2026 00:00:00 GMT\n",
            "HTTP/1.1 200 OK\nDate: Thu, 01 Jan 2026 00:00:30 GMT\n",
        ),
    ],
)
def test_times_in_comments_and_headers(before: str, after: str) -> None:
    metrics = read_metrics_text(before + scrape() + after + scrape(tokens=4000))
    assert [sample.at_s for sample in metrics.samples] == [0.0, 30.0]


def test_samples_with_time_stamps_are_brought_together() -> None:
    """As in a dump of a database: series by series."""
    text = "".join(f"vllm:num_requests_running {10 * step} {1_700_000_000_000 + 15_000 * step}\n" for step in range(3))
    text += "".join(f"vllm:num_requests_waiting {step} {1_700_000_000_000 + 15_000 * step}\n" for step in range(3))
    samples = read_metrics_text(text).samples
    assert [(sample.at_s, sample.num_running, sample.num_waiting) for sample in samples] == [
        (0.0, 0.0, 0.0),
        (15.0, 10.0, 1.0),
        (30.0, 20.0, 2.0),
    ]


def test_an_answer_of_prometheus() -> None:
    def series(name: str, values: list[list[object]], **labels: str) -> dict[str, object]:
        return {"metric": {"__name__": name, "engine": "0", **labels}, "values": values}

    result = [
        series("vllm:num_requests_running", [[1000, "3"], [1015, "5"], [1030, "NaN"]]),
        series("vllm:generation_tokens_total", [[1000, "100"], [1015, "400"], [1030, "700"]]),
        {"metric": {}, "values": [[1000, "1"]]},
    ]
    text = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})
    metrics = read_metrics_text(text)
    assert [sample.num_running for sample in metrics.samples] == [3.0, 5.0, None]
    assert [sample.generation_tokens_per_s for sample in metrics.samples] == [None, 20.0, 20.0]
    assert any("no __name__" in note for note in metrics.notes) and any("1 points" in note for note in metrics.notes)


def test_files_in_order_without_a_time_have_no_rates_unless_told(tmp_path: Path) -> None:
    (tmp_path / "a.prom").write_text(scrape())
    (tmp_path / "b.prom").write_text(scrape(tokens=4000))
    paths = [tmp_path / "a.prom", tmp_path / "b.prom"]
    for path in paths:
        os.utime(path, (1000, 1000))
    untimed = read_metrics(paths)
    assert untimed.samples[1].generation_tokens_per_s is None and "nothing tells the time" in untimed.notes[0]
    assert untimed.totals is not None and not untimed.totals.is_since_start and untimed.totals.duration_s is None
    assert read_metrics(paths, interval_s=30.0).samples[1].generation_tokens_per_s == 100.0


def test_the_files_own_times_are_used_and_told(tmp_path: Path) -> None:
    for index, name in enumerate(("a.prom", "b.prom")):
        (tmp_path / name).write_text(scrape(tokens=1000 + 3000 * index))
        os.utime(tmp_path / name, (1000 + 60 * index, 1000 + 60 * index))
    metrics = read_metrics([tmp_path / "a.prom", tmp_path / "b.prom"])
    assert metrics.totals is not None and metrics.totals.duration_s == 60.0
    assert "written 60 s apart" in metrics.notes[0] and metrics.samples[1].at_s == 60.0


def test_counters_that_fall_are_a_restart() -> None:
    text = "# 10 s apart\n" + scrape(tokens=1000, requests=10) + scrape(tokens=2000, requests=20)
    text += scrape(tokens=100, requests=1) + scrape(tokens=600, requests=6)
    metrics = read_metrics_text(text)
    assert [event.kind for event in metrics.events] == ["restart"] and metrics.events[0].at_s == 20.0
    assert counters(metrics)["generation_tokens"] == 1000 + 100 + 500
    assert [sample.generation_tokens_per_s for sample in metrics.samples] == [None, 100.0, None, 50.0]
    assert metrics.totals is not None and metrics.totals.histograms["ttft_s"].count == 16


# ---------------------------------------------------------------- several engines, LoRA, configuration


def test_engines_are_apart_in_samples_and_together_in_totals() -> None:
    metrics = read_metrics_text(scrape(running=1, tokens=100, engine="0") + scrape(running=2, tokens=200, engine="1"))
    assert {sample.engine: sample.num_running for sample in metrics.samples} == {"0": 1.0, "1": 2.0}
    assert counters(metrics)["generation_tokens"] == 300 and metrics.facts.num_engines == 2
    assert metrics.by_engine["1"].counters["generation_tokens"] == 200
    assert metrics.totals is not None and metrics.totals.histograms["ttft_s"].count == 20


def test_pods_that_share_an_engine_number_are_apart() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="0",pod="vllm-{pod}"}} {pod}.0\n' for pod in (1, 2))
    assert {sample.engine for sample in read_metrics_text(text).samples} == {"vllm-1", "vllm-2"}


def test_lora_adapters_of_the_latest_info() -> None:
    text = (
        'vllm:lora_requests_info{max_lora="1",running_lora_adapters="old",waiting_lora_adapters=""} 1.0e9\n'
        'vllm:lora_requests_info{max_lora="1",running_lora_adapters="sql",waiting_lora_adapters="law,med"} 1.7e9\n'
    )
    facts = read_metrics_text(text).facts
    assert (facts.max_lora, facts.lora_running, facts.lora_waiting) == (1, ("sql",), ("law", "med"))


def test_waiting_by_reason_tells_who_is_deferred() -> None:
    text = "".join(
        f'vllm:num_requests_waiting_by_reason{{engine="0",reason="{reason}"}} {count}.0\n'
        for reason, count in (("capacity", 2), ("deferred", 5))
    )
    assert read_metrics_text(text).samples[0].num_deferred == 5


def test_cache_config_is_a_fact() -> None:
    text = (
        'vllm:cache_config_info{block_size="16",cache_dtype="fp8",enable_prefix_caching="True",engine="0",'
        'gpu_memory_utilization="0.9",num_gpu_blocks="27447",num_cpu_blocks="None"} 1.0\n'
    )
    facts = read_metrics_text(text).facts
    assert (facts.num_gpu_blocks, facts.block_size, facts.kv_cache_tokens) == (27447, 16, 439152)
    assert (facts.kv_cache_dtype, facts.enable_prefix_caching, facts.gpu_memory_utilization) == ("fp8", True, 0.9)


def test_ranks_of_one_sglang_engine_count_once() -> None:
    text = "".join(f'sglang:num_running_reqs{{model_name="m",tp_rank="{rank}"}} 7.0\n' for rank in range(4))
    (sample,) = read_metrics_text(text).samples
    assert sample.num_running == 7.0


# ---------------------------------------------------------------- broken texts


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ('vllm:num_requests_swapped{engine="0",model_name="m} 3.0', "labels that cannot be read"),
        ('vllm:num_requests_swapped{engine="0",model_name="a"b"} 3.0', "labels that cannot be read"),
        ("vllm:num_requests_swapped NaN", "the value NaN"),
        ("vllm:num_requests_swapped three", "a value that is no number"),
        ("vllm:num_requests_swapped", "cannot be read"),
        ("vllm:request_success_total{} -5", "counters below zero"),
        ('vllm:generation_tokens_total{x="' + "y" * 300_000, "cannot be read"),
    ],
)
def test_lines_that_cannot_be_used_are_told_and_the_others_are_used(line: str, note: str) -> None:
    metrics = read_metrics_text(scrape() + line + "\n")
    assert metrics.samples[0].num_running == 4.0 and metrics.samples[0].num_swapped is None
    assert any(note in text for text in metrics.notes), metrics.notes


def test_escapes_exponents_exemplars_and_infinity() -> None:
    text = (
        'vllm:num_requests_running{engine="0",model_name="a\\"b\\\\c,d}e"} 1.2e+01\n'
        'vllm:request_queue_time_seconds_bucket{le="0.3"} 4 # {trace_id="x"} 0.2 1.5\n'
        'vllm:request_queue_time_seconds_bucket{le="+Inf"} 5\n'
        "vllm:request_queue_time_seconds_sum +Inf\n"
        "# EOF\n"
    )
    metrics = read_metrics_text(text)
    assert metrics.facts.model == 'a"b\\c,d}e' and metrics.samples[0].num_running == 12.0
    assert metrics.totals is not None
    histogram = metrics.totals.histograms["queue_s"]
    assert (histogram.count, histogram.sum) == (5.0, None)


def test_half_a_second_scrape_does_not_turn_growth_into_nothing() -> None:
    """Counters that the cut scrape lacks are left out; its gauges, which came first, are used."""
    whole = scrape(tokens=4000, requests=40)
    metrics = read_metrics_text("# 10 s apart\n" + scrape() + whole[: whole.index("vllm:generation_tokens") + 30])
    assert metrics.samples[1].num_running == 4.0 and metrics.samples[1].generation_tokens_per_s is None
    assert "generation_tokens" not in counters(metrics)
    assert any("cut short" in note for note in metrics.notes) and any(
        "cannot be read" in note for note in metrics.notes
    )


def test_a_number_that_the_end_of_the_file_may_have_cut_is_not_used() -> None:
    text = 'vllm:num_requests_running{engine="0"} 16.0\nvllm:num_requests_waiting{engine="0"} 2'
    metrics = read_metrics_text(text)
    assert metrics.samples[0].num_waiting is None and "ends within a line" in metrics.notes[0]


def test_buckets_that_fall_are_no_histogram() -> None:
    text = (
        'vllm:e2e_request_latency_seconds_bucket{le="1.0"} 9.0\nvllm:e2e_request_latency_seconds_bucket{le="2.0"} 4.0\n'
    )
    metrics = read_metrics_text(text)
    assert metrics.totals is not None and not metrics.totals.histograms and "fall" in metrics.notes[0]


def test_usage_in_percent_is_told() -> None:
    metrics = read_metrics_text(scrape(kv=50.0))
    assert metrics.samples[0].kv_usage == 0.5 and "in percent" in metrics.notes[0]


def test_texts_that_hold_no_metrics(tmp_path: Path) -> None:
    for text in ("", "<html>502 Bad Gateway</html>", "go_goroutines 5\n", "{broken", "[]", "{}"):
        assert any("no metrics of vLLM" in note for note in read_metrics_text(text).notes), text
    (tmp_path / "x").write_bytes(b"\0\1\2")
    with pytest.raises(InputError, match="not text"):
        read_metrics([tmp_path / "x"])


def test_a_long_series_stays_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headway.evidence.scrapes.MAX_SAMPLES", 50)
    fold = MetricsFold("m", interval_s=15.0)
    for step in range(1000):
        fold.add_text(scrape(tokens=1000 + step), "m")
    metrics = fold.finish()
    assert 25 <= len(metrics.samples) <= 51 and metrics.num_scrapes == 1000
    assert counters(metrics)["generation_tokens"] == 999


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 1500), st.binary(max_size=20))
def test_nothing_that_is_read_stops_the_reader(noise: bytes, cut: int, patch: bytes) -> None:
    """Random bytes, and scrapes with random bytes in them, alone and twice."""
    whole = scrape().encode()
    text = (noise + whole[:cut] + patch + whole[cut:]).decode("utf-8", errors="replace")
    for texts in ((text,), (text, scrape()), (scrape(), text)):
        metrics = read_metrics_text(*texts)
        assert all(0 <= (sample.kv_usage or 0) <= 1 for sample in metrics.samples)


def test_a_series_that_comes_twice_at_one_time_counts_once() -> None:
    text = "vllm:num_requests_running 8 1700000000000\nvllm:kv_cache_usage_perc 0.7 1700000000000\n"
    (sample,) = read_metrics_text(text + text).samples
    assert (sample.num_running, sample.kv_usage) == (8, 0.7)
