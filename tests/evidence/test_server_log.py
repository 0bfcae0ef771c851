"""Engines' logs: every form of line, time however it is written, several servers in one file, and what is broken."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.errors import InputError
from headway.evidence import server_log
from headway.evidence.engine import EngineSample
from headway.evidence.server_log import ServerLog, read_server_log, read_server_log_text
from tests.shared_data import shared_path

V1 = (
    "Engine {engine:03d}: Avg prompt throughput: 12.5 tokens/s, Avg generation throughput: 100.0 tokens/s, "
    "Running: {running} reqs, Waiting: 2 reqs, GPU KV cache usage: 50.0%, Prefix cache hit rate: 25.0%"
)


def v1_line(at: str, running: int = 4, engine: int = 0, prefix: str = "") -> str:
    """One periodic line of V1."""
    return f"{prefix}(APIServer pid=1) INFO {at} [loggers.py:271] {V1.format(engine=engine, running=running)}\n"


def case_log(name: str) -> ServerLog:
    """One of the logs of users' cases."""
    return read_server_log(shared_path("cases/files/logs") / name)


def one(log: ServerLog) -> EngineSample:
    """The only sample."""
    (sample,) = log.samples
    return sample


# ---------------------------------------------------------------- users' logs


def test_f09_kv_usage_rises_by_0_7_percent_every_six_seconds() -> None:
    log = case_log("f09_kv_slope.log")
    assert [sample.kv_usage for sample in log.samples] == pytest.approx([0.921, 0.927, 0.935, 0.942, 0.949])
    assert [sample.at_s for sample in log.samples] == [0, 6, 12, 18, 24]
    assert (log.facts.engine, log.facts.generation) == ("vllm", "V0") and not log.notes


def test_c08_running_falls_as_pending_rises() -> None:
    samples = case_log("c08_v0_silent_preemption.log").samples
    assert [sample.num_running for sample in samples] == [247, 241, 233, 226, 219]
    assert {(sample.num_running or 0) + (sample.num_waiting or 0) for sample in samples} == {987}
    assert [sample.at_s for sample in samples] == [0, 5, 10, 15, 20] and samples[-1].kv_usage == 1.0


def test_c09_preemption_warning_of_v0_tells_group_mode_and_count() -> None:
    (event,) = case_log("c09_v0_preempt_warning.log").events
    assert event.kind == "preemption"
    assert event.fields == {"group": "221", "mode": "RECOMPUTE", "cumulative_preemptions": 101.0}


def test_c14_one_hog_makes_slow_progress() -> None:
    samples = case_log("c14_one_long_hog.log").samples
    assert [sample.kv_usage for sample in samples] == [0.765, 0.767, 0.768]
    assert {(sample.num_running, sample.num_waiting) for sample in samples} == {(1, 14)}


def test_c05_seats_are_full_at_a_fifth_of_the_cache() -> None:
    sample = one(case_log("c05_seats.log"))
    assert (sample.num_running, sample.num_waiting, sample.kv_usage) == (256, 251, 0.205)
    assert sample.num_preemptions is None, "the line does not tell"


def test_f11_two_servers_divided_by_a_comment_are_two_sources() -> None:
    log = case_log("f11_specdecode.log")
    with_mtp, without = log.samples
    assert (with_mtp.generation_tokens_per_s, without.generation_tokens_per_s) == (128.3, 342.2)
    assert with_mtp.mm_hit_rate == 0.065 and "no MTP" in without.source
    (event,) = log.events
    assert event.kind == "spec_decode" and event.source == with_mtp.source
    assert event.fields["acceptance_rate"] == pytest.approx(0.966) and event.fields["mean_acceptance_length"] == 1.97


def test_b18_stall_shows_no_tokens_of_either_kind() -> None:
    samples = case_log("b18_gemma_stall.log").samples
    assert [sample.generation_tokens_per_s for sample in samples] == [0.5, 0.5, 2.3, 74.7]
    assert [sample.mm_hit_rate for sample in samples] == [0.767] * 4


def test_a14_deadlock_and_the_start_before_it() -> None:
    log = case_log("a14_gemma_deadlock.log")
    assert [sample.num_waiting for sample in log.samples] == [1, 2, 3, 4]
    assert all(sample.num_running == 0 for sample in log.samples)
    assert log.facts.version == "0.19.1rc1.dev301+g0000000" and "76,640 tokens" in log.start_up_text


def test_b01_decode_starves_while_prompts_are_read() -> None:
    samples = case_log("b01_gb10_prefill_stall.log").samples
    assert samples[1].prompt_tokens_per_s == 2400.0 and samples[1].generation_tokens_per_s == 0.3
    assert samples[4].at_s == 110.0, "a minute without lines stays one"


