"""The compatibility data is well formed, has a source everywhere, and does not contradict itself."""

from __future__ import annotations

import copy
import json
from importlib import resources
from typing import Any

import pytest

from headway.catalog.compatibility import (
    EXAMINED,
    FIRST_COVERED,
    LAST_COVERED,
    check_contradictions,
    compat_data,
    load_compat,
)
from headway.catalog.conditions import UNKNOWN, condition
from headway.catalog.flags import all_flags, flags_of
from headway.errors import ConfigError
from tests.shared_data import shared_path


def _file() -> dict[str, Any]:
    text = resources.files("headway.catalog").joinpath("vllm_compat.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def test_every_row_has_a_source_and_ranges_run_forward() -> None:
    rows = compat_data().rows
    assert len(rows) > 400
    for row in rows:
        assert row.source and row.message and len(row.source) > 5, row.id
        assert row.last is None or row.first <= row.last, row.id


def test_no_pair_is_both_supported_and_rejected_in_one_version() -> None:
    """The loader refuses contradictions; here every examined version is looked at again, pair by pair."""
    check_contradictions(compat_data().rows)
    data = compat_data()
    for version in EXAMINED:
        seen: dict[tuple[frozenset[str], str, str], set[bool]] = {}
        for row in data.at(version):
            if row.when is None and row.verdict != "unknown" and row.features:
                seen.setdefault((frozenset(row.features), row.engine, row.platform), set()).add(row.verdict == "ok")
        assert [key for key, answers in seen.items() if len(answers) > 1] == [], version


def test_every_version_from_first_to_last_is_covered() -> None:
    """0.6.0 to 0.33.0: rows of code for each, and a matrix of the documentation from 0.6.3 on."""
    assert EXAMINED[0] == FIRST_COVERED == (0, 6, 0) and EXAMINED[-1] == LAST_COVERED == (0, 33, 0)
    data = compat_data()
    for version in EXAMINED:
        rows = data.at(version)
        assert sum(row.basis == "code" for row in rows) >= 10, version
        if version >= (0, 6, 3):
            assert sum(row.basis == "docs" for row in rows) >= 50, version


def test_conditions_name_only_facts_that_can_be_known() -> None:
    """A misspelt setting would never match; names that are no setting must be in the list of other facts."""
    known = set(all_flags()) | _OTHER_FACTS
    for row in compat_data().rows:
        names = row.when.names if row.when else frozenset()
        assert {name.removeprefix("asked_") for name in names} <= known, row.id
        assert set(row.sets) <= set(all_flags()) | {"engine"}, row.id
        assert set(row.settings) <= set(all_flags()), row.id
    for feature in compat_data().features.values():
        assert {name.removeprefix("asked_") for name in feature.when.names} <= known, feature.name


_OTHER_FACTS = {
    "engine", "engine_minor", "platform", "capability", "model_runner", "cudagraph_mode", "kv_connector",
    "kv_connector_is_layerwise", "spec_method", "spec_is_mtp", "spec_is_dynamic", "spec_is_adaptive",
    "spec_is_multi_module_mtp", "spec_parallel_slots", "spec_disable_padded_drafter_batch",
    "spec_use_heterogeneous_vocab", "spec_draft_sampling", "spec_tokens_given", "spec_names_draft",
    "draft_tensor_parallel_size", "draft_vocab_size", "vocab_size", "draft_supports_pp", "draft_pass_exceeds_budget",
    "is_moe", "is_mla", "is_multimodal", "is_pooling", "is_encoder_decoder", "is_hybrid", "is_attention_free",
    "has_states", "has_sliding_window", "has_chunked_attention", "uses_gqa", "uses_mrope", "num_kv_heads",
    "num_attention_heads", "model_limit", "num_mamba_blocks", "kv_cache_tokens", "scheduler_block_size",
    "has_several_kv_groups", "max_tokens_per_mm_item", "pooling_needs_whole_prompt", "connector_without_hybrid",
    "hybrid_manager_unsupported", "moe_backend_is_mega", "has_arctic_inference", "cpu_arch",
    "uses_expandable_segments", "env_use_v1", "env_allow_long_max_model_len", "sampling_logprobs",
    "sampling_prompt_logprobs", "sampling_best_of", "sampling_use_beam_search", "sampling_logits_processors",
    "sampling_structured_outputs", "sampling_min_p", "sampling_logit_bias", "sampling_min_tokens", "sampling_seed",
    "sampling_priority",
}  # fmt: skip


def test_the_data_agrees_with_the_documentation_it_was_built_from() -> None:
    """Each pair that the source data marks in a version's matrix is answered by a documentation row, alike."""
    import yaml

    path = shared_path("compat_vllm.yaml")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    versions = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)["versions"]
    expected = {"yes": "ok", "no": "unsupported", "partial": "ok", "unknown": "unknown"}
    names = {"guided_decoding": "structured_output"}
    docs = [
        row for row in compat_data().rows if row.basis == "docs" and row.platform == "any" and len(row.features) == 2
    ]
    compared = 0
    for text, content in versions.items():
        number = tuple(int(part) for part in text.split(".")[:3])
        for pair, cell in (content.get("pairs") or {}).items():
            wanted = {names.get(name, name) for name in pair.split("|")}
            found = [row for row in docs if set(row.features) == wanted and row.first <= number <= (row.last or number)]
            assert [row.verdict for row in found] == [expected[cell["status"]]], (text, pair)
            compared += 1
    assert compared > 4000


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"last": "0.5.0"}, "runs from"),
        ({"verdict": "maybe"}, "not a verdict"),
        ({"engine": "V2"}, "not a engine"),
        ({"platform": "toaster"}, "not a platform"),
        ({"features": ["warp_drive"]}, "not described"),
        ({"source": " "}, "empty message or source"),
        ({"when": "__import__('os')"}, "not allowed"),
        ({"first": "soon"}, "not a vLLM version"),
        ({"basis": "rumour"}, "not a basis"),
    ],
)
def test_the_loader_refuses_bad_rows(change: dict[str, Any], complaint: str) -> None:
    content = _file()
    content["rows"][0] |= change
    with pytest.raises(ConfigError, match=complaint):
        load_compat(json.dumps(content))


