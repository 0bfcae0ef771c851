"""The page: everything that was found is on it, in each format, and nothing of the evidence becomes markup."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from headway.doctor.diagnosis import BOTTLENECK_KINDS, Bottleneck, Diagnosis, Fix, ModelCheck, Predicted, SettingRead
from headway.doctor.page.html import html_page
from headway.doctor.page.json_form import diagnosis_json
from headway.doctor.page.json_schema import SCHEMA, field_rows
from headway.doctor.page.markdown import markdown_page
from headway.doctor.page.page import change_text, make_page, model_check_text
from headway.doctor.page.terminal import terminal_page
from headway.doctor.page.words import TITLES, metric_name, metric_value, predicted_text
from tests.doctor.page_support import HOSTILE, full_diagnosis, schema_errors


def terminal(diagnosis: Diagnosis, width: int = 120) -> str:
    """What a terminal of that width shows."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(terminal_page(make_page(diagnosis)))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_page_says_the_verdict_the_first_fix_and_its_effect_with_the_error() -> None:
    text = terminal(full_diagnosis(), width=200)
    assert text.startswith("Requests wait for a seat (strong evidence). First: max_num_seqs 256 → 384.")
    assert "P99 TTFT 8.20 s → 1.10 s (± 15%)" in text
    assert "P99 ITL 29.0 ms → 33.0 ms (30.0 ms to 45.0 ms)" in text
    assert "output 7,573 tok/s → 8,100 tok/s (error not known)" in text
    assert "ITL grows by 4 ms." in text


def test_the_sections_come_in_the_order_of_the_sheet_and_end_with_what_to_measure() -> None:
    titles = [section.title for section in make_page(full_diagnosis()).sections]
    assert titles == [
        "Configuration read",
        "Bottleneck",
        "What to change, in this order",
        "Do not",
        "Missing, and what it would settle",
        "Compatibility in this release",
        "Ruled out",
        "Not used",
        "Read next",
        "Measure next",
    ]


def test_defaults_that_nobody_turns_stay_off_the_page_but_in_the_json() -> None:
    diagnosis = full_diagnosis()
    assert "watermark" not in terminal(diagnosis)
    assert "1 more scheduler settings are at their defaults." in terminal(diagnosis)
    assert "watermark" in [row["name"] for row in diagnosis_json(diagnosis)["configuration"]]


def test_a_value_that_the_release_forces_is_marked() -> None:
    assert "off (forced)" in terminal(full_diagnosis())


def test_turning_a_feature_off_reads_as_off() -> None:
    assert (
        change_text(Fix("speculative_config", {"method": "ngram"}, None, "")) == "speculative_config method ngram → off"
    )
    assert change_text(Fix("replicas", None, 2, "")) == "replicas → 2"


def test_a_reason_that_holds_for_all_fixes_stands_once() -> None:
    reason = "The GPU is not known."
    fixes = tuple(Fix("max_num_seqs", 24, value, "Because.", note=f"{reason} But this.") for value in (48, 64))
    check = ModelCheck({}, {}, None, False, f"Nothing is predicted. {reason}")
    text = terminal(replace(full_diagnosis(), fixes=fixes, model_check=check))
    assert text.count(reason) == 1 and text.count("But this.") == 2


def test_what_the_simulation_found_of_no_use_is_not_advised() -> None:
    fixes = (Fix("max_num_seqs", 24, 48, "", helps=False), Fix("replicas", 1, 2, "", helps=True))
    page = make_page(replace(full_diagnosis(), fixes=fixes))
    assert page.headline.endswith("First: replicas 1 → 2.")
    assert "Simulated and of no use here: max_num_seqs 24 → 48." in terminal(replace(full_diagnosis(), fixes=fixes))


def test_an_empty_diagnosis_is_a_page_that_names_no_bottleneck() -> None:
    page = make_page(Diagnosis())
    assert (page.tone, page.sections) == ("open", ())
    assert "No bottleneck can be named" in terminal(Diagnosis())


def test_nothing_wrong_is_good_news() -> None:
    page = make_page(Diagnosis(bottlenecks=(Bottleneck("none", "strong", ("All is well.",), ()),)))
    assert page.tone == "good" and "First:" not in page.headline


