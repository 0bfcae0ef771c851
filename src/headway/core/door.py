"""The engine's door: which requests may queue at all. vLLM lets everybody in, and some wait for ever."""

from __future__ import annotations

from headway.config import SchedulerConfig
from headway.core.kv_cache import KVCacheManager
from headway.core.policies import ChunkedPolicy
from headway.core.request import Request
from headway.errors import ContextLengthError, RequestError


class Door:
    """Judges requests by limits that never change, so that it may be asked from any thread."""

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, policy: ChunkedPolicy) -> None:
        self._kv = kv
        self._max_model_len = config.max_model_len
        self._num_usable_blocks = kv.pool.num_usable_blocks
        self._num_reserved_blocks = kv.blocks_for(policy.reserve(config.max_model_len))
        self._num_slots_ahead = config.num_lookahead_tokens + config.num_speculative_tokens
        """Slots that a step may take past the last known token, for drafts and for a drafter's look-ahead."""

    @property
    def longest_sequence(self) -> int:
        """Tokens (prompt + output) that one request alone can reach: max_model_len, or less if the KV cache is smaller.

        A sequence that outgrew the whole cache would preempt itself and then wait for ever.
        """
        limit, usable = self._max_model_len, self._num_usable_blocks
        if self._kv.peak_blocks(limit) <= usable:
            return limit
        return min(limit, usable * self._kv.block_size - self._num_slots_ahead)

    def check(self, request: Request) -> None:
        """Refuse a request that could never run, instead of letting it wait for ever.

        Raises:
            ContextLengthError: the prompt leaves no room to generate, or the KV cache can never hold the sequence.
            RequestError: an empty prompt.
        """
        limit = self._max_model_len
        if request.num_prompt_tokens < 1:
            raise RequestError("The prompt is empty: it has no tokens.", param="prompt")
        if request.num_prompt_tokens >= limit:
            raise ContextLengthError(
                f"This model's maximum context length is {limit} tokens, but the prompt has "
                f"{request.num_prompt_tokens} and at least one more is to be generated.",
                hint="Shorten the prompt.",
                param="messages",
            )
        num_slots = min(request.num_prompt_tokens + 1 + self._num_slots_ahead, limit)
        num_blocks = max(self._num_reserved_blocks, self._kv.peak_blocks(num_slots))
        if num_blocks > self._num_usable_blocks:
            raise ContextLengthError(
                f"The request needs {num_blocks} KV blocks of {self._kv.block_size} tokens for its prompt of "
                f"{request.num_prompt_tokens} tokens, but the KV cache has {self._num_usable_blocks}.",
                hint="Shorten the prompt or give the KV cache more memory.",
                param="messages",
            )