def test_the_loader_refuses_contradictions_and_double_ids() -> None:
    content = _file()
    row = next(copy.deepcopy(row) for row in content["rows"] if row["verdict"] == "ok" and "when" not in row)
    with pytest.raises(ConfigError, match="Two rows"):
        load_compat(json.dumps({**content, "rows": [*content["rows"], row]}))
    row |= {"id": "other", "verdict": "rejected"}
    with pytest.raises(ConfigError, match="contradict each other"):
        load_compat(json.dumps({**content, "rows": [*content["rows"], row]}))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "headway-compat/9"}', "not json"])
def test_the_loader_refuses_other_files(text: str) -> None:
    with pytest.raises(ConfigError):
        load_compat(text)


def test_conditions_have_a_third_answer() -> None:
    facts = {"a": 2, "b": None, "c": UNKNOWN}
    cases = {
        "a > 1": True,
        "a > 1 and c > 1": None,
        "a < 1 and c > 1": False,
        "a > 1 or c > 1": True,
        "b > 1": False,
        "b is None": True,
        "missing == 1": None,
        "not (a == 2)": False,
        "a * 3 == 6": True,
        "a in (1, 2)": True,
    }
    assert {text: condition(text).holds(facts) for text in cases} == cases


@pytest.mark.parametrize(
    "text", ["a.b", "f(a)", "[x for x in a]", "a if b else c", "lambda: 1", "a < b < c", "a +", "x[0]"]
)
def test_conditions_are_nothing_but_comparisons(text: str) -> None:
    with pytest.raises(ConfigError):
        condition(text)


def test_flags_come_and_go_as_in_the_releases() -> None:
    """Counts at 0.32.0 as its parser has them; a few flags that users met."""
    assert len(flags_of((0, 32, 0))) == 316
    flags = all_flags()
    assert flags["swap_space"].removed_in((0, 20, 0)) == (0, 18, 0)
    assert not flags["device"].exists_in((0, 10, 0)) and flags["device"].exists_in((0, 9, 2))
    assert flags["gpu_memory_utilization"].default((0, 19, 1)) == 0.9
    assert flags["gpu_memory_utilization"].default((0, 20, 0)) == 0.92
    for flag in flags.values():
        ends = [end for _, end in flag.spans]
        assert all(first < end for first, end in flag.spans if end is not None), flag.name
        assert ends[-1] is None or flag.replaced_by or flag.note or flag.name in _GONE_WITHOUT_A_NOTE, flag.name


_GONE_WITHOUT_A_NOTE = {
    "enable_bf16x3_router_gemm",
    "enable_mamba_fine_grained_prefix_cache",
    "use_gpu_for_pooling_score",
}


def test_settings_agree_with_the_recorded_defaults() -> None:
    """Defaults by version equal those read from the releases."""
    table = json.loads(shared_path("vllm_engine_args_all.json").read_text(encoding="utf-8"))["fields"]
    compared = 0
    for name in (
        "max_num_seqs",
        "gpu_memory_utilization",
        "async_scheduling",
        "seed",
        "scheduling_policy",
        "swap_space",
    ):
        for since, text in table[name]:
            number = tuple(int(part) for part in since.split(".")[:3])
            if text == "<absent>" or number < (0, 6, 0):
                continue
            assert str(all_flags()[name].default((number[0], number[1], number[2]))) == text.strip("'"), (name, since)
            compared += 1
    assert compared >= 7
