"""Token ids for requests that have only a length: drawn from a seed, equal where block keys are equal."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from headway.workload.trace import TraceRequest


def draw_prompt(request: TraceRequest, index: int, vocabulary: Sequence[int], seed: int) -> list[int]:
    """Token ids of a prompt.

    The stretch under a block key is drawn from the key, so that equal keys give equal ids, and the rest from
    the request's place in the workload. Equal arguments give equal ids, on any machine.

    Args:
        index: place of the request in its workload.
        vocabulary: ids to draw from; special ids left out by the caller.
    """
    ids: list[int] = []
    for key in request.block_keys:
        count = min(request.block_key_tokens, request.num_prompt_tokens - len(ids))
        ids += Random(f"{seed}/key/{key!r}").choices(vocabulary, k=count)
    ids += Random(f"{seed}/request/{index}").choices(vocabulary, k=request.num_prompt_tokens - len(ids))
    return ids
