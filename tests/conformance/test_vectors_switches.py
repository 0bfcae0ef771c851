"""Each behaviour switch of `headway.core.profiles` at the release that flips it: the one before, and the one itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headway.core.profiles import EngineCrashError, profile_for
from headway.frontends.steplog import run_workload
from tests.conformance.stepper import Stepper, ids_of, shares


@pytest.mark.parametrize(("version", "taken"), [("0.8.4", 6), ("0.8.5", 2)])
def test_64_slots_are_taken_ahead_until_0_8_4(version: str, taken: int) -> None:
    """Block size 16, a prompt of 20: two blocks, and four more ahead."""
    stepper = Stepper(engine_version=version)
    free = stepper.num_free_blocks
    stepper.add("a", 20)
    stepper.step()
    assert free - stepper.num_free_blocks == taken


@pytest.mark.parametrize(("version", "usable"), [("0.8.2", 10), ("0.8.3", 9)])
def test_block_0_is_set_aside_from_0_8_3(version: str, usable: int) -> None:
    """Of ten blocks."""
    assert Stepper(engine_version=version, num_blocks=10).num_free_blocks == usable


@pytest.mark.parametrize(("version", "cached"), [("0.8.5", 16), ("0.9.0", 0)])
def test_a_salt_is_known_from_0_9_0(version: str, cached: int) -> None:
    """Equal prompts with different salts; before, a request's salt is not looked at."""
    rows = [
        {"id": salt, "arrival_step": i, "prompt_token_ids": [*range(20)], "max_tokens": 1, "cache_salt": salt}
        for i, salt in enumerate("xy")
    ]
    workload: dict[str, Any] = {"config": {"block_size": 16, "enable_prefix_caching": True}, "requests": rows}
    steps = [record for record in run_workload(workload, version) if record["type"] == "step"]
    assert steps[1]["admitted"] == {"y": cached}


def window_stepper(version: str, **limits: object) -> Stepper:
    """Window and budget of 8 tokens, blocks of one token, 19 usable ones."""
    settings: dict[str, Any] = {
        "num_blocks": 20,
        "block_size": 1,
        "sliding_window": 8,
        "max_num_batched_tokens": 8,
        "max_model_len": 64,
    }
    return Stepper(engine_version=version, **(settings | limits))


@pytest.mark.parametrize(("version", "held"), [("0.9.2", 16), ("0.10.0", 15)])
def test_a_window_returns_blocks_from_0_10_0(version: str, held: int) -> None:
    """After 8 computed tokens the ninth attends to seven of them; one block goes back before the second chunk."""
    stepper = window_stepper(version)
    stepper.add("a", 16)
    stepper.step()
    stepper.step()
    assert 19 - stepper.num_free_blocks == held


@pytest.mark.parametrize(("version", "admitted"), [("0.19.1", False), ("0.20.0", True)])
def test_the_gate_counts_a_window_from_0_20_0(version: str, admitted: bool) -> None:
    """A prompt of 40 in a pool of 19, of which 16 at once are needed."""
    stepper = window_stepper(version)
    stepper.add("a", 40, max_tokens=4)
    assert bool(stepper.step()) is admitted


@pytest.mark.parametrize(("version", "crashes"), [("0.20.0", True), ("0.20.1", True), ("0.20.2", False)])
def test_growth_is_judged_by_the_window_in_0_20_0_and_0_20_1(version: str, crashes: bool) -> None:
    """Four blocks of 4, and two requests that find none free at a boundary.

    A request whose table is as long as all that a window can hold seems to need nothing more, so nobody is preempted.
    """
    stepper = window_stepper(version, num_blocks=5, block_size=4)
    stepper.add("a", 4, max_tokens=30)
    stepper.add("b", 2, max_tokens=30)
    if crashes:
        with pytest.raises(EngineCrashError):
            finish_all(stepper)
    else:
        finish_all(stepper)
        assert {name: len(tokens) for name, tokens in stepper.delivered.items()} == {"a": 30, "b": 30}


def finish_all(stepper: Stepper) -> None:
    for _ in range(60):
        stepper.step()
    assert not stepper.scheduler.has_requests


