"""Streaming text: nothing is taken back, nothing leaks from a stop string, nothing waits without need."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headway.errors import RequestError
from headway.text import IncrementalDetokenizer, Tokenizer
from tests.shared_data import shared_path
from tests.text.support import bundled_tokenizer, spm_tokenizer, word_tokenizer

WORDS = ["a", "b", "ab", "ba", "aab", " ", " a", "\n", "é", "你", "😀", "ABC", "c", ""]
SPECIALS, MARKERS = ["<|im_end|>"], ["<think>"]


@cache
def small_tokenizer() -> Tokenizer:
    """Words, a special token, a marker, and all pieces of a four-byte character as tokens of their own."""
    return word_tokenizer([word for word in WORDS if word], SPECIALS, MARKERS)


@cache
def byte_ids() -> list[int]:
    """Ids of bundled tokens that are one byte each and no character: parts of characters, valid or not."""
    tokenizer = bundled_tokenizer()
    return [i for i in range(tokenizer.vocab_size) if len(b := tokenizer.token_bytes(i)) == 1 and b[0] >= 0x80]


STOPS = st.lists(
    st.text(alphabet="ab é你<|i>\n", min_size=1, max_size=5)
    | st.sampled_from(
        ["aba", "ab", "b", "aab", "<|im_end|>", "<think>", "k>", "|>a", "<", "\N{REPLACEMENT CHARACTER}"]
    ),
    max_size=3,
)
SMALL_IDS = st.lists(st.integers(0, len(WORDS)), max_size=25)
TOKEN_SEQUENCES = (
    st.tuples(st.just(small_tokenizer), SMALL_IDS)
    | st.tuples(st.just(spm_tokenizer), st.lists(st.integers(0, 281) | st.integers(259, 281), max_size=25))
    | st.tuples(
        st.just(bundled_tokenizer),
        st.lists(st.deferred(lambda: st.sampled_from(byte_ids())) | st.integers(0, 49151), max_size=25),
    )
)


def stream(detokenizer: IncrementalDetokenizer, chunks: Sequence[Sequence[int]]) -> str:
    return "".join([*(detokenizer.push(chunk) for chunk in chunks), detokenizer.finish()])


def cut_at_first_stop(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """What a client should see of a finished text, by search instead of by streaming."""
    found = [(text.index(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end if include else end - len(stop)], stop


@settings(max_examples=600, deadline=None)
@given(TOKEN_SEQUENCES, STOPS, st.booleans(), st.booleans(), st.data())
def test_deltas_add_up_to_the_decoded_text_cut_at_the_first_stop(
    source: tuple[object, list[int]], stops: list[str], include: bool, skip: bool, data: st.DataObject
) -> None:
    make, ids = source
    assert callable(make)
    tokenizer: Tokenizer = make()
    bounds = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    chunks = [ids[a:b] for a, b in zip([0, *bounds], [*bounds, len(ids)], strict=True)]

    def fresh() -> IncrementalDetokenizer:
        return IncrementalDetokenizer(tokenizer, stop=stops, include_stop_str=include, skip_special_tokens=skip)

    expected = cut_at_first_stop(tokenizer.decode(ids, skip), stops, include)
    for how in (chunks, [[i] for i in ids], [ids]):
        detokenizer = fresh()
        assert (stream(detokenizer, how), detokenizer.stop_reason) == expected
        if expected[1] is None:
            assert (detokenizer.num_tokens, detokenizer.num_tokens_to_stop) == (len(ids), None)
        else:
            count = detokenizer.num_tokens_to_stop
            assert count is not None
            assert count == detokenizer.num_tokens
            assert expected[1] in tokenizer.decode(ids[:count], skip)
            whole = codecs.getincrementaldecoder("utf-8")("replace")
            before = [i for i in ids[: count - 1] if not (skip and i in tokenizer.special_token_ids)]
            stable = whole.decode(b"".join(map(tokenizer.token_bytes, before)))
            assert expected[1] not in stable.removeprefix(" " if tokenizer.strips_leading_space else "")


@settings(max_examples=300, deadline=None)
@given(SMALL_IDS.map(lambda ids: [i for i in ids if i < 13]), STOPS)
@example([0, 1], ["abc"])
def test_only_a_real_beginning_of_a_stop_string_waits(ids: list[int], stops: list[str]) -> None:
    """After each token, what is missing is exactly the longest tail that begins some stop string."""
    tokenizer = small_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stops)
    sent = ""
    for count, token_id in enumerate(ids, start=1):
        sent += detokenizer.push([token_id])
        if detokenizer.stop_reason is not None:
            return
        text = tokenizer.decode(ids[:count])
        beginnings = {stop[:size] for stop in stops for size in range(1, len(stop))}
        held = max((len(beginning) for beginning in beginnings if text.endswith(beginning)), default=0)
        assert sent == text[: len(text) - held]


@settings(max_examples=300, deadline=None)
@given(SMALL_IDS, STOPS)
@example([13, 0], ["|>b"])
@example([14, 14], ["<thinker", "k>b"])
def test_no_delta_ends_inside_a_marker(ids: list[int], stops: list[str]) -> None:
    tokenizer = small_tokenizer()
    marker_ends = {}
    position = 0
    for token_id in ids:
        start, position = position, position + len(tokenizer.token_text(token_id))
        if token_id in tokenizer.added_token_ids:
            marker_ends[start] = position
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stops, skip_special_tokens=False)
    sent = 0
    for token_id in ids:
        sent += len(detokenizer.push([token_id]))
        if detokenizer.stop_reason is not None:
            return
        assert not any(start < sent < end for start, end in marker_ends.items())


def test_a_stop_string_streamed_in_pieces_leaks_nothing() -> None:
    """vLLM once streamed DEF, G, HI before it saw that they were the stop string."""
    tokenizer = word_tokenizer(["DEF", "G", "HI", "J", "K"])
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["DEFGHIJ"])
    assert [detokenizer.push([token_id]) for token_id in range(4)] == ["", "", "", ""]
    assert (detokenizer.stop_reason, detokenizer.num_tokens_to_stop) == ("DEFGHIJ", 4)
    assert detokenizer.push([4]) == ""
    assert detokenizer.finish() == ""
    assert detokenizer.num_tokens == 4


def reported_case(case_id: str) -> dict[str, Any]:
    """Input of one of the recorded bug reports against other servers."""
    lines = shared_path("cases/cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = {case["id"]: case["expect"]["input"] for case in map(json.loads, lines) if case["group"] == "G"}
    found: dict[str, Any] = cases[case_id]
    return found


def test_reported_case_of_a_leaking_stop_string() -> None:
    case = reported_case("G01")
    tokenizer = word_tokenizer(case["tokens"])
    detokenizer = IncrementalDetokenizer(tokenizer, stop=case["stop"])
    assert stream(detokenizer, [[token_id] for token_id in range(len(case["tokens"]))]) == ""
    assert [detokenizer.stop_reason] == case["stop"]


def test_reported_case_of_empty_first_deltas_when_a_stop_is_set() -> None:
    tokenizer = bundled_tokenizer()
    detokenizer = IncrementalDetokenizer(tokenizer, stop=reported_case("G03")["stop"])
    assert all(detokenizer.push([token_id]) for token_id in tokenizer.encode("The capital of France is Paris."))


def test_held_text_is_sent_as_soon_as_it_cannot_become_a_stop() -> None:
    tokenizer = word_tokenizer(["DEF", "G", "HI", "J", "K"])
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["DEFGHIJ"])
    assert [detokenizer.push([token_id]) for token_id in (0, 1, 2, 4, 0)] == ["", "", "", "DEFGHIK", ""]
    assert detokenizer.finish() == "DEF"


def test_a_long_stop_string_delays_nothing_that_is_not_its_beginning() -> None:
    """vLLM holds back len(stop) - 1 characters always, so a stream with a stop starts with empty deltas."""
    tokenizer = word_tokenizer(["x", "y", "z"])
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["ABCDEF"])
    assert [detokenizer.push([token_id]) for token_id in (0, 1, 2)] == ["x", "y", "z"]


def test_of_two_stops_in_one_push_the_first_to_complete_wins() -> None:
    tokenizer = word_tokenizer(["abcd", "bc", "xyz"])
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["bcd", "c"])
    assert detokenizer.push([2, 0, 1]) == "xyzab"
    assert (detokenizer.stop_reason, detokenizer.num_tokens_to_stop) == ("c", 2)


def test_of_two_stops_that_complete_together_the_longer_wins() -> None:
    detokenizer = IncrementalDetokenizer(word_tokenizer(["abcd"]), stop=["cd", "bcd", "d"])
    assert detokenizer.push([0]) == "a"
    assert detokenizer.stop_reason == "bcd"


def test_an_included_stop_string_is_the_end_of_the_text_and_delays_nothing() -> None:
    tokenizer = word_tokenizer(["a", "ST", "OPS", "b"])
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["STOP"], include_stop_str=True)
    assert [detokenizer.push([token_id]) for token_id in (0, 1, 2, 3)] == ["a", "ST", "OP", ""]
    assert detokenizer.num_tokens_to_stop == 3


def test_a_stop_before_min_tokens_is_text() -> None:
    tokenizer = word_tokenizer(["ab", "a", "b"])
    detokenizer = IncrementalDetokenizer(tokenizer, stop=["ab"], min_tokens=2)
    assert stream(detokenizer, [[0, 0, 1, 2, 1]]) == "abab"
    assert detokenizer.num_tokens_to_stop == 4
    straddling = IncrementalDetokenizer(tokenizer, stop=["ab"], min_tokens=1)
    assert stream(straddling, [[1], [2]]) == ""


def test_a_character_in_four_tokens_comes_out_whole() -> None:
    tokenizer = bundled_tokenizer()
    ids = [next(i for i in byte_ids() if tokenizer.token_bytes(i) == bytes([byte])) for byte in "😀".encode()]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.push([token_id]) for token_id in ids] == ["", "", "", "😀"]
    cut = IncrementalDetokenizer(tokenizer)
    assert (cut.push(ids[:3]), cut.finish(), cut.finish(), cut.push(ids)) == ("", "\N{REPLACEMENT CHARACTER}", "", "")


def test_a_character_that_the_prompt_begins_is_finished_by_the_output() -> None:
    tokenizer = bundled_tokenizer()
    ids = [next(i for i in byte_ids() if tokenizer.token_bytes(i) == bytes([byte])) for byte in "😀".encode()]
    for split in range(1, 4):
        detokenizer = IncrementalDetokenizer(tokenizer, prompt_token_ids=[0, *ids[:split]])
        assert stream(detokenizer, [[token_id] for token_id in ids[split:]]) == "😀"
    whole = IncrementalDetokenizer(tokenizer, prompt_token_ids=ids)
    assert stream(whole, [ids]) == "😀"


@pytest.mark.parametrize(
    ("prompt", "expected"), [("", "the ab"), (None, "the ab"), ("ab", " the ab"), ("</s>ab", " the ab")]
)
def test_a_leading_space_is_text_only_after_a_prompt(prompt: str | None, expected: str) -> None:
    """SentencePiece begins each text with a space of its own, but an output continues the prompt's text."""
    tokenizer = spm_tokenizer()
    prompt_ids = [] if prompt is None else tokenizer.encode(prompt)
    ids = tokenizer.encode("the ab", add_special_tokens=False)
    assert stream(IncrementalDetokenizer(tokenizer, prompt_token_ids=prompt_ids), [ids]) == expected


def test_special_tokens_are_left_out_or_kept() -> None:
    tokenizer = small_tokenizer()
    ids = [0, 13, 14, 1]
    texts = [stream(IncrementalDetokenizer(tokenizer, skip_special_tokens=skip), [ids]) for skip in (True, False)]
    assert texts == ["a<think>b", "a<|im_end|><think>b"]


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        IncrementalDetokenizer(small_tokenizer(), stop=["a", ""])
    assert caught.value.param == "stop"
