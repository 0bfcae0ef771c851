"""Accelerators: names, and how sure their memory is."""

from __future__ import annotations

import pytest

from headway.catalog import find_accelerator, list_accelerators
from headway.errors import ConfigError

GIB = 2**30


def test_there_are_at_least_40_and_each_says_where_its_figures_come_from() -> None:
    """Every one has a source and a confidence; uncited figures are named."""
    names = list_accelerators()
    assert len(names) >= 40
    for name in names:
        card = find_accelerator(name)
        assert card.source and card.confidence in ("high", "medium", "low")
        if "from memory" in card.note and card.bandwidth_gbps and "bandwidth" not in card.note:
            assert card.uncited


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100", "H100-SXM5-80GB"),
        ("H100-SXM5-80GB", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("a100-80g", "A100-SXM4-80GB"),
        ("a100-40gb", "A100-SXM4-40GB"),
        ("NVIDIA L40S", "L40S-48GB"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090-24GB"),
        ("mi300x", "MI300X-192GB"),
    ],
)
def test_names_in_many_spellings(name: str, found: str) -> None:
    """Ids, aliases, and the name that the driver prints."""
    assert find_accelerator(name).id == found


def test_an_unknown_card_gets_suggestions() -> None:
    """The nearest names are listed."""
    with pytest.raises(ConfigError, match="H100-SXM5-80GB"):
        find_accelerator("h1000")


def test_memory_as_torch_sees_it_is_below_what_nvidia_smi_says() -> None:
    """Read in logs where it was; else less than nvidia-smi's total by what the driver keeps, with a range."""
    h100 = find_accelerator("h100")
    assert h100.memory_basis == "torch" and h100.memory_bytes == int(79.18 * GIB)
    b200 = find_accelerator("b200")
    low, likely, high = b200.memory_range_bytes
    assert b200.memory_basis == "nvidia-smi" and b200.memory_smi_mib is not None
    assert low < likely < high < b200.memory_smi_mib * 2**20


def test_compute_capability_is_read_from_the_architecture() -> None:
    """sm90 is 9.0, sm120 is 12.0; other vendors have none."""
    assert find_accelerator("h100").compute_capability == (9, 0)
    assert find_accelerator("rtx-5090").compute_capability == (12, 0)
    assert find_accelerator("mi300x").compute_capability is None
