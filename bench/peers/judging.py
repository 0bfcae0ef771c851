"""What a peer thinks of given texts: the likeliest tokens at each place of a continuation. Standard library only.

An item is a prompt and what follows it. For each token of that a judge reports the tokens that it held for the
likeliest there, having read what comes before.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

TOP = 100
"""Tokens reported for each place."""


class Item(NamedTuple):
    """Token ids."""

    prompt: list[int]
    continuation: list[int]


class Place(NamedTuple):
    """The likeliest tokens at one place, best first, and their logprobs.

    Args:
        own: logprob of the token that stands there; None if the peer does not tell.
    """

    ids: Sequence[int]
    logprobs: Sequence[float]
    own: float | None


def parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the arguments that every judge takes."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--items", type=Path, required=True)
    made.add_argument("--out", type=Path, required=True)
    made.add_argument("--model", required=True, help="a GGUF file, or for some peers a Hugging Face folder")
    made.add_argument("--format", required=True, help="number format of the weights, as the peer calls it")
    made.add_argument("--threads", type=int, required=True)
    return made


def save_items(path: Path, items: Iterable[Item]) -> None:
    """Write items for a judge."""
    path.write_text(json.dumps(list(items)))


def read_items(path: Path) -> list[Item]:
    """Read what `save_items` wrote."""
    return [Item(*item) for item in json.loads(path.read_text())]


def save_places(path: Path, places: Iterable[Sequence[Place]]) -> None:
    """Write a judge's opinion: for each item, for each token of its continuation."""
    path.write_text(json.dumps(list(places)))


def read_places(path: Path) -> list[list[Place]]:
    """Read what `save_places` wrote."""
    return [[Place(*place) for place in item] for item in json.loads(path.read_text())]
