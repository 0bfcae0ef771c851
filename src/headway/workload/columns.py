"""Which column of a trace means what: the spellings of public traces, and the values they may hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from datetime import datetime

from headway.errors import WorkloadError

ARRIVAL_SECONDS = ("arrival_s", "arrival", "arrived_at", "arrival_time", "time", "timestamp", "start_time")
ARRIVAL_MILLISECONDS = ("arrival_ms", "timestamp_ms", "arrival_time_ms")
PROMPT_TOKENS = (
    "num_prompt_tokens",
    "prompt_tokens",
    "input_tokens",
    "context_tokens",
    "contexttokens",
    "request_tokens",
    "input_length",
    "num_prefill_tokens",
    "prompt_len",
)
OUTPUT_TOKENS = (
    "num_output_tokens",
    "output_tokens",
    "generated_tokens",
    "generatedtokens",
    "response_tokens",
    "output_length",
    "num_decode_tokens",
    "output_len",
)
REQUEST_ID = ("request_id", "id")
BLOCK_KEYS = ("block_keys", "hash_ids", "prefix_block16_hashes")
BLOCK_KEY_TOKENS = ("block_key_tokens",)

_MOST_LISTED = 6
_MOONCAKE_BLOCK_TOKENS = 512
_KEY_TOKENS = {"hash_ids": _MOONCAKE_BLOCK_TOKENS, "prefix_block16_hashes": 16}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of one file, under the names that the file uses."""

    arrival: str
    prompt_tokens: str
    output_tokens: str
    arrival_units_per_s: float
    """1 for seconds, 1000 for milliseconds."""
    request_id: str | None
    block_keys: str | None
    block_key_tokens: str | None
    fixed_key_tokens: int
    """Tokens that a key covers where the file's format fixes it; 0 if the file says so in a column, or has no
    keys.
    """


def find_columns(names: Collection[str], fail: Callable[[str, str | None], WorkloadError]) -> Columns:
    """Find the columns among the names of a header (or of a first JSON object).

    Mooncake's `timestamp` is in milliseconds and goes with `input_length`; every other `timestamp` is in
    seconds, or a date.

    Args:
        fail: makes the error from a message and a hint.

    Raises:
        WorkloadError: a column that every trace must have is missing.
    """
    by_spelling = {_normal(name): name for name in names}

    def find(*spellings: str) -> str | None:
        return next((by_spelling[spelling] for spelling in spellings if spelling in by_spelling), None)

    def require(what: str, spellings: tuple[str, ...]) -> str:
        name = find(*spellings)
        if name is None:
            raise fail(
                f"no column for {what}; the file has {_listed([repr(name) for name in names])}.",
                f"Call it {spellings[0]!r} (also known: {_listed(spellings[1:])}).",
            )
        return name

    prompt_tokens = require("the prompt's tokens", PROMPT_TOKENS)
    output_tokens = require("the output's tokens", OUTPUT_TOKENS)
    arrival_ms = find(*ARRIVAL_MILLISECONDS)
    arrival = arrival_ms or require("the arrival", ARRIVAL_SECONDS)
    is_mooncake = _normal(arrival) == "timestamp" and _normal(prompt_tokens) == "input_length"
    block_keys = find(*BLOCK_KEYS)
    return Columns(
        arrival=arrival,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        arrival_units_per_s=1000.0 if arrival_ms or is_mooncake else 1.0,
        request_id=find(*REQUEST_ID),
        block_keys=block_keys,
        block_key_tokens=find(*BLOCK_KEY_TOKENS),
        fixed_key_tokens=_KEY_TOKENS.get(_normal(block_keys), 0) if block_keys else 0,
    )


def _listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are: a file may have hundreds of columns."""
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "") if names else "none"


def _normal(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def parse_instant(value: object) -> float | datetime:
    """Read a number, or a date and time such as 2023-11-16 18:17:03.9799600.

    Raises:
        ValueError: neither; the message says why.
    """
    if isinstance(value, bool) or value is None or value == "":
        raise ValueError("is not a time")
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        if not isinstance(value, str):
            raise ValueError("is not a time") from None
        try:
            return datetime.fromisoformat(value.strip())
        except ValueError:
            raise ValueError("is not a time") from None
    if not math.isfinite(number):
        raise ValueError("is not a finite time")
    return number


def parse_count(value: object) -> int:
    """Read a count of tokens; 12 and 12.0 are counts, 12.5 is not. May return 0 or less: the caller decides.

    Raises:
        ValueError: not a whole number.
    """
    if isinstance(value, bool) or value is None or value == "":
        raise ValueError("is not a number of tokens")
    try:
        if isinstance(value, int):
            return value
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError("is not a number of tokens") from None
    if not math.isfinite(number) or number != int(number):
        raise ValueError("is not a whole number of tokens")
    return int(number)


def parse_keys(value: object) -> tuple[Hashable, ...]:
    """Read block keys: a JSON list of numbers or strings, or a text with spaces between them.

    Raises:
        ValueError: neither.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return tuple(value.split())
    if isinstance(value, list) and all(isinstance(key, int | str) for key in value):
        return tuple(value)
    raise ValueError("is not a list of block keys")
