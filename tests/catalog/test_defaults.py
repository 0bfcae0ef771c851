"""vLLM's defaults by version, device and usage."""

from __future__ import annotations

import pytest

from headway.catalog import find_accelerator
from headway.catalog.defaults import Usage, cuda_graph_sizes, resolve_defaults
from headway.catalog.versions import parse_version
from headway.errors import ConfigError


@pytest.mark.parametrize(
    ("version", "gpu", "usage", "seats", "tokens"),
    [
        ("0.8.0", "h100", "api", 1024, 8192),
        ("0.8.1", "l40s", "api", 1024, 2048),
        ("0.8.4", "l40s", "api", 256, 2048),
        ("0.8.4", "a100", "api", 256, 2048),
        ("0.8.5", "a100", "api", 1024, 8192),
        ("0.9.0", "a100", "api", 256, 2048),
        ("0.17.1", "h200", "llm", 1024, 16384),
        ("0.17.1", "h200-mig-3g.71gb", "llm", 256, 8192),
        ("0.28.0", "b200", "api", 1024, 16384),
        ("0.27.1", "b200", "api", 1024, 8192),
        ("0.32.0", "gb10", "api", 1024, 8192),
        ("0.33.0", "gb10", "api", 256, 2048),
        ("0.22.0", "a10g", "llm", 256, 8192),
    ],
)
def test_seats_and_budget(version: str, gpu: str, usage: Usage, seats: int, tokens: int) -> None:
    """The table of `get_batch_defaults` over the releases."""
    resolved = resolve_defaults(version, find_accelerator(gpu), max_model_len=65536, usage=usage)
    assert (resolved.max_num_seqs, resolved.max_num_batched_tokens) == (seats, tokens)


@pytest.mark.parametrize(
    ("length", "chunked", "tokens"), [(20000, False, 20000), (1024, False, 2048), (40000, True, 512)]
)
def test_v0_turns_chunked_prefill_on_above_32k(length: int, chunked: bool, tokens: int) -> None:
    """Below that the whole prompt must fit in one step, so the budget follows max_model_len."""
    resolved = resolve_defaults("0.6.4", find_accelerator("3090"), max_model_len=length)
    assert (resolved.enable_chunked_prefill, resolved.max_num_batched_tokens) == (chunked, tokens)


def test_early_v1_ignores_a_no() -> None:
    """0.8.0 to 0.11.0 chunk whatever the user says; 0.11.1 honours it."""
    card = find_accelerator("h100")
    assert resolve_defaults("0.9.2", card, max_model_len=4096, enable_chunked_prefill=False).enable_chunked_prefill
    later = resolve_defaults("0.12.0", card, max_model_len=4096, enable_chunked_prefill=False)
    assert not later.enable_chunked_prefill


def test_utilization_and_graph_accounting_changed_with_0_20() -> None:
    """0.92 and graphs taken off the budget, against 0.9 and graphs on top."""
    card = find_accelerator("h100")
    old, new = (resolve_defaults(version, card, max_model_len=4096) for version in ("0.19.1", "0.20.0"))
    assert (old.gpu_memory_utilization, old.counts_cuda_graph_memory) == (0.9, False)
    assert (new.gpu_memory_utilization, new.counts_cuda_graph_memory) == (0.92, True)


def test_graph_sizes_follow_the_seats() -> None:
    """Twice the seats, at most 512 (1024 on capability 10), never above the budget."""
    assert cuda_graph_sizes((0, 17, 0), 4, 8192) == (1, 2, 4, 8)
    assert cuda_graph_sizes((0, 17, 0), 1024, 8192)[-1] == 512
    assert cuda_graph_sizes((0, 28, 0), 1024, 8192, find_accelerator("b200"))[-1] == 1024
    assert cuda_graph_sizes((0, 8, 5), 1024, 64)[-1] == 64
    assert (
        resolve_defaults("0.32.0", find_accelerator("h100"), max_model_len=64, enforce_eager=True).cuda_graph_sizes
        == ()
    )


def test_every_choice_has_a_reason() -> None:
    """Given values say so."""
    resolved = resolve_defaults("0.32.0", find_accelerator("h100"), max_model_len=4096, max_num_seqs=8)
    assert resolved.reasons["max_num_seqs"] == "given"
    assert "0.32.0" in resolved.reasons["gpu_memory_utilization"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0.19.1", (0, 19, 1)),
        ("v0.8", (0, 8, 0)),
        ("0.5.x", (0, 5, 0)),
        ("0.15.2rc1.dev93", (0, 15, 2)),
        ("0.10.1.1", (0, 10, 1)),
    ],
)
def test_versions_as_people_write_them(text: str, number: tuple[int, int, int]) -> None:
    """The first three numbers count."""
    assert parse_version(text) == number


@pytest.mark.parametrize("text", ["", "latest", "2026"])
def test_what_is_not_a_version(text: str) -> None:
    """A year or a word is refused."""
    with pytest.raises(ConfigError, match="not a vLLM version"):
        parse_version(text)
