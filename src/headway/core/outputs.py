"""What a step's emission does to its request: rejected drafts roll back, tokens are appended, stops are found."""

from __future__ import annotations

from headway.core.plan import Emission
from headway.core.request import FinishReason, Request


def reject_drafts(request: Request, num_rejected: int) -> None:
    """Take back what was counted for drafts that were not accepted."""
    if request.num_computed_tokens > 0:
        request.num_computed_tokens -= num_rejected
    if request.num_output_placeholders > 0:
        request.num_output_placeholders -= num_rejected


def append_tokens(request: Request, emission: Emission) -> tuple[int, FinishReason | None]:
    """Append tokens up to the first that ends the request. Order as vLLM: end of sequence, stop ids, length.

    Returns:
        How many were appended, and why the request ends, if it does.
    """
    token_ids, limit = emission.token_ids, request.max_total_tokens
    if token_ids is None:
        num_tokens = min(emission.num_tokens, limit - request.num_tokens)
        request.num_tokens += num_tokens
        request.content.extend(num_tokens, None)
        if emission.stop and num_tokens == emission.num_tokens:
            return num_tokens, FinishReason.STOP
        return num_tokens, FinishReason.LENGTH if request.num_tokens >= limit else None
    stop_ids = request.stop_ids
    for count, token_id in enumerate(token_ids, start=1):
        request.num_tokens += 1
        if token_id in stop_ids:
            request.content.extend(count, token_ids[:count])
            request.stop_reason = None if token_id in request.eos_token_ids else token_id
            return count, FinishReason.STOP
        if request.num_tokens >= limit:
            request.content.extend(count, token_ids[:count])
            return count, FinishReason.LENGTH
    request.content.extend(len(token_ids), token_ids)
    return len(token_ids), None