# ---------------------------------------------------------------- forms


def test_optional_and_unknown_fields_of_v1() -> None:
    line = (
        "INFO 07-23 09:00:30 [loggers.py:310] 2 Engines Aggregated: Avg prompt throughput: 1.0 tokens/s, Avg "
        "generation throughput: 2.0 tokens/s, Running: 3 reqs, Waiting: 9 reqs, Deferred: 5 reqs, Preemptions: 7, GPU "
        "KV cache usage: 99.0%, Prefix cache hit rate: 10.0%, External prefix cache hit rate: 30.0%, Other: 3\n"
    )
    first, second = read_server_log_text(line + line).samples
    assert (first.engine, first.num_deferred, first.external_hit_rate) == ("all", 5, 0.3)
    assert (first.num_preemptions, second.num_preemptions) == (7, 14), "counted from the first line on"


def test_v0_hit_rate_on_a_line_of_its_own() -> None:
    text = (
        "INFO 07-24 09:55:30 metrics.py:455] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 5.0 "
        "tokens/s, Running: 1 reqs, Swapped: 3 reqs, Pending: 0 reqs, GPU KV cache usage: 9.7%, CPU KV cache usage: "
        "0.0%.\nINFO 07-24 09:55:30 metrics.py:471] Prefix cache hit rate: GPU: 37.50%, CPU: 0.00%\n"
    )
    sample = one(read_server_log_text(text))
    assert (sample.prefix_hit_rate, sample.num_swapped, sample.num_preemptions) == (0.375, 3, None)


def test_v1_before_engine_numbers_were_printed() -> None:
    text = (
        "INFO 03-01 10:00:00 loggers.py:77] Avg prompt throughput: 10.0 tokens/s, Avg generation throughput: 5.0 "
        "tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, Prefix cache hit rate: 0.0%\n"
    )
    log = read_server_log_text(text)
    assert one(log).engine == "0" and log.facts.generation == "V1"


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "SpecDecoding metrics: Draft acceptance rate: 55.2%, Mean acceptance length: 2.66, Accepted: 1234 tokens, "
            "Drafted: 2234 tokens, Per-position acceptance rate: 0.7, 0.5, 0.3",
            {"acceptance_rate": 0.552, "mean_acceptance_length": 2.66, "acceptance_by_position": "0.7, 0.5, 0.3"},
        ),
        (
            "Speculative metrics: Draft acceptance rate: 0.612, System efficiency: 0.5, Number of speculative tokens: "
            "3, Number of accepted tokens: 10, Number of draft tokens: 20, Number of emitted tokens: 15.",
            {"acceptance_rate": 0.612, "num_accepted": 10, "num_drafted": 20, "num_speculative_tokens": 3},
        ),
    ],
)
def test_speculation_of_both_generations(line: str, fields: dict[str, float | str]) -> None:
    (event,) = read_server_log_text(f"INFO 07-24 09:55:30 [metrics.py:101] {line}\n").events
    assert {name: event.fields[name] for name in fields} == fields


def test_sglang_tells_tokens_by_batch() -> None:
    decode = (
        "Decode batch, #running-req: {}, #token: 76, token usage: 0.52, gen throughput (token/s): 40.5, #queue-req: 3"
    )
    prefill = (
        "Prefill batch. #new-seq: 1, #new-token: 300, #cached-token: 100, token usage: 0.5, #running-req: 0, "
        "#queue-req: 1"
    )
    lines = [
        f"[2025-11-06 12:11:00 DP1 TP0] {decode.format(1)}",
        *(f"[2025-11-06 12:11:0{second} DP1 TP0] {prefill}" for second in (1, 2, 3)),
        f"[2025-11-06 12:11:10 DP1 TP0] {decode.format(2)}",
        f"[2025-11-06 12:11:10 DP1 TP1] {decode.format(2)}",
    ]
    log = read_server_log_text("\n".join(lines))
    first, second = log.samples
    assert log.facts.engine == "sglang" and first.engine == "1"
    assert (second.num_running, second.num_waiting, second.kv_usage) == (2, 3, 0.52)
    assert second.prompt_tokens_per_s == 90.0 and second.prefix_hit_rate == 0.25


def test_sglang_with_prefill_lines_alone() -> None:
    text = "".join(
        f"[2025-11-06 12:11:{second:02d}] Prefill batch, #new-seq: 1, #new-token: 500, #cached-token: 0, token usage: "
        "0.10, #running-req: 7, #queue-req: 9, \n"
        for second in range(0, 30, 2)
    )
    samples = read_server_log_text(text).samples
    assert len(samples) == 5 and samples[-1].prompt_tokens_per_s == 250.0 and samples[-1].num_waiting == 9


