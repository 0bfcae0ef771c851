"""Words that tables and messages share; nothing heavy is imported."""

from __future__ import annotations

LATENCIES_IN_WORDS = (
    "TTFT: time to first token; TPOT: time per output token after it; ITL: gap between two tokens; "
    "E2EL: from arrival to the last token."
)
"""What the latencies of a table are; vLLM's own names for them."""


def counted(count: int, noun: str) -> str:
    """A number and what it counts: "1 request", "2,000 requests"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
