"""What a reader sees: numbers to three digits, the best value marked, nothing where there is nothing."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console, RenderableType

from headway.report.metrics import SERVING_METRICS
from headway.report.tables import comparison_table, facts_table, format_number

RESULTS = {
    "naive": {"output_throughput": 38.2, "p99_itl_ms": 33.1, "mean_kv_waste": 0.91, "num_preemptions": 0},
    "chunked": {"output_throughput": 1240.2, "p99_itl_ms": 193.1, "mean_kv_waste": 0.029, "num_preemptions": 1234},
}


def render(table: RenderableType, *, colour: bool = False) -> str:
    stream = io.StringIO()
    Console(file=stream, width=100, force_terminal=colour, color_system="standard" if colour else None).print(table)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.1234, "0.123"),
        (1.234, "1.23"),
        (12.34, "12.3"),
        (123.4, "123"),
        (12345.6, "12,346"),
        (-3.456, "-3.46"),
    ],
)
def test_numbers_show_three_digits(value: float, text: str) -> None:
    assert format_number(value) == text


def test_a_comparison_has_a_column_a_result_and_a_line_a_metric() -> None:
    lines = [line.split() for line in render(comparison_table("Title", RESULTS)).splitlines()]
    assert lines[0] == ["Title"]
    assert lines[1] == ["naive", "chunked"]
    assert ["Output", "tok/s", "38.2", "1,240"] in lines
    assert ["ITL", "p99,", "ms", "33.1", "193"] in lines
    assert ["KV", "waste", "mean", "91.0%", "2.9%"] in lines
    assert ["Preemptions", "0", "1,234"] in lines


def test_a_title_wider_than_the_table_stays_on_one_line() -> None:
    title = "a title that is wider than two narrow columns"
    assert render(comparison_table(title, {"x": {"output_throughput": 1.0}})).splitlines()[0].rstrip() == title


def test_lines_without_any_value_are_left_out_and_single_gaps_are_dashes() -> None:
    text = render(comparison_table("Title", RESULTS | {"static": {"output_throughput": 5.0}}))
    assert "Goodput" not in text and "TTFT" not in text
    assert "–" in text


def test_the_best_value_is_marked_by_what_better_means() -> None:
    text = render(comparison_table("Title", RESULTS), colour=True)
    marked = {found.strip() for found in re.findall(r"\x1b\[1;32m([^\x1b]*)\x1b", text)}
    assert marked == {"1,240", "33.1", "2.9%", "0"}


def test_every_metric_of_the_bench_table_has_a_line() -> None:
    result = {metric.key: 1.0 for metric in SERVING_METRICS}
    text = render(comparison_table("Title", {"chunked": result}))
    assert all(metric.label in text for metric in SERVING_METRICS)


def test_square_brackets_in_values_are_text_not_markup() -> None:
    text = render(facts_table("Facts", [("model", "[bold]x", "why [not]")]))
    assert "[bold]x" in text and "why [not]" in text
