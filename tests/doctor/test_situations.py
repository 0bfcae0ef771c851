"""Situations that users report, by what is to be told from what: each rule beside the one that it may be taken for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headway.doctor.evidence import Evidence
from headway.doctor.fixes.candidates import candidates
from headway.doctor.gather import gather
from headway.doctor.rules import case_of, find_bottlenecks
from headway.evidence.engine import EngineFacts, EngineSample
from headway.evidence.load import LoadResult
from headway.evidence.run_variants import changed_settings
from tests.doctor.building import first, flags, judged, samples


@pytest.mark.parametrize("seats", [64, 128, 256, 384])
def test_running_pinned_below_a_default_refutes_the_default(seats: int) -> None:
    """Nobody wrote max_num_seqs, and the release's default is 1,024: what is seen outranks it."""
    seen = samples([seats], waiting=251, kv=0.205, generation=7573.0, prompt=0.0)
    findings, fixes = judged(effective=flags("llama-3.1-8b"), samples=seen)
    assert findings.first == "waiting_queue_stall"
    assert fixes[0].setting == "max_num_seqs"
    assert fixes[0].from_value == seats < fixes[0].to_value


def test_a_number_of_seats_that_was_written_is_believed() -> None:
    seen = samples([64] * 4, waiting=80, kv=0.2, generation=900.0, prompt=0.0)
    findings, fixes = judged(effective=flags("llama-3.1-8b --max-num-seqs 512"), samples=seen)
    assert not any(fix.setting == "max_num_seqs" and fix.from_value == 64 for fix in fixes)
    assert "max_num_seqs" not in {fix.setting for fix in fixes}
    assert findings.first in ("waiting_queue_stall", None)


def test_blocks_that_are_full_explain_a_steady_batch_without_a_limit_on_seats() -> None:
    seen = samples([35] * 4, waiting=[115, 118, 121, 125], kv=0.99, generation=118.0, prompt=380.0)
    findings, fixes = judged(samples=seen)
    assert findings.first == "kv_starvation"
    assert not findings.has("waiting_queue_stall")
    assert fixes[0].setting == "gpu_memory_utilization"


def test_a_benchmark_with_fast_first_tokens_is_not_overloaded() -> None:
    """Its last requests end after the last arrival, so that completions lag the offered rate."""
    measured = {"request_throughput": 13.65, "mean_ttft_ms": 151.0, "p99_ttft_ms": 232.0, "mean_itl_ms": 82.6}
    assert first(loads=(LoadResult("bench", requests_per_s=15.0, measured=measured),)) == "none"


def test_an_engine_that_runs_refutes_an_estimate_by_which_it_could_not_start() -> None:
    evidence = gather(
        "vllm serve Qwen/Qwen3-32B --max-model-len=16384 -tp 2 --no-enable-prefix-caching",
        observed=["concurrency=64,request_throughput=0.457,mean_ttft_ms=48302"],
        gpu="a100-40gb",
        engine_version="0.9.0",
    )
    assert not find_bottlenecks(evidence).has("impossible_request_at_queue_head")


def test_clients_that_wait_for_first_tokens_of_long_prompts_wait_for_prefill() -> None:
    measured = {"request_throughput": 1.21, "mean_ttft_ms": 18854.0, "mean_tpot_ms": 875.0, "median_itl_ms": 44.6}
    load = LoadResult("bench", concurrency=30, mean_prompt_tokens=777.0, mean_output_tokens=6.0, measured=measured)
    findings, _ = judged(loads=(load,))
    assert findings.first == "prefill_compute_bound"
    assert "num_requests_running" in {item.figure for item in findings.missing}


def test_prefill_is_judged_by_what_a_single_stream_gets() -> None:

    def run(clients: int, ttft_ms: float, rate: float) -> LoadResult:
        measured = {"mean_ttft_ms": ttft_ms, "request_throughput": rate}
        return LoadResult("run", clients, None, 16000.0, 200.0, measured=measured)

    alone, busy, idle = run(1, 3345.0, 0.13), run(5, 9800.0, 0.17), run(5, 9800.0, 0.03)
    assert first(loads=(alone, busy)) == "prefill_compute_bound"
    assert first(loads=(alone, idle)) != "prefill_compute_bound"


