"""The requests that every peer gets: token ids and output lengths, the same for all, greedy, past any end of sequence.

Standard library only: it runs in each peer's own environment.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

NUM_REQUESTS = 64
PROMPT_TOKENS = 9088
OUTPUT_TOKENS = 4597
_SINGLE_PROMPT_TOKENS = 32
_SINGLE_OUTPUT_TOKENS = 256
_FIRST_ORDINARY_ID = 100
"""Below are the special tokens of common vocabularies."""


@dataclass(frozen=True)
class PeerRequest:
    """One request; arrival_s is 0 for all when throughput is measured."""

    prompt: list[int]
    num_output_tokens: int
    arrival_s: float = 0.0


def mixed(
    vocab_size: int, seed: int = 0, *, num_requests: int = NUM_REQUESTS, rate: float | None = None
) -> list[PeerRequest]:
    """Mixed lengths whose sums are in proportion to the 64 requests of 9,088 and 4,597 tokens.

    Args:
        rate: mean requests a second of Poisson arrivals; None is all at once.
    """
    rng = random.Random(seed)
    share = num_requests / NUM_REQUESTS
    prompts = _lengths(rng, num_requests, round(PROMPT_TOKENS * share))
    outputs = _lengths(rng, num_requests, round(OUTPUT_TOKENS * share))
    requests, now = [], 0.0
    for num_prompt, num_output in zip(prompts, outputs, strict=True):
        if rate is not None:
            now += rng.expovariate(rate)
        ids = [rng.randrange(_FIRST_ORDINARY_ID, vocab_size) for _ in range(num_prompt)]
        requests.append(PeerRequest(ids, num_output, now))
    return requests


def single(vocab_size: int, seed: int = 0) -> list[PeerRequest]:
    """One request alone, with a short prompt and a long answer: how fast a single user reads."""
    rng = random.Random(seed)
    ids = [rng.randrange(_FIRST_ORDINARY_ID, vocab_size) for _ in range(_SINGLE_PROMPT_TOKENS)]
    return [PeerRequest(ids, _SINGLE_OUTPUT_TOKENS)]


def _lengths(rng: random.Random, count: int, total: int) -> list[int]:
    """Log-normal lengths of at least 4 that add up to the total."""
    weights = [rng.lognormvariate(0.0, 0.7) for _ in range(count)]
    lengths = [max(4, round(total * weight / sum(weights))) for weight in weights]
    while sum(lengths) != total:
        index = rng.randrange(count)
        step = 1 if sum(lengths) < total else -1
        lengths[index] = max(4, lengths[index] + step)
    return lengths


def save(path: Path, requests: Sequence[PeerRequest]) -> None:
    """Write requests for a peer's process."""
    path.write_text(json.dumps([asdict(request) for request in requests]))


def read(path: Path) -> list[PeerRequest]:
    """Read what `save` wrote."""
    return [PeerRequest(**item) for item in json.loads(path.read_text())]
