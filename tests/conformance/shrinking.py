"""Making a workload that shows a failure as small as it can be."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.conformance.workloads import Workload

_LIMITS = frozenset({"num_blocks", "max_num_batched_tokens", "max_num_seqs", "max_model_len"})
"""Of a small server; their defaults are those of a large one, and would only make the log longer."""


def shrink(workload: Workload, still_fails: Callable[[Workload], bool], max_trials: int = 1000) -> Workload:
    """A smaller workload that still fails: fewer requests, fewer settings, shorter prompts and outputs.

    Args:
        still_fails: whether a candidate shows the same failure; called at most `max_trials` times.
    """
    return _Shrinker(workload, still_fails, max_trials).run()


class _Shrinker:
    def __init__(self, workload: Workload, still_fails: Callable[[Workload], bool], max_trials: int) -> None:
        self.config = dict(workload["config"])
        self.rows: list[dict[str, Any]] = copy.deepcopy(workload["requests"])
        self.still_fails = still_fails
        self.trials_left = max_trials

    def run(self) -> Workload:
        """Simplify in every way until none helps any more."""
        before: Workload = {}
        while before != self._workload() and self.trials_left:
            before = self._workload()
            self._drop_requests()
            self._drop_settings()
            for i in range(len(self.rows)):
                self._simplify(i)
        return self._workload()

    def _workload(self) -> Workload:
        return {"config": dict(self.config), "requests": list(self.rows)}

    def _try(self, config: dict[str, Any], rows: list[dict[str, Any]]) -> bool:
        """Keep a candidate if it still fails."""
        if not self.trials_left:
            return False
        self.trials_left -= 1
        if not self.still_fails({"config": config, "requests": rows}):
            return False
        self.config, self.rows = config, rows
        return True

    def _drop_requests(self) -> None:
        """Leave out runs of requests, long runs first."""
        size = len(self.rows) // 2
        while size:
            start = 0
            while start < len(self.rows):
                kept = self.rows[:start] + self.rows[start + size :]
                if not kept or not self._try(self.config, kept):
                    start += size
            size //= 2

    def _drop_settings(self) -> None:
        for name in sorted(set(self.config) - _LIMITS):
            self._try({key: value for key, value in self.config.items() if key != name}, self.rows)

    def _simplify(self, i: int) -> None:
        """Simplify one request as long as that helps."""
        while any(
            self._try(self.config, [*self.rows[:i], row, *self.rows[i + 1 :]]) for row in _simpler_rows(self.rows[i])
        ):
            pass


def _simpler_rows(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("abort_step", "cache_salt", "output_token_ids", "arrival_time", "priority"):
        if name in row:
            yield {k: v for k, v in row.items() if k != name}
    length, most, step = len(row["prompt_token_ids"]), row["max_tokens"], row["arrival_step"]
    for fewer in sorted({1, length // 2, length - 1}):
        if 0 < fewer < length:
            yield row | {"prompt_token_ids": row["prompt_token_ids"][:fewer]}
    for fewer in sorted({1, most // 2, most - 1}):
        if 0 < fewer < most:
            yield row | {"max_tokens": fewer}
    for earlier in sorted({0, step // 2, step - 1}):
        if 0 <= earlier < step:
            shift = {"abort_step": max(earlier, row["abort_step"] - step + earlier)} if "abort_step" in row else {}
            yield row | {"arrival_step": earlier} | shift
