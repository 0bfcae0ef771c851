"""The configuration as it is read: effective values, the release's own defaults, and what a value means here."""

from __future__ import annotations

import pytest

from headway.deployment.effective import Effective, resolve_effective
from headway.deployment.read import read_text
from headway.doctor.diagnosis import BOTTLENECK_KINDS, Bottleneck, Fix, SettingRead
from headway.doctor.evidence import Evidence
from headway.doctor.figures import figures_of
from headway.doctor.fixes.refusals import forbidden_speculation, with_speculation
from headway.doctor.page.compat_notes import compat_notes
from headway.doctor.page.configuration import is_on_the_page, read_configuration
from headway.doctor.page.reading import measure_next, read_next
from headway.doctor.page.setting_remarks import CONTROLS
from headway.doctor.page.subject import subject_of
from headway.evidence.engine import EngineFacts, EngineSample
from headway.evidence.load import LoadResult

SPECULATING = """--speculative-config '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'"""


def effective(flags: str, version: str = "0.32.0", gpu: str | None = "l40s") -> Effective:
    """A deployment's flags as that release reads them."""
    (invocation,) = read_text(f"vllm serve meta-llama/Llama-3.1-8B-Instruct {flags}")
    return resolve_effective(invocation, engine_version=version, accelerator=gpu)


def rows(evidence: Evidence) -> dict[str, SettingRead]:
    """The configuration by name."""
    return {row.name: row for row in read_configuration(figures_of(evidence))}


@pytest.mark.parametrize(
    ("version", "gpu", "budget", "utilization"),
    [("0.32.0", "h100", 8192, 0.92), ("0.32.0", "l40s", 2048, 0.92), ("0.18.0", "l40s", 2048, 0.9)],
)
def test_the_default_is_the_release_s_own_on_that_gpu(version: str, gpu: str, budget: int, utilization: float) -> None:
    found = rows(
        Evidence(effective=effective("--max-num-batched-tokens 999 --gpu-memory-utilization 0.5", version, gpu))
    )
    assert (found["max_num_batched_tokens"].value, found["max_num_batched_tokens"].default) == (999, budget)
    assert found["gpu_memory_utilization"].default == utilization
    assert "Below 0.7" in found["gpu_memory_utilization"].remark


def test_without_a_gpu_a_default_that_depends_on_it_is_not_made_up() -> None:
    row = rows(Evidence(effective=effective("--max-num-seqs 64", gpu=None)))["max_num_seqs"]
    assert row.default is None and "256 on small ones" in row.default_reason


def test_only_settings_of_the_release_are_read() -> None:
    old = rows(Evidence(effective=effective("", "0.6.3")))
    new = rows(Evidence(effective=effective("")))
    assert "watermark" in new and "watermark" not in old
    assert "num_scheduler_steps" in old and "num_scheduler_steps" not in new
    assert set(new) <= set(CONTROLS)


def test_the_engine_is_believed_before_its_flags() -> None:
    evidence = Evidence(effective=effective("--max-num-seqs 64"), facts=EngineFacts(max_num_seqs=128))
    row = rows(evidence)["max_num_seqs"]
    assert (row.value, row.origin) == (128, "reported")
    assert "The flags come to 64" in row.remark


def test_without_flags_what_the_engine_reports_is_read() -> None:
    found = rows(Evidence(facts=EngineFacts(num_gpu_blocks=1000, block_size=16, enable_prefix_caching=False)))
    assert found["num_gpu_blocks"].value == 1000 and "16,000 tokens" in found["num_gpu_blocks"].remark
    assert "computed again" in found["enable_prefix_caching"].remark


def test_seats_are_set_against_the_pool_and_what_ran() -> None:
    evidence = Evidence(
        effective=effective("--max-num-seqs 64"),
        facts=EngineFacts(kv_cache_tokens=100_000),
        samples=(EngineSample(at_s=0.0, num_running=64.0),),
        loads=(LoadResult("observed", mean_prompt_tokens=800.0, mean_output_tokens=200.0),),
    )
    remark = rows(evidence)["max_num_seqs"].remark
    assert "about 100 requests of 1,000 tokens: seats run out first" in remark and "All seats were taken" in remark


def test_a_length_that_the_pool_never_holds_is_named() -> None:
    evidence = Evidence(effective=effective("--max-model-len 32768"), facts=EngineFacts(kv_cache_tokens=20_000))
    assert "never fits" in rows(evidence)["max_model_len"].remark


