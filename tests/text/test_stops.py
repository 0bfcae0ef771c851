"""The stop-string matcher against plain search."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.text.stops import StopMatch, StopMatcher

AB = st.text(alphabet="ab", max_size=12)


@given(AB, st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=3), AB)
def test_match_and_pending_length_equal_brute_force(first: str, stops: list[str], second: str) -> None:
    matcher = StopMatcher(stops)
    text, match = first, matcher.feed(first)
    if match is None:
        text, match = first + second, matcher.feed(second)
        match = match and StopMatch(match.end + len(first), match.stop)
    ends = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    expected = StopMatch(min(ends)[0], min(ends)[2]) if ends else None
    assert match == expected
    if match is None:
        tails = [size for stop in stops for size in range(len(stop)) if text.endswith(stop[:size])]
        assert matcher.num_pending == max(tails, default=0)


def test_an_unarmed_match_passes_and_matching_goes_on_from_there() -> None:
    matcher = StopMatcher(["aba", "b"])
    assert matcher.feed("ab", armed=False) is None
    assert matcher.num_pending == 2
    assert matcher.feed("a") == StopMatch(1, "aba")
