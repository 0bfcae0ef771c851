"""Batching policies: four ways to run the one scheduling loop.

A policy changes limits before the loop starts and answers three questions inside it: how many requests may run now,
how many tokens each reserves at admission, and which padding rows a step carries. The loop names no policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.config import CacheConfig, SchedulerConfig
from headway.core.plan import ScheduledRequest
from headway.errors import ConfigError


class ChunkedPolicy:
    """Continuous batching with chunked prefill: what vLLM V1 does. Also the base of the other policies."""

    name = "chunked"

    def limits(self, config: SchedulerConfig) -> SchedulerConfig:
        """The limits that this policy schedules under, given the configured ones."""
        return config

    def cache(self, config: CacheConfig) -> CacheConfig:
        """The pool settings that this policy uses, given the configured ones."""
        return config

    def admit(self, num_running: int, max_num_seqs: int) -> int:
        """How many requests may be running after this step's admissions; `num_running` are before them."""
        return max_num_seqs

    def reserve(self, max_model_len: int) -> int:
        """Tokens for which a request takes KV slots at admission; 0 takes them as it grows."""
        return 0

    def padding(self, scheduled: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
        """The step's requests with the padding rows that the policy adds."""
        return scheduled

    def decode_padding(self, num_decodes: int) -> int:
        """Padding rows that `padding` would add to a step of so many one-token decodes and nothing else."""
        return 0


class ContinuousPolicy(ChunkedPolicy):
    """Continuous batching with whole prompts: a prompt joins in one piece, however long everybody then waits."""

    name = "continuous"

    def limits(self, config: SchedulerConfig) -> SchedulerConfig:
        """Chunking off; the budget must then hold the longest prompt."""
        return replace(
            config,
            enable_chunked_prefill=False,
            long_prefill_token_threshold=0,
            max_num_batched_tokens=max(config.max_num_batched_tokens, config.max_model_len),
        )


class StaticPolicy(ChunkedPolicy):
    """Static batching: up to max_num_seqs start together and nobody joins until all have finished.

    Each reserves the longest sequence, prompts are padded to the longest of the batch, and a finished row still costs
    one token a step until the batch drains.
    """

    name = "static"

    def __init__(self) -> None:
        self._batch_size = 0

    def limits(self, config: SchedulerConfig) -> SchedulerConfig:
        """Chunking off and no token budget."""
        return replace(
            config,
            enable_chunked_prefill=False,
            long_prefill_token_threshold=0,
            max_num_batched_tokens=config.max_num_seqs * config.max_model_len,
        )

    def cache(self, config: CacheConfig) -> CacheConfig:
        """Without prefix caching: each row of the batch holds its own copy."""
        return replace(config, enable_prefix_caching=False)

    def admit(self, num_running: int, max_num_seqs: int) -> int:
        """Everybody or nobody."""
        return 0 if num_running else max_num_seqs

    def reserve(self, max_model_len: int) -> int:
        """The longest sequence there may be."""
        return max_model_len

    def padding(self, scheduled: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
        """Pad prompts to the longest; in later steps finished rows ride along, one token each."""
        if not scheduled:
            return scheduled
        if scheduled[0].num_computed_tokens == 0:
            self._batch_size = len(scheduled)
            longest = max(item.num_tokens for item in scheduled)
            return [item._replace(num_padding_tokens=longest - item.num_tokens) for item in scheduled]
        num_finished = self.decode_padding(len(scheduled))
        if not num_finished:
            return scheduled
        return [scheduled[0]._replace(num_padding_tokens=num_finished), *scheduled[1:]]

    def decode_padding(self, num_decodes: int) -> int:
        """A row for each of the batch that has finished."""
        return self._batch_size - num_decodes


class NaivePolicy(StaticPolicy):
    """One request at a time, from prompt to last token, in a reservation of the longest sequence."""

    name = "naive"

    def admit(self, num_running: int, max_num_seqs: int) -> int:
        """One, once the one before it has finished."""
        return 1

    def padding(self, scheduled: Sequence[ScheduledRequest]) -> Sequence[ScheduledRequest]:
        """None: there is nobody to be as long as."""
        return scheduled

    def decode_padding(self, num_decodes: int) -> int:
        """None."""
        return 0


_POLICIES = {policy.name: policy for policy in (NaivePolicy, StaticPolicy, ContinuousPolicy, ChunkedPolicy)}


def make_policy(name: str) -> ChunkedPolicy:
    """The policy of that name.

    Raises:
        ConfigError: no such policy.
    """
    if name not in _POLICIES:
        raise ConfigError(f"There is no batching policy {name!r}.", hint=f"Known: {', '.join(_POLICIES)}.")
    return _POLICIES[name]()