def test_late_first_tokens_of_long_answers_are_not_called_prefill() -> None:
    measured = {"request_throughput": 0.5, "mean_ttft_ms": 9000.0, "mean_tpot_ms": 50.0}
    load = LoadResult("bench", concurrency=30, mean_prompt_tokens=777.0, mean_output_tokens=900.0, measured=measured)
    assert first(loads=(load,)) != "prefill_compute_bound"


def test_a_queue_said_to_grow_beside_gauges_with_room_is_prefill() -> None:
    evidence = Evidence(
        facts=EngineFacts(),
        samples=samples([20], waiting=None, kv=0.32),
        loads=(LoadResult("stated", requests_per_s=8.0, mean_prompt_tokens=6000.0, mean_output_tokens=2.0),),
        stated={"num_waiting": "growing"},
    )
    findings = find_bottlenecks(evidence)
    assert findings.first == "prefill_compute_bound"
    assert findings.bottlenecks[0].figures["offered_prefill_tps"] == 48000.0


def _from_figures(
    figures: object, deployment: str | None = None, gpu: str | None = None, engine_version: str | None = None
) -> tuple[str | None, list[str]]:
    """First bottleneck and the fixes' settings, from figures as somebody writes them down."""
    evidence = gather(deployment, observed=[json.dumps(figures)], gpu=gpu, engine_version=engine_version)
    findings = find_bottlenecks(evidence)
    return findings.first, [fix.setting for fix in candidates(evidence, findings)]


@pytest.mark.parametrize(
    "figures",
    [
        {"normal": {"ttft_s": 0.041, "decode_tok_s": 69.8}, "ngram spec": {"ttft_s": 0.024, "decode_tok_s": 61.8}},
        {"without_spec": {"tpot_ms": 14.5}, "with_spec": {"tpot_ms": 21.7}},
        {"tok_s": {"mtp": 180, "no_mtp": 350}, "concurrency": 32},
        {"tok_s": {"mtp-3": 180, "w/o mtp": 350}},
        {"tpot_ms": {"without": 45, "with": 60}, "acceptance_rate": 0.4},
        {"runs": [{"speculative": "mtp k=1", "tok_s": 41.2}, {"speculative": None, "tok_s": 58.9}]},
    ],
)
def test_drafts_that_cost_are_recognised_however_the_runs_are_labelled(figures: object) -> None:
    kind, settings = _from_figures(figures)
    assert kind == "spec_decode_overhead"
    assert settings[0] == "speculative_config"


@pytest.mark.parametrize(
    "figures",
    [
        {"tok_s": {"eager": 11.2, "graph": 45.9}},
        {"with_enforce_eager": {"tpot_ms": 52}, "without_enforce_eager": {"tpot_ms": 17}},
        {"tok_s": {"enforce-eager": 310, "cuda graphs": 940}},
        [{"eager": True, "tpot_ms": 52}, {"eager": False, "tpot_ms": 17}],
    ],
)
def test_eager_execution_is_recognised_however_the_runs_are_labelled(figures: object) -> None:
    assert _from_figures(figures) == ("cpu_launch_bound", ["enforce_eager"])


def test_fewer_gpus_are_tried_where_a_run_with_fewer_was_faster() -> None:
    _, settings = _from_figures({"tok_s": {"tp1": 45.0, "tp2": 31.0}}, "vllm serve mistral-7b -tp 2")
    assert settings == ["tensor_parallel_size"]


def test_a_label_is_no_setting_to_change() -> None:
    _, settings = _from_figures({"tok_s": {"before": 40, "after": 30}})
    assert settings == []


def test_shorter_steps_of_a_smaller_batch_alone_do_not_advise_fewer_seats() -> None:
    figures = {"max_num_seqs_16": {"mean_itl_ms": 8.2}, "max_num_seqs_32": {"mean_itl_ms": 9.4}, "request_rate": 16}
    assert _from_figures(figures) == (None, [])