def test_a_refused_prediction_says_why() -> None:
    check = ModelCheck({"p99_ttft_ms": 8200.0}, {"p99_ttft_ms": 400.0}, 0.95, False, "Too far off.")
    assert model_check_text(check) == (
        "No effect is predicted (mean error 95%): the simulation does not reproduce what was seen: "
        "P99 TTFT 8.20 s seen, 400 ms simulated. Too far off."
    )


def test_lists_too_long_for_a_page_say_how_much_more_there_is() -> None:
    diagnosis = Diagnosis(compat=tuple(f"note {number}" for number in range(9)))
    assert "3 more with --json." in terminal(diagnosis) and "note 8" not in terminal(diagnosis)
    assert len(diagnosis_json(diagnosis)["compat"]) == 9


def test_the_page_fits_a_page() -> None:
    """Some 100 lines of 120 characters, with every list at its longest."""
    many = full_diagnosis()
    rows = tuple(
        SettingRead(f"setting_{i}", i, 0, "controls", "A remark of some length. " * 3, "written") for i in range(12)
    )
    longest = Diagnosis(
        many.subject, rows, many.bottlenecks * 5, dict.fromkeys(BOTTLENECK_KINDS, "Because of that."), many.fixes * 5,
        many.must_not * 9, many.missing * 9, many.compat * 9, many.model_check, many.read_next * 5,
        many.measure_next * 3, many.figures, many.unusable * 9,
    )  # fmt: skip
    assert terminal(longest).count("\n") < 150


class _Tags(HTMLParser):
    """Counts what a browser would take for tags."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in ("meta", "line", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_hostile_evidence_stays_text_in_every_format() -> None:
    page = make_page(full_diagnosis(HOSTILE))
    assert "[bold]x[/bold]" in terminal(full_diagnosis(HOSTILE), width=400)
    html = html_page(page)
    tags = _Tags()
    tags.feed(html)
    assert "script" not in tags.seen and not tags.open
    markdown = markdown_page(page)
    assert "<script>" not in markdown.replace(r"\<script\>", "")
    tables = [line for line in markdown.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in tables} == {6}


def test_html_needs_no_network() -> None:
    html = html_page(make_page(full_diagnosis()))
    assert "src=" not in html and "<link" not in html and "@import" not in html


@pytest.mark.parametrize("kind", BOTTLENECK_KINDS)
def test_every_kind_has_words(kind: str) -> None:
    assert TITLES[kind]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("p99_ttft_ms", 8200.0, "P99 TTFT 8.20 s"),
        ("median_itl_ms", 29.6, "median ITL 29.6 ms"),
        ("kv_usage", 0.41, "kv usage 41%"),
        ("output_throughput", 7573.2, "output 7,573 tok/s"),
        ("seconds_to_full", 44.0, "seconds to full 44.0"),
    ],
)
def test_figures_carry_their_unit(key: str, value: float, text: str) -> None:
    assert f"{metric_name(key)} {metric_value(key, value)}" == text


def test_an_error_that_is_not_the_same_on_both_sides_is_given_as_bounds() -> None:
    assert predicted_text(Predicted("mean_itl_ms", 10.0, 20.0, 19.0, 30.0)).endswith("(19.0 ms to 30.0 ms)")
    assert predicted_text(Predicted("mean_itl_ms", 10.0, 20.0, 18.0, 22.0)).endswith("(± 10%)")


@pytest.mark.parametrize("diagnosis", [full_diagnosis(), full_diagnosis(HOSTILE), Diagnosis()])
def test_the_json_keeps_to_its_schema(diagnosis: Diagnosis) -> None:
    document = json.loads(json.dumps(diagnosis_json(diagnosis), allow_nan=False))
    assert schema_errors(document, SCHEMA) == []


def test_the_check_against_the_schema_can_fail() -> None:
    document = diagnosis_json(full_diagnosis())
    document["fixes"][0]["predicted"][0]["low"] = "little"
    document["bottlenecks"][0]["kind"] = "tired"
    document["more"] = 1
    del document["compat"]
    assert len(schema_errors(document, SCHEMA)) == 4


def test_every_field_of_the_schema_is_described() -> None:
    assert all(text for _, _, text in field_rows())
    assert ("fixes[].predicted[].low", "number or null") in [row[:2] for row in field_rows()]