@pytest.mark.parametrize(("version", "admitted"), [("0.25.1", True), ("0.26.0", False)])
def test_a_window_is_sized_for_steps_in_flight_from_0_26_0(version: str, admitted: bool) -> None:
    """Asynchronous: 7 + 2 x 8 tokens at once, and a block, do not fit into 19; 7 + 8 did."""
    stepper = window_stepper(version, async_scheduling=True)
    stepper.add("a", 40, max_tokens=4)
    assert bool(stepper.schedule().scheduled) is admitted


@pytest.mark.parametrize(
    ("version", "is_async", "held"),
    [("0.25.1", True, 15), ("0.26.0", True, 16), ("0.26.0", False, 15)],
)
def test_a_window_waits_for_steps_in_flight_from_0_26_0(version: str, is_async: bool, held: int) -> None:
    """A block that a step in flight may still read is kept; one whose step has been processed goes."""
    stepper = window_stepper(version, async_scheduling=is_async, num_blocks=40)
    stepper.add("a", 16)
    plan = stepper.schedule()
    if not is_async:
        stepper.update(plan)
    stepper.schedule()
    assert 39 - stepper.num_free_blocks == held


@pytest.mark.parametrize(
    ("version", "window", "first"),
    [("0.22.1", 8, 4), ("0.23.0", 8, 3), ("0.23.0", None, 4), ("0.24.0", None, 3)],
)
def test_blocks_without_a_key_are_reused_first(version: str, window: int | None, first: int) -> None:
    """From 0.23.0 under a window, from 0.24.0 everywhere: the partial third block leads the free queue."""
    stepper = Stepper(
        engine_version=version, num_blocks=10, block_size=4, enable_prefix_caching=True, sliding_window=window
    )
    stepper.add("a", 6)
    stepper.add("b", 2)
    stepper.step()
    stepper.abort("b")
    assert stepper.free_ids[0] == first