_CLIFF = [
    {"concurrency": 6, "tpot_ms": 107, "running": 6, "waiting": 0, "kv": 79.4},
    {"concurrency": 7, "tpot_ms": 114, "running": 7, "waiting": 0, "kv": 92.4},
    {"concurrency": 8, "tpot_ms": 440, "running": 8, "waiting": 0, "kv": 98.9},
]


def test_times_per_token_that_jump_where_the_cache_is_full_are_starvation() -> None:
    assert _from_figures(_CLIFF)[0] == "kv_starvation"
    steady = [{**row, "tpot_ms": 100 + 2 * row["concurrency"]} for row in _CLIFF]
    assert _from_figures(steady)[0] != "kv_starvation"


def test_a_queue_at_the_last_load_of_a_sweep_is_judged_by_itself() -> None:
    last = {"concurrency": 12, "running": 8, "waiting": 4, "kv": 98.7, "tpot_ms": 118}
    assert _from_figures([*_CLIFF[:2], last])[0] == "kv_starvation"


def test_drafts_that_are_hardly_ever_accepted_do_not_pay_on_any_device() -> None:
    deployment = """vllm serve m --speculative-config '{"method":"eagle3","model":"e","num_speculative_tokens":5}'"""
    assert _from_figures({"acceptance_rate": 0.04, "running": 60, "waiting": 0}, deployment)[0] == (
        "spec_decode_overhead"
    )
    assert _from_figures({"acceptance_rate": 0.6, "running": 60, "waiting": 0}, deployment)[0] != (
        "spec_decode_overhead"
    )


def test_one_stream_in_eager_mode_waits_for_launches() -> None:
    figures = {"itl_ms": 14.5, "concurrency": 1, "output_throughput": 69}
    deployment = "vllm serve llama-3.2-1b --enforce-eager"
    assert _from_figures(figures, deployment, gpu="h100", engine_version="0.10.0")[0] == "cpu_launch_bound"


def test_one_scrape_in_which_requests_wait_before_an_idle_engine_is_a_blocked_queue() -> None:
    stuck = EngineSample(num_running=0, num_waiting=6, kv_usage=0.0)
    assert first(samples=(stuck,)) == "impossible_request_at_queue_head"
    arriving = EngineSample(num_running=0, num_waiting=1, kv_usage=0.0)
    assert first(samples=(arriving,)) != "impossible_request_at_queue_head"


def test_nothing_moves_with_every_block_taken_is_for_want_of_blocks() -> None:
    seen = samples([35] * 4, waiting=[115, 118, 121, 125], kv=0.99, generation=0.0, prompt=0.0)
    assert first(samples=seen) == "kv_starvation"


def test_nothing_moves_with_blocks_left_is_no_matter_of_blocks() -> None:
    seen = samples([14] * 4, waiting=[9, 12, 15, 18], kv=0.931, generation=0.0, prompt=0.0)
    assert first(samples=seen) == "engine_stall_other"


def test_blocks_held_by_nobody_while_others_wait_are_a_leak_rather_than_a_request_too_long() -> None:
    seen = samples([0] * 5, waiting=12, kv=0.96, generation=0.0, prompt=0.0)
    findings, _ = judged(samples=seen)
    assert findings.first == "kv_leak"
    assert not findings.has("impossible_request_at_queue_head")


@pytest.mark.parametrize(("flag", "expected"), [("--enable-lora", "lora_slots"), ("", "waiting_queue_stall")])
def test_requests_that_wait_for_no_other_reason_wait_for_adapters_where_adapters_are_served(
    flag: str, expected: str
) -> None:
    seen = samples([1] * 4, waiting=3, kv=0.031, generation=45.7, prompt=0.0)
    findings, fixes = judged(effective=flags(f"llama-3.1-8b {flag}"), samples=seen)
    assert findings.first == expected
    assert [fix.setting for fix in fixes] == (["max_loras"] if flag else [])


def test_the_same_request_that_generates_on_and_on_is_a_runaway() -> None:
    seen = samples([1] * 40, kv=[0.033 + 0.001 * i for i in range(40)], generation=140.0, prompt=0.0)
    findings, fixes = judged(samples=seen)
    assert findings.first == "runaway_generation"
    assert fixes[0].setting == "max_tokens"


