"""A load that a client offered, and what the client measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoadResult:
    """One run of a benchmark, or figures that somebody states.

    With a `concurrency` the load is a closed loop, paced if there is a rate too; without, requests come at
    `requests_per_s`, or all at once. `lengths` holds (prompt, output) tokens by request where they are told one by one.
    `measured` has the keys of `headway bench --json`: `mean_ttft_ms`, `p99_itl_ms`, `output_throughput`, …

    Args:
        settings: vLLM settings that this run differs in from others beside it, such as `enforce_eager`.
    """

    source: str
    concurrency: int | None = None
    requests_per_s: float | None = None
    mean_prompt_tokens: float | None = None
    mean_output_tokens: float | None = None
    num_requests: int | None = None
    lengths: tuple[tuple[int, int], ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