@pytest.mark.parametrize(("version", "expected"), [("0.8.2", 1024), ("0.8.3", 400)])
def test_the_long_prefill_threshold_is_honoured_from_0_8_3(version: str, expected: int) -> None:
    """Budget 1,024, threshold 400, a prompt of 2,000 and a short one behind it."""
    stepper = Stepper(engine_version=version, max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    stepper.add("long", 2000)
    stepper.add("short", 10)
    assert stepper.step()["long"] == expected


@pytest.mark.parametrize(("version", "expected"), [("0.30.0", 400), ("0.31.0", 1024)])
def test_a_lone_request_ignores_the_threshold_from_0_31_0(version: str, expected: int) -> None:
    """There is nobody whom it could starve."""
    stepper = Stepper(engine_version=version, max_num_batched_tokens=1024, long_prefill_token_threshold=400)
    stepper.add("long", 2000)
    assert stepper.step() == {"long": expected}


@pytest.mark.parametrize(("version", "expected"), [("0.30.0", 100), ("0.31.0", 512)])
def test_the_threshold_can_adapt_from_0_31_0(version: str, expected: int) -> None:
    """Two requests share 1,024 tokens; before, the flag is not known."""
    stepper = Stepper(
        engine_version=version,
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=100,
        long_prefill_token_threshold_adaptive=True,
    )
    stepper.add("long", 2000)
    stepper.add("short", 10)
    assert stepper.step()["long"] == expected


@pytest.mark.parametrize(("version", "expected"), [("0.30.0", 10), ("0.31.0", 3)])
def test_active_seats_are_known_from_0_31_0(version: str, expected: int) -> None:
    """Ten requests, 16 seats, 3 of them active."""
    stepper = Stepper(engine_version=version, max_num_active_seqs=3)
    for i in range(10):
        stepper.add(str(i), 4)
    assert len(stepper.step()) == expected


@pytest.mark.parametrize(("version", "priorities"), [("0.9.1", ["a", "b"]), ("0.9.2", ["b", "a"])])
def test_priorities_count_from_0_9_2(version: str, priorities: list[str]) -> None:
    """`b` came later and matters more."""
    stepper = Stepper(engine_version=version, scheduling_policy="priority")
    stepper.add("a", 4, priority=5)
    stepper.add("b", 4, priority=0)
    assert ids_of(stepper.schedule().new) == priorities


@pytest.mark.parametrize(("version", "expected"), [("0.27.1", {"b": 1}), ("0.28.0", {"b": 1, "c": 1})])
def test_a_victim_ahead_of_the_cursor_moves_it_from_0_28_0(version: str, expected: dict[str, int]) -> None:
    """`a` surely ends in a step in flight, so this one passes over it; then `b` needs a block and takes it from `a`.

    Everybody moves up by one in the list, and a cursor that stays misses `c`.
    """
    stepper = Stepper(
        engine_version=version, scheduling_policy="priority", num_blocks=6, block_size=4, async_scheduling=True
    )
    for name, length, max_tokens, priority in (("a", 5, 1, 9), ("b", 3, 16, 0), ("c", 5, 16, 0)):
        stepper.add(name, length, max_tokens=max_tokens, priority=priority)
        assert ids_of(stepper.schedule().new) == [name]
    plan = stepper.schedule()
    assert ids_of(plan.preempted) == ["a"] and shares(plan) == expected


@pytest.mark.parametrize(("version", "expected"), [("0.9.1", 3), ("0.9.2", 2)])
def test_nothing_is_computed_at_the_last_position_from_0_9_2(version: str, expected: int) -> None:
    """max_model_len 13, ten tokens computed, one known and three drafts: the last position is never an input."""
    stepper = Stepper(engine_version=version, max_model_len=13, max_num_batched_tokens=50, num_speculative_tokens=3)
    stepper.add("a", 10, max_tokens=50)
    stepper.step({"a": [0]}, drafts=3)
    assert stepper.step({"a": [1]}) == {"a": expected}


@pytest.mark.parametrize(("version", "admitted"), [("0.18.1", ["a", "b"]), ("0.19.0", ["a"])])
def test_the_gate_wants_the_whole_sequence_from_0_19_0(version: str, admitted: list[str]) -> None:
    """Ten blocks of 4: `a` takes 8 of them, of the 30 tokens of `b` a chunk of 8 would fit."""
    stepper = Stepper(engine_version=version, num_blocks=11, block_size=4, max_num_batched_tokens=38)
    stepper.add("a", 30, max_tokens=4)
    stepper.add("b", 30, max_tokens=4)
    assert list(stepper.step()) == admitted


@pytest.mark.parametrize(("version", "admitted"), [("0.23.0", ["a", "b"]), ("0.24.0", ["a"])])
def test_the_watermark_is_known_from_0_24_0(version: str, admitted: list[str]) -> None:
    """Ten blocks of 4, half of them to be left free next to a running request."""
    stepper = Stepper(engine_version=version, num_blocks=11, block_size=4, watermark=0.5)
    stepper.add("a", 8)
    stepper.add("b", 16)
    assert list(stepper.step()) == admitted


@pytest.mark.parametrize(("version", "resumed"), [("0.26.0", ["b"]), ("0.27.0", [])])
def test_a_preempted_request_waits_for_outputs_in_flight_from_0_27_0(version: str, resumed: list[str]) -> None:
    """`b` falls while its first token is on the way; then `a` is aborted, and there is room again."""
    stepper = Stepper(engine_version=version, async_scheduling=True, num_blocks=5, block_size=4)
    stepper.add("a", 8, max_tokens=9)
    stepper.add("b", 8, max_tokens=9)
    stepper.schedule()
    assert ids_of(stepper.schedule().preempted) == ["b"]
    stepper.abort("a")
    assert ids_of(stepper.schedule().resumed) == resumed


@pytest.mark.parametrize(("version", "expected"), [("0.24.0", 1), ("0.25.0", 4)])
def test_a_first_decode_is_padded_from_0_25_0(version: str, expected: int) -> None:
    """33 tokens, 32 of them cached, next to a running decode."""
    stepper = Stepper(engine_version=version, num_speculative_tokens=3, enable_prefix_caching=True)
    stepper.add("a", [*range(33)])
    stepper.step()
    stepper.add("b", [*range(33)])
    assert stepper.step() == {"a": 1, "b": expected}


def test_a_patch_release_behaves_as_the_last_change_before_it() -> None:
    """0.18.9 is 0.18.0, and 0.20.9 is 0.20.2; `post` releases are the release itself."""
    for version, known in (
        ("0.18.9", "0.18.0"),
        ("0.20.9", "0.20.2"),
        ("0.12.0.post2", "0.12.0"),
        ("v0.33.1", "0.33.0"),
    ):
        assert replace(profile_for(version), version="") == replace(profile_for(known), version="")