@pytest.mark.parametrize("prompt", [0.0, 25.0])
def test_requests_that_come_and_go_are_no_runaways(prompt: float) -> None:
    """Either prompts are counted, or answers of usual length are all that fits into the time watched."""
    count = 40 if prompt else 8
    seen = samples([1] * count, kv=0.03, generation=140.0, prompt=prompt)
    assert first(samples=seen) != "runaway_generation"


def test_a_contrast_that_somebody_states_between_decoding_alone_and_beside_prefill() -> None:
    figures = {"decode_alone_tok_s": 272.6, "decode_during_prefill_tok_s": 6.62, "prefill_tok_s": 3978}
    kind, settings = _from_figures(figures, "vllm serve m --max-num-batched-tokens 8192 --max-num-seqs 16")
    assert (kind, settings[0]) == ("chunk_missized", "max_num_batched_tokens")
    figures["decode_during_prefill_tok_s"] = 200.0
    assert _from_figures(figures, "vllm serve m --max-num-batched-tokens 8192")[0] != "chunk_missized"


def test_a_small_budget_is_felt_by_clients_whose_prompts_take_many_steps() -> None:
    figures = {"isl": 2000, "osl": 100, "concurrency": 64, "mean_ttft_ms": 9000, "mean_itl_ms": 30}
    deployment = "vllm serve llama-3.1-8b --enable-chunked-prefill --max-num-batched-tokens 256"
    kind, settings = _from_figures(figures, deployment, gpu="h100", engine_version="0.6.4")
    assert (kind, settings[0]) == ("chunk_missized", "max_num_batched_tokens")


def test_a_client_that_does_not_keep_its_rate() -> None:
    figures = {
        "request_rate": 200, "request_throughput": 61, "running": 9, "waiting": 0, "mean_ttft_ms": 38, "kv": "1%",
    }  # fmt: skip
    assert _from_figures(figures)[0] == "client_bound"
    assert _from_figures({**figures, "request_throughput": 180})[0] != "client_bound"


def test_slow_first_tokens_that_nothing_explains_are_not_called_nothing() -> None:
    assert _from_figures({"concurrency": 8, "mean_ttft_ms": 19000, "request_throughput": 0.3})[0] is None


@pytest.mark.parametrize(("wanted", "setting"), [(9000, "gpu_memory_utilization"), (1_048_576, "max_model_len")])
def test_memory_that_cannot_suffice_is_not_raised_first(tmp_path: Path, wanted: int, setting: str) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        f"ValueError: The model's max seq len ({wanted}) is larger than the maximum number of tokens that can be "
        "stored in KV cache (7344). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine.\n"
    )
    evidence = gather(None, logs=[log])
    fixes = candidates(evidence, find_bottlenecks(evidence))
    assert fixes[0].setting == setting
    assert min(fix.to_value for fix in fixes if fix.setting == "max_model_len") <= 7344


def test_the_size_of_the_cache_is_what_its_label_says(tmp_path: Path) -> None:
    """Blocks of hybrid models hold other numbers of tokens than block_size."""
    scrape = tmp_path / "metrics.prom"
    scrape.write_text(
        'vllm:num_requests_running{engine="0"} 1\n'
        'vllm:cache_config_info{engine="0",block_size="16",num_gpu_blocks="118",kv_cache_size_tokens="90000"} 1\n'
    )
    assert gather(None, metrics=[scrape]).facts.kv_cache_tokens == 90000


def test_decodes_that_stand_still_until_a_prompt_is_counted_stand_behind_its_chunks() -> None:
    """Engines count a prompt's tokens when it is done: until then nothing shows but blocks that fill."""
    kv = [0.30, 0.34, 0.36, 0.38, 0.40, 0.41, 0.42, 0.44, 0.44]
    seen = samples(
        [3, 4, 4, 4, 4, 4, 4, 4, 4],
        kv=kv,
        generation=[80.0, 1.2, 0.6, 0.7, 0.5, 0.6, 0.8, 20.0, 85.0],
        prompt=[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 8800.0, 0.0],
    )
    findings, fixes = judged(effective=flags("m --max-num-batched-tokens 8192", gpu=None), samples=seen)
    assert findings.first == "chunk_missized"
    assert (fixes[0].setting, fixes[0].from_value > fixes[0].to_value) == ("max_num_batched_tokens", True)


