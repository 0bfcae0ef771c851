"""Figures as people state them: pairs, tables, nested objects, sentences."""

from __future__ import annotations

import contextlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InputError
from headway.evidence.observed import Observed, read_observed, read_observed_object
from tests.shared_data import shared_path


def case(name: str) -> Observed:
    """What the reporter of a case states."""
    lines = shared_path("cases/cases.jsonl").read_text(encoding="utf-8").splitlines()
    return read_observed_object(next(row for row in map(json.loads, lines) if row["id"] == name)["observed"])


# ---------------------------------------------------------------- key=value


def test_pairs_with_units() -> None:
    seen = read_observed(
        "ttft_p99=8.2s,itl_mean=33ms,output_throughput=240,concurrency=128,running=256,waiting=251,kv=20.5%"
    )
    (sample,), (load,) = seen.samples, seen.loads
    assert (sample.num_running, sample.num_waiting, sample.kv_usage) == (256, 251, 0.205)
    assert load.measured == {"p99_ttft_ms": 8200.0, "mean_itl_ms": 33.0, "output_throughput": 240.0}
    assert load.concurrency == 128 and not seen.notes


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("TTFT P50 = 0.5 s", "p50_ttft_ms", 500.0),
        ("p95 TPOT: 40ms", "p95_tpot_ms", 40.0),
        ("inter_token_latency_seconds=0.02", "mean_itl_ms", 20.0),
        ("e2e=12s", "mean_e2el_ms", 12000.0),
        ("median_ttft_ms=250", "median_ttft_ms", 250.0),
        ("ttft_99th=900us", "p99_ttft_ms", 0.9),
        ("tok/s=1.2k", "output_throughput", 1200.0),
        ("rps=3.5", "request_throughput", 3.5),
    ],
)
def test_spellings(text: str, key: str, value: float) -> None:
    (load,) = read_observed(text).loads
    assert load.measured == {key: pytest.approx(value)}


def test_a_missing_unit_is_guessed_and_told() -> None:
    seen = read_observed("ttft_p99=8.2,itl=33")
    assert seen.loads[0].measured == {"p99_ttft_ms": 8200.0, "mean_itl_ms": 33.0}
    assert "p99_ttft is read as 8.2 s" in seen.notes[0] and "mean_itl is read as 33 ms" in seen.notes[0]


def test_what_is_not_understood_is_kept_and_told() -> None:
    seen = read_observed("running=3,flux=7,mood=bad,???")
    assert seen.stated == {"flux": 7.0, "mood": "bad"}
    assert any("'???' is not key=value" in note for note in seen.notes)
    assert any("flux" in note for note in seen.notes)


def test_shares_that_stand_together_share_their_scale() -> None:
    (percent,) = read_observed("kv=0.2,prefix_hit=22.3,running=1").samples
    (share,) = read_observed("kv=0.2,prefix_hit=0.223,running=1").samples
    assert percent.kv_usage == pytest.approx(0.002) and percent.prefix_hit_rate == pytest.approx(0.223)
    assert (share.kv_usage, share.prefix_hit_rate) == (0.2, 0.223)


def test_a_file_that_does_not_exist() -> None:
    with pytest.raises(InputError, match="no such file"):
        read_observed("figures.json")


# ---------------------------------------------------------------- files


def test_a_time_series_in_a_csv_file(tmp_path: Path) -> None:
    path = tmp_path / "series.csv"
    path.write_text("time,running,waiting,kv_pct,gen_tps\n100,1,0,5,30\n110,2,0,0.5,60\n")
    first, second = read_observed(str(path)).samples
    assert (first.at_s, second.at_s, second.kv_usage, second.generation_tokens_per_s) == (0.0, 10.0, 0.005, 60.0)


def test_json_lines_and_inline_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"concurrency": 1, "ttft_ms": {"p50": 30, "p99": 90}}\n{"concurrency": 8, "tok_s": 50}\n')
    first, second = read_observed(str(path)).loads
    assert (first.concurrency, first.measured) == (1, {"p50_ttft_ms": 30.0, "p99_ttft_ms": 90.0})
    assert second.measured == {"output_throughput": 50.0}
    assert read_observed('{"running": 3}').samples[0].num_running == 3


def test_broken_json_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"running": ')
    assert "not JSON" in read_observed(str(path)).notes[0]


# ---------------------------------------------------------------- users' cases


def test_b08_a_sweep_keyed_by_parallel_requests() -> None:
    runs = {run.concurrency: run.measured for run in case("B08").loads}
    assert {count: figures["output_throughput"] for count, figures in runs.items()} == {1: 137, 4: 520, 8: 520, 16: 520}
    assert runs[16]["mean_ttft_ms"] == 11800.0 and "mean_ttft_ms" not in runs[4]


def test_b14_bare_numbers_in_an_open_loop_are_no_concurrency() -> None:
    seen = case("B14")
    assert [run.settings for run in seen.loads] == [{"variant": 16}, {"variant": 32}]
    assert all(run.requests_per_s == 16.0 for run in seen.loads) and "nothing says what 16, 32" in seen.notes[0]


