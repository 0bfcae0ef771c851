"""What changed in vLLM's V1 scheduler from release to release, as data. The only place that knows versions.

Sources: vLLM's own sources of each release, and step logs of its scheduler (`tests/conformance/`). A switch is named
for what it does, so that the scheduler reads as one algorithm with named choices.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

from headway.errors import ConfigError


class EngineCrashError(Exception):
    """The matched release would die here, on an assertion or an error of its own."""


class VictimHandling(enum.Enum):
    """Priority policy: what happens to a preemption victim that this very step had already scheduled."""

    IGNORED = "no priority policy: the queue is first come first served"
    CRASH = "the step's own bookkeeping no longer adds up and the engine dies"
    STAYS_SCHEDULED = "it stays in the step although its blocks are gone"
    UNDONE = "it is taken out of the step and its tokens are given back"


class UnchunkedHandling(enum.Enum):
    """Chunked prefill off: what happens to a waiting prompt longer than the remaining budget."""

    CHUNKED_ANYWAY = "the setting has no effect"
    SKIPPED = "it is passed over and later requests are looked at; those passed over return in reverse order"
    BLOCKS = "admission ends for this step"


@dataclass(frozen=True, slots=True)
class SchedulerProfile:
    """Behaviour switches of one vLLM release. Defaults describe 0.8.0; `_CHANGES` lists what later ones altered."""

    version: str = "0.8.0"
    num_preallocated_tokens: int = 64
    """Extra slots taken whenever a running or admitted request needs a new block."""
    has_null_block: bool = False
    has_cache_salt: bool = False
    matches_sliding_window: bool = False
    """Blocks that leave a sliding window are returned. Older releases are matched for full attention only."""
    chains_keys_over_table: bool = True
    """A block's key is made from the block before it; where that has left the window already, the engine dies."""
    window_counts_in_flight: bool = True
    """Asynchronous: tokens of steps in flight count as computed when the window is moved."""
    caps_window_at_gate: bool = False
    """Admission counts a sliding-window request by what it can hold at once, not by its whole length."""
    caps_window_everywhere: bool = False
    """So do all allocations, which then can find fewer blocks than they counted on: the engine dies."""
    counts_steps_in_flight: bool = False
    """What a sliding-window request can hold includes one token budget for each step that may be in flight."""
    reuses_unkeyed_window_blocks_first: bool = False
    honours_long_prefill_threshold: bool = False
    victim_handling: VictimHandling = VictimHandling.IGNORED
    victim_shifts_cursor: bool = False
    """A victim ahead of the cursor moves the cursor even if this step had not scheduled it."""
    self_preemption_ends_pass: bool = True
    """A request that had to preempt itself ends the pass over the running requests."""
    unchunked: UnchunkedHandling = UnchunkedHandling.CHUNKED_ANYWAY
    caps_at_max_model_len: bool = False
    """A running request is never scheduled past max_model_len - 1."""
    skips_finishing_requests: bool = False
    """Asynchronous: no step is spent on a request that surely ends by max_tokens in a step in flight."""
    gates_on_full_sequence: bool = False
    """Admission wants room for the whole current sequence, not just its first chunk."""
    reuses_unkeyed_blocks_first: bool = False
    has_watermark: bool = False
    lone_request_ignores_threshold: bool = False
    has_adaptive_threshold: bool = False
    has_active_seat_limit: bool = False
    """max_num_active_seqs is known."""
    waits_for_stale_outputs: bool = False
    """Asynchronous: a preempted request is not resumed before its outputs in flight have arrived."""
    counts_draft_slots: bool = False
    """Speculation: the extra rows of a parallel drafter are taken from the step's budget, request by request."""
    pads_first_decodes: bool = False
    """Speculation: a request admitted with one token left is padded to the uniform 1 + k."""


_CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("0.8.3", {"has_null_block": True, "honours_long_prefill_threshold": True}),
    ("0.8.5", {"num_preallocated_tokens": 0}),
    ("0.9.0", {"has_cache_salt": True}),
    (
        "0.9.2",
        {
            "victim_handling": VictimHandling.CRASH,
            "unchunked": UnchunkedHandling.SKIPPED,
            "caps_at_max_model_len": True,
        },
    ),
    ("0.10.0", {"matches_sliding_window": True}),
    ("0.10.2", {"victim_handling": VictimHandling.STAYS_SCHEDULED, "chains_keys_over_table": False}),
    ("0.11.1", {"victim_handling": VictimHandling.UNDONE, "skips_finishing_requests": True}),
    ("0.12.0", {"unchunked": UnchunkedHandling.BLOCKS}),
    ("0.19.0", {"gates_on_full_sequence": True}),
    ("0.20.0", {"caps_window_at_gate": True, "caps_window_everywhere": True}),
    ("0.20.2", {"caps_window_everywhere": False}),
    ("0.23.0", {"reuses_unkeyed_window_blocks_first": True}),
    ("0.24.0", {"reuses_unkeyed_blocks_first": True, "has_watermark": True}),
    ("0.25.0", {"pads_first_decodes": True}),
    ("0.26.0", {"window_counts_in_flight": False, "counts_steps_in_flight": True}),
    ("0.27.0", {"waits_for_stale_outputs": True}),
    ("0.28.0", {"victim_shifts_cursor": True, "counts_draft_slots": True}),
    (
        "0.31.0",
        {"lone_request_ignores_threshold": True, "has_adaptive_threshold": True, "has_active_seat_limit": True},
    ),
    ("0.33.0", {"self_preemption_ends_pass": False}),
)

OLDEST, NEWEST = (0, 8), (0, 33)


def profile_for(engine_version: str) -> SchedulerProfile:
    """The profile of a vLLM release such as 0.19.1; a patch release behaves as the last change before it.

    Raises:
        ConfigError: not a version, or outside 0.8 to 0.33; the nearest supported one is named.
    """
    number = _parse(engine_version)
    if not OLDEST <= number[:2] <= NEWEST:
        nearest = "0.8.0" if number[:2] < OLDEST else "0.33.0"
        raise ConfigError(
            f"vLLM {engine_version} is outside the supported releases 0.8 to 0.33.",
            hint=f"The nearest is {nearest}.",
        )
    profile = SchedulerProfile(version=engine_version.removeprefix("v"))
    for since, changes in _CHANGES:
        if _parse(since) <= number:
            profile = replace(profile, **changes)
    return profile


def _parse(version: str) -> tuple[int, int, int]:
    parts = version.removeprefix("v").split(".post")[0].split(".")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        numbers = []
    if not 2 <= len(numbers) <= 4:
        raise ConfigError(f"{version!r} is not a vLLM version.", hint="Examples: 0.18.0, 0.19.1.")
    major, minor, patch = (*numbers, 0)[:3]
    return major, minor, patch
