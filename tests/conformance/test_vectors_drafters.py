"""What drafters cost besides their drafts: input rows, and the last block of a prefix hit."""

from __future__ import annotations

import pytest

from tests.conformance.stepper import Stepper, shares


def test_extra_rows_of_a_drafter_come_out_of_the_budget_request_by_request() -> None:
    """Budget 20 and three extra rows each: two prompts of 10 tokens get 10 and 4."""
    stepper = Stepper(max_num_batched_tokens=20, num_draft_slots=3)
    stepper.add("a", 10)
    stepper.add("b", 10)
    plan = stepper.schedule()
    assert shares(plan) == {"a": 10, "b": 4} and plan.num_tokens == 14
    stepper.update(plan, {"a": [1]})
    assert stepper.step() == {"a": 1, "b": 6}


@pytest.mark.parametrize(("engine_version", "second"), [("0.27.0", 10), ("0.28.0", 4)])
def test_extra_rows_count_from_0_28_0(engine_version: str, second: int) -> None:
    """Earlier releases reserve them by a smaller max_num_batched_tokens."""
    stepper = Stepper(engine_version=engine_version, max_num_batched_tokens=20, num_draft_slots=3)
    stepper.add("a", 10)
    stepper.add("b", 10)
    assert stepper.step() == {"a": 10, "b": second}


@pytest.mark.parametrize(("num_tokens", "hit"), [(48, 16), (49, 32), (37, 16), (16, 0)])
def test_the_last_hit_block_is_computed_again_for_drafters_that_read_hidden_states(num_tokens: int, hit: int) -> None:
    """48 tokens of 16-token blocks would hit two blocks; the second is dropped. 37 tokens: the second of two."""
    stepper = Stepper(enable_prefix_caching=True, drops_last_hit_block=True)
    stepper.add("first", list(range(num_tokens)), max_tokens=1)
    stepper.step()
    stepper.add("again", list(range(num_tokens)), max_tokens=1)
    assert stepper.step() == {"again": num_tokens - hit}


def test_a_window_hit_needs_one_block_more_which_is_dropped() -> None:
    """Window 17 needs one cached block of 16 before the next token; the dropped one comes on top."""
    stepper = Stepper(enable_prefix_caching=True, drops_last_hit_block=True, sliding_window=17)
    stepper.add("first", list(range(64)), max_tokens=1)
    stepper.step()
    request = stepper.add("again", list(range(64)), max_tokens=1)
    assert stepper.step() == {"again": 32}
    assert request.num_cached_tokens == 32


def test_accepted_drafts_are_counted_by_position() -> None:
    """Three drafts against outputs [1, 5]: one draft step, three drafts, one accepted, at the first position."""
    stepper = Stepper(num_speculative_tokens=3)
    stepper.add("a", 10, max_tokens=50)
    stepper.step({"a": [0]}, drafts=3)
    stepper.step({"a": [1, 5]}, drafts=2)
    stats = stepper.scheduler.stats
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (1, 3, 1)
    assert stats.num_accepted_per_position == [1, 0, 0]
    stepper.step({"a": [1, 2, 3]})
    assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (2, 5, 3)
    assert stats.num_accepted_per_position == [2, 1, 0]