@pytest.mark.parametrize("flags", ["--max-num-seqs $SEATS", "--gpu-memory-utilization ${X}", "--max-model-len auto"])
def test_a_value_that_is_not_known_is_no_number(flags: str) -> None:
    assert rows(Evidence(effective=effective(flags)))


def test_what_a_release_forces_carries_its_reason() -> None:
    row = rows(Evidence(effective=effective(SPECULATING)))["async_scheduling"]
    assert (row.value, row.origin) == (False, "forced") and "Set by the release" in row.remark


def test_the_page_shows_what_was_written_and_what_every_deployment_turns() -> None:
    found = rows(Evidence(effective=effective("--scheduling-policy priority")))
    shown = {name for name, row in found.items() if is_on_the_page(row)}
    assert {"scheduling_policy", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"} <= shown
    assert "watermark" not in shown
    unknown = rows(Evidence(effective=effective("", gpu=None)))["max_num_seqs"]
    assert unknown.value is None and is_on_the_page(unknown)


def test_advice_about_chunks_looks_at_speculation() -> None:
    fix = Fix("max_num_batched_tokens", 8192, 512, "Shorter gaps.")
    off = with_speculation(fix, figures_of(Evidence(effective=effective(""))))
    on = with_speculation(fix, figures_of(Evidence(effective=effective(f"--max-num-seqs 64 {SPECULATING}"))))
    assert off.note.startswith("Speculation is off")
    assert "4 tokens of the budget" in on.note and "256 with all seats taken" in on.note
    assert with_speculation(Fix("max_num_seqs", 1, 2, ""), figures_of(Evidence())).note == ""


def test_a_speculative_recipe_that_the_release_forbids_is_refused_with_its_source() -> None:
    (refused,) = forbidden_speculation(effective(f"--async-scheduling {SPECULATING}", "0.18.0"))
    assert refused.setting == "speculative_config" and "rejected in vLLM 0.18.0" in refused.reason
    assert forbidden_speculation(effective(SPECULATING, "0.18.0")) == []


def test_compatibility_notes_say_each_thing_once_and_whether_anything_is_wrong() -> None:
    good, bad = compat_notes(effective("--max-num-seqs 64")), compat_notes(effective("--max-num-sqs 64"))
    assert good.is_clean and good.notes == ()
    assert not bad.is_clean and len(bad.notes) == 1 and "did you mean --max-num-seqs" in bad.notes[0]
    assert compat_notes(None).is_clean


def _bottleneck(kind: str) -> Bottleneck:
    return Bottleneck(kind, "strong", (), ())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", BOTTLENECK_KINDS)
def test_every_finding_has_something_to_read_and_to_measure(kind: str) -> None:
    figures = figures_of(Evidence(effective=effective("", "0.18.0")))
    reading = read_next(figures, [_bottleneck(kind)])
    assert reading[0] == (
        "vLLM 0.18.0 release notes",
        "https://github.com/vllm-project/vllm/releases/tag/v0.18.0",
    )
    assert 2 <= len(reading) <= 5 and all(place.startswith("https://") for _, place in reading)
    assert 1 <= len(measure_next(figures, [_bottleneck(kind)])) <= 3


def test_what_to_measure_follows_the_finding_and_the_release_s_names() -> None:
    new, old = (figures_of(Evidence(effective=effective("", version))) for version in ("0.32.0", "0.8.5"))
    starved, stalled, gaps = (
        measure_next(new, [_bottleneck(kind)])[0] for kind in ("kv_starvation", "waiting_queue_stall", "chunk_missized")
    )
    assert starved.startswith("Block allocation rate") and "vllm:kv_cache_usage_perc" in starved
    assert stalled.startswith("WAITING depth") and gaps.startswith("P99 ITL (vllm:inter_token_latency_seconds)")
    assert "vllm:gpu_cache_usage_perc" in measure_next(old, [_bottleneck("kv_starvation")])[0]
    assert "vllm:time_per_output_token_seconds" in measure_next(old, [_bottleneck("chunk_missized")])[0]


def test_the_subject_says_what_was_seen_and_what_is_assumed() -> None:
    text = subject_of(figures_of(Evidence(effective=effective(""), samples=(EngineSample(num_running=1.0),))))
    assert text == "meta-llama/Llama-3.1-8B-Instruct on L40S-48GB; vLLM 0.32.0 (V1). Seen: flags, 1 sample."
    (invocation,) = read_text("vllm serve meta-llama/Llama-3.1-8B-Instruct")
    assert "assumed" in subject_of(figures_of(Evidence(effective=resolve_effective(invocation))))