def test_sglang_retraction_counts_as_preemption() -> None:
    text = (
        "[2025-11-06 12:11:00] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.6 -> "
        "1.0\n[2025-11-06 12:11:05] Decode batch, #running-req: 1, #token: 7, token usage: 0.9, gen throughput "
        "(token/s): 4.0, #queue-req: 3\n"
    )
    log = read_server_log_text(text)
    assert log.events[0].fields == {"mode": "retract", "count": 3.0} and one(log).num_preemptions == 3


def test_a_traceback_is_one_error() -> None:
    text = "\n".join(
        [
            "ERROR 07-24 09:55:30 [core.py:570] EngineCore encountered a fatal error.",
            "ERROR 07-24 09:55:30 [core.py:570] Traceback (most recent call last):",
            "ERROR 07-24 09:55:30 [core.py:570] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.",
            "INFO 07-24 09:55:31 something else",
            "ERROR 07-24 09:55:32 [core.py:1] another",
        ]
    )
    first, second = read_server_log_text(text).events
    assert first.fields["cause"] == "out_of_memory" and "Tried to allocate" in str(first.fields["last_line"])
    assert second.line == 5 and second.at_s == 2.0


def test_kernels_compiled_while_serving() -> None:
    text = (
        "(EngineCore pid=3) WARNING 08-04 20:50:58 [jit_monitor.py:135] Triton kernel JIT compilation during inference"
        ": _prepare_kernel. This causes a latency spike\n"
    )
    (event,) = read_server_log_text(text).events
    assert (event.kind, event.fields) == ("jit", {"kernel": "_prepare_kernel"})


# ---------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("first", "second", "elapsed"),
    [
        ("07-24 09:55:30", "07-24 09:55:40", 10.0),
        ("12-31 23:59:55", "01-01 00:00:05", 10.0),
        ("02-28 23:59:55", "02-29 00:00:05", 10.0),
    ],
)
def test_times_without_a_year(first: str, second: str, elapsed: float) -> None:
    log = read_server_log_text(v1_line(first) + v1_line(second))
    assert [sample.at_s for sample in log.samples] == [0.0, elapsed] and not log.notes


@pytest.mark.parametrize(
    "prefix",
    [
        "2025-10-15T00:02:{:02d}.500000000Z ",
        "2025-10-15T02:02:{:02d}.5+02:00 stderr F ",
        "vllm-1  | 2025-10-15 00:02:{:02d},500 ",
        "[pod/vllm-0/server] 2025-10-15T00:02:{:02d}.5Z ",
    ],
)
def test_times_of_containers_win_for_their_fractions(prefix: str) -> None:
    text = v1_line("10-14 17:02:38", prefix=prefix.format(38)) + v1_line("10-14 17:02:47", prefix=prefix.format(48))
    assert [sample.at_s for sample in read_server_log_text(text).samples] == [0.0, 10.0]


def test_a_journal_and_lines_without_its_prefix_share_a_clock() -> None:
    text = "Oct 15 00:02:38 host vllm[7]: " + V1.format(engine=0, running=1) + "\n"
    text += "Oct  5 00:02:48 host vllm[7]: " + V1.format(engine=0, running=1) + "\n"
    log = read_server_log_text(text)
    assert log.samples[0].at_s == 0.0 and "goes back" in log.notes[0]


def test_a_clock_that_is_set_back_is_told_and_time_goes_on() -> None:
    text = "".join(v1_line(f"07-24 {at}") for at in ("10:00:00", "10:00:10", "09:00:20", "09:00:30"))
    log = read_server_log_text(text)
    assert [sample.at_s for sample in log.samples] == [0.0, 10.0, 10.0, 20.0]
    assert "goes back by 3,590 s at line 3" in log.notes[0]


def test_a_leap_of_days_is_told() -> None:
    log = read_server_log_text(v1_line("07-24 10:00:00") + v1_line("07-27 10:00:00"))
    assert "leaps ahead by 72.0 h at line 2" in log.notes[0]


def test_lines_without_any_time_are_told() -> None:
    log = read_server_log_text(V1.format(engine=0, running=1) + "\n")
    assert one(log).at_s is None and "have no time" in log.notes[0]


# ---------------------------------------------------------------- several servers


def test_engines_are_kept_apart() -> None:
    text = "".join(v1_line(f"07-24 10:00:{second:02d}", engine=rank) for second in (0, 10) for rank in (0, 1))
    log = read_server_log_text(text)
    assert [(sample.engine, sample.at_s) for sample in log.samples] == [("0", 0), ("0", 10), ("1", 0), ("1", 10)]
    assert log.facts.num_engines == 2