def test_the_longest_prompts_are_those_that_somebody_states() -> None:
    figures = {"long_prompts": "400k-600k tokens every 2 min", "p50_ttft_ms": 900, "p99_ttft_s": 38}
    deployment = "python -m sglang.launch_server --model k --chunked-prefill-size 8192"
    assert _from_figures(figures, deployment)[0] == "long_prompt_hol"
    assert _from_figures({**figures, "long_prompts": "3 of 100"}, deployment)[0] != "long_prompt_hol"


def test_a_file_that_holds_a_command_of_another_engine_is_read_as_words(tmp_path: Path) -> None:
    path = tmp_path / "flags.txt"
    path.write_text("python -m sglang.launch_server --model k --chunked-prefill-size 4096\n")
    evidence = gather(path)
    assert case_of(evidence).settings.max_num_batched_tokens == 4096


def test_usage_in_columns_beside_their_instants_is_a_series_over_time() -> None:
    figures = {"t": [0, 6, 12, 18, 24], "kv": [92.1, 92.7, 93.5, 94.2, 94.9]}
    told = case_of(gather(None, observed=[json.dumps(figures)])).figures.as_mapping()
    assert told["seconds_to_full"] == pytest.approx(44, rel=0.15)


def test_a_warning_of_preemption_alone_does_not_halve_seats_that_nobody_chose(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "WARNING 03-06 08:00:00 scheduler.py:1754] Sequence group 221 is preempted by PreemptionMode.RECOMPUTE mode "
        "because there is not enough KV cache space. total_num_cumulative_preemption=101\n"
    )
    evidence = gather(None, logs=[log], engine_version="0.6.3")
    fixes = candidates(evidence, find_bottlenecks(evidence))
    assert fixes[0].setting == "gpu_memory_utilization"


def test_a_measured_gain_is_advised_whether_or_not_the_flags_are_known() -> None:
    figures = {"tok_s": {"eager+mtp": 8.8, "graph+mtp": 9.2, "eager": 11.1, "graph": 11.5}}
    assert "speculative_config" in _from_figures(figures, gpu="gb10")[1]


def test_a_change_that_is_named_in_words_beside_the_gauges_before_and_after_it() -> None:
    figures = {"before": {"gen_tps": 350, "running": 8}, "after": {"gen_tps": 180, "running": 8}}
    deployment = """vllm serve m --speculative-config '{"method":"mtp","num_speculative_tokens":3}'"""
    for words in ("--speculative-config mtp", "enabled MTP with 3 drafts"):
        assert _from_figures({**figures, "change": words}, deployment) == (
            "spec_decode_overhead",
            ["speculative_config"],
        )
    kind, settings = _from_figures({**figures, "change": "structured outputs"}, deployment)
    assert kind != "spec_decode_overhead" and settings == []


@pytest.mark.parametrize(
    ("words", "after", "before"),
    [
        ("--max-num-seqs 64 gave more", {"max_num_seqs": 64}, {"max_num_seqs": None}),
        ("added --enforce-eager to the command", {"enforce_eager": True}, {"enforce_eager": None}),
        ("removed --enforce-eager", {"enforce_eager": None}, {"enforce_eager": True}),
        ("without the flag `--enforce-eager`", {"enforce_eager": None}, {"enforce_eager": True}),
        (
            "--no-enable-prefix-caching and nothing else",
            {"enable_prefix_caching": False},
            {"enable_prefix_caching": None},
        ),
        ("removed TP", {"tensor_parallel_size": 1}, {"tensor_parallel_size": "on"}),
        ("disabled mtp", {"speculative_config": None}, {"speculative_config": "on"}),
    ],
)
def test_a_sentence_tells_what_changed_and_which_way(
    words: str, after: dict[str, object], before: dict[str, object]
) -> None:
    named = changed_settings({"change": words})
    assert (named["after"], named["before"]) == (after, before)