def test_b19_the_load_is_read_from_the_sentence() -> None:
    seen = case("B19")
    (load,) = seen.loads
    assert (load.concurrency, load.mean_prompt_tokens, load.mean_output_tokens, load.num_requests) == (64, 1024, 1, 768)
    assert (seen.samples[0].num_running, seen.samples[0].num_waiting) == (8, 35)


def test_b21_before_and_after_over_concurrencies() -> None:
    runs = case("B21").loads
    (one,) = [
        run
        for run in runs
        if run.settings == {"variant": "before"} and run.concurrency == 4 and run.mean_prompt_tokens == 512
    ]
    assert one.measured == {"output_throughput": 78.5, "mean_ttft_ms": 1476.0} and len(runs) == 9


def test_c01_rows_of_a_table_with_what_they_vary() -> None:
    runs = case("C01").loads
    assert [run.settings["watermark"] for run in runs] == [0, 0.02, 0.05, 0.1, 0.15]
    assert [run.measured["num_preemptions"] for run in runs] == [1065, 400, 187, 168, 168]
    assert {run.concurrency for run in runs} == {128} and runs[1].measured["p50_ttft_ms"] == 11800.0


def test_c06_a_queue_that_grows_in_words() -> None:
    seen = case("C06")
    assert seen.stated["num_waiting"] == "growing"
    assert (seen.samples[0].num_running, seen.samples[0].kv_usage) == (20, 0.32)


def test_c08_and_c14_series() -> None:
    assert [sample.num_waiting for sample in case("C08").samples] == [740, 746, 754, 761, 768]
    assert case("C08").stated["gpu_util_pct"] == 20.0
    assert [sample.kv_usage for sample in case("C14").samples] == pytest.approx([0.765, 0.767, 0.768])


def test_c09_a_warning_retold() -> None:
    (event,) = case("C09").events
    assert event.fields == {"group": "221", "mode": "RECOMPUTE", "cumulative_preemptions": 101.0}


def test_c12_gauges_in_words() -> None:
    stated = case("C12").stated
    assert (stated["kv_usage"], stated["num_running"], stated["num_waiting"]) == ("low", "few", "many")


def test_a14_facts_and_a_log_line_in_short() -> None:
    seen = case("A14")
    assert (seen.facts.max_model_len, seen.facts.kv_cache_tokens) == (262144, 76640)
    (sample,) = seen.samples
    assert (sample.num_running, sample.num_waiting, sample.generation_tokens_per_s) == (0, 1, 0)


def test_b15_capacity_is_request_throughput() -> None:
    assert case("B15").loads[0].measured == {"request_throughput": 2.3, "mean_ttft_ms": 434000.0}


def test_f04_and_f06_counters_and_sizes() -> None:
    histogram = case("F04").totals
    assert histogram is not None and histogram.histograms["ttft_s"].quantile_between(0.5) == (0.01, 0.02)
    assert case("F06").facts.kv_cache_tokens == 570979


def test_f09_a_series_beside_constants() -> None:
    samples = case("F09").samples
    assert [sample.at_s for sample in samples] == [0, 6, 12, 18, 24] and {sample.num_running for sample in samples} == {
        16
    }
    assert samples[-1].kv_usage == pytest.approx(0.949)


def test_f11_with_and_without_speculation() -> None:
    seen = case("F11")
    rates = {sample.source: sample.generation_tokens_per_s for sample in seen.samples}
    (event,) = seen.events
    assert rates == {"observed, without": 342.2, "observed, with": 128.3} and event.source == "observed, with"
    assert event.fields["acceptance_rate"] == pytest.approx(0.966)


def test_f12_labels_name_settings() -> None:
    times = {
        (run.settings["enforce_eager"], run.settings["speculative_config"]): run.measured["mean_tpot_ms"]
        for run in case("F12").loads
    }
    assert times == {(True, "mtp"): 113.2, (False, "mtp"): 108.8, (True, None): 90.3, (False, None): 87.2}


# ---------------------------------------------------------------- hostility

_NAMES = ["ttft", "ttft_p99", "itl_ms", "kv", "running", "gen", "prompt", "series_kv", "tok_s", "log", "spec", "with",
          "c1_tg", "p1", "p99", "16", "eager+mtp", "rate", "interval_s", "concurrency", "ttft_buckets", "0.5", "at_s",
          "max_num_seqs", "bench", "waiting", "block_size"]  # fmt: skip
_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(
        ["5-7", "12%", "8.2s", "inf", "growing", "Running: 0 reqs, Waiting: 1 reqs", "isl 1024, 64 users", "9" * 400]
    )
)
_TREES = st.recursive(
    _VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(_NAMES), _TREES, max_size=5), st.text(max_size=60))
def test_nothing_that_is_stated_stops_the_reader(tree: dict[str, Any], text: str) -> None:
    """Every number that comes out is finite."""
    seen = read_observed_object(tree)
    for run in seen.loads:
        assert all(math.isfinite(value) for value in run.measured.values())
    for sample in seen.samples:
        assert sample.kv_usage is None or 0 <= sample.kv_usage <= 1
    with contextlib.suppress(InputError):
        read_observed(text)


def test_a_sum_over_a_count_is_a_mean() -> None:
    (load,) = read_observed("queuing_seconds_sum=8130.5,queuing_count=251").loads
    assert load.measured["mean_queue_ms"] == pytest.approx(32392.4, rel=1e-4)