def test_containers_of_one_compose_log_are_kept_apart() -> None:
    text = "".join(
        v1_line("07-24 10:00:00", running=running, prefix=f"{name}  | ")
        for name, running in (("vllm-a", 1), ("vllm-b", 2))
    )
    sources = {sample.num_running: sample.source for sample in read_server_log_text(text).samples}
    assert "vllm-a" in sources[1] and "vllm-b" in sources[2]


def test_a_restart_begins_a_part_of_its_own() -> None:
    banner = "(APIServer pid=1) INFO 07-24 10:00:20 [utils.py:299] vLLM API server version 0.12.0\n"
    log = read_server_log_text(banner + v1_line("07-24 10:01:00") + banner + v1_line("07-24 10:02:00"))
    first, second = log.samples
    assert first.source != second.source and second.at_s == 100.0
    assert [event.kind for event in log.events] == ["restart"] and log.facts.version == "0.12.0"


# ---------------------------------------------------------------- size and hostility


def test_long_logs_are_thinned_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_log, "MAX_SAMPLES", 100)
    lines = [v1_line(f"07-24 {t // 3600:02d}:{t // 60 % 60:02d}:{t % 60:02d}", running=t) for t in range(0, 20_000, 20)]
    log = read_server_log_text("".join(lines))
    gaps = {round((b.at_s or 0) - (a.at_s or 0)) for a, b in zip(log.samples, log.samples[1:], strict=False)}
    assert 50 <= len(log.samples) <= 100 and len(gaps) == 1
    assert "of 1,000 samples" in log.notes[0]


def test_a_log_of_five_megabytes_among_other_lines(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    noise = '(APIServer pid=1) INFO:     192.0.2.20:59146 - "GET /metrics HTTP/1.1" 200 OK\n' * 400
    path.write_text("".join(noise + v1_line(f"07-24 10:{minute:02d}:00") for minute in range(60)) * 3)
    assert path.stat().st_size > 5_000_000
    log = read_server_log(path)
    assert len(log.samples) == 180 and log.num_lines == 401 * 180


def test_a_flood_of_errors_keeps_both_ends() -> None:
    text = "".join(f"ERROR 07-24 10:00:00 [core.py:1] failure {index}\nplain\n" for index in range(1000))
    log = read_server_log_text(text)
    assert len(log.events) == 400 and "failure 0" in log.events[0].text and "failure 999" in log.events[-1].text
    assert "of 1,000 error lines" in log.notes[0]


def test_figures_that_are_no_numbers_are_left_out() -> None:
    line = v1_line("07-24 10:00:00").replace("100.0 tokens/s", "nan tokens/s").replace("50.0%", "-3.0%")
    sample = one(read_server_log_text(line))
    assert (sample.generation_tokens_per_s, sample.kv_usage, sample.prompt_tokens_per_s) == (None, None, 12.5)


def test_compressed_and_utf16_logs(tmp_path: Path) -> None:
    line = v1_line("07-24 10:00:00", running=9)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(line.encode()))
    (tmp_path / "b.log").write_bytes(line.encode("utf-16"))
    assert {one(read_server_log(tmp_path / name)).num_running for name in ("a.log.gz", "b.log")} == {9}


def test_colours_are_no_obstacle() -> None:
    line = v1_line("07-24 10:00:00").replace("(APIServer pid=1)", "\x1b[0;36m(APIServer pid=1)\x1b[0;0m")
    assert one(read_server_log_text(line)).num_running == 4


def test_files_that_are_no_logs(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x7fELF\0\0\0")
    (tmp_path / "y.gz").write_bytes(b"\x1f\x8bbroken")
    for name, words in (
        ("x.bin", "not text"),
        ("y.gz", "Cannot read"),
        ("none.log", "No such file"),
        ("", "not a file"),
    ):
        with pytest.raises(InputError, match=words):
            read_server_log(tmp_path / name)


def test_a_log_of_something_else_is_told() -> None:
    assert "no line of vLLM or SGLang" in read_server_log_text("nginx: hello\n").notes[0]


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400), st.integers(0, 200), st.binary(max_size=30))
def test_nothing_that_is_read_stops_the_reader(noise: bytes, cut: int, patch: bytes) -> None:
    """Random bytes, and lines with random bytes in them."""
    line = v1_line("07-24 10:00:00").encode()
    text = noise + b"\n" + line[:cut] + patch + line[cut:] + line[:cut]
    log = read_server_log_text(text.decode("utf-8", errors="replace"))
    assert all(0 <= (sample.num_running or 0) < 1e30 for sample in log.samples)
