"""One request as the scheduler sees it: counters, a lifecycle, and the identity of its KV blocks.

The core never needs text, and needs token ids only to look for stops: `content` says which blocks hold the same
tokens (`block_key`), and keeps ids where a real model produces them.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Protocol

from headway.core.sampling import SamplingParams

if TYPE_CHECKING:
    from headway.core.blocks import Block


class RequestStatus(enum.Enum):
    """Where a request is in its life: WAITING → RUNNING ⇄ PREEMPTED → FINISHED."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    """Why a request ended, in vLLM's words (`finished_reason` label of `vllm:request_success_total`)."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class Content(Protocol):
    """Identity of a request's tokens, block by block."""

    def block_key(self, index: int) -> Hashable:
        """Key of full block `index`: equal keys mean equal tokens in that block and in all before it."""

    def extend(self, num_tokens: int, token_ids: Sequence[int] | None) -> None:
        """Append tokens that were generated; `token_ids` is None where no real model runs."""


class TokenContent:
    """Real token ids, with a chained hash over full blocks.

    key[i] = H(key[i-1], ids of block i), and `salt` enters block 0 alone, hence every key (as vLLM chains its hashes,
    `docs/scheduler-vs-vllm.md`). Keys are computed on demand, at most once.
    """

    __slots__ = ("_block_size", "_keys", "_salt", "token_ids")

    def __init__(self, token_ids: Sequence[int], block_size: int, salt: str | None = None) -> None:
        self.token_ids = list(token_ids)
        self._block_size = block_size
        self._salt = salt
        self._keys: list[bytes] = []

    def block_key(self, index: int) -> bytes:
        """See `Content.block_key`; 16 bytes. Block `index` must be full."""
        keys, size = self._keys, self._block_size
        while len(keys) <= index:
            i = len(keys)
            digest = blake2b(keys[-1] if keys else (self._salt or "").encode("utf-8", "surrogatepass"), digest_size=16)
            digest.update(array("q", self.token_ids[i * size : (i + 1) * size]).tobytes())
            keys.append(digest.digest())
        return keys[index]

    def extend(self, num_tokens: int, token_ids: Sequence[int] | None) -> None:
        """See `Content.extend`; ids are required."""
        assert token_ids is not None, "a request with real tokens needs real outputs"
        self.token_ids.extend(token_ids)


class SyntheticContent:
    """Block identities without tokens, for simulation: given keys for shared blocks, private ones after them.

    Private keys are those of this object: a later request may have the same id.
    """

    __slots__ = ("_keys", "_request_id")

    def __init__(self, request_id: str, keys: Sequence[Hashable] = ()) -> None:
        self._request_id = request_id
        self._keys = keys

    def block_key(self, index: int) -> Hashable:
        """See `Content.block_key`."""
        return self._keys[index] if index < len(self._keys) else (self, index)

    def extend(self, num_tokens: int, token_ids: Sequence[int] | None) -> None:
        """See `Content.extend`; nothing to keep."""

    def __repr__(self) -> str:
        return f"SyntheticContent({self._request_id!r})"


class Request:
    """A request and its progress. Mutable; written by the scheduler and the KV-cache manager alone.

    Args:
        request_id: unique among live requests.
        content: identity of the tokens (see `TokenContent`, `SyntheticContent`).
        num_prompt_tokens: length of the prompt, at least 1.
        sampling: how tokens are chosen and what stops the request.
        max_model_len: longest sequence (prompt + output) that may exist.
        eos_token_ids: the model's own end-of-sequence ids; they stop the request unless `sampling.ignore_eos`.
        arrived_at: instant of arrival in seconds on the engine's clock.
        priority: lower runs first under the priority policy.
    """

    __slots__ = (
        "arrived_at",
        "block_table",
        "content",
        "draft_token_ids",
        "eos_token_ids",
        "finish_reason",
        "finished_at",
        "first_scheduled_at",
        "first_token_at",
        "is_prefill_chunk",
        "last_token_at",
        "max_total_tokens",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_draft_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "num_stale_tokens",
        "num_tokens",
        "priority",
        "request_id",
        "sampling",
        "status",
        "stop_ids",
        "stop_reason",
    )

    def __init__(
        self,
        request_id: str,
        content: Content,
        num_prompt_tokens: int,
        sampling: SamplingParams,
        max_model_len: int,
        *,
        eos_token_ids: frozenset[int] = frozenset(),
        arrived_at: float = 0.0,
        priority: int = 0,
    ) -> None:
        self.request_id = request_id
        self.content = content
        self.sampling = sampling
        self.priority = priority
        self.arrived_at = arrived_at
        self.eos_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self.stop_ids = sampling.stop_token_ids | self.eos_token_ids
        limit = max_model_len if sampling.max_tokens is None else num_prompt_tokens + sampling.max_tokens
        self.max_total_tokens = min(limit, max_model_len)
        """Length (prompt + output) at which the request ends whatever was sampled."""

        self.num_prompt_tokens = num_prompt_tokens
        self.num_tokens = num_prompt_tokens
        """Tokens known so far: prompt + outputs received."""
        self.num_computed_tokens = 0
        """Tokens whose KV is computed, or will be by the steps in flight."""
        self.num_output_placeholders = 0
        """Asynchronous scheduling: outputs (and drafts) that steps in flight will bring."""
        self.num_in_flight_tokens = 0
        """Tokens scheduled in steps whose result has not been processed."""
        self.num_draft_tokens = 0
        """Speculative tokens to verify in the next step."""
        self.draft_token_ids: Sequence[int] | None = None
        self.num_stale_tokens = 0
        """The part of num_in_flight_tokens scheduled before the last preemption; its outputs are still delivered."""
        self.is_prefill_chunk = False
        """Whether the last scheduled range ended before the last known token, so that nothing was sampled."""
        self.num_cached_tokens = 0
        """Prefix-cache hit at the first admission."""
        self.num_preemptions = 0

        self.block_table: list[Block] = []
        """Owned by the KVCacheManager: block i holds tokens [i * block_size, (i + 1) * block_size)."""
        self.num_registered_blocks = 0
        """Leading blocks of the table that the prefix cache knows by key."""

        self.status = RequestStatus.WAITING
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None
        """The stop id or stop string that ended the request, if one did."""
        self.first_scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.finished_at: float | None = None

    @property
    def num_output_tokens(self) -> int:
        """Output tokens received so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended, for whatever reason."""
        return self.status is RequestStatus.FINISHED

    @property
    def block_ids(self) -> list[int]:
        """Ids of the blocks in the table, in token order."""
        return [block.block_id for block in self.block_table]

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, "
            f"computed {self.num_computed_tokens} of {self.num_tokens}, {len(self.block_table)} blocks)"
        )
