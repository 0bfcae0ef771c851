"""The plot file: well-formed, self-contained, with bars in proportion."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from headway.errors import ConfigError
from headway.report.plots import comparison_svg, write_comparison_plot

NAMESPACE = "{http://www.w3.org/2000/svg}"
RESULTS: dict[str, dict[str, float | None]] = {
    "naive": {"output_throughput": 50.0, "p99_ttft_ms": 900.0, "p99_itl_ms": 20.0, "mean_kv_waste": 0.9},
    '<odd> & "name"': {"output_throughput": 200.0, "p99_ttft_ms": 100.0, "p99_itl_ms": None, "mean_kv_waste": 0.0},
}


def test_bars_are_in_proportion_to_the_largest_value_of_their_panel() -> None:
    root = ElementTree.fromstring(comparison_svg(RESULTS, title="T"))
    bars = [float(rect.get("width", "")) for rect in root.iter(f"{NAMESPACE}rect") if rect.get("rx")]
    throughput, ttft = bars[0:2], bars[2:4]
    assert throughput[0] == pytest.approx(throughput[1] / 4, abs=0.01)
    assert ttft[1] == pytest.approx(ttft[0] / 9, abs=0.01)
    assert len(bars) == 7, "a value that is not there has no bar"


def test_titles_values_and_odd_names_are_written() -> None:
    svg = comparison_svg(RESULTS, title="Four <policies>", subtitle="a & b")
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{NAMESPACE}text")]
    for expected in ("Four <policies>", "a & b", "naive", '<odd> & "name"', "200", "900 ms", "90.0%", "–"):
        assert expected in texts


def test_nothing_is_loaded_from_elsewhere() -> None:
    svg = comparison_svg(RESULTS, title="T").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in svg and "href" not in svg


def test_no_text_leaves_the_drawing() -> None:
    """Values are written after the longest bar; at 8 pixels a letter they must still end inside."""
    root = ElementTree.fromstring(comparison_svg(RESULTS, title="T"))
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    for text in root.iter(f"{NAMESPACE}text"):
        x, y, length = float(text.get("x", "")), float(text.get("y", "")), 8 * len(text.text or "")
        end = x if text.get("text-anchor") == "end" else x + length
        assert end <= width and y < height


def test_a_plot_file_is_svg_in_a_folder_that_exists(tmp_path: Path) -> None:
    path = write_comparison_plot(tmp_path / "plot.svg", RESULTS, title="T")
    assert path.read_text(encoding="utf-8").startswith("<svg")
    with pytest.raises(ConfigError, match=r"written as SVG, not 'plot\.png'.*plot\.svg"):
        write_comparison_plot(tmp_path / "plot.png", RESULTS, title="T")
    with pytest.raises(ConfigError, match="no folder"):
        write_comparison_plot(tmp_path / "absent" / "plot.svg", RESULTS, title="T")