def test_a_single_stream_at_the_speed_of_its_weights_reads_them_for_each_token() -> None:
    deployment = "vllm serve mistral-7b"
    assert _from_figures({"concurrency": 1, "tok_s": 55}, deployment, gpu="rtx-4090")[0] == "hbm_bound"
    assert _from_figures({"concurrency": 1, "tok_s": 12}, deployment, gpu="rtx-4090")[0] is None


def test_eager_execution_far_below_the_device_is_suspected_and_not_more() -> None:
    figures = {"isl": 4096, "osl": 1024, "concurrency": 64, "output_throughput": 200}
    for flag, expected in (("--enforce-eager", ["enforce_eager"]), ("", [])):
        evidence = gather(
            f"vllm serve microsoft/Phi-4-mini-instruct {flag}", observed=[json.dumps(figures)], gpu="a100-80gb"
        )
        findings = find_bottlenecks(evidence)
        found = findings.get("cpu_launch_bound")
        assert (found is not None) == bool(expected)
        assert found is None or (found.confidence == "weak" and found.discriminate)


def test_requests_that_are_all_sent_at_once_wait_for_seats() -> None:
    figures = {"request_rate": "inf", "num_prompts": 100, "isl": 200, "osl": 90, "mean_ttft_ms": 52000}
    kind, settings = _from_figures(figures, "vllm serve llama-2-7b --max-num-seqs 4", gpu="a100-80gb")
    assert (kind, settings[0]) == ("waiting_queue_stall", "max_num_seqs")
    assert _from_figures({**figures, "request_rate": 1.0}, "vllm serve llama-2-7b --max-num-seqs 4")[0] != kind


def test_a_table_by_run_and_then_by_load() -> None:
    rates = {"mtp": {"np=1": 22.1, "np=4": 26.4}, "none": {"np=1": 11.1, "np=4": 34.1}}
    loads = gather(None, observed=[json.dumps({"tok_s": rates})]).loads
    told = [
        (load.concurrency, load.settings["speculative_config"], load.measured["output_throughput"]) for load in loads
    ]
    assert set(told) == {
        (1, "mtp", 22.1), (4, "mtp", 26.4), (1, None, 11.1), (4, None, 34.1),
    }  # fmt: skip


def test_gauges_under_a_load_are_an_engine_at_that_load() -> None:
    """Whether or not its label has a point."""
    gauges = {"rate0.5": {"running": 5, "waiting": 2}, "rate2": {"running": 9, "waiting": 9}}
    assert [load.requests_per_s for load in gather("vllm serve m", observed=[json.dumps(gauges)]).loads] == [0.5, 2.0]


def test_bare_numbers_by_run_take_the_unit_beside_them() -> None:
    figures = {
        "single_stream": {"mtp k=2": 43.7, "baseline": 61.2},
        "c8": {"mtp k=2": 143.8, "baseline": 163.2},
        "unit": "tok/s",
    }
    assert _from_figures(figures)[0] == "spec_decode_overhead"


@pytest.mark.parametrize("length", [1024, 4096, 32768])
def test_a_limit_on_outputs_is_below_what_they_reach(length: int) -> None:
    seen = samples([1] * 400, kv=0.2, generation=140.0, prompt=0.0)
    _, fixes = judged(effective=flags(f"m --max-model-len {length}", gpu=None), samples=seen)
    capped = [fix for fix in fixes if fix.setting == "max_tokens"]
    assert capped and capped[0].to_value <= min(4096, length / 2)


def test_a_huge_request_that_came_with_its_prompt_is_not_told_to_say_less() -> None:
    """77 % is held before it generates; the usage hardly grows while it does. The other one fills as it speaks."""
    by_prompt = samples([1] * 6, 14, [0.765 + 0.002 * i for i in range(6)], 5.4, 0.0)
    by_output = samples([1] * 6, 14, [0.35 + 0.1 * i for i in range(6)], 140.0, 0.0)
    _, fixes = judged(samples=by_prompt)
    assert "max_tokens" not in [fix.setting for fix in fixes]
    found, fixes = judged(samples=by_output)
    assert found.first == "kv_starvation" and fixes[0].setting == "max_tokens"
